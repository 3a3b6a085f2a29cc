"""Which tables lack an index that the joins of a query need."""

import pyarrow as pa
import pytest

from planner.plan.expressions import Call, Column, Expr
from planner.plan.nodes import Filter, Join, Plan, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.views.unindexed import unindexed
from upsert.schema import TableSchema

NAMES = ("id", "x", "y")


def table(number: int, *index: str, snapshot: int | None = 1) -> Relation:
    schema = TableSchema.of(dict.fromkeys(NAMES, pa.int64()), ["id"])
    name = "abc"[number]
    read = ManagedTable(name, f"/{name}", schema.index(*index) if index else schema)
    columns = tuple(Column(10 * number + place, one, "bigint") for place, one in enumerate(NAMES))
    return Relation(name, columns, rows=TableRows(read, snapshot))


def equal(*pairs: tuple[Relation, int, Relation, int]) -> Expr:
    parts = [Call("EqualTo", (a.columns[i], b.columns[j]), "boolean") for a, i, b, j in pairs]
    return parts[0] if len(parts) == 1 else Call("And", tuple(parts), "boolean")


def joined(left: Plan, right: Plan, condition: Expr) -> Join:
    return Join(left, right, "inner", condition, (*left.columns, *right.columns))


A, B, C = map(table, range(3))
INDEXED = table(1, "x")


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (joined(A, B, equal((A, 1, B, 0))), {"a": [["x"]]}),
        (joined(A, B, equal((A, 1, B, 1))), {"a": [["x"]], "b": [["x"]]}),
        (joined(A, INDEXED, equal((A, 0, INDEXED, 1))), {}),
        (joined(A, B, equal((A, 1, B, 1), (A, 2, B, 2))), {"a": [["x", "y"]], "b": [["x", "y"]]}),
        (joined(A, INDEXED, equal((A, 0, INDEXED, 1), (A, 1, INDEXED, 2))), {}),
        (Filter(joined(A, B, equal((A, 0, B, 0))), equal((A, 1, A, 2))), {}),
        (Filter(A, equal((A, 1, A, 2))), {}),
        (
            joined(joined(A, B, equal((A, 0, B, 0))), C, equal((A, 1, C, 0), (B, 2, C, 1))),
            {"a": [["id"], ["x"]], "b": [["id"], ["y"]], "c": [["id"], ["x"]]},
        ),
        (joined(A, (of_now := table(1, snapshot=None)), equal((A, 0, of_now, 1))), {}),
        (joined(A, (other := Relation("o", B.columns)), equal((A, 0, other, 1))), {}),
    ],
    ids=[
        "a",
        "both",
        "index",
        "two columns",
        "index within",
        "of itself",
        "alone",
        "three",
        "of now",
        "other",
    ],
)
def test_what_joins_look_up_without_an_index_is_named_with_all_of_its_columns(
    plan: Plan, found: dict[str, list[list[str]]]
) -> None:
    lacking = {
        leaf.name: sorted([column.name for column in by] for by in looked_up)
        for leaf, looked_up in unindexed(plan).values()
    }
    assert lacking == found
