"""What the groups that changes touch were before a step and are after it, as a changelog (pure).

Results of the aggregate functions have Spark's own types and values, on Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from upsert import types
from upsert.arrays import Ints, Mask, decimal_words, decimals_of, is_null, one_array
from upsert.conditions.evaluate import mask
from upsert.errors import SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.store.rows.codes import codes_of_keys, codes_of_rows, first_of_each
from upsert.store.rows.keys import as_key, orderable

_MAX_DIGITS: Final = 38
_AVERAGE_DIGITS: Final = 4
"""Digits that an average has more than its values, before and after the point."""


def result_type(measure: Measure, given: tuple[pa.DataType, ...]) -> pa.DataType:
    """Arrow type of a measure's result for values of these types; `SchemaError` where it has none here."""
    if any(not types.is_scalar(type_) for type_ in given):
        raise SchemaError(f"{measure.function} of {', '.join(map(types.sql_name, given))} cannot be compared")
    match measure.function:
        case "count":
            return pa.int64()
        case "min" | "max" | "min_by" | "max_by":
            return given[0]
        case "collect_list" | "collect_set":
            return pa.list_(pa.field("element", given[0], nullable=False))
    (type_,) = given
    if pa.types.is_decimal(type_):
        more = _AVERAGE_DIGITS if measure.function == "avg" else 10
        scale = type_.scale + (_AVERAGE_DIGITS if measure.function == "avg" else 0)
        return pa.decimal128(min(type_.precision + more, _MAX_DIGITS), min(scale, _MAX_DIGITS))
    if pa.types.is_floating(type_) or (pa.types.is_integer(type_) and measure.function == "avg"):
        return pa.float64()
    if pa.types.is_integer(type_):
        return pa.int64()
    raise SchemaError(f"{measure.function} of {types.sql_name(type_)} is no number")


def computed(measure: Measure, rows: pa.Table, groups: Ints, count: int) -> pa.Array:
    """The measure for each group; ``groups`` has each row's group, and a group may have no row."""
    type_ = result_type(measure, tuple(rows.schema.field(name).type for name in measure.columns))
    kept = np.ones(len(groups), np.bool_)
    if measure.where is not None:
        kept &= mask(measure.where, lambda ref: one_array(rows.column(ref.column)), rows.num_rows)
    values = [one_array(rows.column(name)) for name in measure.columns]
    is_by = measure.function in ("min_by", "max_by")
    for value in values[1:] if is_by else values:
        kept &= ~is_null(value)
    at = np.flatnonzero(kept)
    values, groups = [value.take(pa.array(at)) for value in values], groups[at]
    if measure.is_distinct and len(groups):
        once = first_of_each(codes_of_keys([pa.array(groups), *values]))
        values, groups = [value.take(pa.array(once)) for value in values], groups[once]
    match measure.function:
        case "count":
            return pa.array(np.bincount(groups, minlength=count), pa.int64())
        case "sum":
            return _sums(values[0], groups, count, type_)
        case "avg":
            return _averages(values[0], groups, count, type_)
        case "collect_list" | "collect_set":
            return _collected(values[0], groups, count, type_, is_set=measure.function == "collect_set")
        case "min_by" | "max_by":
            order = _order(groups, as_key(values[1]), values[0])
        case _:
            order = _order(groups, values[0])
    return _ends(values[0], groups, order, count, is_last=measure.function.startswith("max"))


def _order(groups: Ints, *values: pa.Array) -> Ints:
    """Positions by group, then by value, NULL first as Spark orders it; of zeros -0.0 goes before 0.0."""
    columns = [pa.array(groups)]
    for value in values:
        columns += [pa.array(~is_null(value)).cast(pa.int8())] if value.null_count else []
        columns.append(orderable(value))
    table = pa.table(columns, names=[str(number) for number in range(len(columns))])
    found: Ints = pc.sort_indices(table, [(name, "ascending") for name in table.column_names]).to_numpy()
    return found.astype(np.int64)


def _ends(value: pa.Array, groups: Ints, order: Ints, count: int, *, is_last: bool) -> pa.Array:
    """The first or the last value of each group, NULL for a group without any."""
    at = np.full(count, -1)
    sequence = order if is_last else order[::-1]
    at[groups[sequence]] = sequence  # of several the last one stays
    return value.take(pa.array(at, mask=at < 0))


def _collected(value: pa.Array, groups: Ints, count: int, type_: pa.DataType, *, is_set: bool) -> pa.Array:
    """Values of each group in their order, so that the same rows give the same list."""
    order = _order(groups, value)
    if is_set and len(order):
        codes = codes_of_keys([pa.array(groups), value])
        order = order[np.sort(first_of_each(codes[order]))]
        value = as_key(value)
    lengths = np.bincount(groups[order], minlength=count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), value.take(pa.array(order)), type=type_)


