"""Tables on a file system of pyarrow that only overwrites, under a lock of the user's own."""

from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest

from tests.file_lock import FileLock
from tests.upsert.store.storage.contract import (
    assert_a_table_lives_there,
    assert_one_of_eight_writers_of_a_name_wins,
)
from upsert.errors import ConfigurationError, StorageError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.storage import locked, storage_of, swapping

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of this machine that is reached as a bucket."""
    system = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setattr(locked, "file_system", lambda _: system)
    monkeypatch.setenv(locked.VARIABLE, "tests.file_lock:FileLock")
    FileLock.taken.clear()
    return "gs://bucket/shop.db"


def test_a_table_lives_as_it_does_on_a_disk(bucket: str) -> None:
    folders = iter([f"{bucket}/fruit", f"{bucket}/none"])
    table = assert_a_table_lives_there(lambda: next(folders))
    assert set(FileLock.taken) == {("shop", "fruit")}
    assert FileLock.open == 0
    storage_of(table.path).delete_folder(table.path)
    assert storage_of(table.path).names(bucket) == []


def test_of_eight_writers_of_one_name_one_wins(bucket: str) -> None:
    assert_one_of_eight_writers_of_a_name_wins(f"{bucket}/fruit", races=3)


def test_without_a_lock_the_place_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(locked.VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=f"set {locked.VARIABLE} to what makes a lock"):
        Table.create("gs://bucket/fruit", SCHEMA)


@pytest.mark.parametrize("named", ["nothing", "no.such.module:Lock", "tests.file_lock:NoLock", ":"])
def test_a_name_that_is_no_lock_is_refused(bucket: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locked.VARIABLE, named)
    with pytest.raises(ConfigurationError, match="must name what makes a lock"):
        Table.create(f"{bucket}/fruit", SCHEMA)


@pytest.mark.parametrize("path", ["gs://bucket", "abfs://container/a/../b", "gs://bucket/t?key=secret"])
def test_a_path_that_names_no_folder_is_refused(bucket: str, path: str) -> None:
    with pytest.raises(ConfigurationError, match="must name a folder"):
        Table.create(path, SCHEMA)


def test_what_another_has_replaced_is_not_replaced_again(bucket: str) -> None:
    storage, path = swapping(bucket), f"{bucket}/fruit/table.json"
    assert storage.versioned(path) is None
    storage.replace(path, b"first")
    seen = storage.versioned(path)
    assert seen is not None
    assert storage.swap(path, b"second", seen)
    assert not storage.swap(path, b"third", seen)
    assert storage.read(path) == b"second"
    assert set(FileLock.taken) == {("shop", "fruit")}


def test_a_store_that_fails_has_damaged_nothing(bucket: str, tmp_path: Path) -> None:
    table = Table.create(f"{bucket}/fruit", SCHEMA)
    table.write(pa.table({"id": [1]}))
    (snapshot,) = tmp_path.rglob("snapshot-*1")
    aside = snapshot.rename(tmp_path / "aside")
    snapshot.symlink_to("/proc/self/mem")  # it can be opened, and reading fails
    with pytest.raises(StorageError, match=r"snapshot-.*see that it can be reached .* then try again"):
        Table.open(table.path).published.reread().latest()
    assert {one.rule for one in table.check() if not one.is_information} == {"file_is_given"}
    aside.replace(snapshot)
    assert table.check() == ()
