"""What of a query follows from its tables' changes is asked of the same parts again and again.

Parts that look alike are told apart: a plan is known by the object that it is.
"""

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from planner.plan.expressions import SUBQUERY, Aggregation, Call, Column, Literal
from planner.plan.nodes import Aggregate, Filter, GroupBy, Opaque, Output, Plan, Project, Relation, TableRows
from planner.plan.sources import ManagedTable
from planner.settings import Settings
from planner.views.partition_table import _can_be_hashed
from planner.views.stage_table import _can_be_key
from planner.views.stages import changes_of, has_stage, stages_of, why_all
from upsert.schema import TableSchema

SCHEMA = TableSchema.of({"id": pa.int64(), "x": pa.int64()}, primary_key=["id"])
ID, X, N, M = (Column(number, name, "bigint") for number, name in enumerate(("id", "x", "n", "m"), 1))
TRUE = Literal(True, "boolean")
PLAIN = Settings.of_query({}, {})


def table(snapshot: int = 1, name: str = "t") -> Relation:
    """The rows of a table in one state."""
    read = ManagedTable(name, f"/{name}", SCHEMA, bucket_key=("id",))
    return Relation(name, (ID, X), rows=TableRows(read, snapshot))


def counted(plan: Plan, by: Column, name: Column) -> Aggregate:
    """How many rows there are of each value."""
    count = Aggregation("Count", (Literal(1, "int"),), ("int",))
    return Aggregate(plan, (GroupBy(by),), (Output(by, by), Output(name, count)))


def test_plans_that_come_and_go_are_not_taken_for_each_other() -> None:
    """A new plan may have the place of one that is gone; its own snapshot is read."""
    for snapshot in range(1, 2_000):
        found = changes_of(Filter(table(snapshot), TRUE), PLAIN)
        assert found is not None
        assert [version for _, version in found.tables] == [snapshot]


def test_what_is_known_of_a_plan_depends_on_what_it_is_written_into() -> None:
    """By its own key a table's rows are told apart, by another column they are not."""
    plan = Filter(table(), TRUE)
    by_id, by_x = (changes_of(plan, replace(PLAIN, sink_key=(key,))) for key in ("id", "x"))
    assert by_id is not None
    assert by_x is not None
    assert (by_id.is_unique, by_x.is_unique) == (True, False)


def test_no_changes_follow_above_what_remembers_rows() -> None:
    """An aggregate, and what the planner does not know, wherever they are; but an ORDER BY at the top."""
    rows = table()
    limited = Opaque("GlobalLimit", (rows,), rows.columns)
    for plan in (counted(rows, X, N), Filter(counted(rows, X, N), TRUE), limited, Filter(limited, TRUE)):
        assert changes_of(plan, PLAIN) is None
    assert changes_of(Opaque("Sort", (rows,), rows.columns), PLAIN) is not None


def test_a_limit_is_what_needs_all_rows_whatever_its_order_is_of() -> None:
    """The order lies below a projection where the query leaves a column of it out."""
    ordered = Project(Opaque("Sort", (table(),), (ID, X)), (Output.of(ID),))
    limited = Opaque("GlobalLimit", (Opaque("LocalLimit", (ordered,), (ID,)),), (ID,))
    assert why_all(limited, PLAIN) == "LIMIT"


def test_a_subquery_that_is_left_needs_all_rows() -> None:
    """What the rules for streams say of it does not help a view."""
    value = Call("EqualTo", (ID, Call(SUBQUERY, ())), "boolean")
    assert why_all(Filter(table(), value), PLAIN) == "a subquery that cannot be a join"


@pytest.mark.parametrize(
    "plan",
    [
        table(),
        counted(table(), X, N),
        counted(counted(table(), X, N), N, M),
        Filter(counted(Opaque("GlobalLimit", (table(),), (ID, X)), X, N), TRUE),
        counted(Relation("unknown", (ID, X)), X, N),
    ],
    ids=["table", "aggregate", "aggregate of an aggregate", "aggregate of a LIMIT", "no table"],
)
def test_a_stage_is_known_to_be_there_where_one_is_found(plan: Plan) -> None:
    """Whether there is one is asked without making those of all parts of a query."""
    assert has_stage(plan, PLAIN) == bool(stages_of(plan, PLAIN))


COLLATED = t.StringType("UTF8_LCASE")


@pytest.mark.parametrize(
    ("type_", "is_key", "is_hashed"),
    [
        (t.StringType(), True, True),
        (t.DecimalType(38, 10), True, True),
        (t.DoubleType(), False, True),
        (t.ArrayType(t.IntegerType()), False, True),
        (COLLATED, False, True),
        (t.ArrayType(COLLATED), False, False),
        (t.MapType(t.IntegerType(), t.IntegerType()), False, False),
        (t.VariantType(), False, False),
        (t.StructType(), False, True),
    ],
    ids=lambda one: one.simpleString() if isinstance(one, t.DataType) else None,
)
def test_groups_are_told_apart_by_a_key_or_a_hash_that_knows_which_values_are_equal(
    type_: t.DataType, is_key: bool, is_hashed: bool
) -> None:
    assert (_can_be_key(type_), _can_be_hashed(type_)) == (is_key, is_hashed)
    if type_ != COLLATED:  # of which the key of its collation is hashed, but in no struct
        field = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", type_)])
        assert (_can_be_key(field), _can_be_hashed(field)) == (is_key, is_hashed)
