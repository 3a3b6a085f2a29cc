"""The end of the demo says what is wrong, and only then is it wrong."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from examples.flights.compare import Comparison
from examples.flights.kafka.consumed import Consumed
from examples.flights.kafka.outcome import Outcome
from examples.flights.kafka.view import show_outcome

ROWS = pa.table({"flight": [1, 2]})
TOPIC = Consumed(records=12, tombstones=3, keys=5, repeats=0, strays=0, rows=ROWS)
SAME = Comparison(expected=2, found=2, missing=0, unexpected=0, examples=())
RIGHT = Outcome(TOPIC, SAME, TOPIC, SAME)
OTHER = Comparison(
    expected=2, found=2, missing=1, unexpected=1, examples=("UA 1545: temp should be 2, is 1",)
)


def shown(outcome: Outcome) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    show_outcome(console, outcome)
    return console.export_text()


def test_a_right_outcome_has_only_zeros() -> None:
    assert RIGHT.is_right
    text = shown(RIGHT)
    for line in (
        "duplicates in exactly-once: 0",
        "difference of board: 0",
        "difference of board_with_weather: 0",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (replace(RIGHT, joined=replace(TOPIC, repeats=2)), "duplicates in exactly-once: 2"),
        (replace(RIGHT, board=replace(TOPIC, strays=1)), "keys in two partitions: 1"),
        (replace(RIGHT, board_comparison=OTHER), "difference of board: 2"),
        (replace(RIGHT, joined_comparison=OTHER), "UA 1545: temp should be 2, is 1"),
    ],
)
def test_whatever_is_wrong_is_named(wrong: Outcome, line: str) -> None:
    assert not wrong.is_right
    assert line in shown(wrong)
