"""A filter survives being an option's text."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tests.upsert.store.samples import KEY_VALUES
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store.predicate import parse_where, where_from_json, where_to_json
from upsert.types import TIMESTAMP

SCHEMA = TableSchema.of({"d": pa.date32(), "n": pa.int32(), "s": pa.string(), "b": pa.binary()})


@pytest.mark.parametrize("type_", KEY_VALUES, ids=str)
def test_a_filter_reads_back_for_every_type(type_: pa.DataType) -> None:
    schema = TableSchema.of({"v": type_})
    values = [value for value in KEY_VALUES[type_] if value == value]
    rows = pa.table({"v": pa.array([*KEY_VALUES[type_], None], type_)})
    for where in ([("v", "=", values[0])], [[("v", ">", values[0])], [("v", "is null", None)]]):
        text = where_to_json(where)
        assert (
            parse_where(where_from_json(text, schema), schema)
            .apply(rows)
            .equals(parse_where(where, schema).apply(rows))
        )
    within: list[Any] = [("v", "in", values)]
    assert (
        parse_where(where_from_json(where_to_json(within), schema), schema)
        .apply(rows)
        .equals(parse_where(within, schema).apply(rows))
    )


def test_a_time_of_a_place_before_it_had_a_zone_reads_back() -> None:
    schema, at = TableSchema.of({"at": TIMESTAMP}), datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert where_from_json(where_to_json([("at", "=", at)]), schema) == [("at", "=", at)]  # 00:53:28 ahead
    with pytest.raises(SchemaError, match="must be within the years 1 to 9999 of UTC, got '0001-01-01"):
        where_to_json([("at", "=", datetime.min.replace(tzinfo=at.tzinfo))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day = 1", "must be JSON, got 'day = 1'"),
        ("{}", "must be a JSON list"),
        ('[["x", "=", 1]]', "unknown column 'x'"),
        ('[["d", "=", "someday"]]', "'d' must be compared with a value of DATE, got 'someday'"),
        ('[["b", "=", "xyz"]]', "'b' must be compared with a value of"),
        ('[["n", "~", 1]]', "operator must be one of"),
        ('[["n", "="]]', "a predicate must be"),
    ],
)
def test_a_text_that_is_no_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_where(where_from_json(text, SCHEMA), SCHEMA)
