"""Which parts of which records make the rows of a chunk (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upsert.arrays import Mask, Positions
from upsert.formats.base import Decoded
from upsert.rowkind import RowKind
from upsert.store.hashing import is_null, one_array


@dataclass(frozen=True)
class Parts:
    """What each row of a chunk is made of.

    Attributes:
        records: the raw records.
        keys: rows of the keys; None where the table has no key columns.
        values: rows of the values.
        record: of each row the place of its record.
        key_row: of each row the row of the key.
        value_row: of each row the row of the value; -1 for a tombstone.
    """

    records: pa.Table
    keys: Decoded | None
    values: Decoded
    record: Positions
    key_row: Positions | None
    value_row: Positions

    @property
    def is_tombstone(self) -> Mask:
        """Whether a row comes from a record without a value."""
        return self.value_row < 0

    def of_record(self, values: pa.Array) -> pa.Array:
        """Of each row the value of its record."""
        return _take(values, self.record)

    def of_key(self, place: int) -> pa.Array:
        """A column of the key's rows."""
        assert self.keys is not None
        assert self.key_row is not None
        return _take(one_array(self.keys.rows.column(place)), self.key_row)

    def of_value(self, column: int | pa.Array | None) -> pa.Array:
        """A column of the value's rows; NULL for tombstones."""
        found = one_array(self.values.rows.column(column)) if isinstance(column, int) else column
        if found is None:
            return pa.repeat(RowKind.INSERT.value, len(self.record))
        return _take(found, self.value_row)


def positions_of(decoded: Decoded) -> Positions:
    """Of each decoded row the place of its message."""
    return np.arange(decoded.rows.num_rows) if decoded.positions is None else decoded.positions


def with_tombstones(record: Positions, value_row: Positions, values: pa.Array) -> tuple[Positions, Positions]:
    """The rows of values, and one for each record without a value, in log order."""
    if not values.null_count:
        return record, value_row
    tombstones = np.flatnonzero(is_null(values))
    both = np.concatenate([record, tombstones])
    order = np.argsort(both, kind="stable")
    return both[order], np.concatenate([value_row, np.full(len(tombstones), -1)])[order]


def rows_of_records(positions: Positions, record: Positions) -> tuple[Positions, Positions]:
    """Of each record its first row among the keys' rows, and how many it has."""
    first = np.searchsorted(positions, record, side="left")
    return first, np.searchsorted(positions, record, side="right") - first


def _take(values: pa.Array, rows: Positions) -> pa.Array:
    """The values of these rows, NULL for a negative one."""
    if len(rows) == len(values) and (rows == np.arange(len(rows))).all():
        return values
    is_missing = rows < 0
    return values.take(pa.array(rows, mask=is_missing if is_missing.any() else None))
