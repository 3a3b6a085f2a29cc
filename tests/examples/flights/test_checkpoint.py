"""A checkpoint folder as Spark writes it, read from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.checkpoint import Checkpoint

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"versions":["%s"]}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    return Checkpoint(tmp_path)


def plan(checkpoint: Checkpoint, batch: int) -> None:
    (checkpoint.path / "offsets" / str(batch)).write_text(OFFSETS % batch)
    (checkpoint.path / "offsets" / f".{batch}.crc").write_text("")


def commit(checkpoint: Checkpoint, batch: int) -> None:
    (checkpoint.path / "commits" / str(batch)).write_text("v1\n{}")


def test_before_the_first_micro_batch_there_is_nothing(tmp_path: Path, checkpoint: Checkpoint) -> None:
    for none in (Checkpoint(tmp_path / "missing"), checkpoint):
        assert (none.planned, none.committed, none.offset, none.size) == (None, None, None, 0)
        assert not none.is_in_flight


def test_a_planned_batch_is_in_flight_until_it_is_committed(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 0)
    assert checkpoint.is_in_flight
    commit(checkpoint, 0)
    assert not checkpoint.is_in_flight


def test_the_offset_is_that_of_the_newest_complete_batch(checkpoint: Checkpoint) -> None:
    for batch in range(9, 12):
        plan(checkpoint, batch)
    for batch in range(9, 11):
        commit(checkpoint, batch)
    assert (checkpoint.planned, checkpoint.committed) == (11, 10)
    assert checkpoint.offset == {"versions": ["10"]} == checkpoint.offset_of(10)
    assert checkpoint.offset_of(8) is None


def test_size_is_that_of_all_files(checkpoint: Checkpoint) -> None:
    commit(checkpoint, 0)
    commit(checkpoint, 1)
    assert checkpoint.size == 2 * len("v1\n{}")
