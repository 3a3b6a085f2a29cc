"""Lookups of what is newest hold nothing: what expires under them is read from its successor."""

from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.enrichment import Enrichment, InTable
from deltajoin.lookup.managed import Newest
from upsert.errors import CorruptTableError, SnapshotExpiredError
from upsert.schema import TableSchema
from upsert.store.files.data_file import forget_open_files
from upsert.store.read.snapshot import Snapshot
from upsert.store.table import Table

SCHEMA = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "users", SCHEMA)
    table.write(pa.table({"id": [1], "name": ["ann"]}))
    return table


def take_away(table: Table, name: str) -> None:
    """A new name, in a file of its own; that of the old one is gone, and no map of it is left here."""
    table.write(pa.table({"id": [1], "name": [name]}))
    table.compact()
    table.expire(keep=1)
    forget_open_files()


def names(snapshot: Snapshot) -> list[str]:
    found: list[str] = snapshot.match(["id"], pa.table({"id": [1]}))[1]["name"].to_pylist()
    return found


def test_what_expired_before_it_was_opened_is_read_from_the_newest(table: Table) -> None:
    newest, old = Newest(table), table.snapshot()
    take_away(table, "eve")
    with pytest.raises(SnapshotExpiredError):
        names(old)
    assert newest.read(names) == ["eve"]


def test_a_snapshot_that_was_asked_for_is_not_replaced_by_another(table: Table) -> None:
    fixed = Newest(table, table.snapshot().id)
    take_away(table, "eve")
    with pytest.raises(SnapshotExpiredError):
        fixed.read(names)
    with pytest.raises(SnapshotExpiredError):
        Newest(table, 1)


def test_a_table_that_is_damaged_stays_so(table: Table) -> None:
    newest = Newest(table)
    for file in Path(table.path).rglob("*.arrow"):
        file.unlink()
    forget_open_files()
    with pytest.raises(CorruptTableError):
        newest.read(names)


def test_a_task_goes_on_in_the_newest_snapshot(table: Table) -> None:
    task = Enrichment(InTable(table.path, table.uuid), (("who", "id"),), ("name",), "left")
    batch = pa.record_batch({"who": pa.array([1], pa.int64())})
    rows = task(iter([batch, batch]))
    first = next(rows)
    take_away(table, "eve")
    assert [part["name"].to_pylist() for part in (first, *rows)] == [["ann"], ["eve"]]
