"""HDFS: every file is written under a temporary name and then renamed, which is one moment of the name node.

A plain rename fails where something has the name, so of many writers of a name one wins. Where no answer
comes, it is sent again: the temporary name is used once, so it happens once. A caller in doubt reads what
has the name: it is ours if it has our content, which has a random id of its own. Until that is known, nothing
is cleaned up. No file is ever written under the name that it will have: a data node that stalls could begin
it again when it is in use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, Final
from uuid import uuid4

from upsert.failpoints import reach
from upsert.store.storage import hdfs_client, hdfs_names
from upsert.store.storage.base import FileStat, Found, T, Versioned
from upsert.store.storage.cache import local_cache
from upsert.store.storage.hdfs_client import Entry
from upsert.store.storage.hdfs_names import HdfsNames, inside, refusal
from upsert.store.storage.local import TEMPORARY_SUFFIX
from upsert.store.storage.locations import HdfsLocation

_ANYBODY: Final = 0o666


class HdfsStorage:
    """The files of one cluster, as one location reaches it."""

    is_local = False
    has_temporary_names = True

    def __init__(self, location: HdfsLocation, sleep: Callable[[float], None] = time.sleep) -> None:
        self._location = location
        self._names = HdfsNames(location, sleep)
        self._is_sound = False

    def put_if_absent(self, path: str, content: bytes, mode: int = _ANYBODY) -> bool:
        """Publish content under a name; False if something has it.

        A crash may leave a ``.tmp`` file beside it.

        Raises:
            UnknownOutcomeError: HDFS has not answered for a minute or more.
            OSError: it has not been published.
        """
        temporary = self._written(path, content, mode)
        reach("publish.before-link")
        won = self._take(temporary, path, content)
        if won:
            reach("publish.after-link")
            reach("publish.after-sync")
        return won

    def _take(self, temporary: str, path: str, content: bytes) -> bool:
        won = self._names.take(temporary, path, content)
        if not won:
            self._names.delete(temporary)
        return won

    def replace(self, path: str, content: bytes, mode: int = _ANYBODY) -> None:
        """Put other content under a name; of a reader, the old or the new is read."""
        self._names.move(self._written(path, content, mode), path)

    def versioned(self, path: str) -> Versioned | None:
        """The content of a file and its number; None if there is none."""
        return hdfs_names.versioned(self, path)

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = _ANYBODY) -> bool:
        """Put other content in the place of what was seen; see ``hdfs_names``.

        Raises:
            ConfigurationError: it is no HDFS, but a gateway to something else.
            UnknownOutcomeError: HDFS has not answered for a minute or more.
            OSError: it has not happened.
        """
        self.prepare(path.rpartition("/")[0])
        return hdfs_names.swap(self, self._names, path, content, seen, mode)

    def take_away(self, path: str, instead: bytes) -> None:
        """Swap a file for what means none: a deletion could come between another's look and move."""
        while (seen := self.versioned(path)) is not None and not self.swap(path, instead, seen):
            pass  # another one was faster: what it has put goes too

    def write(self, path: str, content: bytes, mode: int = _ANYBODY) -> None:
        """Write a new file."""
        self.replace(path, content, mode)

    def _written(self, path: str, content: bytes | IO[bytes], mode: int = _ANYBODY) -> str:
        """A new file with that content, beside the path; each try has a name of its own."""
        folder, _, name = path.rpartition("/")
        size = len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size

        def create() -> str:
            temporary = f"{folder}/.{name}-{uuid4().hex}{TEMPORARY_SUFFIX}"
            if not isinstance(content, bytes):
                content.seek(0)
            permission = None if mode == _ANYBODY else mode
            hdfs_client.create(self._location, inside(temporary), content, size, permission)
            return temporary

        return self._names.repeat(create)

    def prepare(self, folder: str) -> None:
        """Make sure, once in a process, that a rename overwrites if asked to, and else never.

        Other stores have gateways that speak this protocol.

        Raises:
            ConfigurationError: it is another store, or one that does not.
        """
        if self._is_sound:
            return
        probe = f"{folder}/probe-{uuid4().hex}"
        won = [self._take(self._written(probe, content), probe, content) for content in (b"first", b"second")]
        self.replace(probe, b"third")
        found = self.read(probe)
        self.delete(probe)
        if won != [True, False] or found != b"third":
            raise refusal(folder)
        self._is_sound = True

    def settle(self, folder: str) -> None:
        """Nothing: the name node has written a name down when it answers."""

    def new_file(self, path: str) -> AbstractContextManager[str]:
        """A file in the cache, uploaded at the end of the block."""
        return local_cache().uploaded(path, self._upload)

    def _upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file:
            self._names.move(self._written(path, file), path)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._names.repeat(partial(hdfs_client.read, self._location, inside(path)))

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of a file, and for how many seconds it has it by the name node's clock.

        A process that replaces it meanwhile makes it younger, never older than it is.
        """
        try:
            content = self.read(path)
            reply = self._names.repeat(partial(self._names.ask, "GET", path, "GETFILESTATUS"))
        except FileNotFoundError:
            return None
        found = hdfs_client.entry(hdfs_client.value(reply, path, "FileStatus"), path)
        return content, hdfs_client.clock(reply, path) - found.stat.modified_ns / 1e9

    def mapped(self, path: str, use: Callable[[str], T]) -> T:
        """What ``use`` makes of the file's copy in the cache."""
        return local_cache().use(
            path, lambda target: self._names.repeat(lambda: self._download(path, target)), use
        )

    def _download(self, path: str, target: str) -> None:
        with open(target, "wb") as file:
            for chunk in hdfs_client.chunks(self._location, inside(path)):
                file.write(chunk)

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return self._names.has(path)

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file; None if there is none."""
        found = self._names.known(path)
        return found.stat if found is not None and found.is_file else None

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder; none if there is no such folder."""
        return [entry.name for entry in self._listed(folder)]

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder."""
        folders = [""]
        while folders:
            within = folders.pop()
            for entry in self._listed(folder + within):
                if entry.is_file:
                    yield Found(f"{within}/{entry.name}"[1:], partial(_known, entry.stat))
                else:
                    folders.append(f"{within}/{entry.name}")

    def _listed(self, folder: str) -> list[Entry]:
        try:
            reply = self._names.repeat(partial(self._names.ask, "GET", folder, "LISTSTATUS"))
        except FileNotFoundError:
            return []
        found = hdfs_client.value(reply, folder, "FileStatuses", "FileStatus")
        entries = [hdfs_client.entry(status, folder) for status in found]
        return [entry for entry in entries if entry.name]  # of a file there is one without a name

    def delete(self, path: str) -> bool:
        """Delete a file; False if it is known that there was none."""
        local_cache().drop(path)
        return self._names.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, at one moment."""
        self._names.delete(folder, is_recursive=True)

    def lock_file(self, root: str, name: str) -> str:
        """A file of this machine: processes elsewhere are not kept off."""
        return local_cache().lock_file(f"{root}/{name}")


def _known(stat: FileStat) -> FileStat:
    return stat
