"""Files whose entries are made when they are asked for are those that are made at once."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store.metadata import file_set
from upsert.store.metadata.file_set import FileSet, StoredFiles
from upsert.store.table import Table

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
