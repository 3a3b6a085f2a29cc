"""The year as changes: what is left of them is the source, and each step is a slice of time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import source
from examples.flights.replay import Replay, replay

FLIGHT_KEY = ("day", "carrier", "flight", "origin")
WEATHER_KEY = ("origin", "time_hour")


@pytest.fixture(scope="module")
def year() -> Replay:
    flights = source.read_flights(3000)
    return replay(flights, source.read_weather(pc.max(flights["time_hour"])), steps=25)


def fold(batches: list[pa.Table], key: tuple[str, ...]) -> dict[tuple, dict]:
    """Rows left after applying changes one by one; a change that does not fit the rows so far is an error."""
    rows: dict[tuple, dict] = {}
    for change in pa.concat_tables(batches).to_pylist():
        kind = change.pop("_row_kind")
        name = tuple(change[column] for column in key)
        assert (name in rows) == (kind != "+I"), (kind, change)
        if kind == "-D":
            del rows[name]
        else:
            rows[name] = change
    return rows


def by_key(rows: pa.Table, key: tuple[str, ...]) -> dict[tuple, dict]:
    return {tuple(row[column] for column in key): row for row in rows.to_pylist()}


def test_what_is_left_of_the_flights_are_those_that_departed(year: Replay) -> None:
    departed = year.flights.filter(pc.is_valid(year.flights["dep_time"]))
    assert fold([step.flights for step in year], FLIGHT_KEY) == by_key(departed, FLIGHT_KEY)


def test_what_is_left_of_the_weather_is_the_source(year: Replay) -> None:
    assert fold([step.weather for step in year], WEATHER_KEY) == by_key(year.weather, WEATHER_KEY)


def test_the_whole_year_has_unique_keys() -> None:
    flights = source.read_flights()
    assert flights.num_rows == source.ALL_FLIGHTS
    assert flights.group_by(list(FLIGHT_KEY)).aggregate([]).num_rows == source.ALL_FLIGHTS


def test_both_tables_see_inserts_updates_and_deletes(year: Replay) -> None:
    for name in ("flights", "weather"):
        kinds: Counter[str] = Counter()
        for step in year:
            kinds.update(getattr(step, name)["_row_kind"].to_pylist())
        assert {"+I", "+U", "-D"} <= set(kinds)


def test_some_updates_move_a_flight_to_another_hour(year: Replay) -> None:
    hours: dict[tuple, set[datetime]] = {}
    for change in pa.concat_tables([step.flights for step in year]).to_pylist():
        hours.setdefault(tuple(change[column] for column in FLIGHT_KEY), set()).add(change["time_hour"])
    assert {len(seen) for seen in hours.values()} == {1, 2}


def test_steps_follow_each_other_and_hold_every_change(year: Replay) -> None:
    times = [step.until for step in year]
    assert times == sorted(times)
    assert times[0] > datetime(2012, 12, 1, tzinfo=UTC)
    assert sum(step.flights.num_rows + step.weather.num_rows for step in year) == year.changes


def test_number_of_steps_changes_no_row_and_no_order() -> None:
    flights = source.read_flights(200)
    weather = source.read_weather(pc.max(flights["time_hour"]))
    one, many = ([*replay(flights, weather, steps)] for steps in (1, 10_000))
    assert len(one) == 1
    assert len(many) > 600
    assert pa.concat_tables([step.flights for step in many]) == one[0].flights
    assert pa.concat_tables([step.weather for step in many]) == one[0].weather


def test_a_flight_is_announced_without_what_nobody_can_know_yet(year: Replay) -> None:
    announced = year.step(0).flights.filter(pc.equal(year.step(0).flights["_row_kind"], "+I"))
    assert announced.num_rows > 0
    for name in ("tailnum", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"):
        assert announced[name].null_count == announced.num_rows


@pytest.mark.parametrize(("side", "key"), [(0, FLIGHT_KEY), (1, WEATHER_KEY)], ids=["flights", "weather"])
def test_a_recorded_change_replaces_the_image_that_the_last_one_of_its_row_made(
    year: Replay, side: int, key: tuple[str, ...]
) -> None:
    rows: dict[tuple, dict] = {}
    for number in range(len(year)):
        log = year.recorded(number)[side]
        images = zip(log.kinds.to_pylist(), log.before.to_pylist(), log.after.to_pylist(), strict=True)
        for kind, before, after in images:
            name = tuple(after[column] for column in key)
            assert rows.get(name) == (None if kind == "+I" else before)
            if kind == "-D":
                del rows[name]
            else:
                rows[name] = after
    assert len(rows) > 200


def test_recorded_steps_are_the_steps_in_order_of_time(year: Replay) -> None:
    for step in year:
        for log, changes in zip(year.recorded(step.number), (step.flights, step.weather), strict=True):
            assert log.after == changes.drop(["_row_kind"])
            assert log.kinds == changes["_row_kind"].combine_chunks()
            assert (log.at[1:] >= log.at[:-1]).all()
