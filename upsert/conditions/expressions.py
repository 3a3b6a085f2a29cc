"""Conditions on rows as values: what joins and CHECK constraints of tables ask of them (pure).

Spark's analysed expressions become these below a delta join, the text of a CHECK does in `upsert.sql.checks`.
`upsert.conditions.evaluate` evaluates them. Their JSON is not trusted when it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, Self, assert_never

import pyarrow as pa

from upsert import types
from upsert.codec import Jsonable, json_by
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError

MAX_DEPTH: Final = 64
"""Levels of a condition or of a tree; deeper ones are refused before they exhaust the stack."""


@dataclass(frozen=True, order=True)
class Ref(Jsonable):
    """A stored column of the table with this number in the spec."""

    table: int
    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.table, int) or isinstance(self.table, bool) or self.table < 0:
            raise ConfigurationError(f"a column's table must be a number from 0, got {self.table!r}")
        if not isinstance(self.column, str) or not self.column:
            raise ConfigurationError(f"a column needs a name, got {self.column!r}")

    def __str__(self) -> str:
        return f"t{self.table}.{self.column}"


@dataclass(frozen=True)
class Field:
    """The value of a column."""

    ref: Ref

    def __str__(self) -> str:
        return str(self.ref)


@dataclass(frozen=True)
class Const:
    """A constant of a scalar type; None is NULL of that type."""

    value: Any
    type: pa.DataType

    def __str__(self) -> str:
        return "NULL" if self.value is None else repr(self.value)

    @classmethod
    def of(cls, scalar: pa.Scalar) -> Self:
        """The value of a scalar of Arrow.

        Raises:
            ConfigurationError: its type is no scalar one, or Python has no such value, as for nanoseconds.

        >>> Const.of(pa.scalar(3))
        Const(value=3, type=DataType(int64))
        """
        is_scalar = types.is_scalar(scalar.type)
        try:
            found = scalar.as_py() if is_scalar else None
            is_kept = pa.scalar(found, scalar.type).equals(scalar) or found != found
        except (ValueError, OverflowError, pa.ArrowException):
            is_kept = False
        if not is_kept:
            name = types.sql_name(scalar.type)
            # no text of Python's, which has no years before 1 and after 9999
            text = str(pa.array([scalar]).cast(pa.string())[0] if is_scalar else scalar)
            raise ConfigurationError(f"a constant of type {name} cannot be {text[:200]}")
        return cls(found, scalar.type)

    def to_json(self) -> dict[str, Any]:
        """JSON values of which ``from_json`` makes the constant again."""
        return {"const": _value_to_json(self.value, self.type), "type": _type_to_json(self.type)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The constant of its JSON values, which are not trusted.

        Raises:
            ConfigurationError: they are those of no constant.
        """
        match value:
            case {"const": constant, "type": type_, **rest} if not rest:
                arrow = _type_from_json(type_)
                return cls(_value_from_json(constant, arrow), arrow)
        raise ConfigurationError(f"a constant must have a value and a type, got {str(value)[:200]!r}")


@dataclass(frozen=True)
class Cast:
    """A value as another type, where that loses nothing."""

    value: Condition
    type: pa.DataType

    def __str__(self) -> str:
        return f"cast({self.value} as {types.sql_name(self.type)})"


