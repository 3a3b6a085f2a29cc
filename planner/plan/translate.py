"""Conditions of a query in other languages: those of a delta join, and filters of the store (pure).

A condition that must hold inside a delta join has to mean exactly what Spark's does, so only what
`upsert.conditions.evaluate` evaluates so is translated. All else is named, so that a refusal can say what is
in the way. A filter of the store only has to drop no row that the query keeps, because the query applies its
own condition again. Left out of these on purpose: floating-point columns (NaN, -0.0), constants that do not
fit the column's type, comparisons across types, OR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from deltajoin import expressions as inside
from deltajoin.expressions import Condition, Ref
from deltajoin.filters import Predicate
from planner.plan.expressions import (
    INTEGER_WIDTHS,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    folded_integer,
    without_ids,
)
from planner.plan.nodes import Plan
from planner.plan.trees import trace
from upsert import types
from upsert.errors import CorruptTableError

_SAME_NAMES: Final = (
    *("Abs", "And", "Coalesce", "Concat", "Contains", "EndsWith", "If", "In", "IsNaN", "IsNotNull", "IsNull"),
    *("Length", "Like", "Month", "Not", "Or", "StartsWith", "Substring", "Year"),
)
"""Catalyst classes whose operator has the same name in lower case."""

GIVEN: Final = "Given"
"""Name of a call that is its argument, and an error where that is NULL."""

_OPERATORS: Final[Mapping[str, str]] = {
    **{name: name.lower() for name in _SAME_NAMES},
    "Add": "+",
    "CaseWhen": "case",
    "DayOfMonth": "day",
    "EqualNullSafe": "<=>",
    "EqualTo": "=",
    "FalseAbs": "wrapping abs",
    "FalseUnaryMinus": "wrapping neg",
    GIVEN: "given",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LEGACYAdd": "wrapping +",
    "LEGACYMultiply": "wrapping *",
    "LEGACYSubtract": "wrapping -",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Multiply": "*",
    "Subtract": "-",
    "UnaryMinus": "neg",
}
"""Catalyst class -> operator of a condition; `planner.spark.read` prefixes what is not as in ANSI mode."""

OF_DECIMALS: Final[Mapping[str, str]] = {
    prefix + name: operator
    for prefix in ("", "LEGACY")
    for name, operator in {
        "Add": "rounded +",
        "Divide": "/",
        "Multiply": "rounded *",
        "Subtract": "rounded -",
    }.items()
}
"""The same for calls with NULL as a third argument, which has the type to whose digits they are rounded.

