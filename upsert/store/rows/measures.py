"""Results of aggregate functions over groups of rows, in Spark's own types and values (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Ints, Mask, decimal_words, decimals_of, is_null, one_array
from upsert.errors import SchemaError
from upsert.store.rows.codes import codes_of_keys, first_of_each
from upsert.store.rows.keys import as_key, of_orderable, orderable

_MAX_DIGITS: Final = 38
_AVERAGE_DIGITS: Final = 4
"""Digits that an average has more than its values, before and after the point."""


def result_type(function: str, given: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a function's result for values of these types.

    Raises:
        SchemaError: it has none here.

    >>> result_type("sum", [pa.decimal128(10, 2)])
    Decimal128Type(decimal128(20, 2))
    """
    if any(not types.is_scalar(type_) for type_ in given):
        raise SchemaError(f"{function} of {', '.join(map(types.sql_name, given))} cannot be compared")
    match function:
        case "count":
            return pa.int64()
        case "min" | "max" | "min_by" | "max_by":
            return given[0]
        case "collect_list" | "collect_set":
            return pa.list_(pa.field("element", given[0], nullable=False))
    (type_,) = given
    if pa.types.is_decimal(type_):
        more = _AVERAGE_DIGITS if function == "avg" else 10
        scale = type_.scale + (_AVERAGE_DIGITS if function == "avg" else 0)
        return pa.decimal128(min(type_.precision + more, _MAX_DIGITS), min(scale, _MAX_DIGITS))
    if pa.types.is_floating(type_) or (pa.types.is_integer(type_) and function == "avg"):
        return pa.float64()
    if pa.types.is_integer(type_):
        return pa.int64()
    raise SchemaError(f"{function} of {types.sql_name(type_)} is no number")


def measured(
    function: str,
    values: Sequence[pa.Array],
    groups: Ints,
    count: int,
    *,
    is_distinct: bool = False,
    keeps_order: bool = False,
) -> pa.Array:
    """A function of some columns for each group, of which a row with a NULL is left out.

    ``groups`` has each row's group, of ``count``; a group may have no row. By "min_by" and "max_by" the first
    column may be NULL. Floating-point numbers are added in their own order, so that rows in any order give
    the same sum, or with ``keeps_order`` in that of the rows.

    >>> measured("sum", [pa.array([1, 2, 4, None])], np.array([0, 1, 0, 2]), 3).to_pylist()
    [5, 2, None]
    """
    type_ = result_type(function, [value.type for value in values])
    is_by = function in ("min_by", "max_by")
    missing = [is_null(value) for value in (values[1:] if is_by else values) if value.null_count]
    if missing:
        at = np.flatnonzero(~np.logical_or.reduce(missing))
        values, groups = [value.take(pa.array(at)) for value in values], groups[at]
    if is_distinct and len(groups):
        once = first_of_each(codes_of_keys([pa.array(groups), *values]))
        values, groups = [value.take(pa.array(once)) for value in values], groups[once]
    if function in ("sum", "avg") and pa.types.is_floating(values[0].type) and not keeps_order:
        order = _order(groups, values[0])  # rounding depends on it
        values, groups = [values[0].take(pa.array(order))], groups[order]
    match function:
        case "count":
            return pa.array(np.bincount(groups, minlength=count), pa.int64())
        case "sum":
            return _sums(values[0], groups, count, type_)
        case "avg":
            return _averages(values[0], groups, count, type_)
        case "collect_list" | "collect_set":
            return _collected(values[0], groups, count, type_, is_set=function == "collect_set")
        case "min_by" | "max_by":
            order = _order(groups, as_key(values[1]), values[0])
            return _ends(values[0], groups, order, count, is_last=function == "max_by")
        case _:
            return _extremes(function, values[0], groups, count)


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


