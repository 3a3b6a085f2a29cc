"""kill -9 at every named point: what was acknowledged stays, the rest is whole or absent, nothing leaks."""

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from upsert.failpoints import POINTS
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.alterations import SetComment, SetOptions
from upsert.store.metadata import folding
from upsert.store.version import Version

SCHEMA = TableSchema.of({"id": pa.int64(), "batch": pa.int64()}, primary_key=["id"])
OPTIONS = {"bucket": "2", "num-sorted-run.compaction-trigger": "2", "target-file-size": "1 kb"}


@pytest.fixture(autouse=True)
def few_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are folded every few commits, so that a short life has folds too."""
    monkeypatch.setattr(folding, "MAX_MANIFESTS", 4)
    monkeypatch.setattr(folding, "_FEWEST_TO_FOLD", 2)
    monkeypatch.setattr(folding, "_ENTRIES_OF_PART", 4)


def changes(batch: int) -> pa.Table:
    """Four new rows, one update and one deletion of the batch before."""
    ids = [10 * batch, 10 * batch + 1, 10 * batch + 2, 10 * batch + 3, 10 * batch - 9, 10 * batch - 10]
    kinds = ["+I", "+I", "+I", "+I", "+U", "-D"]
    return pa.table({"id": ids, "batch": [batch] * 6, "_row_kind": kinds})


def rows_after(batches: int) -> dict[int, int]:
    model: dict[int, int] = {}
    for batch in range(1, batches + 1):
        for row in changes(batch).to_pylist():
            if row["_row_kind"] == "-D":
                model.pop(row["id"], None)
            else:
                model[row["id"]] = row["batch"]
    return model


def rows_of(table: Table) -> dict[int, int]:
    return {row["id"]: row["batch"] for row in table.snapshot().scan().to_pylist()}


def commit(table: Table, batch: int, *, buckets: int | None = None) -> None:
    """Commit a batch; the table gets other buckets after it was staged, if their number is given."""
    staged = [table.stage_raw(changes(batch)) if batch % 4 else table.stage(changes(batch), order="none")]
    if buckets is not None:
        table.alter(SetOptions({"bucket": str(buckets)}))
    table.commit(staged, writer_id="query", transaction=batch)


def create(path: Path) -> None:
    Table.create(path, SCHEMA)


def live_through_everything(path: str, batches: int, acknowledge: int) -> None:
    """Commit each batch and say so, compacting, expiring and cleaning in between."""
    table = Table.open(path)
    first = table.snapshot().info.writers.get("query", 0) + 1
    for batch in range(first, batches + 1):
        table.stage(changes(batch), order="rows")  # an attempt that is never committed
        table.delete([("id", "<", -100)])  # deletions of rows that are there: test_partition_life
        commit(table, batch, buckets=None if batch % 2 else 2 + batch % 3)
        os.write(acknowledge, bytes([batch]))
        if batch % 2 == 0:
            keep_and_give_up(table, f"batch-{batch}")


def keep_and_give_up(table: Table, name: str) -> None:
    """Whatever decides how long snapshots live: a tag and a hold of the newest state, the others given up.

    Before that another definition.
    """
    table.alter(SetComment("batch", name))
    table.tag(name)
    table.hold("reader", Version.complete(table.snapshot().info.data_version))
    table.expire(keep=1)
    table.clean(older_than_s=0)
    for tag in table.tags()[:-1]:
        table.delete_tag(tag.name)


def last_acknowledged(pipe: int) -> int:
    said = os.read(pipe, 1000)
    return said[-1] if said else 0


def check_crash(folder: Path, failpoint: str, batches: int) -> None:
    resolved = {"sequence.field": "batch"} if failpoint.startswith("resolve") else {}
    table = Table.create(folder / "table", SCHEMA, OPTIONS | resolved)
    reading, writing = os.pipe()
    assert run(lambda: live_through_everything(table.path, batches, writing), failpoint) == KILLED
    os.close(writing)
    acknowledged = last_acknowledged(reading)
    os.close(reading)

    table = Table.open(table.path)
    recorded = table.snapshot().info.writers.get("query", 0)
    assert recorded in (acknowledged, acknowledged + 1)
    assert rows_of(table) == rows_after(recorded)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()

    for batch in range(1, batches + 1):  # the query starts again from somewhere and replays
        commit(table, batch)
    assert rows_of(table) == rows_after(batches)
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, tmp_path: Path) -> None:
    check_crash(tmp_path, f"{point}:2", batches=6)


@pytest.mark.long
@pytest.mark.parametrize("nth", [1, 3, 4, 5, 6])
@pytest.mark.parametrize("point", POINTS)
def test_killed_later_at(point: str, nth: int, tmp_path: Path) -> None:
    check_crash(tmp_path, f"{point}:{nth}", batches=14)


def test_a_crash_while_a_table_is_created_leaves_none_or_all_of_it(tmp_path: Path) -> None:
    for number, point in enumerate(("publish.before-link", "publish.after-link", "publish.after-sync")):
        path = tmp_path / str(number)
        assert run(partial(create, path), point) == KILLED
        table = Table.create(path, SCHEMA, if_not_exists=True)
        table.write(pa.table({"id": [1], "batch": [1]}))
        table.clean(older_than_s=0)
        assert_nothing_is_left_over(table)
