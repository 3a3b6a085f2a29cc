"""Every kind of change out of upserts: against the join of the tables, and when a step is run again."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from deltajoin.errors import CheckpointMismatchError
from deltajoin.latest.operator import EmittedRows, ShardState
from deltajoin.latest.spec import LatestJoin, faults_of
from deltajoin.latest.step import TaskRows, Waiting, all_wait, step
from deltajoin.settings import JoinSettings
from tests.deltajoin.latest.driver import LEFT, ON, RIGHT, Row, World, as_rows, changes, rows, side
from tests.deltajoin.latest.test_step import SHAPES, histories, joined
from upsert import failpoints
from upsert.errors import MissingStateError

WHOLE = JoinSettings(changelog="all", state_path="/of the tests")
NEGATIVE = ("-U", "-D")
COMMITS = ("data", "commit", "publish")
"""What the points are called at which a commit of images may die."""


class WholeDriver:
    """Steps of one shard that give every kind of change; a sink without a key, which a change must fit."""

    def __init__(self, join: LatestJoin, finders: tuple[World, World], folder: str) -> None:
        self.join = replace(join, settings=WHOLE)
        self.finders = finders
        self.rows = EmittedRows(self.join, folder, shards=1, keep=5)
        self.position = 0
        self.waiting: Waiting = (None, None)
        self.sink: Counter[Row] = Counter()

    def step(self, left: Iterable[Row] = (), right: Iterable[Row] = ()) -> list[Row]:
        arrived = self._parts(left, right)
        shard = self.rows.of_shard("query", 0, self.position)
        result = step(self.join, self.waiting, arrived, self.finders)
        given = shard.settle(result.output)
        assert given is not None
        self.waiting = result.waiting
        self.position += 1
        return self._into_sink(given)

    def step_again(self, left: Iterable[Row] = (), right: Iterable[Row] = ()) -> list[Row]:
        """The step whose first attempt, by another driver, has settled it."""
        given = self.rows.of_shard("query", 0, self.position).settled()
        assert given is not None
        self.waiting = all_wait(self.join, self.waiting, self._parts(left, right))
        self.position += 1
        return self._into_sink(given)

    def attempt(self, left: Iterable[Row] = (), right: Iterable[Row] = ()) -> list[Row]:
        """The step as the operator makes it, which does not know whether there was an attempt before."""
        is_settled = self.rows.of_shard("query", 0, self.position).settled() is not None
        return (self.step_again if is_settled else self.step)(left, right)

    def twin(self) -> "WholeDriver":
        """An attempt at the next step that will not count."""
        other = WholeDriver(self.join, self.finders, self.rows.folder)
        other.position, other.waiting, other.sink = self.position, self.waiting, self.sink.copy()
        return other

    def _parts(self, left: Iterable[Row], right: Iterable[Row]) -> tuple[list[TaskRows], list[TaskRows]]:
        of_left, of_right = (
            [TaskRows(0, 0, changes(self.join, n, rows))] for n, rows in enumerate((left, right))
        )
        return of_left, of_right

    def _into_sink(self, given: pa.Table) -> list[Row]:
        found = as_rows(given)
        for *values, kind in found:
            row = tuple(values)
            self.sink[row] += -1 if kind in NEGATIVE else 1
            assert 0 <= self.sink[row] <= 1, f"{kind} {row} does not fit what was given before"
        return sorted(((row[-1], *row[:-1]) for row in found), key=repr)

    @property
    def content(self) -> set[Row]:
        return set(+self.sink)


@settings(max_examples=25)
@given(histories(), st.data())
def test_all_that_was_given_is_the_join_of_the_final_tables(
    history: tuple[LatestJoin, list[Any]], data: st.DataObject
) -> None:
    """However steps fail and are run again, in a world that has moved on in between."""
    join, events = history
    worlds = (World(join, 0), World(join, 1))
    with tempfile.TemporaryDirectory() as folder:
        driver = WholeDriver(join, worlds, folder)
        pending: tuple[list[Row], list[Row]] = ([], [])
        lost: list[Row] | None = None
        for event, what in events:
            if event == "change":
                worlds[what[0]].apply(what[1])
                pending[what[0]].append(what[1])
            elif event == "fail":
                worlds[what[0]].failing = set() if what[1] is None else {(what[1],)}
            elif lost is None and data.draw(st.booleans()):
                lost = driver.twin().step(*pending)
                sent = [list(rows) for rows in pending]
            elif lost is not None:
                assert driver.step_again(*sent) == lost
                lost = None
                for rows, known in zip(pending, sent, strict=True):
                    del rows[: len(known)]
            else:
                driver.step(*pending)
                for rows in pending:
                    rows.clear()
        for world in worlds:
            world.failing = set()
        if lost is not None:
            assert driver.step_again(*sent) == lost
        driver.step(*pending)
        driver.step()
    assert driver.waiting == (None, None)
    assert driver.content == joined(join, *worlds)


def whole(tmp_path: Path, shape: str = "many to many", kind: str = "inner") -> WholeDriver:
    join = LatestJoin(*SHAPES[shape], ON, kind)
    assert not faults_of(join)
    return WholeDriver(join, (World(join, 0), World(join, 1)), str(tmp_path))


def test_what_a_row_replaces_is_taken_back_and_equal_rows_give_nothing(tmp_path: Path) -> None:
    driver = whole(tmp_path)
    pair = (1, 7, "a", 9, 7, "x")
    assert driver.step(rows(LEFT, "+I 1 7 a"), rows(RIGHT, "+U 9 7 x")) == [("+I", *pair)]
    driver.finders[1].apply(("+U", 9, 7, "x"))
    assert driver.step(rows(LEFT, "+U 1 7 a")) == []
    assert driver.step(rows(LEFT, "+U 1 7 b")) == [("+U", 1, 7, "b", 9, 7, "x"), ("-U", *pair)]


def test_a_padded_row_has_a_key_of_its_own_whatever_lies_in_the_other(tmp_path: Path) -> None:
    """The key 0 of a real row is not the NULL of a padded one."""
    driver = whole(tmp_path, kind="full")
    assert driver.step(rows(LEFT, "+I 1 7 a")) == [("+I", 1, 7, "a", None, None, None)]
    driver.finders[0].apply(("+U", 1, 7, "a"))
    assert driver.step([], rows(RIGHT, "+I 0 7 x", "+I 0 8 y")[:1]) == [
        ("+I", 1, 7, "a", 0, 7, "x"),
        ("-D", 1, 7, "a", None, None, None),
    ]


def test_a_delete_carries_the_row_that_was_given(tmp_path: Path) -> None:
    left = side(LEFT, ["lk"], ["lid", "lk"], ("+I", "+U", "-D"))
    join = LatestJoin(left, SHAPES["many to one"][1], ON, "left")
    driver = WholeDriver(join, (World(join, 0), World(join, 1)), str(tmp_path))
    driver.step(rows(LEFT, "+I 1 7 a"))
    assert driver.step(rows(LEFT, "-D 1 7 NULL", "-D 2 7 NULL")) == [("-D", 1, 7, "a", None, None, None)]


class KilledError(BaseException):
    """In the place of a SIGKILL, which nobody catches."""


@pytest.mark.parametrize("point", [point for point in failpoints.POINTS if point.split(".")[0] in COMMITS])
def test_an_attempt_that_dies_anywhere_in_its_commit_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The sink knows nothing of it, and when the step is made again other rows are found."""

    def die(*_: int) -> None:
        raise KilledError

    driver = whole(tmp_path, kind="left")
    driver.step(rows(LEFT, "+I 1 7 a", "+I 2 8 b"), rows(RIGHT, "+U 9 7 x"))
    driver.finders[0].apply(("+I", 1, 7, "a"))
    driver.finders[0].apply(("+I", 2, 8, "b"))
    driver.finders[1].apply(("+U", 9, 7, "x"))
    change = rows(LEFT, "+U 1 7 aa", "+I 3 8 c")
    for row in change:
        driver.finders[0].apply(row)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "_reached", {})
        patched.setattr(os, "kill", die)
        patched.setenv(failpoints.ENVIRONMENT_VARIABLE, point)
        with pytest.raises(KilledError):
            driver.twin().step(change)
    newer = rows(RIGHT, "+U 9 7 y", "+I 10 8 z")
    for row in newer:
        driver.finders[1].apply(row)
    driver.attempt(change)
    driver.step([], newer)
    assert driver.waiting == (None, None)
    assert driver.content == joined(driver.join, *driver.finders)


