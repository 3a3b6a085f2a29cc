"""What a stream asks of its table while nothing happens."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.object_store import ObjectStore, counted
from upsert.errors import SnapshotExpiredError, TableNotFoundError
from upsert.managed import stepping
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store.metadata import history
from upsert.store.storage import storage_of
from upsert.store.table import Table

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


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
    asked = counted(monkeypatch)
    begun = clock.now
    for _ in range(60):
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
        assert reader.reportLatestOffset() == offset
    assert clock.now == begun + 60 * stepping.PAUSE_S
    assert asked == {"read": 58 + 2 * 3}, "twice a minute the table is opened again"
    table.write(pa.table({"id": [2]}))
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) != offset, "it waits, and looks then"


def test_a_step_is_planned_by_the_look_that_has_chosen_its_end(
    s3: ObjectStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for the one just after the other; a look is three requests."""
    reader, offset, table = drained(s3.folder())
    for id in (2, 3):
        table.write(pa.table({"id": [id]}))
        clock.now += stepping.PAUSE_S
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        with monkeypatch.context() as within:
            asked = counted(within)
            parts = reader.partitions(offset, end)
            assert (len(parts), asked) == (1, {})
        assert sum(batch.num_rows for batch in reader.read(parts[0])) == 1
        offset = end
    again = pickle.loads(pickle.dumps(reader))
    assert [*map(repr, again.partitions(offset, offset))] == []


def test_an_idle_stream_learns_that_all_it_knows_has_expired_or_was_dropped(
    s3: ObjectStore, clock: Clock
) -> None:
    reader, offset, table = drained(s3.folder())
    history._shared.clear()  # as in another process
    other = Table.open(table.path)
    other.release(offset["consumer"])
    for id in range(3):
        other.write(pa.table({"id": [id]}))
    other.expire(keep=1)
    for _ in range(29):
        reader.latestOffset(offset, reader.getDefaultReadLimit())
    with pytest.raises(SnapshotExpiredError):
        reader.latestOffset(offset, reader.getDefaultReadLimit())
    storage_of(table.path).delete_folder(table.path)
    with pytest.raises(TableNotFoundError):
        reader.latestOffset(offset, reader.getDefaultReadLimit())


def test_a_micro_batch_is_some_requests(
    s3: ObjectStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, before, table = drained(s3.folder())
    sink = Table.create(s3.folder(), SCHEMA)
    sink.write(pa.table({"id": [0]}))
    table.write(pa.table({"id": [2]}))
    clock.now += 2 * stepping.PACE_S
    offset = reader.latestOffset(before, reader.getDefaultReadLimit())
    table.write(pa.table({"id": [3]}))
    asked = counted(monkeypatch)
    reader.commit(offset)
    end = reader.latestOffset(offset, reader.getDefaultReadLimit())
    reader.reportLatestOffset()
    (partition,) = reader.partitions(offset, end)
    *_, batch = reader.read(partition)
    staged = Table.open(sink.path).stage(pa.table({"id": batch.column(0)}), order="none")
    Table.open(sink.path).commit([staged], writer_id="query", transaction=1)
    assert asked.total() <= 19 + 2 * 3, "on a busy machine what was seen may be too old twice"


def test_a_local_disk_is_asked_at_once(tmp_path: Path, clock: Clock) -> None:
    reader, offset, table = drained(str(tmp_path / "t"))
    for _ in range(3):
        assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    table.write(pa.table({"id": [2]}))
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) != offset
    assert clock.slept == []
