"""Expressions of a Spark plan as frozen values (pure).

Columns are known by their expression id, as in Catalyst; names are for people. A `ref` is the number
under which `planner/spark/catalyst.py` keeps the Spark object that a value was read from. Refs take no part
in comparisons: an expression equals another when it means the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from typing import Any, Final

from upsert.rowkind import ROW_KIND_COLUMN

_ARITHMETIC: Final = {"Add": "+", "Subtract": "-", "Multiply": "*"}

_SYMBOLS: Final = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "And": "AND",
    "Or": "OR",
    **_ARITHMETIC,
    **{f"LEGACY{name}": symbol for name, symbol in _ARITHMETIC.items()},
}


def ref_field() -> Any:
    """The field of a dataclass that holds a ref."""
    return field(default=None, compare=False, repr=False, kw_only=True)


class _Leaf:
    """An expression of no others."""

    @property
    def args(self) -> tuple[Expr, ...]:
        """Nothing."""
        return ()


@dataclass(frozen=True)
class Column(_Leaf):
    """A column of a plan, known by its expression id; a negative id is one that `build` has yet to draw."""

    id: int
    name: str = field(compare=False)
    type: str = field(compare=False)
    ref: int | None = ref_field()

    @property
    def is_row_kind(self) -> bool:
        """Whether this is the kind of a change; the name is reserved for that."""
        return self.name.lower() == ROW_KIND_COLUMN

    def __str__(self) -> str:
        return f"{self.name}#{self.id}"


@dataclass(frozen=True)
class Literal(_Leaf):
    """A constant, as a Python value; `value` is None for NULL."""

    value: Any
    type: str
    ref: int | None = ref_field()

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        return repr(self.value) if self.type == "string" else str(self.value)


@dataclass(frozen=True)
class Cast:
    """A conversion to another type, which gives NULL for what is none of it if it `is_try`."""

    value: Expr
    type: str
    is_try: bool = field(default=False, repr=False, kw_only=True)
    ref: int | None = ref_field()

    @property
    def args(self) -> tuple[Expr, ...]:
        """The converted expression."""
        return (self.value,)

    def __str__(self) -> str:
        return f"cast({self.value} AS {self.type})"


@dataclass(frozen=True)
class Call:
    """Any other expression, by its Catalyst class name; with a prefix where it does not do its default.

    What Spark replaces before it runs is read as what stands for it: `k BETWEEN 1 AND 2` as
    `k >= 1 AND k <= 2`.

    >>> collation = Call("ResolvedCollation", (), detail="UNICODE_CI")
    >>> print(Call("EqualTo", (Call("Collate", (Literal("a", "string"), collation)), Literal("A", "string"))))
    (('a' COLLATE UNICODE_CI) = 'A')

    Attributes:
        is_deterministic: whether the call itself gives the same for the same arguments.
        is_filled_in: whether Spark puts a value of the clock or the session in its place in each micro-batch.
        detail: what it is given beside its arguments, as text: which field of a struct it takes, say.
    """

    name: str
    args: tuple[Expr, ...]
    is_deterministic: bool = True
    is_filled_in: bool = False
    detail: str = field(default="", repr=False, kw_only=True)
    ref: int | None = ref_field()

    def __str__(self) -> str:
        if self.name in _SYMBOLS and len(self.args) == 2:
            return f"({self.args[0]} {_SYMBOLS[self.name]} {self.args[1]})"
        match self:
            case Call("Collate", (text, Call("ResolvedCollation", detail=collation))):
                return f"({text} COLLATE {collation})"
        return f"{self.name}({', '.join(str(arg) for arg in self.args)})"


@dataclass(frozen=True)
class Aggregation:
    """An aggregate function of a query, by its Catalyst class name, as in "Sum".

    Attributes:
        values: what it is given of each row.
        types: their types, as Spark SQL spells them.
        condition: of its FILTER.
        is_distinct: whether equal values count once.
        detail: other parameters of the function, by name: how it treats overflow, or NULL.
    """

    name: str
    values: tuple[Expr, ...]
    types: tuple[str, ...]
    condition: Expr | None = None
    is_distinct: bool = False
    detail: tuple[tuple[str, str], ...] = ()
    ref: int | None = ref_field()

    @property
    def args(self) -> tuple[Expr, ...]:
        """The values, and the condition."""
        return self.values if self.condition is None else (*self.values, self.condition)

    def __str__(self) -> str:
        values = ", ".join(map(str, self.values))
        where = "" if self.condition is None else f" FILTER (WHERE {self.condition})"
        return f"{self.name}({'DISTINCT ' if self.is_distinct else ''}{values}){where}"


Expr = Column | Literal | Cast | Call | Aggregation


def without_kinds(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns that hold values, not the kind of a change."""
    return tuple(column for column in columns if not column.is_row_kind)


