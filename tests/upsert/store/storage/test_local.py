"""A local disk does what is asked of every store."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import files_open_in
from tests.upsert.store.disk import assert_nothing_is_left_over
from tests.upsert.store.storage.contract import (
    assert_a_table_lives_there,
    assert_one_of_eight_writers_of_a_name_wins,
)
from upsert.errors import StorageError, UnknownOutcomeError
from upsert.schema import TableSchema
from upsert.store.metadata import tag_file
from upsert.store.storage.base import DeniedError
from upsert.store.storage.local import LOCAL, synced_together
from upsert.store.table import Table
from upsert.store.version import Version

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])


def test_a_table_lives_there(tmp_path: Path) -> None:
    folders = iter([str(tmp_path / "table"), str(tmp_path / "none")])
    assert_a_table_lives_there(lambda: next(folders))


def test_of_eight_writers_of_one_name_one_wins(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    assert_one_of_eight_writers_of_a_name_wins(str(tmp_path / "table"), races=3)


def test_a_clean_up_of_everything_takes_no_file_that_is_about_to_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose clock is a day ahead: a consumer's lease and a tag failed with a missing file."""
    table = Table.create(tmp_path / "t", KEYED)
    written(table)

    def cleaned_before(give_name: Callable[..., None]) -> None:
        acts = [lambda: Table.open(table.path).clean(older_than_s=0)]

        def named(temporary: str, path: str, **folders: int) -> None:
            if acts and folders:
                acts.pop()()
                assert temporary not in os.listdir(folders["src_dir_fd"])
            give_name(temporary, path, **folders)

        monkeypatch.setattr(os, give_name.__name__, named)

    cleaned_before(os.replace)
    table.hold("reader", Version.complete(1))
    cleaned_before(os.link)
    table.tag("kept")
    assert [one.name for one in (*table.consumers(), *table.tags())] == ["reader", "kept"]
    assert_nothing_is_left_over(table)


def test_what_denies_a_file_another_content_is_not_told_as_a_want_of_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str, **folders: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DeniedError, match="Operation not permitted"):
        LOCAL.replace(str(tmp_path / "held"), b"until then")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The files and folders, by inode, that are as durable as they are now."""
    found, sync = set[int](), os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        found.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def written(table: Table) -> None:
    table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))


def overwritten_and_compacted(table: Table) -> None:
    for _ in range(3):
        table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    table.compact()


@pytest.mark.parametrize("act", [written, overwritten_and_compacted])
@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
def test_all_that_a_snapshot_needs_is_on_the_disk_when_its_name_appears(
    act: Callable[[Table], None],
    engine: str,
    tmp_path: Path,
    synced: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"merge-engine": engine})
    link, lost = os.link, list[list[str]]()

    def checked(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        folder = Path(table.path, "snapshot")
        assert folder.stat().st_ino == os.fstat(dst_dir_fd).st_ino
        there = [one for one in Path(table.path).rglob("*") if "staging" not in str(one) and one != folder]
        lost.append([one.name for one in there if one.stat().st_ino not in synced and one.suffix != ".lock"])
        link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        synced.discard(folder.stat().st_ino)  # it has a new name

    monkeypatch.setattr(os, "link", checked)
    act(table)
    assert lost == [[]] * len(table.history())
    assert Path(table.path, "snapshot").stat().st_ino in synced


def test_what_cannot_be_written_through_is_told_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    one, other = (str(tmp_path / name) for name in ("one", "other"))
    with synced_together():
        LOCAL.write(one, b"rows")
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output error") as told:
            LOCAL.put_if_absent(other, b"rows")
    assert told.value.filename == one
    assert not Path(other).exists()
    assert files_open_in(tmp_path) == []


def test_a_file_that_could_not_be_written_through_is_never_taken_for_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells only once that it could not."""
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    sync, failures = os.fsync, [OSError(5, "Input/output error")]

    def refuse_once(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        sync(descriptor)

    with synced_together():
        LOCAL.write(one, b"rows")
        monkeypatch.setattr(os, "fsync", refuse_once)
        for _ in range(2):
            with pytest.raises(StorageError, match="Input/output error") as told:
                LOCAL.put_if_absent(other, b"rows")
            assert told.value.filename == one
    assert not Path(other).exists()
    assert LOCAL.put_if_absent(other, b"rows")


@pytest.mark.parametrize("failures", [1, 2])
def test_a_snapshot_is_told_when_its_name_is_on_the_disk(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", KEYED)
    sync, asked, folder = os.fsync, list[int](), os.stat(os.path.join(table.root, "snapshot"))

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder):
            asked.append(descriptor)
            if len(asked) <= failures:
                raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    if failures == 1:
        written(table)
    else:
        with pytest.raises(UnknownOutcomeError, match="Input/output error"):
            written(table)
    assert len(asked) == 2


def test_that_a_tag_is_gone_is_on_the_disk_at_once(tmp_path: Path, synced: set[int]) -> None:
    table = Table.create(tmp_path / "t", KEYED)
    written(table)
    table.tag("early")
    folder = Path(tag_file.path_of(table.path, "early")).parent
    with synced_together():
        synced.clear()
        table.delete_tag("early")
        assert folder.stat().st_ino in synced


def test_files_are_written_where_a_system_cannot_be_told_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    table = Table.create(tmp_path / "t", KEYED)
    written(table)
    assert table.snapshot().row_count == 2