def _extremes(function: str, value: pa.Array, groups: Ints, count: int) -> pa.Array:
    """The "min" or "max" of each group, NULL for a group without any; of zeros -0.0 is less than 0.0."""
    numbers = orderable(value)
    numbers = numbers.cast(pa.int64()) if pa.types.is_duration(numbers.type) else numbers
    rows = pa.table([pa.array(groups), numbers], names=["group", "value"])
    found = rows.group_by("group", use_threads=False).aggregate([("value", function)])
    at = np.full(count, -1)
    at[found.column("group").to_numpy()] = np.arange(found.num_rows)
    extremes = one_array(found.column(f"value_{function}"))
    return of_orderable(extremes, value.type).take(pa.array(at, mask=at < 0))


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
    if pa.types.is_floating(value.type):
        return averages(pa.array(_floating_sums(value, groups, count)), number, type_)
    exact = _exact_sums(value, groups, count)
    if pa.types.is_integer(value.type):
        return averages(pa.array(exact.astype(np.float64)), number, type_)
    return _rounded(exact, number, type_.scale - value.type.scale, type_)


def averages(sums: pa.Array, number: Ints, type_: pa.DataType) -> pa.Array:
    """What sums of some numbers of values are divided by these, NULL for none; decimals are rounded half up.

    >>> averages(pa.array([7.0, None]), np.array([2, 0]), pa.float64()).to_pylist()
    [3.5, None]
    """
    if not pa.types.is_decimal(type_):
        totals = sums.to_numpy(zero_copy_only=False)
        return pa.array(totals / np.maximum(number, 1), pa.float64(), mask=number == 0)
    return _rounded(_whole(_limbs(_words(sums))), number, type_.scale - sums.type.scale, type_)


def _rounded(exact: npt.NDArray[Any], number: Ints, more: int, type_: pa.DataType) -> pa.Array:
    """Quotients of whole numbers as decimals with so many digits more behind the point."""
    divisor = np.maximum(number, 1)
    scaled = exact * 10**more
    half_up = (2 * abs(scaled) + divisor) // (2 * divisor.astype(object))
    return _in_type(np.where(scaled < 0, -half_up, half_up), number == 0, type_)


def _floating_sums(value: pa.Array, groups: Ints, count: int) -> npt.NDArray[np.float64]:
    """Sums in the order of the rows."""
    doubles = value.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.bincount(groups, doubles, minlength=count).astype(np.float64)


def _exact_sums(value: pa.Array, groups: Ints, count: int) -> npt.NDArray[Any]:
    """Sums of integers, or of decimals without their point, as Python integers: they overflow nowhere."""
    return _whole(_summed_limbs(value, groups, count))


def _summed_limbs(value: pa.Array, groups: Ints, count: int) -> list[Ints]:
    """Sums of the parts of whole numbers, which have 32 bits and a sign for the last one; sums have more."""
    words = _words(value)
    if len(words) == 1 and _fit(words[0]):
        return _limbs([_added(words[0], groups, count)])
    return [_added(limb, groups, count) for limb in _limbs(words)]


def _added(numbers: Ints, groups: Ints, count: int) -> Ints:
    if count == 1:
        return np.array([numbers.sum()])
    found = np.zeros(count, np.int64)
    np.add.at(found, groups, numbers)
    return found


def _fit(numbers: Ints) -> bool:
    """Whether all of them together surely have no more than 64 bits."""
    most = max(abs(int(numbers.min(initial=0))), abs(int(numbers.max(initial=0))))
    return most * len(numbers) < 1 << 63


def _whole(limbs: Sequence[Ints]) -> npt.NDArray[Any]:
    """Whole numbers of their parts, as Python integers."""
    total = np.zeros(len(limbs[0]), dtype=object)
    for power, limb in enumerate(limbs):
        total += limb.astype(object) * (1 << _LIMB * power)
    return total


_LIMB: Final = 32
_LOW: Final = (1 << _LIMB) - 1


def _limbs(words: Sequence[Ints]) -> list[Ints]:
    """Whole numbers in parts of 32 bits, the lowest first; only the highest has a sign."""
    *lower, highest = [half for word in words for half in (word & _LOW, word >> _LIMB)]
    return [*(half & _LOW for half in lower), highest]


def _words(value: pa.Array) -> list[Ints]:
    """Whole numbers, or decimals without their point, in words of 64 bits, the lowest first."""
    if not pa.types.is_decimal(value.type):
        return [value.cast(pa.int64()).to_numpy()]
    low, high = decimal_words(value)
    is_narrow = value.type.precision <= _DIGITS_OF_A_WORD or bool((high == low >> 63).all())
    return [low] if is_narrow else [low, high]


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
