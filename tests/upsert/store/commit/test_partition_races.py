"""Processes, each with a partition of its own, which it writes, overwrites, deletes from and drops."""

import random
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers import multiset
from tests.upsert.store.disk import assert_nothing_is_left_over, finish, start
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit.committer import Committer, Environment
from upsert.store.storage import put_if_absent
from upsert.store.upkeep.background import CompactionWarning
from upsert.store.version import Version

SCHEMA = TableSchema.of(
    {"day": pa.int32(), "id": pa.int64(), "v": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
)
OPTIONS = {"bucket": "2", "num-sorted-run.compaction-trigger": "3", "snapshot.num-retained.min": "1000"}
PROCESSES = 4

Rows = dict[int, int]


def actions(process: int, count: int) -> list[tuple[str, Any]]:
    """What a process does, the same whenever it is asked: a fifth are overwrites."""
    rng = random.Random(process)
    found: list[tuple[str, Any]] = []
    for _ in range(count):
        kind = rng.choice(["write", "write", "write", "overwrite", "delete", "drop"])
        rows = {rng.randrange(12): rng.randrange(100) for _ in range(5)}
        found.append((kind, rng.randrange(100) if kind in ("delete", "drop") else rows))
    return found


def after(rows: Rows, action: tuple[str, Any]) -> Rows:
    match action:
        case ("write", new):
            return {**rows, **new}
        case ("overwrite", new):
            return dict(new)
        case ("delete", limit):
            return {id: value for id, value in rows.items() if value >= limit}
        case _:
            return {}


def act(table: Table, process: int, action: tuple[str, Any]) -> None:
    match action:
        case ("delete", limit):
            table.delete([("day", "=", process), ("v", "<", limit)])
        case ("drop", _):
            table.drop_partition({"day": process})
        case (kind, new):
            rows = pa.table({"id": list(new), "v": list(new.values())})
            if kind == "overwrite":
                table.overwrite(rows, partition={"day": process})
            else:
                table.write(rows.append_column("day", pa.array([process] * len(new), pa.int32())))


def live(path: str, process: int, count: int) -> None:
    """All actions of a process on a disk that fails now and then, before or after it has published."""
    rng = random.Random(process)

    def unreliable(target: str, content: bytes) -> bool:
        outcome = rng.random()
        if outcome < 0.05:
            raise OSError("the disk failed")
        won = put_if_absent(target, content)
        if outcome > 0.95:
            raise OSError("the answer was lost")
        return won

    warnings.simplefilter("ignore", CompactionWarning)  # what fails after a commit is told, not raised
    table = Table.open(path)
    table._committer = Committer(table.published, Environment(put_if_absent=unreliable))
    for action in actions(process, count):
        while True:
            try:
                act(table, process, action)
                break
            except OSError:
                continue  # every action may be done twice


def check(table: Table, count: int) -> None:
    children = [start(partial(live, table.path, process, count)) for process in range(PROCESSES)]
    assert finish(children) == [0] * PROCESSES
    expected: Counter[tuple[Any, ...]] = Counter()
    for process in range(PROCESSES):
        rows: Rows = {}
        for action in actions(process, count):
            rows = after(rows, action)
        expected.update((process, *row) for row in rows.items())
    table = Table.open(table.path)
    assert multiset(table.snapshot().scan()) == expected
    first = table.history()[0].data_version
    version, replayed = Version.complete(first), multiset(table.snapshot(first).scan())
    while (following := table.advance(version, max_rows=7)) != version:
        for *row, kind in zip(*table.changes_between(version, following).to_pydict().values(), strict=True):
            replayed[tuple(row)] += 1 if kind[0] == "+" else -1
        version = following
    assert {row: count for row, count in replayed.items() if count} == expected
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()


def test_processes_on_partitions_of_their_own_never_conflict(tmp_path: Path) -> None:
    check(Table.create(tmp_path / "t", SCHEMA, OPTIONS), 12)


@pytest.mark.long
def test_processes_on_partitions_of_their_own_never_conflict_for_long(tmp_path: Path) -> None:
    check(Table.create(tmp_path / "t", SCHEMA, OPTIONS), 150)
