"""What conditions mean for rows: Spark's own answer for the stated operators, or a refusal (pure).

NULL follows three-valued logic, NaN equals NaN and is greater than any number, -0.0 equals 0.0, text is
compared by its bytes. An integer that overflows is an error, as in Spark's ANSI mode; like Spark, AND, OR,
IF, CASE and COALESCE do not look at what earlier arguments decide, so it is one only where Spark has one. The
operators that wrap are those of Spark without ANSI mode.
Whatever depends on a session's time zone, on a locale or on rules for the precision of decimals is refused
by `type_of`: `deltajoin.spark.tables` asks it for every condition before a join begins, the planner before it
accepts one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask
from upsert.conditions.expressions import Call, Cast, Condition, Const, Field, Ref, walk
from upsert.errors import ConfigurationError, SchemaError


def regular_expression(pattern: str) -> str:
    r"""What a pattern matches, as a regular expression of the whole text.

    ``%`` matches any characters, ``_`` for one, a backslash takes the meaning of these and its own away.

    >>> regular_expression("a%\\_")
    '(?s)\\Aa.*_\\z'
    """
    return f"(?s)\\A{''.join(_pattern_parts(pattern))}\\z"


def check_pattern(pattern: str) -> None:
    """Refuse a pattern with a backslash where Spark fails too, or too long to compare in linear time."""
    try:
        pc.match_substring_regex(pa.array([""]), regular_expression(pattern))
    except pa.ArrowInvalid as cause:
        raise ConfigurationError(
            f"LIKE pattern {pattern[:40]!r}…: it must be short enough to be compared at once, got "
            f"{len(pattern)} signs; compare with substring or length"
        ) from cause


def _pattern_parts(pattern: str) -> Iterator[str]:
    letters = iter(pattern)
    for letter in letters:
        match letter:
            case "%":
                yield ".*"
            case "_":
                yield "."
            case "\\":
                escaped = next(letters, "")
                if escaped not in ("%", "_", "\\"):
                    raise ConfigurationError(
                        f"LIKE pattern {pattern!r}: a backslash must stand before %, _ or a backslash, "
                        f"got {escaped!r}"
                    )
                yield re.escape(escaped)
            case _:
                yield re.escape(letter)


Types = Callable[[Ref], pa.DataType]

TEXT_WITH_CONSTANTS: Final = ("like", "startswith", "endswith", "contains", "substring")
"""Functions of a text whose other arguments must be constants."""

DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""Digits of a decimal that holds every integer of so many bits, as Spark counts them."""


def type_of(condition: Condition, types_of: Types) -> pa.DataType:
    """The type of a condition's value."""
    match condition:
        case Field(ref):
            return types_of(ref)
        case Const(_, type_):
            return type_
        case Cast(value, type_):
            of = type_of(value, types_of)
            if of != type_ and not _is_widening(of, type_):
                raise ConfigurationError(
                    f"condition {condition}: a cast must lose nothing and depend on no time zone, "
                    f"got {types.sql_name(of)} to {types.sql_name(type_)}; store the column with this type"
                )
            return type_
        case Call(_, args):
            return _type_of_call(condition, [type_of(arg, types_of) for arg in args])


def check_is_condition(condition: Condition, types_of: Types) -> None:
    """Refuse a condition whose type is not BOOLEAN, or that ``type_of`` refuses."""
    if (found := type_of(condition, types_of)) != pa.bool_():
        raise ConfigurationError(
            f"condition {condition}: must be BOOLEAN, is {types.sql_name(found)}; compare it with a value"
        )


def _type_of_call(call: Call, args: list[pa.DataType]) -> pa.DataType:
    need = partial(_need, call, args)
    if call.op not in ("isnull", "isnotnull"):
        need(all(map(types.is_scalar, args)), "values must be of scalar types")
    match call.op.removeprefix("wrapping "):
        case "=" | "<=>" | "!=" | "<" | "<=" | ">" | ">=" | "in" as op:
            are_integers = all(map(pa.types.is_integer, args))
            need(are_integers or len(set(args)) == 1, "values must have one type, or be integers")
            if op == "in":
                need(all(isinstance(arg, Const) for arg in call.args[1:]), "the list must be constants")
        case "and" | "or" | "not":
            need(all(map(pa.types.is_boolean, args)), "values must be BOOLEAN")
        case "isnan":
            need(pa.types.is_floating(args[0]), "the value must be FLOAT or DOUBLE")
        case "+" | "-" | "*" | "neg" | "abs":
            are_numbers = pa.types.is_integer(args[0]) or pa.types.is_floating(args[0])
            need(
                are_numbers and len(set(args)) == 1,
                "values must be integers, FLOAT or DOUBLE, of one type: precision of decimals is Spark's own "
                "matter",
            )
            return args[0]
        case "if" | "case" as op:
            pairs = len(args) // 2
            values = args[1::2] + args[2 * pairs :]
            need(all(map(pa.types.is_boolean, args[: 2 * pairs : 2])), f"conditions of {op} must be BOOLEAN")
            need(len(set(values)) == 1, "all values must have one type")
            return values[0]
        case "coalesce":
            need(len(set(args)) == 1, "all values must have one type")
            return args[0]
        case "year" | "month" | "day":
            need(pa.types.is_date(args[0]), "the value must be a DATE: times depend on a time zone")
            return pa.int32()
        case "length":
            is_text = pa.types.is_string(args[0]) or pa.types.is_binary(args[0])
            need(is_text, "the value must be STRING or BINARY")
            return pa.int32()
        case "concat":
            need(all(map(pa.types.is_string, args)), "values must be STRING")
            return pa.string()
        case op if op in TEXT_WITH_CONSTANTS:
            return _text_with_constants(call, args)
    return pa.bool_()


