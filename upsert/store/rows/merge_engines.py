"""What new rows of a bucket become, given the table's rows of the same keys (pure).

Where a table has a sequence or a merge engine of its own, a commit stores for each key the row that the table
holds from then on, so no reader has to know. The stored row of a key is one of its rows, with the value of
all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions, is_null, one_array
from upsert.errors import ChangelogError, SchemaError
from upsert.store.rows.aggregate_functions import FUNCTIONS, Groups, ambiguous_key, at
from upsert.store.rows.conform import Signs
from upsert.store.rows.fold import Order, fold
from upsert.store.rows.hashing import fixed_bytes, row_hashes
from upsert.store.rows.keys import KeyOrder, in_sequence, last_of_each, order_by, sequence_codes
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, gather
from upsert.store.rows.merge_rules import DEDUPLICATE, FIRST_ROW, SequenceGroup


def _rows_of_group(group: SequenceGroup, rows: pa.Table, groups: Groups) -> Positions:
    """For each key the row that gives a sequence group's columns, -1 where none does.

    Of the table's own rows one stays where no other row says anything.
    """
    of, stored = groups.of, np.flatnonzero(groups.is_stored)
    found = np.full(groups.count, -1, dtype=np.int64)
    found[of[stored]] = stored
    known = _known(group, rows)
    if len(known):
        some = rows.select(list(group.sequence)).take(pa.array(known))
        order = in_sequence(some, group.sequence, of[known])
        last = last_of_each(of[known][order])
        found[of[known][order[last]]] = known[order[last]]
    return found


def _ambiguous_in_group(
    group: SequenceGroup, columns: Sequence[str], rows: pa.Table, groups: Groups, chosen: Positions
) -> int | None:
    """The number of a key whose rows, without an order and equal in sequence, differ in ``columns``."""
    of, is_new = groups.of, ~groups.is_stored
    new = _known(group, rows)
    new = new[is_new[new]]
    best = chosen[of[new]]
    # a stored row that won is older than new ones of another sequence, so these do not matter
    same = _words([rows.column(name) for name in group.sequence])
    equal = (same[new] == same[best]).all(axis=1) & is_new[best]
    values = _words([rows.column(name) for name in (*group.sequence, *columns)])
    differs = equal & (values[new] != values[best]).any(axis=1)
    return int(of[new][differs][0]) if differs.any() else None


def _known(group: SequenceGroup, rows: pa.Table) -> Positions:
    missing = np.logical_and.reduce([is_null(one_array(rows.column(name))) for name in group.sequence])
    return np.flatnonzero(~missing)


def _words(columns: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
    return fixed_bytes(row_hashes(columns, len(columns[0])))


class Stored(NamedTuple):
    """The table's newest rows of some keys: ``rows[i]`` of key ``keys[i]``, deleted where its kind is 1."""

    keys: Positions
    rows: pa.Table
    kinds: npt.NDArray[np.int8]

    def alive(self) -> Stored:
        """Those that are no deletions."""
        there = np.flatnonzero(self.kinds == 0)
        return Stored(self.keys[there], gather(self.rows, there), self.kinds[there])


FindStored = Callable[[pa.Table, tuple[str, ...]], Stored]
"""From distinct keys and the names of columns to the table's rows of these keys."""


def combine(
    layout: Layout, rows: pa.Table, weights: Signs | None, order: Order, find: FindStored
) -> SortedRows:
    """The rows to store for the new ones of a bucket, one per key, ascending by key; nothing for late rows.

    At least one row, and ``weights`` as ``rows.conform`` gives them; ``order`` says whether the order of the
    rows means anything where there is no sequence.

    Raises:
        ChangelogError: rows have no order and the result would depend on it, or a row is one that the engine
            cannot take back, or a sum is too large.
        SchemaError: a NOT NULL column would be NULL.
    """
    if layout.merge.engine == DEDUPLICATE:
        return _newest(layout, fold(layout, rows, weights, order, layout.merge.sequence), find)
    rows, weights = _without_deletions(layout, rows, weights)
    if not rows.num_rows:
        return SortedRows(rows, None)
    keys = order_by([rows.column(name) for name in layout.key])
    if layout.merge.engine == FIRST_ROW:
        return SortedRows(_first(layout, rows, keys, find), None)
    return SortedRows(_combined(layout, rows, weights, order, keys, find), None)