@dataclass(frozen=True)
class Call:
    """An operator of ``OPERATORS`` on its arguments.

    Raises:
        ConfigurationError: the operator is unknown, or has another number of arguments.
    """

    op: str
    args: tuple[Condition, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        if self.op not in OPERATORS:
            raise ConfigurationError(
                f"a condition's operator must be one of {', '.join(OPERATORS)}, got {self.op!r}"
            )
        least, most = OPERATORS[self.op]
        if not least <= len(self.args) <= (len(self.args) if most is None else most):
            raise ConfigurationError(f"operator {self.op!r} has another number of arguments than {self!r}")

    def __str__(self) -> str:
        words = [str(arg) for arg in self.args]
        if self.op in _INFIX:
            return f"({f' {self.op} '.join(words)})"
        return f"{self.op}({', '.join(words)})"


Condition = Field | Const | Cast | Call

_OF_TWO: Final = (
    *("=", "<=>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "wrapping +", "wrapping -", "wrapping *"),
    *("like", "startswith", "endswith", "contains"),
    *("%", "pmod", "date +", "date -", "days"),
)
_OF_ONE: Final = (
    *("not", "isnull", "isnotnull", "isnan", "neg", "abs", "wrapping neg", "wrapping abs"),
    *("length", "year", "month", "day", "given"),
    *("upper", "lower", "trim", "ltrim", "rtrim", "text"),
)
OPERATORS: Final[Mapping[str, tuple[int, int | None]]] = {
    **dict.fromkeys(_OF_TWO, (2, 2)),
    **dict.fromkeys(_OF_ONE, (1, 1)),
    **dict.fromkeys(("and", "or", "in", "case", "concat", "greatest", "least"), (2, None)),
    **dict.fromkeys(("if", "substring", "rounded +", "rounded -", "rounded *"), (3, 3)),
    "/": (2, 3),
    "coalesce": (1, None),
}
"""Name of each operator -> least and most number of arguments (None: any).

``case`` is (condition, value)… and perhaps a last value without condition; ``in`` is a value and constants.
``/`` is of two floating-point numbers, an error where the second is zero. ``/`` of decimals and what is
``rounded`` are of two of these and of a NULL of the result's type. ``given`` is its argument, an error where
NULL.
``%`` has the sign of the first integer, ``pmod`` is not negative where the second one is positive. ``date +``
and ``date -`` are of a date and days, ``days`` those from the second date to the first one. ``upper`` and
``lower`` are of ASCII letters, an error for others; ``text`` is an integer, a truth value or a date as text.
``wrapping`` is arithmetic of integers as Java does it, and Spark without its ANSI mode: what overflows begins
again at the other end.
"""

_INFIX: Final = frozenset({"=", "<=>", "!=", "<", "<=", ">", ">=", "and", "or", "+", "-", "*"})


def refs_of(condition: Condition | None) -> frozenset[Ref]:
    """The columns that a condition uses.

    >>> sorted(map(str, refs_of(Call("<", (Field(Ref(0, "a")), Field(Ref(1, "b")))))))
    ['t0.a', 't1.b']
    """
    return frozenset(part.ref for part in walk(condition) if isinstance(part, Field))


def walk(condition: Condition | None) -> Iterator[Condition]:
    """The condition and all its parts."""
    if condition is None:
        return
    yield condition
    match condition:
        case Call(_, args):
            for arg in args:
                yield from walk(arg)
        case Cast(value):
            yield from walk(value)
        case Field() | Const():
            pass
        case _:
            assert_never(condition)


def conjuncts(condition: Condition | None) -> tuple[Condition, ...]:
    """The parts that must all hold; none for None.

    >>> a, b = Field(Ref(0, "a")), Field(Ref(0, "b"))
    >>> [str(part) for part in conjuncts(Call("and", (a, Call("and", (b, a)))))]
    ['t0.a', 't0.b', 't0.a']
    """
    if condition is None:
        return ()
    if isinstance(condition, Call) and condition.op == "and":
        return tuple(part for arg in condition.args for part in conjuncts(arg))
    return (condition,)


def conjunction(*conditions: Condition | None) -> Condition | None:
    """One condition that holds where all do; None for none."""
    parts = tuple(part for condition in conditions for part in conjuncts(condition))
    return parts[0] if len(parts) == 1 else Call("and", parts) if parts else None


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
        case Const():
            return condition.to_json()
        case Cast(value, type_):
            return {"cast": to_json(value), "type": _type_to_json(type_)}
        case Call(op, args):
            return {"call": op, "args": [to_json(arg) for arg in args]}


def from_json(value: Any) -> Condition | None:
    """The condition of its JSON values, which are not trusted: a `ConfigurationError` if they are none."""
    return None if value is None else _from_json(value, MAX_DEPTH)


def _from_json(value: Any, depth: int) -> Condition:
    if not depth:
        raise ConfigurationError(f"a condition must have at most {MAX_DEPTH} levels, got more")
    match value:
        case {"field": [table, column], **rest} if not rest:
            return Field(Ref(table, column))
        case {"const": _, **rest} if rest.keys() == {"type"}:
            return Const.from_json(value)
        case {"cast": inner, "type": type_, **rest} if not rest:
            return Cast(_from_json(inner, depth - 1), _type_from_json(type_))
        case {"call": str(op), "args": list(args), **rest} if not rest:
            return Call(op, tuple(_from_json(arg, depth - 1) for arg in args))
    raise ConfigurationError(
        f"a condition must be a field, a const, a cast or a call, got {str(value)[:200]!r}"
    )


CONDITION: Final = json_by(partial(_from_json, depth=MAX_DEPTH), to_json)
OPTIONAL_CONDITION: Final = json_by(from_json, to_json)
"""Metadata of fields that are conditions, for the codec."""


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
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value // timedelta(microseconds=1)
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
    if pa.types.is_integer(type_) or pa.types.is_duration(type_):
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
    if pa.types.is_time(type_):
        return lambda value: types.times_of(pa.array([text(value)]), type_).cast(pa.time64("us"))[0].as_py()
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
