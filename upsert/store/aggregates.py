"""What each function of ``merge-engine = aggregation`` makes of one column's values, key by key (pure).

Rows come grouped by key, in the order in which they count; the stored row of a key is one of them, and its
value is that of all rows before. NULL changes no value but that of ``last_value`` and ``first_value``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.errors import ChangelogError
from upsert.store.hashing import fixed_bytes, is_null
from upsert.store.merge_rules import Aggregate
from upsert.store.row_hash import row_hashes
from upsert.store.row_keys import order_by
from upsert.store.sequences import last_of_each

_SAFE: Final = float(2**62)
"""Sums of 64-bit integers below this cannot wrap around, whatever the rounding of the estimate."""
_WIDE_DIGITS: Final = 76


@dataclass(frozen=True)
class Groups:
    """Rows ordered by key, and within a key as they count.

    Attributes:
        of: the number of each row's key, ascending from 0 without a gap.
        signs: +1 or -1 of each row.
        is_stored: which rows are the table's own.
    """

    of: Positions
    signs: npt.NDArray[np.int64]
    is_stored: Mask

    @property
    def starts(self) -> Positions:
        """The first row of each key."""
        return np.flatnonzero(np.append(True, self.of[1:] != self.of[:-1]))

    @property
    def lasts(self) -> Positions:
        """The last row of each key."""
        return np.flatnonzero(last_of_each(self.of))


def aggregated(aggregate: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    """One value a key.

    Args:
        aggregate: the column's function.
        values: the column's values, at least one.
        groups: the rows' keys.

    Raises:
        ChangelogError: a sum does not fit the column's type.
    """
    if aggregate.function == "sum":
        return _sum(aggregate, values, groups)
    if aggregate.function == "count":
        return _count(values, groups)
    if aggregate.function == "listagg":
        return _listagg(values, groups, aggregate.delimiter)
    return _at(values, _CHOICES[aggregate.function](values, groups))


def ambiguous_key(aggregate: Aggregate, values: pa.Array, groups: Groups) -> int | None:
    """The number of a key whose new rows give different values by their order, None if there is none."""
    if aggregate.function not in _ORDERED:
        return None
    counts = ~groups.is_stored
    if aggregate.function in ("last_non_null_value", "listagg"):
        counts &= ~is_null(values)
    rows = np.flatnonzero(counts)
    if len(rows) < 2:
        return None
    words = np.ascontiguousarray(fixed_bytes(row_hashes([values.take(pa.array(rows))], len(rows))))
    differs = (words[1:] != words[:-1]).any(axis=1) & (groups.of[rows[1:]] == groups.of[rows[:-1]])
    return int(groups.of[rows[1:]][differs][0]) if differs.any() else None


def _at(values: pa.Array, positions: Positions) -> pa.Array:
    """The values at some positions, NULL where one is negative."""
    return values.take(pa.array(positions, mask=positions < 0))


def _last(values: pa.Array, groups: Groups) -> Positions:  # noqa: ARG001 - one signature for all
    return groups.lasts


def _last_known(values: pa.Array, groups: Groups) -> Positions:
    known = np.where(is_null(values), -1, np.arange(len(values)))
    newest = np.maximum.reduceat(known, groups.starts)
    return np.where(newest >= groups.starts, newest, -1)


def _first(values: pa.Array, groups: Groups) -> Positions:  # noqa: ARG001 - one signature for all
    """The stored row, which came before all others whatever its sequence, else the first of the new ones."""
    first = groups.starts.copy()
    stored = np.flatnonzero(groups.is_stored)
    first[groups.of[stored]] = stored
    return first


def _smallest(values: pa.Array, groups: Groups) -> Positions:
    return _extreme(values, groups, largest=False)


def _largest(values: pa.Array, groups: Groups) -> Positions:
    return _extreme(values, groups, largest=True)


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
    "last_value": _last,
    "last_non_null_value": _last_known,
    "first_value": _first,
    "min": _smallest,
    "max": _largest,
    "bool_and": _smallest,
    "bool_or": _largest,
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
