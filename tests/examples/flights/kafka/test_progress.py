"""Counters of the Kafka demo, and how they are shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples.flights.kafka.view import draw, line
from examples.flights.messages import Loaded, Message, Produced, QueryBatch, QueryStarted, decode, encode
from examples.flights.progress import Phase, Progress, QueryProgress
from examples.flights.view import Lines

MESSAGES: list[Message] = [
    Loaded(4, 400),
    Produced(1, "2013-06-14T10:00:00+00:00", 180, 20, 210),
    QueryStarted("board", "topic x: the changes in its records"),
    QueryBatch("board", 0, 0.5, 10, 0, 0),
    QueryBatch("join", 0, 1.5, 7, 0, 0),
]


@pytest.fixture
def half_way() -> Progress:
    progress = Progress.of(
        [QueryProgress("board", "log → board"), QueryProgress("join", "a ⋈ b → c", "commits")]
    )
    progress.elapsed, progress.phase = 10.0, Phase.RUNNING
    for message in MESSAGES:
        progress.receive(message)
    progress.queries["board"].records, progress.queries["board"].behind = 190, 20
    return progress


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_its_line(message: Message) -> None:
    assert decode(encode(message)) == message


def test_counts_are_totals_so_far(half_way: Progress) -> None:
    assert (half_way.total, half_way.share, half_way.queries["board"].rows) == (210, 0.5, 10)


def test_a_repeated_micro_batch_counts_once(half_way: Progress) -> None:
    board = half_way.queries["board"]
    half_way.receive(QueryBatch("board", 0, 0.5, 10, 0, 0))
    half_way.receive(QueryBatch("board", 1, 1.5, 5, 0, 0))
    assert (board.rows, board.median_seconds, len(board.batches)) == (15, 1.0, 2)


def test_starts_count_the_drivers_that_a_query_has_had(half_way: Progress) -> None:
    half_way.receive(QueryStarted("board", "as before"))
    assert [query.starts for query in half_way.queries.values()] == [2, 0]


def test_before_the_first_message_everything_can_be_shown() -> None:
    empty = Progress.of([QueryProgress("board", "log → board")])
    assert "starting Spark" in line(empty)
    Console(width=80, file=io.StringIO()).print(draw(empty))


def test_panel_shows_each_query_and_the_story(half_way: Progress) -> None:
    half_way.tell("[bold]kill -9[/bold] 123")
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(draw(half_way))
    text = console.export_text()
    for shown in ("14 Jun 2013", "210 records", "log → board", " 20 ", "1.50 s", "kill -9 123"):
        assert shown in text


def test_a_line_has_the_output_and_lag_of_each_query(half_way: Progress) -> None:
    console = Console(width=300, record=True, file=io.StringIO())
    with Lines(console, line) as lines:
        lines.show(half_way)
    assert "board 10 out, 20 behind  join 7 out, 0 behind" in console.export_text()
