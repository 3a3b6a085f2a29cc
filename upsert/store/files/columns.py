"""The columns of one open file, and a bounded cache of those that had to be decoded.

What is mapped is read where it lies, after a look at the offsets that are followed. Of a compressed file a
lookup decodes the parts that its rows lie in; the process keeps these, for the next micro-batch asks again,
up to ``MAX_DECODED_BYTES``. A scan takes what the cache has and adds nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache

from upsert.errors import CorruptTableError
from upsert.store.files.formats.base import Bounds, StoredRows
from upsert.store.files.formats.offsets import EVERY, Some, check_offsets, has_offsets
from upsert.store.kept import Kept

MAX_DECODED_BYTES: Final = 512 << 20
"""Decoded columns of compressed files that a process keeps."""

Rows = npt.NDArray[np.integer[Any]]

_WHOLE: Final = -1
"""Stands for all parts together."""


class FileColumns:
    """The columns of an open file.

    Attributes:
        path: where the file is, for messages.
        schema: schema of the rows, as written.
        rows: number of rows.
        is_mapped: whether what it gives are views of the file.
    """

    def __init__(self, path: str, stored: StoredRows) -> None:
        self.path = path
        self.schema = stored.schema
        self.rows = stored.rows
        self.is_mapped = stored.is_mapped
        self._stored = stored
        self._unchecked = {field.name for field in stored.schema if has_offsets(field.type)}

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of the first row of each part, and after these the number of rows."""
        return np.array(self._stored.starts, np.int64)

    def bounds(self, name: str) -> Bounds | None:
        """What the file says about the values of a column in each of its parts; None if it says nothing.

        Raises:
            CorruptTableError: the file is damaged.
        """
        try:
            return self._stored.bounds(name)
        except (OSError, ValueError, OverflowError, LookupError, pa.ArrowException) as cause:
            raise self._damaged(cause) from cause

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of all rows."""
        return self.slice(names, 0, self.rows)

    def slice(self, names: Sequence[str], start: int, stop: int) -> pa.RecordBatch:
        """Some columns of the rows from ``start`` to before ``stop``; no other part is decoded."""
        if self.is_mapped:
            touched = EVERY if stop - start == self.rows else slice(start, stop)
            return self._mapped(names, touched).slice(start, stop - start)
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, max(stop, start + 1)))
        parts = [self._part(number, names, keep=False) for number in range(max(0, first), last)]
        joined = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return joined.slice(start - int(self.starts[max(0, first)]), stop - start)

    def column(self, name: str) -> pa.Array:
        """One column of all rows, which is kept: something searches it again and again."""
        if self.is_mapped:
            return self._mapped([name], EVERY).column(0)
        if (found := _DECODED.get((self.path, _WHOLE, name))) is None:
            found = self.select([name]).column(0)
            _DECODED.put((self.path, _WHOLE, name), found)
        return found

    def take(self, names: Sequence[str], rows: Rows) -> pa.RecordBatch:
        """Some columns of some rows, given by their numbers."""
        if self.is_mapped:
            return self._mapped(names, rows).take(pa.array(rows))
        part_of = np.searchsorted(self.starts, rows, side="right") - 1
        touched = np.unique(part_of)
        taken, asked = [], []
        for number in touched.tolist():
            at = np.flatnonzero(part_of == number)
            part = self._part(number, names, keep=True)
            taken.append(part.take(pa.array(rows[at] - self.starts[number])))
            asked.append(at)
        if len(taken) == 1:
            return taken[0]
        if not taken:
            return self._part(0, names, keep=True).slice(0, 0)
        order = np.empty(len(rows), dtype=np.int64)
        order[np.concatenate(asked)] = np.arange(len(rows))
        return pa.concat_batches(taken).take(pa.array(order))

    def _mapped(self, names: Sequence[str], rows: Some) -> pa.RecordBatch:
        """Some columns of all rows, of which no others than these will be touched."""
        found = self._stored.read(0, names)
        if self._unchecked.isdisjoint(names):
            return found
        for name, column in zip(names, found.columns, strict=True):
            if name not in self._unchecked:
                continue
            try:
                check_offsets(column, rows)
            except ValueError as cause:
                raise self._damaged(cause) from cause
            if rows is EVERY or pa.types.is_nested(column.type):
                self._unchecked.discard(name)
        return found

    def _part(self, number: int, names: Sequence[str], *, keep: bool) -> pa.RecordBatch:
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        there: dict[str, pa.Array] = {}
        for name in names:
            if (whole := _DECODED.get((self.path, _WHOLE, name))) is not None:
                there[name] = whole.slice(start, stop - start)
            elif (found := _DECODED.get((self.path, number, name))) is not None:
                there[name] = found
        if missing := [name for name in dict.fromkeys(names) if name not in there]:
            decoded = self._decoded(number, missing, stop - start)
            for name, column in zip(missing, decoded.columns, strict=True):
                there[name] = column
                if keep:
                    _DECODED.put((self.path, number, name), column)
        if not names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), pa.struct([])))
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.RecordBatch.from_arrays([there[name] for name in names], schema=schema)

    def _decoded(self, number: int, names: Sequence[str], rows: int) -> pa.RecordBatch:
        try:
            found = self._stored.read(number, names)
        except (OSError, ValueError, LookupError, pa.ArrowException) as cause:
            raise self._damaged(cause) from cause
        if found.num_rows != rows:
            raise CorruptTableError(
                f"data file {self.path!r} must have {rows} rows in part {number}, got {found.num_rows}; "
                "restore the file from a copy"
            )
        return found

    def _damaged(self, cause: Exception) -> CorruptTableError:
        return CorruptTableError(
            f"data file {self.path!r} must be whole, got {cause}; restore the file from a copy"
        )


def _size(column: pa.Array) -> int:
    return max(1, int(column.nbytes))


_DECODED = Kept[tuple[str, int, str], pa.Array](LRUCache(MAX_DECODED_BYTES, _size), is_inherited=True)
"""Decoded columns by path, part and name; the least recently used ones go first."""


def forget_decoded() -> None:
    """Drop every decoded column that this process keeps."""
    _DECODED.clear()
