"""HDFS: every file is written under a temporary name and then renamed, which is one moment of the name node.

A plain rename fails where something has the name, so of many writers of a name one wins. Where no answer
comes, it is sent again: the temporary name is used once, so it happens once. Whoever is in doubt reads what
has the name: it is ours if it has our content, which has a random id of its own. Until that is known, nothing
is cleaned up. No file is ever written under the name that it will have: a data node that stalls could begin
it anew when it is in use.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Final
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.store.failpoints import reach
from upsert.store.storage import hdfs_client
from upsert.store.storage.base import FileStat, Found, T
from upsert.store.storage.cache import local_cache
from upsert.store.storage.hdfs_client import Entry, NotDoneError, Reply, UnansweredError
from upsert.store.storage.hdfs_location import HdfsLocation
from upsert.store.storage.local import TEMPORARY_SUFFIX

_TRIES: Final = 20
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0
"""Together the pauses last about a minute: a stand-by name node needs less to take over."""
_ANYBODY: Final = 0o666


class HdfsStorage:
    """The files of one cluster, as one location reaches it."""

    is_local = False
    has_temporary_names = True

    def __init__(self, location: HdfsLocation, sleep: Callable[[float], None] = time.sleep) -> None:
        self.location = location
        self._sleep = sleep
        self._is_sound = False

    def put_if_absent(self, path: str, content: bytes, mode: int = _ANYBODY) -> bool:
        """Publish content under a name; False if something has it.

        A crash may leave a ``.tmp`` file beside it.

        Raises:
            UnknownOutcomeError: HDFS has not answered for a minute or more.
            OSError: it has not been published.
        """
        temporary = self._written(path, content, None if mode == _ANYBODY else mode)
        reach("publish.before-link")
        if not self._takes_name(temporary, path, content):
            self.delete(temporary)
            return False
        reach("publish.after-link")
        reach("publish.after-sync")
        return True

    def _takes_name(self, temporary: str, path: str, content: bytes) -> bool:
        has_doubts = False
        for is_last in self._tries():
            try:
                if self._is_true(self._rename(temporary, path), path):
                    return True
            except NotDoneError:
                if is_last and not has_doubts:
                    raise
            except UnansweredError:
                has_doubts = True
            else:
                if not has_doubts and self.exists(path):
                    return False
                if not has_doubts and not self.exists(temporary):
                    raise FileNotFoundError(errno.ENOENT, "its folder has been deleted", path)
            if has_doubts and (found := self._content_if_any(path)) is not None:
                return found == content
        if not has_doubts:
            raise UnansweredError(errno.EIO, "HDFS renames to no such name, and nothing has it", path)
        raise UnknownOutcomeError(
            f"{path!r}: HDFS must say whether it has the file, got no answer; look at the table's history "
            "before you write the rows again"
        )

    def _rename(self, temporary: str, path: str, **parameters: str) -> Reply:
        return self._ask("PUT", temporary, "RENAME", destination=_inside(path), **parameters)

    def _content_if_any(self, path: str) -> bytes | None:
        try:
            return hdfs_client.read(self.location, _inside(path))
        except (FileNotFoundError, UnansweredError):
            return None

    def replace(self, path: str, content: bytes) -> None:
        """Put other content under a name; of a reader, the old or the new is read."""
        self._move(self._written(path, content), path)

    def write(self, path: str, content: bytes) -> None:
        """Write a new file."""
        self._move(self._written(path, content), path)

    def _written(self, path: str, content: bytes | IO[bytes], mode: int | None = None) -> str:
        """A new file with that content, beside the path; each try has a name of its own."""
        folder, _, name = path.rpartition("/")
        size = len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size

        def create() -> str:
            temporary = f"{folder}/.{name}-{uuid4().hex}{TEMPORARY_SUFFIX}"
            if not isinstance(content, bytes):
                content.seek(0)
            hdfs_client.create(self.location, _inside(temporary), content, size, mode)
            return temporary

        return self._repeat(create)

    def _move(self, temporary: str, path: str) -> None:
        """Give a file its name, whatever has it."""
        has_doubts = False
        for is_last in self._tries():
            try:
                reply = self._rename(temporary, path, renameoptions="OVERWRITE")
            except FileNotFoundError:
                if not has_doubts:
                    raise
                return  # an earlier try has done it
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                if is_last:
                    raise
                continue
            if reply.body and not self._is_true(reply, path):
                raise self._is_none(path)
            return

    def prepare(self, folder: str) -> None:
        """Make sure, once in a process, that a rename overwrites if told so, and else never.

        Other stores have gateways that speak this protocol.

        Raises:
            ConfigurationError: it is another store, or one that does not.
        """
        if self._is_sound:
            return
        probe = f"{folder}/probe-{uuid4().hex}"
        won = [self.put_if_absent(probe, content) for content in (b"first", b"second")]
        self.replace(probe, b"third")
        found = self.read(probe)
        self.delete(probe)
        if won != [True, False] or found != b"third":
            raise self._is_none(folder)
        self._is_sound = True

    def _is_none(self, path: str) -> ConfigurationError:
        return ConfigurationError(
            f"{path!r}: a rename must fail where something has the name, and overwrite with renameoptions="
            "OVERWRITE, as in HDFS, got a server that does otherwise; give the address of a name node, no "
            "gateway's"
        )

    def settle(self, folder: str) -> None:
        """Nothing: the name node has written a name down when it answers."""

    @contextmanager
    def new_file(self, path: str) -> Iterator[str]:
        """A file in the cache, uploaded at the end of the block."""
        cache = local_cache()
        with cache.new_file() as local:
            yield local
            with open(local, "rb") as file:
                self._move(self._written(path, file), path)
            cache.keep(path, local)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._repeat(partial(hdfs_client.read, self.location, _inside(path)))

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of a file, and for how many seconds it has it by the name node's clock.

        Whoever replaces it meanwhile makes it younger, never older than it is.
        """
        try:
            content = self.read(path)
            reply = self._repeat(partial(self._ask, "GET", path, "GETFILESTATUS"))
        except FileNotFoundError:
            return None
        modified_s = self._entry(reply, path).stat.modified_ns / 1e9
        return content, hdfs_client.clock(reply, path) - modified_s

    def mapped(self, path: str, use: Callable[[str], T]) -> T:
        """What ``use`` makes of the file's copy in the cache."""
        return local_cache().use(path, lambda target: self._repeat(lambda: self._download(path, target)), use)

    def _download(self, path: str, target: str) -> None:
        with open(target, "wb") as file:
            for chunk in hdfs_client.chunks(self.location, _inside(path)):
                file.write(chunk)

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return self.stat(path) is not None

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file; None if there is none."""
        try:
            reply = self._repeat(partial(self._ask, "GET", path, "GETFILESTATUS"))
        except FileNotFoundError:
            return None
        found = self._entry(reply, path)
        return found.stat if found.is_file else None

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder; none if there is no such folder."""
        return [entry.name for entry in self._listed(folder)]

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder."""
        inside = [""]
        while inside:
            within = inside.pop()
            for entry in self._listed(folder + within):
                if entry.is_file:
                    yield Found(f"{within}/{entry.name}"[1:], partial(_known, entry.stat))
                else:
                    inside.append(f"{within}/{entry.name}")

    def _listed(self, folder: str) -> list[Entry]:
        try:
            reply = self._repeat(partial(self._ask, "GET", folder, "LISTSTATUS"))
        except FileNotFoundError:
            return []
        found = hdfs_client.value(reply, folder, "FileStatuses", "FileStatus")
        entries = [hdfs_client.entry(status, folder) for status in found]
        return [entry for entry in entries if entry.name]  # of a file there is one without a name

    def delete(self, path: str) -> bool:
        """Delete a file; False if it is known that there was none."""
        local_cache().drop(path)
        return self._deleted(path, recursive="false")

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, at one moment."""
        self._deleted(folder, recursive="true")

    def _deleted(self, path: str, recursive: str) -> bool:
        has_doubts = False

        def delete() -> bool:
            nonlocal has_doubts
            try:
                return self._is_true(self._ask("DELETE", path, "DELETE", recursive=recursive), path)
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                raise

        return self._repeat(delete) or has_doubts

    def lock_file(self, root: str, name: str) -> str:
        """A file of this machine: processes elsewhere are not kept off."""
        return local_cache().lock_file(f"{root}/{name}")

    def _repeat(self, action: Callable[[], T]) -> T:
        """What an action gives that may be done again."""
        tries = self._tries()
        while True:
            is_last = next(tries)
            try:
                return action()
            except UnansweredError:
                if is_last:
                    raise

    def _tries(self) -> Iterator[bool]:
        """Whether a try is the last; the pauses are between them."""
        pause = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
            yield not left
            self._sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _ask(self, method: str, path: str, operation: str, **parameters: str) -> Reply:
        return hdfs_client.ask(self.location, method, _inside(path), operation, **parameters)

    def _is_true(self, reply: Reply, path: str) -> bool:
        return hdfs_client.value(reply, path, "boolean") is True

    def _entry(self, reply: Reply, path: str) -> Entry:
        return hdfs_client.entry(hdfs_client.value(reply, path, "FileStatus"), path)


def _inside(path: str) -> str:
    """The path within the cluster."""
    return "/" + path.partition("://")[2].partition("/")[2]


def _known(stat: FileStat) -> FileStat:
    return stat