def walk_expression(expr: Expr) -> Iterator[Expr]:
    """The expression and all within it, from the top."""
    yield expr
    for arg in expr.args:
        yield from walk_expression(arg)


def columns_of(*exprs: Expr) -> frozenset[int]:
    """Ids of the columns that the expressions use."""
    return frozenset(e.id for expr in exprs for e in walk_expression(expr) if isinstance(e, Column))


def conjuncts(expr: Expr | None) -> tuple[Expr, ...]:
    """The parts of a condition that must all hold; none for no condition.

    >>> a, b = Column(1, "a", "boolean"), Column(2, "b", "boolean")
    >>> [str(part) for part in conjuncts(Call("And", (a, b)))]
    ['a#1', 'b#2']
    """
    match expr:
        case None:
            return ()
        case Call("And", (left, right)):
            return (*conjuncts(left), *conjuncts(right))
        case _:
            return (expr,)


def conjunction(parts: Sequence[Expr]) -> Expr | None:
    """The condition that all parts hold; None for no parts. The inverse of `conjuncts`."""
    return reduce(lambda whole, part: Call("And", (whole, part)), parts) if parts else None


def substituted(expr: Expr, columns: Mapping[int, Expr]) -> Expr:
    """The expression over what its columns are computed from."""
    match expr:
        case Column(number):
            return columns.get(number, expr)
        case Cast(value):
            return replace(expr, value=substituted(value, columns), ref=None)
        case Call(_, args) if args:
            return replace(expr, args=tuple(substituted(arg, columns) for arg in args), ref=None)
        case _:
            return expr


TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
"""Types for which Spark reads texts like 'now' and 'yesterday' as a time of the clock."""

SUBQUERY: Final = "Subquery"
"""Name of the call as which any expression with a plan inside is read."""


def has_subquery(expr: Expr) -> bool:
    """Whether a part of the expression has a plan inside.

    >>> has_subquery(Call("GreaterThan", (Column(1, "a", "int"), Call(SUBQUERY, ()))))
    True
    """
    return any(isinstance(part, Call) and part.name == SUBQUERY for part in walk_expression(expr))


def is_clock_word(value: object) -> bool:
    """Whether a constant means another time at each reading once it is cast: 'now', 'today' and the like."""
    return isinstance(value, str) and value.strip().lower().startswith(
        ("now", "today", "tomorrow", "yesterday")
    )


INTEGER_WIDTHS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits of Spark's integer types, by name."""


def without_widening(expr: Expr) -> Expr:
    """The expression without casts that change neither equality nor order of its values.

    >>> str(without_widening(Cast(Column(1, "a", "int"), "bigint")))
    'a#1'
    """
    while isinstance(expr, Cast) and is_widening(expr.value, expr.type):
        expr = expr.value
    return expr


def equal_columns(condition: Expr | None) -> Iterator[tuple[Column, Column]]:
    """The columns that a condition calls equal, or NULL both: by what is computed no row is found.

    >>> a, b = Column(1, "a", "int"), Column(2, "b", "bigint")
    >>> [[str(one) for one in pair] for pair in equal_columns(Call("EqualTo", (Cast(a, "bigint"), b)))]
    [['a#1', 'b#2']]
    """
    for part in conjuncts(condition):
        if isinstance(part, Call) and part.name in ("EqualTo", "EqualNullSafe"):
            one, other = map(without_widening, part.args)
            if isinstance(one, Column) and isinstance(other, Column):
                yield one, other


def is_widening(value: Expr, wide: str) -> bool:
    """Whether a cast of the value to a type changes nothing but the width of an integer, at most."""
    if isinstance(value, Call | Aggregation):
        return False
    narrow = value.type
    both_integers = narrow in INTEGER_WIDTHS and wide in INTEGER_WIDTHS
    return narrow == wide or (both_integers and INTEGER_WIDTHS[narrow] <= INTEGER_WIDTHS[wide])


def are_joinable(left: Column, right: Column) -> bool:
    """Whether the columns may be a pair of join keys: of one scalar type, or integers of any width."""
    if left.type in INTEGER_WIDTHS and right.type in INTEGER_WIDTHS:
        return True
    return left.type == right.type and not left.type.startswith(("array", "map", "struct"))


def folded_integer(expr: Expr) -> Expr:
    """The expression, with a widened integer constant as the constant itself."""
    inner = without_widening(expr)
    return Literal(inner.value, inner.type) if isinstance(inner, Literal) else expr


