"""Types of conditions, and which of them have in Spark exactly the value that they have here (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from deltajoin import like
from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from upsert import types
from upsert.errors import ConfigurationError

Types = Callable[[Ref], pa.DataType]

TEXT_WITH_CONSTANTS: Final = ("like", "startswith", "endswith", "contains", "substring")
"""Functions of a text whose other arguments must be constants."""

_COMPARISONS: Final = ("=", "<=>", "!=", "<", "<=", ">", ">=")
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
"""Digits of a decimal that holds every integer of so many bits, as Spark counts them."""


def type_of(condition: Condition, types_of: Types) -> pa.DataType:
    """The type of a condition's value.

    Args:
        condition: any condition.
        types_of: type of each column.

    Raises:
        ConfigurationError: an argument has another type than its operator takes, or the result could differ
            from Spark's; the message says why.

    >>> type_of(Call("<", (Field(Ref(0, "a")), Const(2, pa.int64()))), lambda ref: pa.int32())
    DataType(bool)
    """
    match condition:
        case Field(ref):
            return types_of(ref)
        case Const(_, type_):
            return type_
        case Cast(value, type_):
            return _cast_type(condition, type_of(value, types_of), type_)
        case Call(op, args):
            return _type_of_call(condition, op, [type_of(arg, types_of) for arg in args])


def check_is_condition(condition: Condition, types_of: Types) -> None:
    """Refuse what is no condition: its type must be BOOLEAN.

    Raises:
        ConfigurationError: it has another type, or a part of it is refused by ``type_of``.
    """
    if (found := type_of(condition, types_of)) != pa.bool_():
        raise ConfigurationError(
            f"condition {condition}: must be BOOLEAN, is {types.sql_name(found)}; compare it with a value"
        )


def wider(found: Sequence[pa.DataType]) -> pa.DataType:
    """The widest of some integer types, or the one type that all are."""
    widest = found[0]
    for type_ in found[1:]:
        if pa.types.is_integer(type_) and type_.bit_width > widest.bit_width:
            widest = type_
    return widest


def _type_of_call(call: Call, op: str, args: list[pa.DataType]) -> pa.DataType:
    if op in ("isnull", "isnotnull"):
        return pa.bool_()
    for type_ in args:
        _need(call, types.is_scalar(type_), "values must be of scalar types", args)
    if op in (*_COMPARISONS, "in"):
        return _comparison(call, op, args)
    if op in ("and", "or", "not"):
        _need(call, all(map(pa.types.is_boolean, args)), "values must be BOOLEAN", args)
        return pa.bool_()
    if op.removeprefix("wrapping ") in ("+", "-", "*", "neg", "abs"):
        return _arithmetic(call, args)
    if op in ("if", "case"):
        return _choice(call, op, args)
    if op == "coalesce":
        _need(call, len(set(args)) == 1, "all values must have one type", args)
        return args[0]
    if op == "isnan":
        _need(call, pa.types.is_floating(args[0]), "the value must be FLOAT or DOUBLE", args)
        return pa.bool_()
    if op in ("year", "month", "day"):
        _need(call, pa.types.is_date(args[0]), "the value must be a DATE: times depend on a time zone", args)
        return pa.int32()
    return _text(call, op, args)


def _comparison(call: Call, op: str, args: list[pa.DataType]) -> pa.DataType:
    are_integers = all(map(pa.types.is_integer, args))
    _need(call, are_integers or len(set(args)) == 1, "values must have one type, or be integers", args)
    if op == "in":
        _need(call, all(isinstance(arg, Const) for arg in call.args[1:]), "the list must be constants", args)
    return pa.bool_()


def _arithmetic(call: Call, args: list[pa.DataType]) -> pa.DataType:
    are_numbers = pa.types.is_integer(args[0]) or pa.types.is_floating(args[0])
    rule = (
        "values must be integers, FLOAT or DOUBLE, of one type: precision of decimals is Spark's own matter"
    )
    _need(call, are_numbers and len(set(args)) == 1, rule, args)
    return args[0]


def _choice(call: Call, op: str, args: list[pa.DataType]) -> pa.DataType:
    pairs = len(args) // 2
    conditions = [args[2 * number] for number in range(pairs)]
    values = [args[2 * number + 1] for number in range(pairs)] + ([args[-1]] if len(args) % 2 else [])
    _need(call, all(map(pa.types.is_boolean, conditions)), f"conditions of {op} must be BOOLEAN", args)
    _need(call, len(set(values)) == 1, "all values must have one type", args)
    return values[0]


def _text(call: Call, op: str, args: list[pa.DataType]) -> pa.DataType:
    if op == "length":
        is_text = pa.types.is_string(args[0]) or pa.types.is_binary(args[0])
        _need(call, is_text, "the value must be STRING or BINARY", args)
        return pa.int32()
    texts = args[:1] if op == "substring" else args
    _need(call, all(map(pa.types.is_string, texts)), "values must be STRING", args)
    if op == "concat":
        return pa.string()
    constants = [arg for arg in call.args[1:] if isinstance(arg, Const)]
    _need(call, len(constants) == len(args) - 1, "arguments after the first must be constants", args)
    if op == "substring":
        numbers = [arg.value for arg in constants]
        are_numbers = all(n is None or (type(n) is int and n >= 0) for n in numbers)
        _need(call, are_numbers, "position and length must be numbers from 0", args)
        return pa.string()
    if op == "like" and constants[0].value is not None:
        like.check(constants[0].value)
    return pa.bool_()


def _cast_type(condition: Cast, of: pa.DataType, to: pa.DataType) -> pa.DataType:
    if of != to and not _is_widening(of, to):
        raise ConfigurationError(
            f"condition {condition}: a cast must lose nothing and depend on no time zone, "
            f"got {types.sql_name(of)} to {types.sql_name(to)}; store the column with this type"
        )
    return to


def _is_widening(of: pa.DataType, to: pa.DataType) -> bool:
    if pa.types.is_integer(of):
        if pa.types.is_integer(to):
            return bool(of.bit_width <= to.bit_width)
        if pa.types.is_decimal(to):
            return bool(to.precision - to.scale >= _DIGITS[of.bit_width])
        return bool(pa.types.is_floating(to))
    if pa.types.is_decimal(of) and pa.types.is_decimal(to):
        return bool(to.scale >= of.scale and to.precision - to.scale >= of.precision - of.scale)
    if pa.types.is_date(of):
        return bool(to == types.TIMESTAMP_NTZ)
    return bool(pa.types.is_float32(of) and pa.types.is_float64(to))


def _need(call: Call, is_met: bool, rule: str, args: Sequence[pa.DataType]) -> None:
    if not is_met:
        found = ", ".join(map(types.sql_name, args))
        raise ConfigurationError(f"condition {call}: {rule}, got {found}; write the condition otherwise")
