"""What new rows of a bucket become, given the table's rows of the same keys (pure).

Where a table has a sequence or a merge engine of its own, a commit stores for each key the row that the table
holds from then on, so no reader has to know. The stored row of a key is one of its rows, with the value of
all before it. NULL changes no value but that of ``last_value`` and ``first_value``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, is_null, one_array
from upsert.errors import ChangelogError, SchemaError
from upsert.store.rows.conform import Signs
from upsert.store.rows.fold import Order, fold
from upsert.store.rows.hashing import fixed_bytes, row_hashes
from upsert.store.rows.keys import KeyOrder, in_sequence, last_of_each, order_by
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows, gather
from upsert.store.rows.merge_rules import DEDUPLICATE, FIRST_ROW, RETRACTABLE, Aggregate, SequenceGroup

_SAFE: Final = float(2**62)
"""Sums of 64-bit integers below this cannot wrap around, whatever the rounding of the estimate."""

_WIDE_DIGITS: Final = 76


@dataclass(frozen=True)
class Groups:
    """Rows ordered by key, and within a key as they count.

    ``of`` is the number of each row's key, ascending from 0 without a gap; ``is_stored`` are the table's own.
    """

    of: Positions
    signs: npt.NDArray[np.int64]
    is_stored: Mask

    @property
    def starts(self) -> Positions:
        """The first row of each key."""
        return np.flatnonzero(np.append(True, self.of[1:] != self.of[:-1]))


def _aggregated(aggregate: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    if aggregate.function == "sum":
        return _sum(aggregate, values, groups)
    if aggregate.function == "count":
        return _count(values, groups)
    if aggregate.function == "listagg":
        return _listagg(values, groups, aggregate.delimiter)
    return _at(values, _CHOICES[aggregate.function](values, groups))


def _ambiguous_key(aggregate: Aggregate, values: pa.Array, groups: Groups) -> int | None:
    """The number of a key whose new rows give different values by their order, None if there is none."""
    if aggregate.function not in _ORDERED:
        return None
    counts = ~groups.is_stored
    if aggregate.function in ("last_non_null_value", "listagg"):
        counts &= ~is_null(values)
    rows = np.flatnonzero(counts)
    if len(rows) < 2:
        return None
    words = _words([values.take(pa.array(rows))])
    differs = (words[1:] != words[:-1]).any(axis=1) & (groups.of[rows[1:]] == groups.of[rows[:-1]])
    return int(groups.of[rows[1:]][differs][0]) if differs.any() else None


def _at(values: pa.Array, positions: Positions) -> pa.Array:
    """The values at some positions, NULL where one is negative."""
    return values.take(pa.array(positions, mask=positions < 0))


def _last_known(values: pa.Array, groups: Groups) -> Positions:
    known = np.where(is_null(values), -1, np.arange(len(values)))
    newest = np.maximum.reduceat(known, groups.starts)
    return np.where(newest >= groups.starts, newest, -1)


def _first_value(values: pa.Array, groups: Groups) -> Positions:  # noqa: ARG001 - one signature for all
    """The stored row, which came before all others whatever its sequence, else the first of the new ones."""
    first = groups.starts.copy()
    stored = np.flatnonzero(groups.is_stored)
    first[groups.of[stored]] = stored
    return first


def _extreme(values: pa.Array, groups: Groups, *, largest: bool) -> Positions:
    found = np.full(int(groups.of[-1]) + 1, -1, dtype=np.int64)
    known = np.flatnonzero(~is_null(values))
    if not len(known):
        return found
    order = order_by([pa.array(groups.of[known]), values.take(pa.array(known))]).rows
    of = groups.of[known][order]
    chosen = last_of_each(of) if largest else np.append(True, of[1:] != of[:-1])
    found[of[chosen]] = known[order[chosen]]
    return found


_CHOICES: Final[Mapping[str, Callable[[pa.Array, Groups], Positions]]] = {
    "last_value": lambda _, groups: np.flatnonzero(last_of_each(groups.of)),
    "last_non_null_value": _last_known,
    "first_value": _first_value,
    "min": partial(_extreme, largest=False),
    "max": partial(_extreme, largest=True),
    "bool_and": partial(_extreme, largest=False),
    "bool_or": partial(_extreme, largest=True),
}

_ORDERED: Final = frozenset({"last_value", "last_non_null_value", "first_value", "listagg"})


def _count(values: pa.Array, groups: Groups) -> pa.Array:
    """Counts already stored, and one for each new value that is not NULL."""
    missing = is_null(values)
    known = np.where(groups.is_stored, pc.fill_null(values, 0).to_numpy(), 1)
    return pa.array(np.add.reduceat(np.where(missing, 0, known * groups.signs), groups.starts))


def _sum(aggregate: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    is_empty = ~np.logical_or.reduceat(~is_null(values), groups.starts)
    type_ = values.type
    if pa.types.is_floating(type_):
        numbers = pc.fill_null(values, 0).to_numpy().astype(np.float64)
        with np.errstate(all="ignore"):  # infinities and NaN are results
            sums = np.add.reduceat(numbers * groups.signs, groups.starts)
        return pa.array(sums, mask=is_empty).cast(type_, safe=False)
    try:
        if pa.types.is_decimal(type_):
            return _exact_sums(values, groups, is_empty).cast(type_)
        numbers = pc.fill_null(values, 0).to_numpy().astype(np.int64)
        if float(np.max(np.add.reduceat(np.abs(numbers.astype(np.float64)), groups.starts))) >= _SAFE:
            return _exact_sums(values.cast(pa.decimal128(38, 0)), groups, is_empty).cast(type_)
        return pa.array(np.add.reduceat(numbers * groups.signs, groups.starts), mask=is_empty).cast(type_)
    except pa.ArrowInvalid as cause:
        raise ChangelogError(
            f"column {aggregate.column!r}: a sum must fit {types.sql_name(type_)}, got one that does not "
            f"({cause}); widen the column"
        ) from cause


def _exact_sums(values: pa.Array, groups: Groups, is_empty: Mask) -> pa.Array:
    """Sums of decimals with as many digits as there are."""
    wide = pc.fill_null(values.cast(pa.decimal256(_WIDE_DIGITS, values.type.scale)), 0)
    signed = pc.if_else(pa.array(groups.signs < 0), pc.negate(wide), wide)
    grouped = pa.table({"key": groups.of, "value": signed}).group_by("key", use_threads=False)
    sums = grouped.aggregate([("value", "sum")]).column("value_sum").combine_chunks()
    return pc.if_else(pa.array(is_empty), pa.scalar(None, sums.type), sums)


def _listagg(values: pa.Array, groups: Groups, delimiter: str) -> pa.Array:
    """The stored text, then the new ones; NULL only where all are."""
    known = np.flatnonzero(~is_null(values))
    # a row that came late was ordered before the stored one, whose text cannot be taken apart again
    known = known[np.lexsort((known, ~groups.is_stored[known], groups.of[known]))]
    counts = np.bincount(groups.of[known], minlength=int(groups.of[-1]) + 1)
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values.take(pa.array(known))), delimiter)
    return pc.if_else(pa.array(counts == 0), pa.scalar(None, values.type), joined)


def _rows_of_group(group: SequenceGroup, rows: pa.Table, groups: Groups) -> Positions:
    """For each key the row that gives a sequence group's columns, -1 where none does.

    Of the table's own rows one stays where no other row says anything.
    """
    of, stored = groups.of, np.flatnonzero(groups.is_stored)
    found = np.full(int(of[-1]) + 1, -1, dtype=np.int64)
    found[of[stored]] = stored
    known = _known(group, rows)
    if len(known):
        some = rows.select(list(group.sequence)).take(pa.array(known))
        order = in_sequence(some, group.sequence, of[known])
        last = last_of_each(of[known][order])
        found[of[known][order[last]]] = known[order[last]]
    return found


def _ambiguous_in_group(
    group: SequenceGroup, rows: pa.Table, groups: Groups, chosen: Positions
) -> int | None:
    """The number of a key whose rows, without an order and equal in sequence, differ; None for no key."""
    of, is_new = groups.of, ~groups.is_stored
    new = _known(group, rows)
    new = new[is_new[new]]
    best = chosen[of[new]]
    # a stored row that won is older than new ones of another sequence, so these do not matter
    same = _words([rows.column(name) for name in group.sequence])
    equal = (same[new] == same[best]).all(axis=1) & is_new[best]
    values = _words([rows.column(name) for name in (*group.sequence, *group.columns)])
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
        if name not in layout.key and name not in layout.merge.sequence
        if layout.merge.aggregate(name).function not in RETRACTABLE
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
    by_group = _rows_of_groups(layout, arranged, groups, has_order)
    columns = [
        _complete(layout, name, _at(one_array(arranged.column(name)), by_group[name]))
        if name in by_group
        else _column(layout, arranged, name, groups, has_order)
        for name in names
    ]
    return pa.Table.from_arrays(columns, schema=layout.stored)


def _rows_of_groups(layout: Layout, rows: pa.Table, groups: Groups, has_order: bool) -> dict[str, Positions]:
    """For each column of a sequence group the row of each key that gives it, -1 for none."""
    found: dict[str, Positions] = {}
    for group in layout.merge.groups:
        chosen = _rows_of_group(group, rows, groups)
        if not has_order and (number := _ambiguous_in_group(group, rows, groups, chosen)) is not None:
            raise _ambiguous(layout, rows, int(groups.starts[number]), f"columns of {group.option!r}")
        found |= dict.fromkeys((*group.sequence, *group.columns), chosen)
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
    if not has_order and (number := _ambiguous_key(aggregate, values, groups)) is not None:
        raise _ambiguous(layout, rows, int(groups.starts[number]), f"column {name!r}")
    return _complete(layout, name, _aggregated(aggregate, values, groups))
