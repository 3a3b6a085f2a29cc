"""Commits to many partitions: all of their files, or the error of the first that failed."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.commit import staging
from upsert.store.files import writing
from upsert.store.files.writing import write_data_file

SCHEMA = TableSchema.of(
    {"day": pa.int64(), "id": pa.int64()}, primary_key=["day", "id"], partitioned_by=["day"]
)
ROWS = pa.table({"day": [n % 30 for n in range(90)], "id": range(90)})


def test_files_of_many_partitions_are_written_by_threads_and_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def watched(*args: Any, **where: Any) -> Any:
        threads.add(threading.current_thread())
        return write_data_file(*args, **where)

    monkeypatch.setattr(staging, "write_data_file", watched)
    monkeypatch.setattr(writing, "_MAX_BYTES", 200)
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    snapshot = table.write(ROWS)
    assert len(threads) > 1
    assert len(snapshot.files.entries) == 30
    assert sorted(snapshot.scan()["id"].to_pylist()) == list(range(90))
    assert [found for found in table.check(deep=True) if not found.is_information] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("data-files")]


def test_rows_of_more_than_may_wait_are_written_after_all_others_have_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit of 20 million rows failed where the last file was durable just as the next one came."""
    monkeypatch.setattr(writing, "_MAX_BYTES", 1)
    written: list[int] = []

    def write_file(rows_sorted: pa.Table, kinds: Any, key_bounds: Any) -> Any:
        written.append(rows_sorted.num_rows)

    with writing.ParallelWrites() as writes:
        for _ in range(8):
            writes.write(write_file, ROWS, None, (b"", b"")).result()
    assert written == [ROWS.num_rows] * 8


@pytest.mark.parametrize("failing", [2, 20])
def test_error_of_one_file_is_that_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    def full(*args: Any, **where: Any) -> Any:
        if where["bucket_id"][0] == (("day", str(failing)),):
            raise OSError("no space left")
        return write_data_file(*args, **where)

    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    monkeypatch.setattr(staging, "write_data_file", full)
    with pytest.raises(OSError, match="no space left"):
        table.write(ROWS)
    assert table.snapshot().scan().num_rows == 0
    monkeypatch.undo()
    assert table.write(ROWS).scan().num_rows == 90