def _text_with_constants(call: Call, args: list[pa.DataType]) -> pa.DataType:
    need = partial(_need, call, args)
    texts = args[:1] if call.op == "substring" else args
    need(all(map(pa.types.is_string, texts)), "values must be STRING")
    constants = [arg.value for arg in call.args[1:] if isinstance(arg, Const)]
    need(len(constants) == len(args) - 1, "arguments after the first must be constants")
    if call.op == "substring":
        are_numbers = all(n is None or (type(n) is int and n >= 0) for n in constants)
        need(are_numbers, "position and length must be numbers from 0")
        return pa.string()
    if call.op == "like" and constants[0] is not None:
        check_pattern(constants[0])
    return pa.bool_()


def _is_widening(of: pa.DataType, to: pa.DataType) -> bool:
    if pa.types.is_integer(of):
        if pa.types.is_integer(to):
            return bool(of.bit_width <= to.bit_width)
        if pa.types.is_decimal(to):
            return bool(to.precision - to.scale >= DIGITS[of.bit_width])
        return bool(pa.types.is_floating(to))
    if pa.types.is_decimal(of) and pa.types.is_decimal(to):
        return bool(to.scale >= of.scale and to.precision - to.scale >= of.precision - of.scale)
    if pa.types.is_date(of):
        return bool(to == types.TIMESTAMP_NTZ)
    return bool(pa.types.is_float32(of) and pa.types.is_float64(to))


def _need(call: Call, args: Sequence[pa.DataType], is_met: bool, rule: str) -> None:
    if not is_met:
        found = ", ".join(map(types.sql_name, args))
        raise ConfigurationError(f"condition {call}: {rule}, got {found}; write the condition otherwise")


CAN_FAIL: Final = frozenset({"+", "-", "*", "neg", "abs"})
"""Operators that overflow."""


def mask(condition: Condition, column: Callable[[Ref], pa.Array], rows: int) -> Mask:
    """For each row whether the condition, one that ``type_of`` accepts, is true; NULL is not."""
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
        if op in TEXT_WITH_CONSTANTS:
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
        open_, result = pa.repeat(pa.scalar(True), self.count), None
        for condition, value in zip(args[::2], args[1::2], strict=False):
            is_true = pc.and_(open_, pc.fill_null(self._where(open_, condition, pa.bool_()), False))
            chosen = self._where(is_true, value, None)
            before = pa.nulls(self.count, chosen.type) if result is None else result
            result = pc.if_else(is_true, chosen, before)
            open_ = pc.and_(open_, pc.invert(is_true))
        assert result is not None
        return pc.if_else(open_, self._where(open_, args[-1], None), result) if len(args) % 2 else result

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
        common = values.type
        if pa.types.is_integer(common):
            given_types = [constant.type for constant in constants if isinstance(constant, Const)]
            common = max([common, *given_types], key=lambda type_: type_.bit_width)
        found = pc.is_in(values.cast(common), value_set=pa.array(wanted, common))
    may_be = pc.is_valid(values) if len(wanted) == len(given) else found
    return pc.if_else(may_be, found, pa.scalar(None, pa.bool_()))


def _length(values: pa.Array) -> pa.Array:
    count = pc.binary_length if pa.types.is_binary(values.type) else pc.utf8_length
    return count(values).cast(pa.int32())


def _with_constants(op: str, texts: pa.Array, constants: Sequence[Any]) -> pa.Array:
    """Functions of a text whose other arguments are constants."""
    if None in constants:
        return pa.nulls(len(texts), pa.string() if op == "substring" else pa.bool_())
    match op, constants:
        case "like", [pattern]:
            return pc.match_substring_regex(texts, regular_expression(pattern))
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
    "concat": lambda *texts: pc.binary_join_element_wise(*texts, "", null_handling="emit_null"),
    "year": lambda days: pc.year(days).cast(pa.int32()),
    "month": lambda days: pc.month(days).cast(pa.int32()),
    "day": lambda days: pc.day(days).cast(pa.int32()),
}
