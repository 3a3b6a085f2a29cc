"""The consumer's view: newest values, tombstones, repeated records, keys in two partitions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import source
from examples.flights.kafka.consumed import RECORDS, look_at
from examples.flights.kafka.outcome import expected_board, expected_join
from examples.flights.kafka.tables import BOARD_SCHEMA, JOINED_SCHEMA

SCHEMA = pa.schema([("flight", pa.int32()), ("time_hour", pa.timestamp("us", "UTC")), ("temp", pa.float64())])


def topic(*records: tuple[int, str, float | None]) -> pa.Table:
    """Records of (partition, key, temp); no temp is a tombstone."""
    rows = []
    for offset, (partition, key, temp) in enumerate(records):
        value = f'{{"flight":7,"time_hour":"2013-01-01 10:00:00Z","temp":{temp}}}'.encode()
        rows.append((partition, offset, key.encode(), None if temp is None else value))
    return pa.table(
        [list(column) for column in zip(*rows, strict=True)],
        schema=RECORDS,
    )


def test_the_newest_value_of_each_key_that_has_one() -> None:
    found = look_at(topic((0, "a", 1.5), (0, "b", 2.0), (0, "a", 39.02), (0, "b", None)), SCHEMA)
    assert (found.records, found.tombstones, found.keys, found.repeats, found.strays) == (4, 1, 2, 0, 0)
    assert found.rows.schema == SCHEMA
    ((flight, hour, temp),) = zip(*found.rows.to_pydict().values(), strict=True)
    assert (flight, hour.isoformat(), temp) == (7, "2013-01-01T10:00:00+00:00", 39.02)


@pytest.mark.parametrize(
    ("records", "repeats"),
    [
        ([(0, "a", 1.0), (0, "a", 1.0)], 1),
        ([(0, "a", 1.0), (0, "b", 1.0), (0, "a", 1.0)], 1),
        ([(0, "a", 1.0), (0, "a", None), (0, "a", None)], 1),
        ([(0, "a", 1.0), (0, "a", 2.0), (0, "a", 1.0)], 0),
        ([(0, "a", None), (0, "b", 1.0)], 0),
    ],
)
def test_a_record_that_says_what_the_one_before_said_is_a_repeat(
    records: list[tuple[int, str, float | None]], repeats: int
) -> None:
    assert look_at(topic(*records), SCHEMA).repeats == repeats


def test_a_key_in_two_partitions_is_a_stray() -> None:
    assert look_at(topic((0, "a", 1.0), (1, "a", 2.0), (1, "b", 1.0)), SCHEMA).strays == 1


def test_a_topic_may_be_empty() -> None:
    empty = look_at(topic((0, "a", 1.0)).slice(1), SCHEMA)
    assert (empty.records, empty.keys, empty.rows.num_rows) == (0, 0, 0)


def test_expected_rows_are_what_arrow_makes_of_the_same_source(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = source.extract_files(tmp_path_factory.mktemp("files"))
    flights = source.read_flights(500)
    late = flights.filter(
        pc.and_(pc.is_valid(flights["dep_time"]), pc.greater_equal(flights["dep_delay"], 15))
    )
    order = [("day", "ascending"), ("carrier", "ascending"), ("flight", "ascending"), ("origin", "ascending")]
    board = expected_board(files, 500)
    assert board.sort_by(order).to_pydict() == late.select(BOARD_SCHEMA.names).sort_by(order).to_pydict()
    joined = expected_join(files, 500)
    weather = source.read_weather(pc.max(flights["time_hour"]))
    assert joined.num_rows == late.join(weather, ["origin", "time_hour"], join_type="inner").num_rows > 50
    assert joined.column_names == JOINED_SCHEMA.names