Where Spark gives NULL without its ANSI mode, for an overflow or a division by zero, they are an error too.
"""

TEXT: Final = "Text"
"""Name of a call that is its argument as a text."""

OF_COMPUTED_ROWS: Final[Mapping[str, str]] = {
    **_OPERATORS,
    **{name: name.lower() for name in ("Greatest", "Least", "Lower", "Pmod", TEXT, "Upper")},
    "DateAdd": "date +",
    "DateDiff": "days",
    "DateSub": "date -",
    "Divide": "/",
    "LEGACYDivide": "/",
    "LEGACYRemainder": "%",
    "Remainder": "%",
    "StringTrim": "trim",
    "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
}
"""The same for rows that Spark would compute else. What a join does not know of stays above it, in its query:
a checkpoint continues with the conditions of its join."""

_WORDS: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


class NotTranslatableError(ValueError):
    """An expression that a delta join cannot evaluate, which is the text; it becomes a refusal."""


def translated(expr: Expr, refs: Mapping[int, Ref], operators: Mapping[str, str] = _OPERATORS) -> Condition:
    """The condition that means what a deterministic expression over columns of tables does.

    A call `Missing(value)` stands for the value where a row is there, else NULL, which no condition can tell.

    Raises:
        NotTranslatableError: a part has no equal; its text is that part's.

    >>> amount = Column(1, "amount", "bigint")
    >>> str(translated(Call("Not", (Call("IsNull", (amount,)),)), {1: Ref(0, "amount")}))
    'not(isnull(t0.amount))'
    """
    match expr:
        case Column(number) if number in refs:
            return inside.Field(refs[number])
        case Literal(value, name):
            return inside.Const(value, _type_of(expr, name))
        case Cast(value, name):
            return inside.Cast(translated(value, refs, operators), _type_of(expr, name))
        case Call(name, (one, other, Literal(None, type_name))) if name in OF_DECIMALS:
            nothing = inside.Const(None, _type_of(expr, type_name))
            both = (translated(each, refs, operators) for each in (one, other))
            return inside.Call(OF_DECIMALS[name], (*both, nothing))
        case Call(name, args) if name in operators:
            return inside.Call(operators[name], tuple(translated(arg, refs, operators) for arg in args))
        case Call("Missing", (value,)):
            raise NotTranslatableError(
                f"{without_ids(value)} where a row may be missing, for no column of its table is never NULL"
            )
    raise NotTranslatableError(without_ids(expr))


def _type_of(expr: Expr, name: str) -> pa.DataType:
    if (type_ := arrow_type(name)) is None:
        raise NotTranslatableError(without_ids(expr))
    return type_


def arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type for a scalar type that Spark SQL spells so; None for any other, and for a collation.

    >>> arrow_type("bigint"), arrow_type("array<int>")
    (DataType(int64), None)
    """
    try:
        type_ = types.from_json(_WORDS.get(name, name))
    except CorruptTableError:
        return None
    return type_ if types.is_scalar(type_) else None


_COMPARISONS: Final = {
    "EqualTo": ("==", "=="),
    "LessThan": ("<", ">"),
    "LessThanOrEqual": ("<=", ">="),
    "GreaterThan": (">", "<"),
    "GreaterThanOrEqual": (">=", "<="),
}
"""Catalyst class -> operator of a filter, and that with both sides exchanged."""

_PLAIN_TYPES: Final = {*INTEGER_WIDTHS, "string", "boolean", "date", "timestamp", "timestamp_ntz"}


def predicates_of(condition: Expr, plan: Plan) -> Iterator[tuple[Column, Predicate]]:
    """Filters that follow from one conjunct of a condition over `plan`, each with the column it tests."""
    match condition:
        case Call(name, (a, b)) if name in _COMPARISONS:
            operator, mirrored = _COMPARISONS[name]
            yield from _comparison(a, operator, b, plan)
            yield from _comparison(b, mirrored, a, plan)
        case Call("Not", (Call("EqualTo", (a, b)),)):
            yield from _comparison(a, "!=", b, plan)
            yield from _comparison(b, "!=", a, plan)
        case Call("IsNull" | "IsNotNull" as name, (value,)):
            if (column := trace(value, plan)) is not None and not column.is_row_kind:
                yield column, (column.name, "is null" if name == "IsNull" else "is not null", None)
        case Call("In", (value, *options)):
            column = trace(value, plan)
            constants = [found for one in options if isinstance(found := folded_integer(one), Literal)]
            if column is None or len(constants) < len(options):
                return
            if all(_fits(column, constant) for constant in constants):
                yield column, (column.name, "in", tuple(constant.value for constant in constants))


def _comparison(value: Expr, operator: str, constant: Expr, plan: Plan) -> Iterator[tuple[Column, Predicate]]:
    column, constant = trace(value, plan), folded_integer(constant)
    if column is not None and isinstance(constant, Literal) and _fits(column, constant):
        yield column, (column.name, operator, constant.value)


def _fits(column: Column, constant: Literal) -> bool:
    if constant.value is None or column.is_row_kind:
        return False
    if column.type in INTEGER_WIDTHS and constant.type in INTEGER_WIDTHS:
        limit = 1 << INTEGER_WIDTHS[column.type] - 1
        return bool(-limit <= constant.value < limit)
    return column.type == constant.type and (column.type in _PLAIN_TYPES or column.type.startswith("decimal"))
