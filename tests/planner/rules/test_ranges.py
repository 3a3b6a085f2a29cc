"""Constants of every type as bounds of what is read, beyond the plans of `plans/narrow_kafka_range.txt`."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from planner.plan.expressions import Call, Column, Expr, Literal
from planner.plan.nodes import Filter, Relation
from planner.plan.sources import KafkaTopic, Mode, RecordRange
from planner.rules.push_down import range_of
from upsert.schema import Column as Declared
from upsert.schema import TableSchema

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
MILLIS = 1_357_041_600_000
NEARLY = timedelta(microseconds=-1)
LONGEST = (1 << 63) - 1


def bounds(key: str, column_type: str, operator: str, constant: Expr) -> RecordRange:
    schema = TableSchema((Declared("v", pa.int64()), Declared("m", pa.int64(), metadata=key)))
    column = Column(1, "m", column_type)
    topic = KafkaTopic("clicks", schema, Mode.ROWS)
    leaf = Relation("kafka-changelog", (column,), True, topic)
    return range_of(Filter(leaf, Call(operator, (column, constant))), topic)


@pytest.mark.parametrize(
    ("column_type", "constant", "at_least", "more_than"),
    [
        ("timestamp", Literal(NOON, "timestamp"), MILLIS, MILLIS + 1),
        ("timestamp", Literal(NOON + NEARLY, "timestamp"), MILLIS, MILLIS),
        ("timestamp", Literal(NOON - NEARLY, "timestamp"), MILLIS + 1, MILLIS + 1),
        ("timestamp_ntz", Literal(NOON.replace(tzinfo=None), "timestamp_ntz"), MILLIS, MILLIS + 1),
        ("bigint", Literal(MILLIS, "bigint"), MILLIS, MILLIS + 1),
        ("bigint", Literal(7, "int"), 7, 8),
    ],
)
def test_time_bound_is_the_first_millisecond_that_passes(
    column_type: str, constant: Literal, at_least: int, more_than: int
) -> None:
    assert bounds("timestamp", column_type, "GreaterThanOrEqual", constant).timestamp_from == at_least
    assert bounds("timestamp", column_type, "EqualTo", constant).timestamp_from == at_least
    assert bounds("timestamp", column_type, "GreaterThan", constant).timestamp_from == more_than


@pytest.mark.parametrize(
    ("key", "column_type", "operator", "constant"),
    [
        ("timestamp", "timestamp", "LessThan", Literal(NOON, "timestamp")),
        ("timestamp", "timestamp", "GreaterThan", Literal(NOON.replace(tzinfo=None), "timestamp_ntz")),
        ("timestamp", "timestamp", "GreaterThan", Literal(date(2013, 1, 1), "date")),
        ("timestamp", "date", "GreaterThan", Literal(date(2013, 1, 1), "date")),
        ("timestamp", "string", "GreaterThan", Literal("2013", "string")),
        ("timestamp", "timestamp", "GreaterThan", Literal(None, "timestamp")),
        ("timestamp", "timestamp", "GreaterThan", Literal(datetime(1969, 1, 1, tzinfo=UTC), "timestamp")),
        ("timestamp", "bigint", "GreaterThan", Literal(LONGEST, "bigint")),
        ("offset", "double", "GreaterThan", Literal(5.0, "double")),
        ("offset", "bigint", "GreaterThan", Literal(LONGEST, "bigint")),
        ("offset", "bigint", "LessThanOrEqual", Literal(LONGEST, "bigint")),
        ("offset", "bigint", "LessThan", Literal(0, "bigint")),
        ("offset", "timestamp", "GreaterThan", Literal(NOON, "timestamp")),
        ("offset", "boolean", "EqualTo", Literal(True, "boolean")),
        ("partition", "int", "GreaterThan", Literal(1, "int")),
        ("partition", "bigint", "EqualTo", Literal(1 << 31, "bigint")),
        ("partition", "string", "EqualTo", Literal("1", "string")),
        ("leader-epoch", "int", "EqualTo", Literal(1, "int")),
    ],
)
def test_whatever_may_keep_other_records_bounds_nothing(
    key: str, column_type: str, operator: str, constant: Expr
) -> None:
    assert bounds(key, column_type, operator, constant) == RecordRange()


@pytest.mark.parametrize("column_type", ["smallint", "int", "bigint"])
def test_offset_of_any_width_bounds_the_read(column_type: str) -> None:
    found = bounds("offset", column_type, "EqualTo", Literal(5, "int"))
    assert found == RecordRange(offset_from=5, offset_until=6)


def test_range_says_itself_as_options_that_it_is_read_from() -> None:
    values: dict[str, Any] = {
        "scan.filter.partitions": (0, 2),
        "scan.filter.offset-from": 3,
        "scan.filter.offset-until": 9,
        "scan.filter.timestamp-from": 1500,
    }
    range_ = RecordRange.of(values)
    texts = {key: str(value) for key, value in values.items()}
    assert range_.options == {**texts, "scan.filter.partitions": "0,2"}
    assert str(range_) == "partition in (0, 2) and offset >= 3 and offset < 9 and timestamp >= 1500"
    assert RecordRange.of({}).options == {}
