"""Within ``looking_once`` a thread goes by what it has seen a moment ago, and no commit does."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.disk import run
from tests.upsert.store.samples import ids_of
from upsert.errors import TableNotFoundError
from upsert.schema import TableSchema
from upsert.store.metadata import looks
from upsert.store.metadata.looks import looking_once
from upsert.store.storage.local import LocalStorage
from upsert.store.table import Table

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looks, "LASTS_S", 3600.0)
        table = Table.create(tmp_path / "t", SCHEMA)
        table.write(pa.table({"id": [1]}))
        yield table


def write_elsewhere(table: Table, id: int) -> None:
    """Commit a row in another process."""
    assert run(lambda: Table.open(table.path).write(pa.table({"id": [id]})) and None) == 0


def test_a_table_is_read_from_the_disk_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    read = LocalStorage.read

    def noted(self: LocalStorage, path: str) -> bytes:
        asked.append(path)
        return read(self, path)

    monkeypatch.setattr(LocalStorage, "read", noted)
    with looking_once():
        first = len([Table.open(table.path), *asked])
        for _ in range(3):
            assert Table.open(table.path, table.uuid).snapshot(1).id == 1
            assert [info.id for info in table.history()] == [1]
        assert len(asked) == first - 1
    Table.open(table.path)
    assert len(asked) > first


def test_what_others_commit_is_seen_by_a_commit_and_afterwards(table: Table) -> None:
    with looking_once():
        assert ids_of(table) == [1]
        write_elsewhere(table, 2)
        assert ids_of(table) == [1]
        table.write(pa.table({"id": [3]}))
        assert ids_of(table) == [1, 2, 3]
    write_elsewhere(table, 4)
    assert ids_of(table) == [1, 2, 3, 4]


def test_what_was_seen_a_while_ago_is_looked_at_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with looking_once():
        assert ids_of(table) == [1]
        write_elsewhere(table, 2)
        monkeypatch.setattr(looks, "LASTS_S", 0.0)
        assert ids_of(table) == [1, 2]


def test_no_commit_goes_to_a_table_that_was_made_again(table: Table) -> None:
    with looking_once():
        Table.open(table.path)
        shutil.rmtree(table.path)
        assert run(lambda: Table.create(table.path, SCHEMA) and None) == 0
        with pytest.raises(TableNotFoundError, match="was replaced by another one"):
            table.write(pa.table({"id": [2]}))
    assert Table.open(table.path).history() == ()


def test_a_version_that_is_newer_than_the_last_look_is_looked_for(table: Table) -> None:
    with looking_once():
        assert table.snapshot().id == 1
        write_elsewhere(table, 2)
        assert table.snapshot(2).id == 2
