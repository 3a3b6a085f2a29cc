"""Conditions of a query as filters of the store: a small subset whose meaning is the same in both (pure).

A filter that reaches the store only has to drop no row that the query keeps, because the query applies
its own condition again. Left out on purpose: floating-point columns (NaN, -0.0), constants that do
not fit the column's type, comparisons across types, OR.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from planner.chain import INTEGER_WIDTHS, folded_integer, trace
from planner.delta_join import Predicate
from planner.expressions import Call, Column, Expr, Literal
from planner.nodes import Plan

_OPERATORS: Final = {
    "EqualTo": "==",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED: Final = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PLAIN_TYPES: Final = {*INTEGER_WIDTHS, "string", "boolean", "date", "timestamp", "timestamp_ntz"}


def predicates_of(condition: Expr, plan: Plan) -> Iterator[tuple[Column, Predicate]]:
    """Filters that follow from one conjunct of a condition over `plan`, each with the column it tests."""
    match condition:
        case Call(name, (a, b)) if name in _OPERATORS:
            operator = _OPERATORS[name]
            yield from _comparison(a, operator, b, plan)
            yield from _comparison(b, _MIRRORED[operator], a, plan)
        case Call("Not", (Call("EqualTo", (a, b)),)):
            yield from _comparison(a, "!=", b, plan)
            yield from _comparison(b, "!=", a, plan)
        case Call("IsNull" | "IsNotNull" as name, (value,)):
            if (column := trace(value, plan)) is not None and not column.is_row_kind:
                yield column, (column.name, "is null" if name == "IsNull" else "is not null", None)
        case Call("In", (value, *options)):
            column = trace(value, plan)
            constants = [folded_integer(option) for option in options]
            if column is not None and all(_fits(column, constant) for constant in constants):
                yield column, (column.name, "in", tuple(_value(constant) for constant in constants))


def _comparison(value: Expr, operator: str, constant: Expr, plan: Plan) -> Iterator[tuple[Column, Predicate]]:
    column, constant = trace(value, plan), folded_integer(constant)
    if column is not None and _fits(column, constant):
        yield column, (column.name, operator, _value(constant))


def _fits(column: Column, constant: Expr) -> bool:
    if not isinstance(constant, Literal) or constant.value is None or column.is_row_kind:
        return False
    if column.type in INTEGER_WIDTHS and constant.type in INTEGER_WIDTHS:
        limit = 1 << INTEGER_WIDTHS[column.type] - 1
        return bool(-limit <= constant.value < limit)
    return column.type == constant.type and (column.type in _PLAIN_TYPES or column.type.startswith("decimal"))


def _value(constant: Expr) -> Any:
    assert isinstance(constant, Literal)
    return constant.value
