"""Counters of a run, folded from what the processes say."""

from __future__ import annotations

import pytest
from rich.console import Console

from examples.flights.messages import Loaded, QueryBatch, QueryStarted, Wrote
from examples.flights.progress import Phase, Progress, QueryProgress, Rate
from examples.flights.tables_view import draw, line
from examples.flights.view import Lines


def wrote(step: int, flights: int, weather: int) -> Wrote:
    """A step after which flights is at snapshot step + 1 and weather at twice that."""
    return Wrote(step, "2013-06-14T10:00:00+00:00", flights, weather, step + 1, 2 * (step + 1))


def batch(number: int, seconds: float = 0.5, rows: int = 10, deletes: int = 4) -> QueryBatch:
    return QueryBatch("join", number, seconds, rows, 0, 0, deletes)


def nothing_yet() -> Progress:
    return Progress.of([QueryProgress("join", "flights ⋈ weather → joined")])


@pytest.fixture
def half_way() -> Progress:
    progress = nothing_yet()
    progress.elapsed, progress.phase = 10.0, Phase.RUNNING
    started = QueryStarted("join", "delta join")
    for message in (started, Loaded(4, 400), wrote(0, 90, 10), wrote(1, 180, 20), batch(0)):
        progress.receive(message)
    return progress


def test_counts_are_totals_so_far(half_way: Progress) -> None:
    join = half_way.queries["join"]
    assert (half_way.changes, half_way.share, join.rows, join.deletes) == (200, 0.5, 10, 4)


def test_a_repeated_micro_batch_counts_once(half_way: Progress) -> None:
    half_way.receive(batch(0, rows=10))
    half_way.receive(batch(1, seconds=1.5, rows=5))
    join = half_way.queries["join"]
    assert (join.rows, join.median_seconds) == (15, 1.0)


@pytest.mark.parametrize(
    ("flights_snapshot", "weather_snapshot", "joined"),
    [(0, 0, 0), (1, 2, 100), (1, 3, 100), (2, 2, 190), (2, 4, 200), (9, 9, 200)],
)
def test_joined_changes_are_those_up_to_the_snapshots_that_the_query_has_reached(
    half_way: Progress, flights_snapshot: int, weather_snapshot: int, joined: int
) -> None:
    half_way.joined = half_way.changes_until(flights_snapshot, weather_snapshot)
    assert half_way.joined == joined


def test_rate_is_that_of_the_last_seconds_and_fades() -> None:
    rate = Rate()
    for second in range(11):
        rate.add(float(second), second * 100)
    assert rate.at(10.0) == 100.0
    assert rate.at(13.0) < 100.0
    assert rate.at(20.0) == 0.0


def test_before_the_first_message_everything_can_be_shown() -> None:
    assert "starting Spark" in line(nothing_yet())
    console = Console(width=80, record=True, quiet=True)
    console.print(draw(nothing_yet()))


def test_panel_shows_counters_and_story(half_way: Progress) -> None:
    half_way.tell("[bold]kill -9[/bold] 123")
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(draw(half_way))
    text = console.export_text()
    for shown in ("14 Jun 2013", "20 of them weather", "200 behind", "4 taken back", "kill -9 123"):
        assert shown in text


def test_lines_tell_the_story_once_and_counters_when_due(half_way: Progress) -> None:
    console = Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    half_way.tell("the driver dies")
    with Lines(console, line) as lines:
        for half_way.elapsed in (10.0, 10.1, 11.0):
            lines.show(half_way)
    assert [text[10:25] for text in console.export_text().splitlines()] == [
        "the driver dies",
        "2013-06-14   50",
    ]
