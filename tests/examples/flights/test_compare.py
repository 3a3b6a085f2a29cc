"""The comparison finds a planted difference of any sort, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import source, tables
from examples.flights.compare import compare, expected_join


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    files = source.extract_files(tmp_path_factory.mktemp("files"))
    return expected_join(files, first=500)


def with_value(rows: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = rows[column].to_pylist()
    values[row] = value
    field = rows.schema.field(column)
    return rows.set_column(rows.schema.get_field_index(column), field, pa.array(values, field.type))


def test_equal_results_in_any_order_have_no_difference(expected: pa.Table) -> None:
    shuffled = expected.sort_by([("arr_time", "descending"), ("flight", "ascending")])
    result = compare(expected, shuffled)
    assert (result.differences, result.examples) == (0, ())
    assert result.expected == result.found == expected.num_rows > 400


def test_expected_join_is_the_join_that_arrow_makes(tmp_path: Path, expected: pa.Table) -> None:
    """Two readers of the CSV files and two joins agree on every value, floats included."""
    flights = source.read_flights(500)
    flights = flights.filter(pc.is_valid(flights["dep_time"]))
    weather = source.read_weather(pc.max(flights["time_hour"]))
    airports = source.read_airports().select(["faa", "name"]).rename_columns(["dest", "dest_name"])
    joined = (
        flights.join(weather, list(tables.JOIN_KEY), join_type="inner")
        .join(airports, "dest", join_type="inner")
        .join(source.read_planes(), "tailnum", join_type="left outer")
    )
    celsius = pc.divide(pc.multiply(pc.subtract(joined["temp"], 32.0), 5.0), 9.0)
    assert compare(expected, joined.append_column("celsius", celsius)).differences == 0


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("temp", 39.01999999999999, "temp should be 39.02, is 39.01999999999999"),
        ("arr_delay", None, "arr_delay should be 11, is None"),
        ("tailnum", "N1", "tailnum should be N14228, is N1"),
    ],
)
def test_one_wrong_value_is_found_and_named(
    expected: pa.Table, column: str, value: object, shown: str
) -> None:
    first = expected.sort_by([("day", "ascending"), ("dep_time", "ascending")])
    result = compare(first, with_value(first, column, 0, value))
    assert (result.missing, result.unexpected) == (1, 1)
    assert result.examples == (f"2013-01-01 UA 1545 EWR: {shown}",)


def test_missing_and_surplus_rows_are_found(expected: pa.Table) -> None:
    fewer = expected.slice(1)
    assert (compare(expected, fewer).missing, compare(expected, fewer).unexpected) == (1, 0)
    assert compare(expected, fewer).examples[0].endswith("expected, but not found")
    assert compare(fewer, expected).examples[0].endswith("found, but not expected")


def test_a_row_that_is_there_twice_is_a_difference(expected: pa.Table) -> None:
    result = compare(expected, pa.concat_tables([expected, expected.slice(3, 1)]))
    assert (result.missing, result.unexpected) == (0, 1)
    assert result.examples[0].endswith("found, but not expected")


def test_only_the_first_few_differences_are_described(expected: pa.Table) -> None:
    result = compare(expected, expected.slice(0, 0), examples=3)
    assert (result.missing, len(result.examples)) == (expected.num_rows, 3)
