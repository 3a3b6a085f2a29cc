"""What a stream asks of its table while nothing happens."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.object_store import ObjectStore
from upsert.managed import stepping
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import TableSchema
from upsert.spark_table import spark_schema
from upsert.store.storage.s3 import S3Storage
from upsert.store.table import Table

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


REQUESTS = 10
"""Of one look, which opens the table, looks for a newer snapshot, and makes sure that it is held."""


class Clock:
    """Time that passes when somebody sleeps, and between the questions of Spark."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stepping, "time", found)
    return found


def drained(path: str) -> tuple[ChangesReader, dict[str, Any], Table]:
    """A reader that has read all, and where it is."""
    table = Table.create(path, SCHEMA)
    table.write(pa.table({"id": [1]}))
    reader = ChangesReader(ReadOptions.parse({"path": path}), spark_schema(SCHEMA, row_kind=True))
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset = end
    return reader, offset, table


def test_an_object_store_is_asked_once_a_second(
    s3: ObjectStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, offset, table = drained(s3.folder())
    asked: list[str] = []
    own = S3Storage._call

    def counted(self: Any, path: str, operation: str, **arguments: Any) -> Any:
        asked.append(operation)
        return own(self, path, operation, **arguments)

    monkeypatch.setattr(S3Storage, "_call", counted)
    begun = clock.now
    for _ in range(3):
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
        assert reader.reportLatestOffset() == offset
    assert clock.now == begun + 3 * stepping.PAUSE_S
    assert len(asked) == 3 * REQUESTS
    table.write(pa.table({"id": [2]}))
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) != offset, "it waits, and looks then"


def test_a_local_disk_is_asked_at_once(tmp_path: Path, clock: Clock) -> None:
    reader, offset, table = drained(str(tmp_path / "t"))
    for _ in range(3):
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    table.write(pa.table({"id": [2]}))
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) != offset
    assert clock.slept == []
