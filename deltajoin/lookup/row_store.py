"""The rows of a cache: columns that grow at their end, of which any rows can be taken at once (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.store.hashing import one_array

Ints = npt.NDArray[np.int64]

_MAX_PIECES = 64
_SIZE_BYTES = 8
"""What it takes to know a row's size."""


class RowStore:
    """Rows by number, from 0 in the order in which they came.

    Attributes:
        bytes: what the rows take in memory, about.

    >>> store = RowStore(pa.schema({"name": pa.string()}))
    >>> store.add(pa.table({"name": ["ann", "bob"]})), store.add(pa.table({"name": ["cy"]}))
    (0, 2)
    >>> store.take([2, 0])["name"].to_pylist()
    ['cy', 'ann']
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._rows = schema.empty_table()
        self._sizes: list[int] = []
        self.bytes = 0

    def add(self, rows: pa.Table) -> int:
        """Keep some rows; the number of the first one."""
        first = len(self._sizes)
        sizes = bytes_of_rows(rows) + _SIZE_BYTES
        self._sizes += sizes.tolist()
        self.bytes += int(sizes.sum())
        # A copy: the rows may be a few of a big reply, which would stay in memory as a whole.
        self._rows = pa.concat_tables([self._rows, rows.take(pa.array(np.arange(rows.num_rows)))])
        if self._rows.num_columns and self._rows.column(0).num_chunks > _MAX_PIECES:
            self._rows = self._rows.combine_chunks()
        return first

    def take(self, numbers: Sequence[int]) -> pa.Table:
        """The rows with these numbers, in this order."""
        return self._rows.take(pa.array(numbers, pa.int64()))

    def size(self, number: int) -> int:
        """What one row takes in memory, about."""
        return self._sizes[number]

    def keep(self, numbers: Sequence[int]) -> None:
        """Forget all rows but these, which get the numbers from 0 on."""
        kept = self.take(numbers)
        self._rows, self._sizes, self.bytes = kept.schema.empty_table(), [], 0
        self.add(kept)


def bytes_of_rows(rows: pa.Table) -> Ints:
    """What each row takes in memory, about: lengths of texts, widths of numbers; the mean of nested values.

    >>> bytes_of_rows(pa.table({"n": [1, 2], "s": ["a", None]})).tolist()
    [13, 12]
    """
    total = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        total += _bytes_of_values(one_array(column))
    return total


def _bytes_of_values(column: pa.Array) -> Ints | int:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        lengths: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        return lengths + 4
    if pa.types.is_nested(type_):
        return -(-int(column.nbytes) // max(len(column), 1))
    return max(1, int(type_.bit_width) // 8)
