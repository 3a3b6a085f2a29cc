"""Spark's expressions as conditions of a delta join, for what must hold inside the join (pure).

Only what `deltajoin.conditions` evaluates exactly as Spark does. All else is named, so that a refusal can say
what is in the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from deltajoin import expressions as inside
from deltajoin.expressions import Condition, Ref
from planner.expressions import Call, Cast, Column, Expr, Literal
from planner.words import without_ids
from upsert import types
from upsert.errors import CorruptTableError

_OPERATORS: Final[Mapping[str, str]] = {
    "Abs": "abs",
    "Add": "+",
    "And": "and",
    "CaseWhen": "case",
    "Coalesce": "coalesce",
    "Concat": "concat",
    "Contains": "contains",
    "DayOfMonth": "day",
    "EndsWith": "endswith",
    "EqualNullSafe": "<=>",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "If": "if",
    "In": "in",
    "IsNaN": "isnan",
    "IsNotNull": "isnotnull",
    "IsNull": "isnull",
    "FalseAbs": "wrapping abs",
    "FalseUnaryMinus": "wrapping neg",
    "LEGACYAdd": "wrapping +",
    "LEGACYMultiply": "wrapping *",
    "LEGACYSubtract": "wrapping -",
    "Length": "length",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Like": "like",
    "Month": "month",
    "Multiply": "*",
    "Not": "not",
    "Or": "or",
    "StartsWith": "startswith",
    "Substring": "substring",
    "Subtract": "-",
    "UnaryMinus": "neg",
    "Year": "year",
}
"""Catalyst class -> operator of a condition; `planner.read` prefixes what is not as in ANSI mode."""
_WORDS: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


class NotTranslatableError(ValueError):
    """An expression that a delta join cannot evaluate; the text is that expression.

    The planner makes a refusal of it.
    """


def translated(expr: Expr, refs: Mapping[int, Ref]) -> Condition:
    """The condition that means what the expression does.

    Args:
        expr: a deterministic expression over columns of tables.
        refs: id of each such column -> the table and the column. A call `Missing(value)` stands for the value
            where a row is there, else NULL, which no condition can tell.

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
            return inside.Const(value, _arrow(expr, name))
        case Cast(value, name):
            return inside.Cast(translated(value, refs), _arrow(expr, name))
        case Call(name, args) if name in _OPERATORS:
            return inside.Call(_OPERATORS[name], tuple(translated(arg, refs) for arg in args))
        case Call("Missing", (value,)):
            raise NotTranslatableError(
                f"{without_ids(value)} where a row may be missing, for no column of its table is never NULL"
            )
    raise NotTranslatableError(without_ids(expr))


def _arrow(expr: Expr, name: str) -> pa.DataType:
    try:
        type_ = types.from_json(_WORDS.get(name, name))
    except CorruptTableError as cause:
        raise NotTranslatableError(without_ids(expr)) from cause
    if not types.is_scalar(type_):
        raise NotTranslatableError(without_ids(expr))
    return type_
