"""A missing right, a disk that fails or is full: an error of its own that names the file, and no damage."""

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.store.disk import files_on_disk
from tests.upsert.store.upkeep.test_damage_sweep import data_files, metadata_files, new_table, rows, said
from upsert import Catalog
from upsert.catalog.create_as.local import LocalStages
from upsert.catalog.create_as.stages import Entry
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, StorageError, TableExistsError, UnknownOutcomeError
from upsert.schema import TableSchema
from upsert.store import Table, paths
from upsert.store.files import writing
from upsert.store.storage.base import disk_errors_of
from upsert.store.storage.local import LOCAL
from upsert.store.upkeep.check import file_is_given

NOBODY = 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, which the one for the tests' own files is not."""
    found = Path(tempfile.mkdtemp())
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@contextmanager
def denied(path: Path, left: int = 0) -> Iterator[None]:
    """A file or folder to which this process has no rights but ``left``: root is another user for as long."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(left)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """A file in whose place something lies that can be opened, and not be read: EIO."""
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to("/proc/self/mem")
    try:
        yield
    finally:
        path.unlink()
        aside.rename(path)


def assert_told(table: Table, name: str, number: int, before: dict[str, object]) -> bool:
    """Who reads the file gets an error of its own; whether anybody does."""
    error = None
    try:
        assert said(table.path) == before
    except StorageError as raised:
        error = raised
    if error is not None:
        assert error.errno == number
        assert os.fspath(error.filename).endswith(name)
        assert str(error).startswith(f"{error.filename!r}: the disk must do what is asked, got ")
    wrong = [one for one in table.check(deep=True) if not one.is_information]
    assert {one.rule for one in wrong} <= {file_is_given.__name__}, (name, wrong)
    if error is not None:
        assert any(name in str(one) for one in wrong), name
    return error is not None


@pytest.mark.parametrize("format_", ["arrow", pytest.param("parquet", marks=pytest.mark.long)])
def test_a_file_that_this_user_may_not_read_is_not_damaged(folder: Path, format_: str) -> None:
    table = new_table(folder / "t", 3, {"file.format": format_})
    before = said(table.path)
    told = []
    for name in (*metadata_files(table), *data_files(table)):
        with denied(Path(table.root, name)):
            if assert_told(table, name, errno.EACCES, before):
                told.append(name)
    kinds = {name.partition("/")[0].partition("-")[0] for name in told}
    assert kinds >= {"table.json", "snapshot", "manifest", "definition", "tag", "consumer", "log", "bucket"}
    assert any(name in told for name in map(paths.index_file, data_files(table)))
    assert said(table.path) == before


def test_a_folder_that_this_user_may_not_list_is_not_empty(folder: Path) -> None:
    table = new_table(folder / "t", 3, {})
    before = said(table.path)
    for name in (paths.SNAPSHOT_FOLDER, paths.TAG_FOLDER, paths.CONSUMER_FOLDER):
        with denied(Path(table.root, name)):
            with pytest.raises(PermissionError) as told:
                said(table.path)
            assert isinstance(told.value, StorageError)
            assert "give this process's user the right" in str(told.value)
            wrong = [one for one in table.check() if not one.is_information]
            assert {one.rule for one in wrong} == {file_is_given.__name__}
            assert all("it could not be read" in one.found for one in wrong)
    assert said(table.path) == before


def test_a_disk_that_cannot_read_a_file_has_not_damaged_it(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", 3, {})
    before = said(table.path)
    told = 0
    for name in metadata_files(table):
        with failing(Path(table.root, name)):
            told += assert_told(table, name, errno.EIO, before)
    assert told > 8
    assert said(table.path) == before


def test_a_full_disk_commits_nothing_and_the_writer_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path / "t", 3, {})
    before = said(table.path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left on device'; make room on the disk") as told:
            table.write(rows(50).append_column("note", pa.nulls(12, pa.string())))
        assert os.fspath(told.value.filename).startswith(table.root)
    assert said(table.path) == before
    table.write(rows(50).append_column("note", pa.nulls(12, pa.string())))
    assert said(table.path) != before


def test_a_limit_of_the_size_of_files_commits_nothing_and_is_named(tmp_path: Path) -> None:
    """What `ulimit -f` says; Python has the system's signal ignored."""
    table = new_table(tmp_path / "t", 3, {})
    before, limits = said(table.path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"got 'File too large'; raise the limit .* \(ulimit -f\)"):
            table.write(rows(50).append_column("note", pa.nulls(12, pa.string())))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said(table.path) == before
    table.write(rows(50).append_column("note", pa.nulls(12, pa.string())))
    assert said(table.path) != before


