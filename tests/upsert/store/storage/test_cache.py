import errno
import os
import shutil
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from upsert.errors import ConfigurationError, StorageError
from upsert.store.storage import cache
from upsert.store.storage.cache import LocalCache


class Source:
    """Objects by name, and how often each was downloaded."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def read(self, copies: LocalCache, name: str, size: int = 1) -> bytes:
        def fetch(path: str) -> None:
            self.fetched.append(name)
            Path(path).write_bytes(name[:1].encode() * size)

        return copies.use(name, fetch, lambda path: Path(path).read_bytes())


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks"}


def test_an_object_is_downloaded_once_for_all_who_share_the_folder(tmp_path: Path) -> None:
    source = Source()
    for _ in range(3):
        assert source.read(LocalCache(str(tmp_path), 100), "a") == b"a"
    threads = [
        threading.Thread(target=lambda: source.read(LocalCache(str(tmp_path), 100), "b")) for _ in "123"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.fetched == ["a", "b"]


@pytest.mark.parametrize("name", ["../../escaped", "/etc/escaped", "a\0b", ".", "", "x" * 5000])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "cache" / "folder"
    copies = LocalCache(str(folder), 100)
    copies.use(name, lambda path: Path(path).touch(), os.path.getsize)
    assert {path.parent for path in files(tmp_path)} == {folder / "files"}


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    copies, source = LocalCache(str(tmp_path), 30), Source()
    for at, name in enumerate("abc"):
        source.read(copies, name, 10)
        os.utime(copies._path(name), (at, at))
    source.read(copies, "a", 10)
    source.read(copies, "d", 10)
    assert sum(path.stat().st_size for path in files(tmp_path)) == 30
    for name in "acd":
        source.read(copies, name, 10)
    assert source.fetched == ["a", "b", "c", "d"]
    source.read(copies, "b", 10)
    assert source.fetched[-1] == "b"


def test_a_copy_that_went_before_it_was_opened_is_downloaded_again(tmp_path: Path) -> None:
    copies, attempts = LocalCache(str(tmp_path), 30), []

    def use(path: str) -> bytes:
        attempts.append(path)
        if len(attempts) == 1:
            Path(path).unlink()
        return Path(path).read_bytes()

    assert copies.use("a", lambda path: void(Path(path).write_bytes(b"rows")), use) == b"rows"
    assert len(attempts) == 2


def test_a_copy_that_the_disk_has_damaged_is_downloaded_again_but_not_an_object_that_is_damaged(
    tmp_path: Path,
) -> None:
    copies, fetched = LocalCache(str(tmp_path), 100), list[bytes]()

    def use(path: str) -> bytes:
        if (content := Path(path).read_bytes()) != b"rows":
            raise ValueError("damaged")
        return content

    def fetch(path: str) -> None:
        fetched.append(b"rows" if len(fetched) < 2 else b"rots")
        Path(path).write_bytes(fetched[-1])

    assert copies.use("a", fetch, use) == b"rows"
    Path(copies._path("a")).write_bytes(b"rats")
    assert copies.use("a", fetch, use) == b"rows"
    Path(copies._path("a")).write_bytes(b"rats")
    with pytest.raises(ValueError, match="damaged"):
        copies.use("a", fetch, use)
    assert fetched == [b"rows", b"rows", b"rots"]


def test_the_folder_may_be_deleted_at_any_time(tmp_path: Path) -> None:
    copies, source = LocalCache(str(tmp_path / "cache"), 30), Source()
    for _ in range(2):
        shutil.rmtree(copies.folder)
        assert source.read(copies, "a") == b"a"
    shutil.rmtree(copies.folder)
    Path(copies.lock_file("table/some.lock")).touch()
    shutil.rmtree(copies.folder)
    with copies.uploaded("b", lambda *_: None) as temporary:
        Path(temporary).write_bytes(b"rows")
    assert source.fetched == ["a", "a"]


def void(_: object) -> None:
    """For a call whose result nobody wants."""


def test_a_download_that_fails_leaves_nothing_and_the_error_is_told(tmp_path: Path) -> None:
    copies = LocalCache(str(tmp_path), 30)

    def fetch(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise FileNotFoundError("no such object")

    with pytest.raises(FileNotFoundError, match="no such object"):
        copies.use("a", fetch, lambda path: Path(path).read_bytes())
    assert files(tmp_path) == set()


def test_what_a_killed_process_was_writing_is_swept(tmp_path: Path) -> None:
    copies = LocalCache(str(tmp_path), 30)
    left = tmp_path / "new" / uuid4().hex
    left.touch()
    os.utime(left, (0, 0))
    Source().read(copies, "a")
    assert not left.exists()


def test_files_of_others_in_the_folder_make_no_room_and_are_not_swept(tmp_path: Path) -> None:
    copies = LocalCache(str(tmp_path), 30)
    others = [tmp_path / name for name in ("files/notes.txt", "new/notes.txt")]
    for other in others:
        other.write_bytes(b"x" * 40)
        os.utime(other, (0, 0))
    Source().read(copies, "a")
    assert [other.stat().st_size for other in others] == [40, 40]


def test_folder_and_size_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "own"))
    monkeypatch.setenv(cache.BYTES_VARIABLE, "1000")
    assert (cache.local_cache().folder, cache.local_cache().max_bytes) == (str(tmp_path / "own"), 1000)
    monkeypatch.setenv(cache.BYTES_VARIABLE, "1 GB")
    with pytest.raises(ConfigurationError, match="must be a number of bytes above 0, got '1 GB'"):
        cache.local_cache()


def test_a_folder_in_which_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "shared"))
    with pytest.raises(ConfigurationError, match="that no other one may write to, got mode 777"):
        cache.local_cache()


FULL = "/dev/full"
"""Every write to it fails as on a full disk."""


def test_a_full_disk_is_told_with_the_folder_and_what_to_set(tmp_path: Path) -> None:
    copies = LocalCache(str(tmp_path), 30)

    def full(_: object) -> None:
        Path(FULL).write_bytes(b"rows")

    with pytest.raises(StorageError, match=cache.FOLDER_VARIABLE) as told:
        copies.use("a", full, os.path.getsize)
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert f"got 'No space left on device'; free space there, set {cache.FOLDER_VARIABLE}" in str(told.value)
    assert cache.BYTES_VARIABLE in str(told.value)
    with pytest.raises(StorageError, match="No space left on device"), copies.uploaded("b", lambda *_: None):
        full(None)
    assert files(tmp_path) == set()
    assert Source().read(copies, "a") == b"a"


def test_copies_not_used_for_longest_make_room_on_a_full_disk(tmp_path: Path) -> None:
    copies, source = LocalCache(str(tmp_path), 100), Source()
    for at, name in enumerate("abcd"):
        source.read(copies, name, 10)
        os.utime(copies._path(name), (at, at))
    asked = list[str]()

    def fetch(path: str) -> None:
        asked.append(path)
        has_room = len(files(tmp_path)) < 4
        Path(path if has_room else FULL).write_bytes(b"new")

    assert copies.use("e", fetch, lambda path: Path(path).read_bytes()) == b"new"
    assert len(asked) == 2
    assert {Path(copies._path(name)) for name in "cde"} == files(tmp_path)


def test_a_full_remote_store_is_not_a_full_cache(tmp_path: Path) -> None:
    copies, source = LocalCache(str(tmp_path), 100), Source()
    source.read(copies, "a")

    def full(_: object) -> None:
        raise StorageError(errno.EDQUOT, "HDFS answered 'quota'", "hdfs://host/t/rows")

    with pytest.raises(StorageError) as told:
        copies.use("b", full, os.path.getsize)
    assert told.value.filename == "hdfs://host/t/rows"
    assert files(tmp_path) == {Path(copies._path("a"))}
