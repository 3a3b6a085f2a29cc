"""What the changes of both sides and the rows that they found emit (pure).

Each side's changes meet all that is known of the other side: its rows as looked up, with the batch's own
changes on top. A pair whose two rows both changed is emitted once, by the left one. Rows of the left side
become pairs of its kind; a delete becomes a delete of every pair by key. A row that is kept without a match
comes out padded with NULLs; where its pair has another key, the padded row is deleted when a match comes,
whether or not it was there: a delete by key of nothing does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from deltajoin.conditions import mask
from deltajoin.expressions import Ref
from deltajoin.latest.drivers import Drivers, Mask, codes_of
from deltajoin.latest.keys import has_value, join_keys
from deltajoin.latest.spec import LatestJoin
from deltajoin.pairs import equal_pairs
from deltajoin.row_codes import Ints
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store.hashing import one_array

PAIRS_AT_A_TIME: Final = 100_000
"""Rows of one piece of the output."""
_NONE: Final = -1


class Emission:
    """One emission: what to join, prepared.

    Args:
        join: the join.
        drivers: changes of the left and of the right side.
        known: all rows of the left side under the join keys that the right side's changes have, and of the
            right side under those of the left's; the batch's own changes are among them.
    """

    def __init__(
        self, join: LatestJoin, drivers: tuple[Drivers, Drivers], known: tuple[pa.Table, pa.Table]
    ) -> None:
        self.join, self.drivers, self.known = join, drivers, known
        self._driver_keys, self._known_keys = _key_codes(join, drivers, known)
        self._matched = [np.zeros(len(own), np.bool_) for own in drivers]
        self._met = [np.zeros(rows.num_rows, np.bool_) for rows in known]

    def tables(self) -> Iterator[pa.Table]:
        """The rows that are emitted, in pieces: columns as ``join.output``; one row a key of the result."""
        for side in (0, 1):
            yield from self._pairs(side)
        for side in (0, 1):
            if self.join.keeps(side):
                yield self._padded(side)
                if self.join.pads_are_keys:
                    yield self._pads_replaced(side)

    def _pairs(self, side: int) -> Iterator[pa.Table]:
        other, own = 1 - side, self.drivers[side]
        asked = np.flatnonzero(self._driver_keys[side] >= 0)
        is_changed = self._changed_values(other) if side == 1 else None
        pieces = equal_pairs(self._driver_keys[side][asked], self._known_keys[other], at_most=PAIRS_AT_A_TIME)
        for piece in pieces:
            driver, found = asked[piece.left], piece.right
            is_value = own.is_value[driver]
            holds = self._holds(side, driver, found) | ~is_value
            driver, found, is_value = driver[holds], found[holds], is_value[holds]
            self._matched[side][driver] = True
            self._met[other][found[is_value]] = True
            if is_changed is not None:
                fresh = ~(is_value & is_changed[found])
                driver, found = driver[fresh], found[fresh]
            yield self._output(side, driver, found, _kinds(own, driver))

    def _changed_values(self, side: int) -> Mask:
        """Of the known rows of a side, those that are changes of this batch."""
        own, names = self.drivers[side], list(self.join.sides[side].upsert_key)
        values = own.rows.filter(pa.array(own.is_value)).select(names)
        codes = codes_of(pa.concat_tables([values, self.known[side].select(names)]), names)
        found: Mask = np.isin(codes[values.num_rows :], codes[: values.num_rows])
        return found

    def _padded(self, side: int) -> pa.Table:
        """Rows without a match, and deletes of such."""
        own = self.drivers[side]
        alone = ~self._matched[side]
        if self.join.pads_are_keys:
            alone = alone | ~own.is_value
        chosen = np.flatnonzero(alone)
        return self._output(side, chosen, np.full(len(chosen), _NONE), _kinds(own, chosen))

    def _pads_replaced(self, side: int) -> pa.Table:
        """Deletes of padded rows whose row has met a change of the other side."""
        chosen = np.flatnonzero(self._met[side])
        columns = self.known[side].take(pa.array(chosen)).columns
        nulls = [pa.nulls(len(chosen), column.type) for column in self.join.sides[1 - side].columns]
        both = [*columns, *nulls] if side == 0 else [*nulls, *columns]
        gone = pa.repeat(pa.scalar(RowKind.DELETE.value), len(chosen))
        return pa.Table.from_arrays([*both, gone], schema=self.join.output)

    def _output(self, side: int, driver: Ints, found: Ints, kinds: pa.Array) -> pa.Table:
        own = self.drivers[side].rows.drop_columns([ROW_KIND_COLUMN]).take(pa.array(driver)).columns
        met = self.known[1 - side].take(pa.array(found, mask=found == _NONE)).columns
        both = [*own, *met] if side == 0 else [*met, *own]
        return pa.Table.from_arrays([*both, kinds], schema=self.join.output)

    def _holds(self, side: int, driver: Ints, found: Ints) -> Mask:
        """Which pairs meet the rest of the join's condition."""
        if self.join.where is None:
            return np.ones(len(driver), np.bool_)

        def column(ref: Ref) -> pa.Array:
            of, at = (
                (self.drivers[side].rows, driver) if ref.table == side else (self.known[ref.table], found)
            )
            return one_array(of.column(ref.column)).take(pa.array(at))

        return mask(self.join.where, column, len(driver))


def _kinds(own: Drivers, which: Ints) -> pa.Array:
    return one_array(own.rows.column(ROW_KIND_COLUMN)).take(pa.array(which))


def _key_codes(
    join: LatestJoin, drivers: tuple[Drivers, Drivers], known: tuple[pa.Table, pa.Table]
) -> tuple[list[Ints], list[Ints]]:
    """Numbers of join keys, equal on both sides where the keys are; -1 for a key with a NULL."""
    tables = [rows for side in (0, 1) for rows in (drivers[side].rows, known[side])]
    keys = pa.concat_tables([join_keys(join, n // 2, rows) for n, rows in enumerate(tables)])
    codes = np.where(has_value(keys), codes_of(keys, keys.column_names), _NONE)
    pieces = np.split(codes, np.cumsum([table.num_rows for table in tables])[:-1])
    return [pieces[0], pieces[2]], [pieces[1], pieces[3]]
