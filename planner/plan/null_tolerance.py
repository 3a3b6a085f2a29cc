"""Whether an expression may meet a delete that carries its key alone, without raising an error (pure).

In such a row every column but the key and the record's own metadata is NULL. So an expression is
computed here for that one row, as far as that can be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from planner.plan.expressions import Aggregation, Call, Cast, Column, Expr, Literal, is_widening


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


_ARITHMETIC: Final = ("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder")

_NULL_IN_NULL_OUT: Final = frozenset(
    {"Pmod", "UnaryMinus", "Abs", *_ARITHMETIC, *(f"LEGACY{name}" for name in _ARITHMETIC)}
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

    `columns` says the same of each column, by its id.

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
