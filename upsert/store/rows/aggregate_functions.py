"""The aggregate functions of ``merge-engine`` = ``aggregation``: one value of a column for each key (pure).

A function gets the values of one column, of the table's rows and of new ones, and which rows are of one key.
A stored value is the result of all rows before it. NULL changes no value but that of ``last_value`` and
``first_value``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, is_null
from upsert.errors import ChangelogError
from upsert.store.rows.hashing import child_values, fixed_bytes, row_hashes
from upsert.store.rows.keys import last_of_each, order_by

DEFAULT_FUNCTION: Final = "last_non_null_value"
"""The function of a column that declares none."""

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

    @property
    def count(self) -> int:
        """How many keys there are."""
        return int(self.of[-1]) + 1


@dataclass(frozen=True)
class Aggregate:
    """What one column holds of the rows of a key: a function, and what it is told."""

    column: str
    function: str = DEFAULT_FUNCTION
    delimiter: str = ","
    distinct: bool = False


Ordered = Literal["", "values", "known values", "entries"]
"""Whose order a result depends on: of all values, of those that are not NULL, of what one map key has."""


@dataclass(frozen=True)
class Function:
    """One aggregate function.

    Attributes:
        columns: what a column must be, in words.
        fits: whether a type is that.
        results: one value for each key.
        ordered: whose order the result depends on, empty if it needs none.
        takes_back: whether rows of kind -U and -D can be taken back.
    """

    columns: str
    fits: Callable[[pa.DataType], bool]
    results: Callable[[Aggregate, pa.Array, Groups], pa.Array]
    ordered: Ordered = ""
    takes_back: bool = False


def ambiguous_key(aggregate: Aggregate, values: pa.Array, groups: Groups) -> int | None:
    """The number of a key whose new rows give different values by their order, None if there is none."""
    ordered = FUNCTIONS[aggregate.function].ordered
    if not ordered:
        return None
    counts = ~groups.is_stored
    if ordered != "values":
        counts &= ~is_null(values)
    rows = np.flatnonzero(counts)
    of, some = groups.of[rows], values.take(pa.array(rows))
    if ordered == "entries":
        of, keys, items = _map_entries(of, some)
        order = order_by([_identities(of, keys)])
        of, some = of[order.rows], items.take(pa.array(order.rows))
        begins = order.is_first[1:]
    else:
        begins = of[1:] != of[:-1]
    words = fixed_bytes(row_hashes([some], len(some)))
    differs = (words[1:] != words[:-1]).any(axis=1) & ~begins
    return int(of[1:][differs][0]) if differs.any() else None


def at(values: pa.Array, positions: Positions) -> pa.Array:
    """The values at some positions, NULL where one is negative."""
    return values.take(pa.array(positions, mask=positions < 0))


def _count(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
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


def _extreme(_: Aggregate, values: pa.Array, groups: Groups, *, largest: bool) -> pa.Array:
    found = np.full(groups.count, -1, dtype=np.int64)
    known = np.flatnonzero(~is_null(values))
    if len(known):
        order = order_by([pa.array(groups.of[known]), values.take(pa.array(known))]).rows
        of = groups.of[known][order]
        chosen = last_of_each(of) if largest else np.append(True, of[1:] != of[:-1])
        found[of[chosen]] = known[order[chosen]]
    return at(values, found)


def _last(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    return at(values, np.flatnonzero(last_of_each(groups.of)))


def _last_known(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    known = np.where(is_null(values), -1, np.arange(len(values)))
    newest = np.maximum.reduceat(known, groups.starts)
    return at(values, np.where(newest >= groups.starts, newest, -1))


def _first(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    """The stored value, which came before all others whatever its sequence, else the first new one."""
    first = groups.starts.copy()
    stored = np.flatnonzero(groups.is_stored)
    first[groups.of[stored]] = stored
    return at(values, first)


def _first_known(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    known = _known_as_they_came(values, groups)
    of = groups.of[known]
    found = np.full(groups.count, -1, dtype=np.int64)
    begins = np.flatnonzero(np.diff(of, prepend=-1))
    found[of[begins]] = known[begins]
    return at(values, found)


def _known_as_they_came(values: pa.Array, groups: Groups) -> Positions:
    """The rows with a value, of each key the stored one first.

    A row that came late is ordered before the stored one, whose value cannot be taken apart again.
    """
    known = np.flatnonzero(~is_null(values))
    return known[np.lexsort((known, ~groups.is_stored[known], groups.of[known]))]


def _offsets(of: Positions, groups: Groups) -> pa.Array:
    """Where the items of each key begin, from the key of each item, ascending."""
    return pa.array(np.append(0, np.cumsum(np.bincount(of, minlength=groups.count))), pa.int32())


def _where_known(made: pa.Array, known: Positions, groups: Groups) -> pa.Array:
    """What was made for each key, NULL where none of its rows has a value."""
    has_value = np.isin(np.arange(groups.count), groups.of[known])
    return at(made, np.where(has_value, np.arange(groups.count), -1))


def _listagg(aggregate: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    known = _known_as_they_came(values, groups)
    texts = pa.ListArray.from_arrays(_offsets(groups.of[known], groups), values.take(pa.array(known)))
    return _where_known(pc.binary_join(texts, aggregate.delimiter), known, groups)


def _collect(aggregate: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    known = _known_as_they_came(values, groups)
    lists = values.take(pa.array(known))
    of = np.repeat(groups.of[known], np.diff(lists.offsets.to_numpy()))
    elements = child_values(lists, lists.values)
    if aggregate.distinct:
        firsts = np.sort(order_by([_identities(of, elements)]).firsts)
        of, elements = of[firsts], elements.take(pa.array(firsts))
    made = pa.ListArray.from_arrays(_offsets(of, groups), elements, type=values.type)
    return _where_known(made, known, groups)


def _merge_map(_: Aggregate, values: pa.Array, groups: Groups) -> pa.Array:
    """Of each key of the maps the last value, at the place where the key first was."""
    known = np.flatnonzero(~is_null(values))
    of, keys, items = _map_entries(groups.of[known], values.take(pa.array(known)))
    order = order_by([_identities(of, keys)])
    last = pa.array(order.lasts[np.argsort(order.firsts)])
    offsets = _offsets(of[last], groups)
    made = pa.MapArray.from_arrays(offsets, keys.take(last), items.take(last), type=values.type)
    return _where_known(made, known, groups)


def _map_entries(of: Positions, maps: pa.MapArray) -> tuple[Positions, pa.Array, pa.Array]:
    """All entries of maps without NULLs: the number that each has from its map, the keys and the values."""
    repeated = np.repeat(of, np.diff(maps.offsets.to_numpy()))
    return repeated, child_values(maps, maps.keys), child_values(maps, maps.items)


def _identities(of: Positions, values: pa.Array) -> pa.Array:
    """What is equal for equal values of one key."""
    return row_hashes([pa.array(of), values], len(values))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


_ANY: Final = ("of any type", lambda _: True)
_SCALAR: Final = ("of a scalar type", types.is_scalar)
_BOOLEAN: Final = ("BOOLEAN", pa.types.is_boolean)

FUNCTIONS: Final[Mapping[str, Function]] = {
    "sum": Function("a number", _is_number, _sum, takes_back=True),
    "count": Function("BIGINT", pa.types.is_int64, _count, takes_back=True),
    "min": Function(*_SCALAR, partial(_extreme, largest=False)),
    "max": Function(*_SCALAR, partial(_extreme, largest=True)),
    "last_value": Function(*_ANY, _last, "values"),
    "last_non_null_value": Function(*_ANY, _last_known, "known values"),
    "first_value": Function(*_ANY, _first, "values"),
    "first_non_null_value": Function(*_ANY, _first_known, "known values"),
    "bool_and": Function(*_BOOLEAN, partial(_extreme, largest=False)),
    "bool_or": Function(*_BOOLEAN, partial(_extreme, largest=True)),
    "listagg": Function("STRING", pa.types.is_string, _listagg, "known values"),
    "collect": Function("an ARRAY", pa.types.is_list, _collect, "known values"),
    "merge_map": Function("a MAP", pa.types.is_map, _merge_map, "entries"),
}
"""All functions, under Paimon's names."""
