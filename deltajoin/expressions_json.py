"""Conditions of a join as JSON values, which may be anybody's when they are read (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from deltajoin.expressions import MAX_DEPTH, Call, Cast, Condition, Const, Field, Ref
from upsert import types
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError


def to_json(condition: Condition | None) -> Any:
    """JSON values of a condition.

    >>> to_json(Call(">", (Field(Ref(0, "amount")), Const(3, pa.int64()))))
    {'call': '>', 'args': [{'field': [0, 'amount']}, {'const': 3, 'type': 'long'}]}
    """
    match condition:
        case None:
            return None
        case Field(ref):
            return {"field": [ref.table, ref.column]}
        case Const(value, type_):
            return {"const": _value_to_json(value, type_), "type": _type_to_json(type_)}
        case Cast(value, type_):
            return {"cast": to_json(value), "type": _type_to_json(type_)}
        case Call(op, args):
            return {"call": op, "args": [to_json(arg) for arg in args]}


def from_json(value: Any) -> Condition | None:
    """The condition of its JSON values, which may be anybody's text.

    Raises:
        ConfigurationError: the value is no condition, or is nested too deeply.
    """
    return None if value is None else _from_json(value, MAX_DEPTH)


def _from_json(value: Any, depth: int) -> Condition:
    if not depth:
        raise ConfigurationError(f"a condition must have at most {MAX_DEPTH} levels, got more")
    match value:
        case {"field": [table, column], **rest} if not rest:
            return Field(Ref(table, column))
        case {"const": constant, "type": type_, **rest} if not rest:
            arrow = _type_from_json(type_)
            return Const(_value_from_json(constant, arrow), arrow)
        case {"cast": inner, "type": type_, **rest} if not rest:
            return Cast(_from_json(inner, depth - 1), _type_from_json(type_))
        case {"call": str(op), "args": list(args), **rest} if not rest:
            return Call(op, tuple(_from_json(arg, depth - 1) for arg in args))
    raise ConfigurationError(
        f"a condition must be a field, a const, a cast or a call, got {str(value)[:200]!r}"
    )


def _type_to_json(type_: pa.DataType) -> Any:
    if not types.is_scalar(type_):
        raise ConfigurationError(f"a condition's type must be scalar, got {types.sql_name(type_)}")
    return types.to_json(type_)


def _type_from_json(value: Any) -> pa.DataType:
    try:
        type_ = types.from_json(value) if isinstance(value, str) else None
    except (CorruptTableError, SchemaError) as cause:
        raise ConfigurationError(f"a condition's type must be a scalar type, got {value!r}") from cause
    if type_ is None:
        raise ConfigurationError(f"a condition's type must be a scalar type, got {value!r}")
    return type_


def _value_to_json(value: Any, type_: pa.DataType) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else repr(value)
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
    raise ConfigurationError(f"a constant of type {types.sql_name(type_)} cannot be {value!r}")


def _value_from_json(value: Any, type_: pa.DataType) -> Any:
    """The value, after a check that it is one of its type."""
    try:
        parsed = None if value is None else _reader(type_)(value)
        return pa.scalar(parsed, type_).as_py() if isinstance(parsed, bool | int) else parsed
    except (ValueError, TypeError, InvalidOperation, pa.ArrowException) as cause:
        wanted = types.sql_name(type_)
        raise ConfigurationError(f"a constant must be a value of {wanted}, got {value!r}") from cause


def _reader(type_: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_boolean(type_):
        return _exactly(bool)
    if pa.types.is_integer(type_):
        return _exactly(int)
    if pa.types.is_floating(type_):
        return lambda value: float(value) if isinstance(value, float | str) else float(_exactly(int)(value))
    text = _exactly(str)
    if pa.types.is_string(type_):
        return text
    if pa.types.is_binary(type_):
        return lambda value: bytes.fromhex(text(value))
    if pa.types.is_decimal(type_):
        return lambda value: pa.scalar(Decimal(text(value)), type_).as_py()
    if pa.types.is_date(type_):
        return lambda value: date.fromisoformat(text(value))
    return lambda value: _timestamp(text(value), has_zone=type_.tz is not None)


def _timestamp(text: str, *, has_zone: bool) -> datetime:
    value = datetime.fromisoformat(text)
    if (value.tzinfo is not None) != has_zone:
        raise ValueError(f"a time zone {'must' if has_zone else 'must not'} be given")
    return value.astimezone(UTC) if has_zone else value


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"must be {kind.__name__}, got {type(value).__name__}")
        return value

    return check