def _sums(value: pa.Array, groups: Ints, count: int, type_: pa.DataType) -> pa.Array:
    is_empty = np.bincount(groups, minlength=count) == 0
    if pa.types.is_floating(type_):
        return pa.array(_floating_sums(value, groups, count), pa.float64(), mask=is_empty)
    limbs = _summed_limbs(value, groups, count)
    found = _of_limbs(limbs, is_empty, type_)
    return _in_type(_whole(limbs), is_empty, type_) if found is None else found


def _averages(value: pa.Array, groups: Ints, count: int, type_: pa.DataType) -> pa.Array:
    number = np.bincount(groups, minlength=count)
    is_empty, divisor = number == 0, np.maximum(number, 1)
    if pa.types.is_floating(value.type):
        total = _floating_sums(value, groups, count)
        return pa.array(total / divisor, pa.float64(), mask=is_empty)
    exact = _exact_sums(value, groups, count)
    if pa.types.is_integer(value.type):
        return pa.array(exact.astype(np.float64) / divisor, pa.float64(), mask=is_empty)
    scaled = exact * 10 ** (type_.scale - value.type.scale)
    half_up = (2 * abs(scaled) + divisor) // (2 * divisor.astype(object))
    return _in_type(np.where(scaled < 0, -half_up, half_up), is_empty, type_)


def _floating_sums(value: pa.Array, groups: Ints, count: int) -> npt.NDArray[np.float64]:
    """Sums in the order of the values: rounding depends on it, and equal rows must give equal sums."""
    order = _order(groups, value)
    doubles = value.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.bincount(groups[order], doubles[order], minlength=count).astype(np.float64)


def _exact_sums(value: pa.Array, groups: Ints, count: int) -> npt.NDArray[Any]:
    """Sums of integers, or of decimals without their point, as Python integers: they overflow nowhere."""
    return _whole(_summed_limbs(value, groups, count))


def _summed_limbs(value: pa.Array, groups: Ints, count: int) -> list[Ints]:
    """Sums of the parts of whole numbers, which have 32 bits and a sign for the last one; sums have more."""
    limbs = _limbs(value)
    if count == 1:
        return [np.array([limb.sum()]) for limb in limbs]
    found = []
    for limb in limbs:
        part = np.zeros(count, np.int64)
        np.add.at(part, groups, limb)
        found.append(part)
    return found


def _whole(limbs: Sequence[Ints]) -> npt.NDArray[Any]:
    """Whole numbers of their parts, as Python integers."""
    total = np.zeros(len(limbs[0]), dtype=object)
    for power, limb in enumerate(limbs):
        total += limb.astype(object) * (1 << _LIMB * power)
    return total


_LIMB: Final = 32
_LOW: Final = (1 << _LIMB) - 1


def _limbs(value: pa.Array) -> list[Ints]:
    """Whole numbers in parts of 32 bits, the lowest first; only the highest has a sign."""
    if pa.types.is_decimal(value.type):
        low, high = decimal_words(value)
        words = [low] if value.type.precision <= _DIGITS_OF_A_WORD else [low, high]
    else:
        words = [value.cast(pa.int64()).to_numpy()]
    *lower, highest = [half for word in words for half in (word & _LOW, word >> _LIMB)]
    return [*(half & _LOW for half in lower), highest]


_DIGITS_OF_A_WORD: Final = 18


def _of_limbs(limbs: Sequence[Ints], is_empty: Mask, type_: pa.DataType) -> pa.Array | None:
    """Whole numbers of their parts in a type, or decimals without their point; None if one does not fit."""
    digits, carry = list[Ints](), np.zeros(len(is_empty), np.int64)
    for limb in limbs:
        carried = limb + carry
        digits.append(carried & _LOW)
        carry = carried >> _LIMB
    sign = -(digits[-1] >> _LIMB - 1)
    if (carry != sign).any():  # more than the bits of its parts
        return None
    low = digits[0] | digits[1] << _LIMB
    high = digits[2] | digits[3] << _LIMB if len(digits) > 2 else sign
    if not pa.types.is_decimal(type_):
        return pa.array(low, type_, mask=is_empty)
    if not (
        _are_below(low, high, 10**type_.precision) & ~_are_below(low, high, 1 - 10**type_.precision)
    ).all():
        return None
    return decimals_of(low, high, type_, is_empty)


def _are_below(low: Ints, high: Ints, bound: int) -> Mask:
    """Which numbers of 128 bits, in two words, are less than another one."""
    top, rest = np.int64(bound >> 64), np.uint64(bound & (1 << 64) - 1)
    found: Mask = (high < top) | ((high == top) & (low.view(np.uint64) < rest))
    return found


