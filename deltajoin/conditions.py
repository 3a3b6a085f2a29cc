"""What conditions mean for rows: Spark's own answer for the stated operators, or a refusal (pure).

NULL follows three-valued logic, NaN equals NaN and is greater than any number, -0.0 equals 0.0, text is
compared by its bytes. An integer that overflows is an error, as in Spark's ANSI mode; like Spark, AND, OR,
IF, CASE and COALESCE do not look at what earlier arguments decide, so it is one only where Spark has one. The
operators that wrap are those of Spark without ANSI mode.
Whatever depends on a session's time zone, on a locale or on rules for the precision of decimals is refused
by `type_of`: `deltajoin.tables` asks it for every condition before a join begins, the planner before it
accepts one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin import condition_types, like
from deltajoin.bundles import Mask
from deltajoin.condition_types import type_of
from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref, walk
from upsert import types
from upsert.errors import SchemaError

__all__ = ["mask", "type_of"]

CAN_FAIL: Final = frozenset({"+", "-", "*", "neg", "abs"})
"""Operators that overflow."""


def mask(condition: Condition, column: Callable[[Ref], pa.Array], rows: int) -> Mask:
    """For each row whether the condition is true; NULL is not.

    Args:
        condition: one that ``type_of`` accepts.
        column: values of a column, one for each row.
        rows: how many.

    Raises:
        SchemaError: an integer overflows.

    >>> values = {Ref(0, "a"): pa.array([1, None, 3])}
    >>> mask(Call("<", (Field(Ref(0, "a")), Const(2, pa.int64()))), values.__getitem__, 3).tolist()
    [True, False, False]
    """
    found: Mask = pc.fill_null(_Rows(column, rows).value(condition), False).to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class _Rows:
    """The rows for which a part of a condition is asked: all, or those at some positions."""

    column: Callable[[Ref], pa.Array]
    count: int

    def value(self, condition: Condition) -> pa.Array:
        match condition:
            case Field(ref):
                return self.column(ref)
            case Const(value, type_):
                return pa.repeat(pa.scalar(value, type_), self.count)
            case Cast(inner, type_):
                return cast(self.value(inner), type_)
            case Call(op, args):
                return self.called(op, args)

    def called(self, op: str, args: Sequence[Condition]) -> pa.Array:
        if op in ("and", "or"):
            return self.connected(op, args)
        if op in ("if", "case"):
            return self.chosen(args)
        if op == "coalesce":
            return self.first_valid(args)
        if op == "in":
            return _is_in(self.value(args[0]), args[1:])
        values = [self.value(arg) for arg in args]
        if op in condition_types.TEXT_WITH_CONSTANTS:
            constants = [arg.value if isinstance(arg, Const) else None for arg in args[1:]]
            return _with_constants(op, values[0], constants)
        try:
            return _FUNCTIONS[op](*values)
        except pa.ArrowInvalid as cause:
            type_ = types.sql_name(values[0].type)
            raise SchemaError(
                f"condition {Call(op, tuple(args))}: results must fit into {type_}, one overflows; "
                "correct the rows, or cast to a wider type in the query"
            ) from cause

    def connected(self, op: str, args: Sequence[Condition]) -> pa.Array:
        """AND, OR: an argument is asked for only where the ones before do not decide."""
        connect, decides = (pc.and_kleene, False) if op == "and" else (pc.or_kleene, True)
        result = self.value(args[0])
        for arg in args[1:]:
            if _can_fail(arg):
                is_open = pc.fill_null(pc.not_equal(result, decides), True)
                value = self._where(is_open, arg, pa.bool_())
            else:
                value = self.value(arg)
            result = connect(result, value)
        return result

    def chosen(self, args: Sequence[Condition]) -> pa.Array:
        """IF, CASE: the value of the first condition that is true, else the last value or NULL."""
        count = len(args) // 2
        otherwise = args[-1] if len(args) % 2 else None
        open_, result = pa.repeat(pa.scalar(True), self.count), None
        for number in range(count):
            condition, value = args[2 * number], args[2 * number + 1]
            is_true = pc.and_(open_, pc.fill_null(self._where(open_, condition, pa.bool_()), False))
            chosen = self._where(is_true, value, None)
            before = pa.nulls(self.count, chosen.type) if result is None else result
            result = pc.if_else(is_true, chosen, before)
            open_ = pc.and_(open_, pc.invert(is_true))
        assert result is not None
        return result if otherwise is None else pc.if_else(open_, self._where(open_, otherwise, None), result)

    def first_valid(self, args: Sequence[Condition]) -> pa.Array:
        result = self.value(args[0])
        for arg in args[1:]:
            is_open = pc.is_null(result)
            result = pc.if_else(is_open, self._where(is_open, arg, None), result)
        return result

    def _where(self, rows: pa.Array, condition: Condition, type_: pa.DataType | None) -> pa.Array:
        """The value of a condition for some rows; NULL for the others where it might fail for them."""
        if not _can_fail(condition):
            return self.value(condition)
        at = pc.indices_nonzero(rows)
        some = replace(self, column=lambda ref: self.column(ref).take(at), count=len(at)).value(condition)
        back = np.full(self.count, -1)
        back[at.to_numpy()] = np.arange(len(at))
        found = some.take(pa.array(back, mask=back < 0))
        return found if type_ is None else found.cast(type_)


def _can_fail(condition: Condition) -> bool:
    return any(isinstance(part, Call) and part.op in CAN_FAIL for part in walk(condition))


def cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values in a type that ``type_of`` accepts for them."""
    if values.type == type_:
        return values
    if pa.types.is_integer(values.type) and pa.types.is_floating(type_):
        # As Java does it: to the nearest number that the type has, where Arrow would refuse.
        return values.cast(type_, safe=False)
    return values.cast(type_)