def _newest(layout: Layout, new: SortedRows, find: FindStored) -> SortedRows:
    """The new rows but those that come late: whose key has a row, or a deletion, of a higher sequence."""
    sequence = layout.merge.sequence
    stored = find(new.rows.select(list(layout.key)), sequence)
    if not len(stored.keys):
        return new
    names = list(sequence)
    both = pa.concat_tables([stored.rows.select(names), new.rows.select(names)])
    number = np.concatenate([stored.keys, np.arange(new.rows.num_rows)])
    ordered = in_sequence(both, sequence, number)
    winners = ordered[last_of_each(number[ordered])] - len(stored.keys)
    if (winners >= 0).all():
        return new
    kept = np.sort(winners[winners >= 0])
    return SortedRows(gather(new.rows, kept), None if new.kinds is None else new.kinds[kept])


def _without_deletions(
    layout: Layout, rows: pa.Table, weights: Signs | None
) -> tuple[pa.Table, Signs | None]:
    """The rows that the engine takes; an error if there are others, and the table does not ignore them."""
    if weights is None or (weights > 0).all():
        return rows, None
    if layout.merge.ignores_deletes:
        kept = np.flatnonzero(weights > 0)
        return gather(rows, kept), None
    others = [
        name
        for name in layout.schema.names
        if name not in layout.key and name not in layout.merge.orders
        if not FUNCTIONS[layout.merge.aggregate(name).function].takes_back
    ]
    if layout.merge.engine == FIRST_ROW or others:
        which = "" if layout.merge.engine == FIRST_ROW else f" of column {others[0]!r}"
        raise ChangelogError(
            f"merge engine {layout.merge.engine!r} must have rows of kind +I and +U only, for values{which} "
            f"cannot be taken back, got {int((weights < 0).sum())} of kind -U or -D; filter them, or set the "
            "option 'ignore-delete'"
        )
    return rows, weights


def _first(layout: Layout, rows: pa.Table, keys: KeyOrder, find: FindStored) -> pa.Table:
    new = gather(rows, keys.firsts)
    stored = find(new.select(list(layout.key)), ()).alive()
    missing = np.ones(new.num_rows, dtype=np.bool_)
    missing[stored.keys] = False
    return new if missing.all() else gather(new, np.flatnonzero(missing))


def _combined(
    layout: Layout, rows: pa.Table, weights: Signs | None, order: Order, keys: KeyOrder, find: FindStored
) -> pa.Table:
    names = layout.schema.names
    stored = find(gather(rows.select(list(layout.key)), keys.firsts), names).alive()
    # the stored row stands before new ones of its sequence: it came earlier
    both = pa.concat_tables([stored.rows.select(list(names)), rows.select(list(names))])
    of = np.concatenate([stored.keys, keys.numbers])
    signs = np.ones(rows.num_rows, np.int64) if weights is None else weights.astype(np.int64)
    ordered = in_sequence(both, layout.merge.sequence, of)
    groups = Groups(
        of[ordered],
        np.concatenate([np.ones(len(stored.keys), np.int64), signs])[ordered],
        ordered < len(stored.keys),
    )
    arranged = gather(both, ordered)
    has_order = order == "rows" or bool(layout.merge.sequence)
    by_group = _columns_of_groups(layout, arranged, groups, has_order)
    columns = [
        _complete(layout, name, by_group[name])
        if name in by_group
        else _column(layout, arranged, name, groups, has_order)
        for name in names
    ]
    return pa.Table.from_arrays(columns, schema=layout.stored)


