"""Debezium records of the demo: what they say, read with nothing but `json`."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import source
from examples.flights.kafka.debezium import objects, records
from examples.flights.replay import Recorded, replay
from examples.flights.tables import FLIGHT_KEY, JOIN_KEY

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("origin", pa.string()),
        ("time_hour", pa.timestamp("us", "UTC")),
        ("late", pa.int32()),
    ]
)
BEFORE = (date(2013, 1, 1), "EWR", datetime(2013, 1, 1, 10, tzinfo=UTC), None)
AFTER = (date(2013, 1, 1), "EWR", datetime(2013, 1, 1, 11, tzinfo=UTC), -3)
BEFORE_JSON = {"day": 15706, "origin": "EWR", "time_hour": "2013-01-01T10:00:00Z", "late": None}
AFTER_JSON = {"day": 15706, "origin": "EWR", "time_hour": "2013-01-01T11:00:00Z", "late": -3}


def rows(*values: tuple[object, ...]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=SCHEMA)


def log(*kinds: str) -> Recorded:
    """Changes of one row from BEFORE to AFTER, at one second and a bit after 1970."""
    count = len(kinds)
    return Recorded(
        np.full(count, 1_234_567), pa.array(kinds), rows(*[BEFORE] * count), rows(*[AFTER] * count)
    )


def read(produced: pa.Table) -> list[tuple[Any, Any]]:
    return [
        (json.loads(key), None if value is None else json.loads(value))
        for key, value in zip(produced["key"].to_pylist(), produced["value"].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "op", "before", "after"),
    [("+I", "c", None, AFTER_JSON), ("+U", "u", BEFORE_JSON, AFTER_JSON), ("-D", "d", BEFORE_JSON, None)],
)
def test_a_change_has_its_images(kind: str, op: str, before: object, after: object) -> None:
    (key, value), *_ = read(records(log(kind), "flights", ["day", "origin"]))
    assert key == {"day": 15706, "origin": "EWR"}
    assert (value["op"], value["before"], value["after"]) == (op, before, after)


def test_the_source_block_says_where_and_when() -> None:
    ((_, value),) = read(records(log("+I"), "flights", ["day"]))
    assert (
        value["source"].items()
        >= {
            "connector": "postgresql",
            "db": "airports",
            "schema": "public",
            "table": "flights",
            "ts_ms": 1234,
        }.items()
    )
    assert value["ts_ms"] == 1234
    assert value["transaction"] is None
    assert "schema" not in value


def test_only_a_delete_is_followed_by_a_tombstone() -> None:
    operations = [
        value and value["op"] for _, value in read(records(log("-D", "+I", "-D", "+U"), "t", ["day"]))
    ]
    assert operations == ["d", None, "c", "d", None, "u"]


def test_texts_are_escaped() -> None:
    quoted = rows((None, 'J"\n\\K', None, None))
    assert [json.loads(text)["origin"] for text in objects(quoted).to_pylist()] == ['J"\n\\K']


def test_no_changes_are_no_records() -> None:
    empty = Recorded(
        np.zeros(0, np.int64), pa.array([], pa.string()), SCHEMA.empty_table(), SCHEMA.empty_table()
    )
    assert records(empty, "flights", ["day"]).num_rows == 0


def test_what_the_records_of_a_replay_leave_are_the_rows_of_the_source() -> None:
    flights = source.read_flights(600)
    weather = source.read_weather(pc.max(flights["time_hour"]))
    year = replay(flights, weather, steps=7)
    departed = flights.filter(pc.is_valid(flights["dep_time"]))
    expected = (departed.num_rows, weather.num_rows)
    keys = (FLIGHT_KEY, JOIN_KEY)
    for side, (key, count) in enumerate(zip(keys, expected, strict=True)):
        left: dict[str, dict[str, Any]] = {}
        for number in range(len(year)):
            for name, value in read(records(year.recorded(number)[side], "any", key)):
                if value is not None:
                    assert left.get(str(name)) == value["before"]
                    left[str(name)] = value["after"]
                    if value["op"] == "d":
                        del left[str(name)]
        assert len(left) == count
