"""Which parts of a query are computed partition by partition, and what tells their partitions apart."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from planner.plan.expressions import SUBQUERY, Aggregation, Call, Column, Expr
from planner.plan.nodes import (
    Aggregate,
    Apart,
    Filter,
    GroupBy,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    TableRows,
    WindowKind,
)
from planner.plan.sources import ManagedTable
from planner.plan.trees import children
from planner.settings import Settings
from planner.views.partitions import partitions_of
from upsert.schema import TableSchema

PLAIN = Settings.of_query({}, {})
NAMES = ("id", "a", "b", "c", "unread")
SCHEMA = TableSchema.of(dict.fromkeys(NAMES, pa.int64()), primary_key=["id"])
ID, A, B, C, UNREAD = COLUMNS = tuple(Column(number, name, "bigint") for number, name in enumerate(NAMES, 1))
TABLE = Relation("t", COLUMNS, rows=TableRows(ManagedTable("t", "/t", SCHEMA, bucket_key=("id",)), 1))


def window(child: Plan, number: int, *by: Column) -> Opaque:
    """A function of a column ``id`` OVER (PARTITION BY …)."""
    made = Column(number, f"w{number}", "bigint")
    used = frozenset(column.id for column in (ID, *by))
    return Opaque("Window", (child,), (*child.columns, made), apart=Apart(by, used))


def largest(child: Plan, *groups: GroupBy) -> Aggregate:
    """MAX(c), which is no sum, by groups."""
    value = Output(Column(30, "m", "bigint"), Aggregation("Max", (C,), ("bigint",)))
    return Aggregate(child, groups, (value,))


def shown(plan: Plan, *columns: Column) -> Project:
    return Project(plan, tuple(map(Output.of, columns)))


def over_a_subquery(plan: Plan) -> Filter:
    return Filter(plan, Call("LessThan", (A, Call(SUBQUERY, (), "bigint")), "boolean"))


def keys_of(plan: Plan) -> list[list[str]]:
    """By which columns the partitions of each part are told apart."""
    keys = (part.keys for part in partitions_of(plan, PLAIN))
    return [sorted(str(column.name) for column in found if isinstance(column, Column)) for found in keys]


SESSION: Expr = Call("session", (A,), "bigint")


@pytest.mark.parametrize(
    ("plan", "keys"),
    [
        (window(TABLE, 11, A, B), [["a", "b"]]),
        (window(TABLE, 11), []),
        (window(window(TABLE, 11, A, B), 12, A), [["a"]]),
        (window(window(TABLE, 11, A), 12, A, B), [["a"]]),
        (window(window(window(TABLE, 11, A, B), 12, B, C), 13, A, B, C), [["b"]]),
        (window(window(TABLE, 11, A), 12, B), [["a"]]),
        (Filter(window(TABLE, 11, A), None), [["a"]]),
        (over_a_subquery(window(TABLE, 11, A)), [["a"]]),
        (largest(TABLE, GroupBy(A), GroupBy(B)), [["a", "b"]]),
        (largest(TABLE), []),
        (largest(TABLE, GroupBy(SESSION, WindowKind.SESSION), GroupBy(B)), [["b"]]),
        (largest(TABLE, GroupBy(SESSION, WindowKind.SESSION)), []),
        (largest(over_a_subquery(TABLE), GroupBy(A)), []),
    ],
)
def test_partitions_are_told_apart_by_what_all_of_a_part_have_in_common(
    plan: Plan, keys: Sequence[Sequence[str]]
) -> None:
    assert keys_of(plan) == keys


def test_a_condition_that_reads_other_rows_stays_above() -> None:
    """When these change no partition is touched."""
    windowed = window(TABLE, 11, A)
    for plan, place in (
        (condition := Filter(windowed, None), condition),
        (over_a_subquery(windowed), windowed),
    ):
        (part,) = partitions_of(plan, PLAIN)
        assert part.place is place


def test_what_the_part_does_not_need_is_not_kept() -> None:
    inner = window(shown(TABLE, *COLUMNS), 11, A)
    outer = window(Filter(inner, Call("IsNotNull", (B,), "boolean")), 12, A, C)
    (part,) = partitions_of(shown(outer, outer.columns[-1]), PLAIN)
    (upper,) = children(part.top)
    (filtered,) = children(upper)
    assert part.needed == (ID, A, B, C)
    assert UNREAD.id not in part.ids
    assert part.top.columns == outer.columns[-1:]
    assert upper.columns == (ID, A, B, C, *outer.columns[-2:])
    assert filtered.columns == part.node.columns == (ID, A, B, C, inner.columns[-1])
    assert part.child == shown(TABLE, ID, A, B, C)
