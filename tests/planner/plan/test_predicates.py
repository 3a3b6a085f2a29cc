"""Constants of every type as the store's filters, beyond the plans of `plans/push_filters.txt`."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from planner.plan.expressions import Call, Cast, Column, Expr, Literal
from planner.plan.nodes import Changelog
from planner.plan.translate import predicates_of

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def pushed(column_type: str, constant: Expr) -> list[Any]:
    column = Column(1, "c", column_type)
    leaf = Changelog("t", (column,), None)
    return [predicate for _, predicate in predicates_of(Call("GreaterThan", (column, constant)), leaf)]


@pytest.mark.parametrize(
    ("column_type", "constant"),
    [
        ("tinyint", Literal(127, "bigint")),
        ("bigint", Literal(3, "int")),
        ("string", Literal("x", "string")),
        ("boolean", Literal(False, "boolean")),
        ("date", Literal(date(2013, 1, 1), "date")),
        ("timestamp", Literal(NOON, "timestamp")),
        ("timestamp_ntz", Literal(NOON.replace(tzinfo=None), "timestamp_ntz")),
        ("decimal(5,2)", Literal(Decimal("1.50"), "decimal(5,2)")),
    ],
)
def test_constant_of_the_columns_type_is_pushed(column_type: str, constant: Literal) -> None:
    assert pushed(column_type, constant) == [("c", ">", constant.value)]


@pytest.mark.parametrize(
    ("column_type", "constant"),
    [
        ("tinyint", Literal(128, "int")),
        ("int", Literal(1.5, "double")),
        ("double", Literal(1.5, "double")),
        ("string", Literal(3, "int")),
        ("timestamp", Literal(date(2013, 1, 1), "date")),
        ("decimal(5,2)", Literal(Decimal("1.5"), "decimal(2,1)")),
        ("binary", Literal(b"x", "binary")),
        ("bigint", Cast(Literal("3", "string"), "bigint")),
        ("bigint", Column(2, "d", "bigint")),
    ],
)
def test_whatever_the_store_may_see_otherwise_is_not_pushed(column_type: str, constant: Expr) -> None:
    assert pushed(column_type, constant) == []