def test_images_that_are_gone_are_missed(tmp_path: Path) -> None:
    driver = whole(tmp_path)
    driver.position = 3
    with pytest.raises(MissingStateError, match="a state at position 3 must be there"):
        driver.step(rows(LEFT, "+I 1 7 a"))


def test_a_query_goes_on_with_its_own_number_of_shards(tmp_path: Path) -> None:
    """Also in a shard that has had no rows yet, whose state could not tell."""
    driver = whole(tmp_path)
    driver.step(rows(LEFT, "+I 1 7 a"))
    with pytest.raises(CheckpointMismatchError, match=r"with the shards .* 1-shards, got shards=4"):
        replace(driver.rows, shards=4).of_shard("query", 3, 0)
    replace(driver.rows, shards=4).of_shard("another query", 3, 0)


def test_a_checkpoint_goes_on_with_its_own_changelog(tmp_path: Path) -> None:
    join = whole(tmp_path).join
    upserts = replace(join, settings=JoinSettings())
    with pytest.raises(CheckpointMismatchError, match="changelog = 'all' must be set from the beginning"):
        ShardState.of(upserts, 1, 77, (None, None)).check_is_of(join, 1)
    with pytest.raises(CheckpointMismatchError, match="rows that were given must continue with the join"):
        ShardState.of(join, 1, 77, (None, None), 5).check_is_of(upserts, 1)
    ShardState.of(join, 1, 77, (None, None), 5).check_is_of(join, 1)


@pytest.mark.parametrize(
    "type_",
    [
        pa.bool_(),
        pa.int8(),
        pa.float64(),
        pa.decimal128(10, 2),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
    ],
    ids=str,
)
def test_a_key_of_any_type_may_be_missing(tmp_path: Path, type_: pa.DataType) -> None:
    right = pa.schema({"rid": type_, "rk": pa.int64(), "rv": pa.string()})
    join = LatestJoin(SHAPES["many to many"][0], side(right, ["rk"], ["rid"], immutable=("rk",)), ON, "left")
    driver = WholeDriver(join, (World(join, 0), World(join, 1)), str(tmp_path))
    assert driver.step(rows(LEFT, "+I 1 7 a")) == [("+I", 1, 7, "a", None, None, None)]