def test_a_snapshot_that_is_there_and_may_not_stay_is_not_called_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is given, and the disk cannot say that it would outlive a power failure."""
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}), {"write-only": "true"})
    sync, folder = os.fsync, os.stat(os.path.join(table.root, paths.SNAPSHOT_FOLDER))

    def fails(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(UnknownOutcomeError, match=r"whether it is there for good, .* look at the"):
            table.write(pa.table({"id": [1]}))
    assert table.snapshot().scan()["id"].to_pylist() == [1]


def test_a_folder_that_cannot_be_opened_for_a_commit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That was a bare OSError."""
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}))
    folder, opened = os.path.join(table.root, paths.SNAPSHOT_FOLDER), os.open

    def fails(path: str, *given: Any, **more: Any) -> int:
        if path == folder:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        with pytest.raises(StorageError, match=r"raise the limit of open files .* \(ulimit -n\)") as told:
            table.write(pa.table({"id": [1]}))
    assert told.value.filename == folder
    assert table.snapshot().id == 0


@pytest.mark.parametrize("written", [2, 5])
def test_what_fails_for_want_of_room_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A compaction and a write of several files, one of which finds the disk full, or its sidecar does."""
    schema = TableSchema.of({"day": pa.int64(), "id": pa.int64()}, ["day", "id"], ["day"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true", "target-file-size": "8 kb"})
    some = pa.table({"day": [n % 7 for n in range(700)], "id": list(range(700))})
    for _ in range(2):
        table.write(some)
    before, sync = files_on_disk(table), writing.sync_file
    for act in (table.compact, lambda: table.write(some)):
        left = [written]

        def fails(path: str, descriptor: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(path, descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(writing, "sync_file", fails)
            with pytest.raises(StorageError, match="make room on the disk"):
                act()
        assert files_on_disk(table) - {paths.COMPACTION_LOCK} == before


def test_what_arrow_cannot_write_is_told_with_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    with pytest.raises(StorageError) as told, LOCAL.new_file(path), pa.OSFile("/dev/full", "wb") as sink:
        sink.write(b"rows")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, path)


def test_a_disk_that_is_mounted_for_reading_denies_as_rights_do() -> None:
    """So streams say by which option they hold nothing, and views pass over what they cannot hold."""
    what = "Read-only file system'; mount the disk for writing"
    with pytest.raises(PermissionError, match=what) as told, disk_errors_of("/t"):
        raise OSError(errno.EROFS, "")
    assert isinstance(told.value, StorageError)


@pytest.mark.parametrize("lock", [paths.LIFETIME_LOCK, paths.COMPACTION_LOCK])
def test_a_lock_that_this_user_may_not_take_is_named(folder: Path, lock: str) -> None:
    table = new_table(folder / "t", 3, {})
    with denied(Path(table.root, lock)), pytest.raises(StorageError, match="Permission denied") as told:
        table.release("reader") if lock == paths.LIFETIME_LOCK else table.compact()
    assert told.value.filename == os.path.join(table.root, lock)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO u",
        "CREATE TEMPORARY TABLE u (id INT)",
        "CREATE DATABASE e",
        "DROP DATABASE d",
    ],
)
def test_a_statement_in_a_warehouse_that_this_user_may_only_read_says_which_right_is_missing(
    folder: Path, statement: str
) -> None:
    catalog = Catalog(folder / "w")
    catalog.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE DATABASE d")
    before = files_on_disk(catalog.table("t"))
    with denied(folder / "w", 0o555), pytest.raises(StorageError, match="give this process's user the right"):
        catalog.sql(statement)
    stages = LocalStages(Warehouse(str(folder / "w")))
    with denied(folder / "w", 0o555):
        with pytest.raises(StorageError, match=r"'.*/u': .* give this process's user the right"):
            stages.begin("u", Entry.of_this_process("batch"), os.mkdir)
        with pytest.raises(StorageError, match="give this process's user the right"), stages.successor("t"):
            pass
    assert (catalog.tables(), catalog.databases.names()) == (("t",), ("d", "default"))
    assert files_on_disk(catalog.table("t")) == before


def test_a_program_that_creates_its_tables_if_they_are_missing_runs_where_they_may_only_be_read(
    folder: Path,
) -> None:
    catalog, table = Catalog(folder / "w"), "t (id INT, PRIMARY KEY (id) NOT ENFORCED)"
    catalog.sql(f"CREATE TABLE {table}")
    catalog.sql("CREATE DATABASE d")
    with denied(folder / "w", 0o555):
        for there in (f"TABLE IF NOT EXISTS {table}", "DATABASE IF NOT EXISTS d"):
            assert str(catalog.sql(f"CREATE {there}")).endswith(": was there already>"), there
        with pytest.raises(TableExistsError, match="choose another name, or CREATE TABLE IF NOT EXISTS"):
            catalog.sql(f"CREATE TABLE {table}")
        with pytest.raises(ConfigurationError, match="must be a folder that can be written"):
            catalog.sql(f"CREATE TABLE IF NOT EXISTS new_{table}")


@pytest.mark.parametrize(("statement", "locked"), [("DROP TABLE t", "w"), ("DROP DATABASE d", "w/d.db")])
def test_a_folder_that_this_user_may_not_lock_is_named(folder: Path, statement: str, locked: str) -> None:
    catalog = Catalog(folder / "w")
    catalog.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE DATABASE d")
    with denied(folder / locked, 0o333), pytest.raises(StorageError, match="Permission denied") as told:
        catalog.sql(statement)
    assert told.value.filename == str(folder / locked)


def test_a_database_with_a_folder_that_this_user_may_not_list_is_not_dropped(folder: Path) -> None:
    """It was moved away with the database, and nobody could tell what was in it."""
    catalog = Catalog(folder / "w")
    catalog.sql("CREATE DATABASE d")
    private = folder / "w" / "d.db" / "private"
    private.mkdir()
    for open_ in (folder / "w", private.parent):
        open_.chmod(0o777)
    with denied(private), pytest.raises(StorageError, match="Permission denied") as told:
        catalog.sql("DROP DATABASE d CASCADE")
    assert told.value.filename == str(private)
    assert os.listdir(folder / "w") == ["d.db"]


def test_a_table_of_another_user_that_cannot_be_replaced_is_named(folder: Path) -> None:
    """Two folders change places only where both may be written."""
    catalog = Catalog(folder / "w")
    catalog.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
    (folder / "w").chmod(0o777)
    with (
        denied(folder / "w" / "t", 0o555),
        pytest.raises(StorageError, match="Permission denied") as told,
        LocalStages(Warehouse(str(folder / "w"))).successor("t") as new,
    ):
        os.mkdir(new)
    assert told.value.filename == str(folder / "w" / "t")
    assert os.listdir(folder / "w") == ["t"]


def test_a_name_that_no_file_can_have_is_no_table(tmp_path: Path) -> None:
    assert not LOCAL.exists(str(tmp_path / ("x" * 300)))
