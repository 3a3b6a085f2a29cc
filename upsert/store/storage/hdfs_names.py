"""How files in HDFS get their names: by a rename, one moment of the name node, whatever answers are lost.

A request that nobody answers is sent again for about a minute. A temporary name is used once, so what has it
is renamed once, however often that is asked for.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.store.storage import hdfs_client
from upsert.store.storage.base import T
from upsert.store.storage.hdfs_client import Entry, NotDoneError, Reply, UnansweredError
from upsert.store.storage.hdfs_location import HdfsLocation

_TRIES: Final = 20
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0
"""Together the pauses last about a minute: a stand-by name node needs less to take over."""


class HdfsNames:
    """The names in one cluster, as one location reaches it."""

    def __init__(self, location: HdfsLocation, sleep: Callable[[float], None]) -> None:
        self.location = location
        self.sleep = sleep

    def take(self, source: str, path: str, content: bytes) -> bool:
        """Give a file that has this content a name; False if something has it.

        Raises:
            UnknownOutcomeError: HDFS has not answered for a minute or more; it may happen yet.
            OSError: it has not happened.
        """
        has_doubts = False
        for is_last in self._tries():
            try:
                if self.is_true(self._rename(source, path), path):
                    return True
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                if is_last and not has_doubts:
                    raise
            else:
                if not has_doubts and self.has(path):
                    return False
                if not has_doubts and not self.has(source):
                    raise FileNotFoundError(errno.ENOENT, "its folder has been deleted", path)
            if has_doubts and (found := self._content_if_any(path)) is not None:
                return found == content
        if not has_doubts:
            raise UnansweredError(errno.EIO, "HDFS renames to no such name, and nothing has it", path)
        raise UnknownOutcomeError(
            f"{path!r}: HDFS must say whether it has the file, got no answer; look at the table's history "
            "before you write the rows again"
        )

    def move(self, source: str, path: str) -> None:
        """Give a file a name, whatever has it; of a reader, the old or the new is read.

        Raises:
            FileNotFoundError: the file is not there.
            NotDoneError: it has not happened.
            UnansweredError: it may have happened, or may yet.
        """
        has_doubts = False
        for is_last in self._tries():
            try:
                reply = self._rename(source, path, renameoptions="OVERWRITE")
            except FileNotFoundError:
                if not has_doubts:
                    raise
                return  # an earlier try has done it
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                if is_last:
                    raise
                continue
            if reply.body and not self.is_true(reply, path):
                raise refusal(path)
            return

    def claim(self, folder: str, name: str, unique: str) -> bool:
        """Give a folder, which has a file ``unique``, a name; False if something has it.

        Raises:
            UnknownOutcomeError: HDFS has not answered for a minute or more; it may happen yet.
            OSError: it has not happened.
        """
        has_doubts = False
        for is_last in self._tries():
            try:
                # without the option, a folder that has the name would take it in
                self._rename(folder, name, renameoptions="NONE")
                return True
            except FileExistsError:
                return has_doubts and not self.has(f"{folder}/{unique}")
            except FileNotFoundError:
                if not has_doubts:
                    raise
                return True  # an earlier try has done it
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                if is_last and not has_doubts:
                    raise
        raise UnknownOutcomeError(
            f"{name!r}: HDFS must say whether it is taken, got no answer; look at the table"
        )

    def delete(self, path: str, *, is_recursive: bool = False) -> bool:
        """Delete a file or a folder; False if it is known that there was none."""
        has_doubts = False

        def delete() -> bool:
            nonlocal has_doubts
            try:
                recursive = str(is_recursive).lower()
                return self.is_true(self.ask("DELETE", path, "DELETE", recursive=recursive), path)
            except UnansweredError as failure:
                has_doubts |= not isinstance(failure, NotDoneError)
                raise

        return self.repeat(delete) or has_doubts

    def known(self, path: str) -> Entry | None:
        """A file or folder; None if there is none."""
        try:
            reply = self.repeat(partial(self.ask, "GET", path, "GETFILESTATUS"))
        except FileNotFoundError:
            return None
        return hdfs_client.entry(hdfs_client.value(reply, path, "FileStatus"), path)

    def has(self, path: str) -> bool:
        """Whether there is a file."""
        return (found := self.known(path)) is not None and found.is_file

    def repeat(self, action: Callable[[], T]) -> T:
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
            self.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _content_if_any(self, path: str) -> bytes | None:
        try:
            return hdfs_client.read(self.location, inside(path))
        except (FileNotFoundError, UnansweredError):
            return None

    def _rename(self, source: str, path: str, **parameters: str) -> Reply:
        return self.ask("PUT", source, "RENAME", destination=inside(path), **parameters)

    def ask(self, method: str, path: str, operation: str, **parameters: str) -> Reply:
        """What HDFS answers to one request; see ``hdfs_client.ask``."""
        return hdfs_client.ask(self.location, method, inside(path), operation, **parameters)

    def is_true(self, reply: Reply, path: str) -> bool:
        """What a name node says of whether it has done something."""
        return hdfs_client.value(reply, path, "boolean") is True


def inside(path: str) -> str:
    """The path within the cluster.

    >>> inside("hdfs://namenode:8020/folder/name")
    '/folder/name'
    """
    return "/" + path.partition("://")[2].partition("/")[2]


def refusal(path: str) -> ConfigurationError:
    """The error about a server that is not HDFS itself."""
    return ConfigurationError(
        f"{path!r}: a rename must fail where something has the name, and overwrite with renameoptions="
        "OVERWRITE, as in HDFS, got a server that does otherwise; give the address of a name node, no "
        "gateway's"
    )
