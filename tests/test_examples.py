"""Each example prints what the comment at its end says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers import run_in_session
from upsert.testing.local_kafka import BOOTSTRAP_VARIABLE

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
OUTPUT = "\n# Output:\n"
MAX_LINES = 60


def expected_output(text: str) -> str:
    """The lines of the trailing comment, without its marks."""
    _, comment = text.split(OUTPUT)
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment.splitlines())


IN_LONG_RUNS = ("02", "03", "04", "05", "08", "09", "11", "12", "13", "14", "15")
"""Examples of which another one, or the page of its subject, runs nearly the same code."""


def needs(example: Path) -> list[pytest.MarkDecorator]:
    """The marks of what an example starts, and of how often it runs."""
    starts = {"SparkSession": pytest.mark.spark, "LocalKafka": pytest.mark.kafka}
    found = [mark for name, mark in starts.items() if name in example.read_text(encoding="utf-8")]
    return [*found, pytest.mark.long] if example.stem.startswith(IN_LONG_RUNS) else found


@pytest.mark.parametrize(
    "example", [pytest.param(example, marks=needs(example), id=example.stem) for example in EXAMPLES]
)
def test_example_prints_what_its_comment_says(
    example: Path, tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    kafka = {}
    if pytest.mark.kafka in needs(example):
        kafka[BOOTSTRAP_VARIABLE] = request.getfixturevalue("kafka").bootstrap_servers
    output = run_in_session(example, tmp_path, spark, **kafka)
    assert output.rstrip("\n") == expected_output(example.read_text(encoding="utf-8"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_is_short(example: Path) -> None:
    program, _ = example.read_text(encoding="utf-8").split(OUTPUT)
    assert len(program.splitlines()) < MAX_LINES


def test_examples_are_numbered_without_a_gap() -> None:
    numbers = [int(example.stem.split("_")[0]) for example in EXAMPLES]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 11