def in_short(expr: Expr) -> str:
    """An expression for messages: a call by its name alone."""
    return f"{expr.name}(…)" if isinstance(expr, Call) else str(expr)


def without_ids(expr: Expr) -> str:
    """An expression with its columns by their names alone.

    >>> without_ids(Call("Upper", (Column(-3, "name", "string"),)))
    'Upper(name)'
    """
    return re.sub(r"#-?\d+", "", str(expr))


class Value(Enum):
    """What an expression gives in a delete: NULL; the same as in all rows of the key; or anything."""

    NULL = "null"
    UNCHANGED = "unchanged"
    ANYTHING = "anything"


@dataclass(frozen=True)
class Outcome:
    """What an expression gives in a delete, and whether it could raise an error for no value at all.

    One that is not quiet may stand where it is computed for every row, for then it raises nothing new; not
    in a branch that only a NULL leads to.
    """

    value: Value
    is_quiet: bool = True


_MAY_OVERFLOW: Final = ("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder")

_NULL_IN_NULL_OUT: Final = frozenset(
    {"Pmod", "UnaryMinus", "Abs", *_MAY_OVERFLOW, *(f"LEGACY{name}" for name in _MAY_OVERFLOW)}
    | {"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Not"}
    | {"Upper", "Lower", "Length", "StringTrim", "StringTrimLeft", "StringTrimRight", "Substring"}
    | {"Concat", "Like", "RLike", "StartsWith", "EndsWith", "Contains", "StringInstr", "StringReplace"}
    | {"Floor", "Ceil", "Round", "BRound", "Sqrt", "Exp", "Signum", "GetStructField"}
    | {"Year", "Month", "DayOfMonth", "DayOfYear", "DayOfWeek", "Hour", "Minute", "Second"}
    | {"DateAdd", "DateSub", "DateDiff", "DateFormatClass"}
)
"""Functions that are NULL wherever an argument is; some of them raise errors for values, like an overflow."""

_NEVER_RAISES: Final = frozenset(
    {"And", "Or", "Not", "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan"}
    | {"GreaterThanOrEqual", "In", "IsNull", "IsNotNull", "Coalesce", "If", "CaseWhen"}
    | {"Greatest", "Least", "Upper", "Lower", "Length", "Concat", "ConcatWs"}
    | {"StringTrim", "StringTrimLeft", "StringTrimRight", "CreateNamedStruct"}
)
"""Functions that give a value or NULL whatever their arguments give."""


def in_deletes(expr: Expr, columns: Mapping[int, Outcome]) -> Outcome | None:
    """What a deterministic expression gives in a delete with its key alone; None if it may raise an error.

    In such a row every column but the key and the record's own metadata is NULL. So the expression is
    computed for that one row, as far as that can be known. `columns` says the same of each column, by its id.

    >>> n = Column(1, "n", "bigint")
    >>> columns = {1: Outcome(Value.NULL)}
    >>> in_deletes(Call("Divide", (Literal(1, "bigint"), n)), columns)
    Outcome(value=<Value.NULL: 'null'>, is_quiet=True)
    >>> filled = Call("Coalesce", (n, Literal(0, "bigint")))
    >>> in_deletes(filled, columns)
    Outcome(value=<Value.ANYTHING: 'anything'>, is_quiet=True)
    >>> in_deletes(Call("Divide", (Literal(1, "bigint"), filled)), columns) is None
    True
    """
    match expr:
        case Column(number):
            return columns.get(number)
        case Literal(value):
            return Outcome(Value.NULL if value is None else Value.UNCHANGED)
        case Cast(value):
            return _of_cast(expr, in_deletes(value, columns))
        case Call(name, args):
            outcomes = [found for arg in args if (found := in_deletes(arg, columns)) is not None]
            return _of_call(name, outcomes) if len(outcomes) == len(args) else None
        case Aggregation():
            return None


def _of_cast(cast: Cast, inner: Outcome | None) -> Outcome | None:
    if inner is None or inner.value is Value.NULL:
        return inner
    if cast.type == "string" or is_widening(cast.value, cast.type):
        return inner
    return Outcome(Value.UNCHANGED, is_quiet=False) if inner.value is Value.UNCHANGED else None


def _of_call(name: str, args: Sequence[Outcome]) -> Outcome | None:
    are_quiet = all(arg.is_quiet for arg in args)
    if name in _NULL_IN_NULL_OUT and any(arg.value is Value.NULL for arg in args):
        return Outcome(Value.NULL, are_quiet)
    if all(arg.value is Value.UNCHANGED for arg in args):
        return Outcome(Value.UNCHANGED, are_quiet and name in _NEVER_RAISES)
    return Outcome(Value.ANYTHING) if are_quiet and name in _NEVER_RAISES else None
