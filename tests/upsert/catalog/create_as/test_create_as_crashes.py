"""kill -9 while a table is created from a query: the whole table is there, or none, and the name is free."""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.upsert.catalog.create_as.filled import Filled, lives_in
from tests.upsert.store.disk import KILLED, finish, run, start
from upsert import Catalog
from upsert.catalog.create_as import stages
from upsert.catalog.create_as.create_as import fill_table, replace_table
from upsert.catalog.create_as.local import LocalStages
from upsert.catalog.create_as.stages import Entry
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, TableExistsError

STORE_POINTS = ("data.after-file", "commit.after-manifest", "publish.before-link:2", "publish.after-link:2")
CREATE_POINTS = ("after-entry", "after-table", "after-fill", "after-done")
REPLACE_POINTS = ("after-table", "after-fill", "before-exchange", "after-exchange")


def tables_of(folder: Path) -> LocalStages:
    return LocalStages(Warehouse(str(folder)))


def create(folder: Path, life: int) -> None:
    fill_table(tables_of(folder), Filled(life), None, JobStatusHook())  # type: ignore[arg-type]


def replace(folder: Path, life: int) -> None:
    replace_table(tables_of(folder), Filled(life), None, JobStatusHook())  # type: ignore[arg-type]


def lives(folder: Path) -> set[int]:
    return lives_in(str(folder))


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "t"]


@pytest.mark.parametrize("point", [*(f"create-as.{name}" for name in CREATE_POINTS), *STORE_POINTS])
def test_killed_while_a_table_is_created(point: str, tmp_path: Path) -> None:
    assert run(lambda: create(tmp_path, 1), point) == KILLED
    assert lives(tmp_path) in ({1}, set())
    if lives(tmp_path):
        with pytest.raises(TableExistsError, match="exists already"):
            create(tmp_path, 2)
    else:
        create(tmp_path, 2)
        assert lives(tmp_path) == {2}
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("point", [*(f"create-as.{name}" for name in REPLACE_POINTS), *STORE_POINTS])
def test_killed_while_a_table_is_replaced(point: str, tmp_path: Path) -> None:
    create(tmp_path, 1)
    assert run(lambda: replace(tmp_path, 2), point) == KILLED
    assert lives(tmp_path) == ({2} if point == "create-as.after-exchange" else {1})
    replace(tmp_path, 3)
    assert lives(tmp_path) == {3}
    assert left_over(tmp_path) == []


def test_what_a_user_has_in_the_folder_stays_and_no_table_is_made_there(tmp_path: Path) -> None:
    """It was deleted with the table, or with what a killed statement had begun."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "rows.csv").write_text("1,2")
    for _ in "12":
        with pytest.raises(ConfigurationError, match=r"got one with 'rows.csv'; move them away"):
            tables_of(tmp_path).begin("t", Entry.of_this_process("batch"), pytest.fail)
        assert [path.name for path in tmp_path.rglob("*.*")] == ["rows.csv"]


def test_what_a_stream_that_died_has_begun_stays_where_no_view_of_its_name_is_dropped(tmp_path: Path) -> None:
    """It was deleted, and with it a topic that had its rows."""
    begun = tables_of(tmp_path).begin("t", Entry.of_this_process("streaming", "checkpoint"), Filled(1).create)
    begun.let_go()
    Catalog(tmp_path).sql("DROP MATERIALIZED VIEW IF EXISTS t")
    stage = tables_of(tmp_path).resume("t", "checkpoint")
    assert stage is not None
    stage.let_go()


def test_every_point_is_met() -> None:
    named = {f"create-as.{name}" for name in (*CREATE_POINTS, *REPLACE_POINTS)}
    assert named == set(stages.POINTS)


def test_of_two_that_create_a_table_one_wins_and_the_other_fails_cleanly(tmp_path: Path) -> None:
    for life in range(0, 20, 2):
        folder = tmp_path / str(life)
        children = [start(partial(create, folder, own)) for own in (life, life + 1)]
        assert sorted(finish(children)) == [0, 1]
        assert len(lives(folder)) == 1
        assert left_over(folder) == []


def sweep(folder: Path, seed: int) -> None:
    """One life of a warehouse: creations and replacements that are killed at any moment, then a look."""
    random_ = random.Random(seed)
    before: set[int] = set()
    for life in range(1, 5):
        action = replace if before else create
        child = start(partial(action, folder, life))
        time.sleep(random_.uniform(0, 0.08))
        finish_killed(child)
        now = lives(folder)
        assert now in (before, {life}), f"seed {seed}, life {life}: {before} became {now}"
        before = now
    (replace if before else create)(folder, 9)
    assert lives(folder) == {9}
    assert left_over(folder) == []


def finish_killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert finish([child])[0] in (0, KILLED)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    for seed in range(5):
        sweep(tmp_path / str(seed), seed)


@pytest.mark.long
def test_killed_at_any_moment_many_times(tmp_path: Path) -> None:
    for seed in range(200):
        sweep(tmp_path / str(seed), seed)