def _in_type(exact: npt.NDArray[Any], is_empty: Mask, type_: pa.DataType) -> pa.Array:
    is_decimal = pa.types.is_decimal(type_)
    bound = 10**type_.precision if is_decimal else 1 << 63
    outside = ((exact >= bound) | (exact < (1 - bound if is_decimal else -bound))) & ~is_empty
    if outside.any():
        raise SchemaError(
            f"sum: the result must fit into {types.sql_name(type_)}, got {exact[np.argmax(outside)]}; sum a "
            "wider type"
        )
    whole = [None if gone else int(value) for value, gone in zip(exact, is_empty, strict=True)]
    if not is_decimal:
        return pa.array(whole, type_)
    return pa.array([None if v is None else Decimal(f"{v}E-{type_.scale}") for v in whole], type_)


Lookup = Callable[[pa.Table], pa.Table]
"""All rows of the groups with these keys, with the columns of ``spec.read``; NULL is a key like others."""


def output_schema(spec: DeltaAggregateSpec, schema: TableSchema) -> pa.Schema:
    """Columns that come out, without the kind."""
    groups = [schema.type_of(name, "an aggregate") for name in spec.groups]
    results = [
        result_type(measure, tuple(schema.type_of(name, "an aggregate") for name in measure.columns))
        for measure in spec.measures
    ]
    return pa.schema(list(zip(spec.columns, (*groups, *results), strict=True)))


def wanted(spec: DeltaAggregateSpec, rows: pa.Table) -> pa.Table:
    """The rows that count."""
    if spec.where is None or not rows.num_rows:
        return rows
    keeps = mask(spec.where, lambda ref: one_array(rows.column(ref.column)), rows.num_rows)
    return rows.filter(pa.array(keeps))


def touched_groups(spec: DeltaAggregateSpec, images: pa.Table) -> pa.Table:
    """The group keys of some rows, each once, as Spark gives them: 0.0 for -0.0."""
    keys = images.select(list(spec.groups))
    if not keys.num_rows:
        return keys
    columns = [as_key(one_array(column)) for column in keys.columns]
    return pa.table(columns, schema=keys.schema).take(pa.array(first_of_each(codes_of_keys(columns))))


def differences(
    spec: DeltaAggregateSpec, schema: pa.Schema, keys: pa.Table, old: Lookup, new: Lookup
) -> Iterator[pa.RecordBatch]:
    """What becomes of the groups with these keys, each once, whose rows ``old`` and ``new`` look up.

    Batches have ``schema`` and ``_row_kind``; ``-U`` is just before ``+U``.
    """
    before, was = _results(spec, schema, keys, old)
    after, is_there = _results(spec, schema, keys, new)
    both = codes_of_rows(pa.concat_tables([before, after])) if keys.num_rows else np.empty(0, np.int64)
    is_same = both[: keys.num_rows] == both[keys.num_rows :]
    kinds: list[tuple[RowKind, pa.Table, Ints]] = [
        (RowKind.DELETE, before, np.flatnonzero(was & ~is_there)),
        (RowKind.INSERT, after, np.flatnonzero(is_there & ~was)),
    ]
    for kind, rows, at in kinds:
        if len(at):
            yield from _of_kind(rows.take(pa.array(at)), np.full(len(at), kind.value, dtype=object))
    changed = np.flatnonzero(was & is_there & ~is_same)
    if len(changed):
        pairs = np.column_stack([changed, changed + keys.num_rows]).ravel()
        marks = np.tile([RowKind.UPDATE_BEFORE.value, RowKind.UPDATE_AFTER.value], len(changed))
        yield from _of_kind(pa.concat_tables([before, after]).take(pa.array(pairs)), marks.astype(object))


def _results(
    spec: DeltaAggregateSpec, schema: pa.Schema, keys: pa.Table, lookup: Lookup
) -> tuple[pa.Table, Mask]:
    """The aggregate of each group, and whether it has any row."""
    rows = wanted(spec, lookup(keys))
    count = keys.num_rows
    names = list(spec.groups)
    joined = pa.concat_tables([keys, rows.select(names).cast(keys.schema)])
    codes = (
        codes_of_keys([one_array(column) for column in joined.columns]) if count else np.empty(0, np.int64)
    )
    groups = codes[count:]  # keys come first, each once, so a group's code is its position among them
    inside = np.flatnonzero(groups < count)
    rows, groups = rows.take(pa.array(inside)), groups[inside]
    results = [computed(measure, rows, groups, count) for measure in spec.measures]
    columns = [*(one_array(keys.column(name)) for name in names), *results]
    return pa.table(columns, schema=schema), np.bincount(groups, minlength=count) > 0


def _of_kind(rows: pa.Table, kinds: npt.NDArray[np.object_]) -> Iterator[pa.RecordBatch]:
    marked = rows.append_column(ROW_KIND_COLUMN, pa.array(kinds, pa.string()))
    yield from marked.combine_chunks().to_batches(max_chunksize=65_536)