def _equal(a: pa.Array, b: pa.Array) -> pa.Array:
    if pa.types.is_floating(a.type):
        return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return pc.equal(a, b)


def _less(a: pa.Array, b: pa.Array) -> pa.Array:
    if pa.types.is_floating(a.type):
        return pc.or_(pc.less(a, b), pc.and_(pc.invert(pc.is_nan(a)), pc.is_nan(b)))
    if pa.types.is_boolean(a.type):
        return pc.less(a.cast(pa.int8()), b.cast(pa.int8()))
    return pc.less(a, b)


def _is_same(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.or_(pc.fill_null(_equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))


def _is_in(values: pa.Array, constants: Sequence[Condition]) -> pa.Array:
    """True, or NULL where a NULL among them might be the one."""
    given = [constant.value for constant in constants if isinstance(constant, Const)]
    wanted = [value for value in given if value is not None]
    if pa.types.is_floating(values.type):
        masks = [_equal(values, pa.repeat(pa.scalar(value, values.type), len(values))) for value in wanted]
        found = reduce(pc.or_, masks, pc.and_(pc.is_valid(values), False))
    else:
        common = condition_types.wider([values.type, *(c.type for c in constants if isinstance(c, Const))])
        found = pc.is_in(values.cast(common), value_set=pa.array(wanted, common))
    may_be = pc.is_valid(values) if len(wanted) == len(given) else found
    return pc.if_else(may_be, found, pa.scalar(None, pa.bool_()))


def _concatenated(*texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "", null_handling="emit_null")


def _length(values: pa.Array) -> pa.Array:
    count = pc.binary_length if pa.types.is_binary(values.type) else pc.utf8_length
    return count(values).cast(pa.int32())


def _part_of_date(part: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    return lambda days: part(days).cast(pa.int32())


def _with_constants(op: str, texts: pa.Array, constants: Sequence[Any]) -> pa.Array:
    """Functions of a text whose other arguments are constants."""
    if None in constants:
        return pa.nulls(len(texts), pa.string() if op == "substring" else pa.bool_())
    match op, constants:
        case "like", [pattern]:
            return pc.match_substring_regex(texts, like.regular_expression(pattern))
        case "startswith", [text]:
            return pc.starts_with(texts, text)
        case "endswith", [text]:
            return pc.ends_with(texts, text)
        case "contains", [text]:
            return pc.match_substring(texts, text)
        case _, [position, length]:
            start = max(position - 1, 0)
            return pc.utf8_slice_codeunits(texts, start, start + length)
    raise AssertionError(op)


_FUNCTIONS: Final[dict[str, Callable[..., pa.Array]]] = {
    "=": _equal,
    "<=>": _is_same,
    "!=": lambda a, b: pc.invert(_equal(a, b)),
    "<": _less,
    "<=": lambda a, b: pc.invert(_less(b, a)),
    ">": lambda a, b: _less(b, a),
    ">=": lambda a, b: pc.invert(_less(a, b)),
    "not": pc.invert,
    "isnull": pc.is_null,
    "isnotnull": pc.is_valid,
    "isnan": lambda a: pc.fill_null(pc.is_nan(a), False),
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "neg": pc.negate_checked,
    "abs": pc.abs_checked,
    "wrapping +": pc.add,
    "wrapping -": pc.subtract,
    "wrapping *": pc.multiply,
    "wrapping neg": pc.negate,
    "wrapping abs": pc.abs,
    "length": _length,
    "concat": _concatenated,
    "year": _part_of_date(pc.year),
    "month": _part_of_date(pc.month),
    "day": _part_of_date(pc.day),
}
