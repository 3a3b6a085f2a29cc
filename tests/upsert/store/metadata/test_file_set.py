"""The files of a snapshot after a commit are those of all its files put together anew, whenever asked for."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.schema import TableSchema
from upsert.store.metadata import file_set
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet, StoredFiles
from upsert.store.table import Table


def entry(number: int, partition: int, level: int, sequence: int) -> FileEntry:
    place = (("day", str(partition)),)
    key = number.to_bytes(2, "big")
    return FileEntry(f"f{number}", place, 0, level, sequence, 1, 0, 1, 0, {}, {}, key, key)


ENTRIES = st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 0, 1, 2)), st.integers(1, 6))
COMMITS = st.lists(st.tuples(st.lists(ENTRIES, max_size=4), st.integers(0, 2**8)), max_size=8)


@given(COMMITS)
def test_each_commit_gives_what_all_files_together_give(
    commits: list[tuple[list[tuple[int, int, int]], int]],
) -> None:
    files: dict[str, FileEntry] = {}
    found = FileSet.of([])
    for added, choice in commits:
        removed = (
            [one for n, one in enumerate(files.values()) if choice >> n & 1 and n < 8]
            if choice % 3 == 0
            else []
        )
        new = [entry(len(files) + 100 * n + choice * 7, *given) for n, given in enumerate(added)]
        new = [one for one in new if one.file not in files]
        moved = [replace(one, level=3) for one in removed[:1]]
        found = found.after([*new, *moved], removed)
        for one in removed:
            del files[one.file]
        files |= {one.file: one for one in (*new, *moved)}
        assert found == FileSet.of(files.values())
        assert all(runs for runs in found.groups.values())


def test_an_append_takes_the_runs_that_are_there_as_they_are() -> None:
    before = FileSet.of([entry(1, 0, 0, 1), entry(2, 0, 1, 1)])
    after = before.after([entry(3, 0, 0, 2)], [])
    (runs,) = after.groups.values()
    assert [run[0].file for run in runs] == ["f3", "f1", "f2"]
    assert all(run is there for run, there in zip(runs[1:], *before.groups.values(), strict=True))


SCHEMA = TableSchema.of(
    {"day": pa.string(), "hour": pa.int32(), "id": pa.int64(), "name": pa.string()},
    primary_key=["day", "hour", "id"],
    partitioned_by=["day", "hour"],
)


def test_files_are_the_same_whenever_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions come and go, files are merged, manifests folded, and columns added meanwhile."""
    monkeypatch.setattr(file_set, "FEWEST", 1)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "2"})
    for number in range(15):
        day, hour = chance.choice(["a", "b"]), chance.randrange(3)
        if chance.random() < 0.15:
            table.drop_partition({"day": day, "hour": hour})
        else:
            ids = chance.sample(range(50), 5)
            hours = pa.array([hour] * 5, pa.int32())
            table.write(pa.table({"day": [day] * 5, "hour": hours, "id": ids, "name": [str(number)] * 5}))
        info = table.snapshot().info
        eager = FileSet.of(table.published.reread().live(info).values())
        lazy = table.published.reread().files(info)
        assert set(lazy.groups) == set(eager.groups)
        asked = chance.sample(list(eager.groups), chance.randrange(len(eager.groups) + 1))
        assert [lazy.groups[one] for one in asked] == [eager.groups[one] for one in asked]
        assert dict(lazy.groups) == dict(eager.groups)
        assert ((("day", "none"), ("hour", "7")), 0) not in lazy.groups


def test_a_reader_of_one_partition_makes_its_entries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_set, "FEWEST", 1)
    table = Table.create(tmp_path / "t", SCHEMA, {"bucket": "1"})
    hours = pa.array(range(50), pa.int32())
    table.write(pa.table({"day": ["a"] * 50, "hour": hours, "id": range(50), "name": ["x"] * 50}))
    history = table.published.reread()
    made: list[int] = []
    make = file_set.runs_of
    monkeypatch.setattr(file_set, "runs_of", lambda files: made.append(len(files)) or make(files))
    found = table.published.reread()
    assert isinstance(found.files(history.latest()).groups, StoredFiles)
    snapshot = type(table.snapshot())(table.path, table.layout, found.files(found.latest()), found.latest())
    assert snapshot.scan(["id"], [("hour", "=", 7)])["id"].to_pylist() == [7]
    assert made == [1]