def _columns_of_groups(
    layout: Layout, rows: pa.Table, groups: Groups, has_order: bool
) -> dict[str, pa.Array]:
    """The values of each column of a sequence group, one for each key."""
    found: dict[str, pa.Array] = {}
    for group in layout.merge.groups:
        chosen = _rows_of_group(group, rows, groups)
        plain = [name for name in group.columns if not layout.merge.has_function(name)]
        if not has_order and (number := _ambiguous_in_group(group, plain, rows, groups, chosen)) is not None:
            raise _ambiguous(layout, rows, int(groups.starts[number]), f"columns of {group.option!r}")
        for name in (*group.sequence, *plain):
            found[name] = at(one_array(rows.column(name)), chosen)
        if len(plain) < len(group.columns):
            found |= _aggregated(layout, group, rows, groups, has_order)
    return found


def _aggregated(
    layout: Layout, group: SequenceGroup, rows: pa.Table, groups: Groups, has_order: bool
) -> dict[str, pa.Array]:
    """The columns of a group that have a function: of all rows that have a sequence, in its order.

    The table's own row counts without one too if it has a value: it is older than the group.
    """
    names = list(filter(layout.merge.has_function, group.columns))
    has_value = ~np.logical_and.reduce([is_null(one_array(rows.column(name))) for name in names])
    known = np.union1d(_known(group, rows), np.flatnonzero(groups.is_stored & has_value))
    if not len(known):
        return {name: pa.nulls(groups.count, rows.schema.field(name).type) for name in names}
    sequence = rows.select(list(group.sequence))
    known = known[in_sequence(gather(sequence, known), group.sequence, groups.of[known])]
    keys, numbers = np.unique(groups.of[known], return_inverse=True)
    places = np.full(groups.count, -1, dtype=np.int64)
    places[keys] = np.arange(len(keys))
    some, own = gather(rows, known), Groups(numbers, groups.signs[known], groups.is_stored[known])
    steps = order_by([pa.array(numbers), *sequence_codes(some, group.sequence)]).numbers
    found = {}
    for name in names:
        aggregate, values = layout.merge.aggregate(name), one_array(some.column(name))
        of_one_sequence = Groups(steps, own.signs, own.is_stored)
        if not has_order and (number := ambiguous_key(aggregate, values, of_one_sequence)) is not None:
            raise _ambiguous(layout, some, int(of_one_sequence.starts[number]), f"column {name!r}")
        found[name] = at(FUNCTIONS[aggregate.function].results(aggregate, values, own), places)
    return found


def _complete(layout: Layout, name: str, found: pa.Array) -> pa.Array:
    if found.null_count and not layout.schema.column(name).nullable:
        raise SchemaError(
            f"column {name!r} is NOT NULL, got {found.null_count} keys for which no row gives it a value"
        )
    return found


def _ambiguous(layout: Layout, rows: pa.Table, row: int, what: str) -> ChangelogError:
    key = rows.select(list(layout.key)).slice(row, 1).to_pylist()[0]
    return ChangelogError(
        f"key {key!r}: rows without an order must give {what} one value, got different ones; "
        "declare 'sequence.field', or write them in order"
    )


def _column(layout: Layout, rows: pa.Table, name: str, groups: Groups, has_order: bool) -> pa.Array:
    values = one_array(rows.column(name))
    if name in layout.key or name in layout.merge.sequence:
        return values.take(pa.array(np.flatnonzero(last_of_each(groups.of))))
    aggregate = layout.merge.aggregate(name)
    if not has_order and (number := ambiguous_key(aggregate, values, groups)) is not None:
        raise _ambiguous(layout, rows, int(groups.starts[number]), f"column {name!r}")
    return _complete(layout, name, FUNCTIONS[aggregate.function].results(aggregate, values, groups))
