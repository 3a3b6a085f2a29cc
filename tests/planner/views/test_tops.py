"""Of which orders the first rows can be kept, and how many of them a query shows."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from planner.plan.expressions import Aggregation, Call, Column, Expr, Literal
from planner.plan.nodes import Aggregate, Filter, GroupBy, Opaque, Output, Plan, Project, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.settings import Settings
from planner.views.top_rows import tops_of
from upsert.schema import TableSchema

PLAIN = Settings.of_query({}, {})
SCHEMA = TableSchema.of({"id": pa.int64(), "x": pa.int64()}, primary_key=["id"])
ID, X = Column(1, "id", "bigint"), Column(2, "x", "bigint")
POSITIVE = Call("GreaterThan", (ID, Literal(0, "bigint")), "boolean")


def table(name: str = "t") -> Relation:
    return Relation(
        name, (ID, X), rows=TableRows(ManagedTable(name, f"/{name}", SCHEMA, bucket_key=("id",)), 1)
    )


def node(name: str, child: Plan) -> Opaque:
    return Opaque(name, (child,), child.columns)


def limit(child: Plan) -> Opaque:
    return node("GlobalLimit", node("LocalLimit", child))


def ordered(child: Plan | None = None) -> Opaque:
    return node("Sort", child or table())


def extreme(name: str, value: Expr = X, condition: Expr | None = None) -> Aggregation:
    return Aggregation(name, (value,), ("bigint",), condition=condition)


def of_all(*functions: Aggregation, groups: tuple[GroupBy, ...] = ()) -> Aggregate:
    named = ((Column(number, "m", "bigint"), one) for number, one in enumerate(functions, 10))
    return Aggregate(table(), groups, tuple(Output(column, one) for column, one in named))


def shown(plan: Plan, numbers: Mapping[str, int | None]) -> list[tuple[int, list[str]]]:
    """Of each order how many rows are shown, and which columns are needed."""
    found = tops_of(plan, PLAIN, lambda one: numbers[one.name])
    return [(top.shown, [column.name for column in top.needed]) for top in found]


LIMITED = {
    "LIMIT": (limit(ordered()), [3]),
    "OFFSET": (limit(node("Offset", ordered())), [5]),
    "columns": (limit(Project(ordered(), (Output.of(X),))), [3]),
    "below": (Filter(limit(ordered()), POSITIVE), [3]),
    "HAVING of the order": (limit(Filter(ordered(), POSITIVE)), []),
    "no order": (limit(table()), []),
    "no LIMIT": (ordered(), []),
    "over groups": (limit(ordered(of_all(extreme("Max"), groups=(GroupBy(ID),)))), []),
    "over first rows": (limit(ordered(table("of-top-rows"))), []),
}


@pytest.mark.parametrize("name", LIMITED)
def test_the_first_rows_of_an_order_are_those_that_a_limit_shows(name: str) -> None:
    plan, wanted = LIMITED[name]
    assert [rows for rows, _ in shown(plan, {"GlobalLimit": 3, "Offset": 2})] == wanted


@pytest.mark.parametrize(
    ("most", "skipped", "is_kept"),
    [
        (5_000, 0, True),
        (4_990, 10, True),
        (4_990, 11, False),
        (0, 0, False),
        (None, 0, False),
        (3, None, False),
    ],
)
def test_no_more_rows_are_shown_than_can_be_kept(
    most: int | None, skipped: int | None, is_kept: bool
) -> None:
    plan = limit(node("Offset", ordered()))
    assert bool(shown(plan, {"GlobalLimit": most, "Offset": skipped})) is is_kept


@pytest.mark.parametrize(
    ("plan", "is_kept"),
    [
        (of_all(extreme("Max")), True),
        (of_all(extreme("Min"), replace(extreme("Min"), ref=7)), True),
        (of_all(extreme("Max"), extreme("Min")), False),
        (of_all(extreme("Max", condition=POSITIVE)), False),
        (of_all(extreme("Max", Literal(1, "bigint"))), False),
        (of_all(extreme("Sum")), False),
        (of_all(extreme("Max"), groups=(GroupBy(ID),)), False),
    ],
)
def test_an_extreme_of_all_rows_is_the_first_of_an_order(plan: Plan, is_kept: bool) -> None:
    assert shown(plan, {}) == ([(1, ["x"])] if is_kept else [])
