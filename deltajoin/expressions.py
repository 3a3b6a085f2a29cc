"""Conditions of a join as values: what Spark's analysed expressions become below a delta join (pure).

A condition names columns by table number, so the same table may occur several times. It is a value that
crosses from driver to executors as JSON, see `deltajoin.expressions_json`. What it means for rows is in
`deltajoin.conditions`; only operators whose result equals Spark's to the bit are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError

MAX_DEPTH: Final = 64
"""Levels of a condition or of a tree; deeper ones are refused before they exhaust the stack."""


@dataclass(frozen=True, order=True)
class Ref:
    """A stored column of the table with this number in the spec."""

    table: int
    column: str

    def __post_init__(self) -> None:
        """Check the parts."""
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
        """Check operator and number of arguments."""
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

OPERATORS: Final[Mapping[str, tuple[int, int | None]]] = {
    "=": (2, 2),
    "<=>": (2, 2),
    "!=": (2, 2),
    "<": (2, 2),
    "<=": (2, 2),
    ">": (2, 2),
    ">=": (2, 2),
    "and": (2, None),
    "or": (2, None),
    "not": (1, 1),
    "isnull": (1, 1),
    "isnotnull": (1, 1),
    "isnan": (1, 1),
    "in": (2, None),
    "+": (2, 2),
    "-": (2, 2),
    "*": (2, 2),
    "neg": (1, 1),
    "abs": (1, 1),
    "wrapping +": (2, 2),
    "wrapping -": (2, 2),
    "wrapping *": (2, 2),
    "wrapping neg": (1, 1),
    "wrapping abs": (1, 1),
    "coalesce": (1, None),
    "if": (3, 3),
    "case": (2, None),
    "like": (2, 2),
    "startswith": (2, 2),
    "endswith": (2, 2),
    "contains": (2, 2),
    "length": (1, 1),
    "concat": (2, None),
    "substring": (3, 3),
    "year": (1, 1),
    "month": (1, 1),
    "day": (1, 1),
}
"""Name of each operator -> least and most number of arguments (None: any).

``case`` is (condition, value)… and perhaps a last value without condition; ``in`` is a value and constants.
``wrapping`` is arithmetic of integers as Java does it, and Spark without its ANSI mode: what overflows begins
anew at the other end.
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
