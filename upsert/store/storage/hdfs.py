"""HDFS: every file is written under a temporary name and then renamed, which is one moment of the name node.

A plain rename fails where something has the name, so of many writers of a name one wins. An unanswered
request is sent again for about a minute: the temporary name is used once, so what has it is renamed once,
however often that is asked for. A caller in doubt reads what has the name: it is ours if it has our content,
which has a random id of its own. Until that is known, nothing is cleaned up. No file is ever written under
the name that it will have: a data node that stalls could begin it again when it is in use.

Compare-and-swap is made of renames that fail where a name is taken: what follows is proposed first. A file
has a number there that no other file ever gets. A process that wants to replace file 7 makes a folder with
the new file in it, under a name that is used once, and renames the folder to ``.<name>-after-7``: one of
many can.
Then it looks. If 7 is still there, nothing but a move out of that folder will ever replace it, so the new
file is moved over it; if not, 7 will never be there again, and what was proposed is deleted. A process that
finds the folder taken has lost, and does the move for its owner, who may be dead. The proposed file's name is
used once, so it is moved once. A file that is replaced in this way is never replaced in another one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Final
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.store.storage import hdfs_client
from upsert.store.storage.base import FileStat, Found, T, UnansweredError, Versioned, repeated
from upsert.store.storage.cache import CachedStorage, local_cache
from upsert.store.storage.hdfs_client import Entry, HdfsLocation, NotDoneError, Reply
from upsert.store.storage.hdfs_client import folder_uri as folder_uri
from upsert.store.storage.local import TEMPORARY_SUFFIX

POINTS: Final = ("swap.after-claim", "swap.before-move", "swap.after-move")
"""Where a test can kill the process; see ``upsert.failpoints``."""

_ANYBODY: Final = 0o666


def storage(path: str) -> HdfsStorage:
    """The storage of a path's cluster."""
    return HdfsStorage(hdfs_client.split(path)[0])


class _Doubts:
    """Notes whether a request that got no answer may have been carried out; its error goes on."""

    exist = False

    def __enter__(self) -> None:
        """Begin a request."""

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        self.exist |= isinstance(failure, UnansweredError) and not isinstance(failure, NotDoneError)


class HdfsStorage(CachedStorage):
    """The files of one cluster, as one location reaches it."""

    has_temporary_names = True

    def __init__(self, location: HdfsLocation, sleep: Callable[[float], None] = time.sleep) -> None:
        self._location = location
        self._sleep = sleep
        self._is_sound = False

    def put_if_absent(self, path: str, content: bytes, mode: int = _ANYBODY) -> bool:
        """Publish content under a name; False if something has it.

        A crash may leave a ``.tmp`` file beside it. An ``OSError`` means that it has not been published.
        """
        temporary = self._written(path, content, mode)
        reach("publish.before-link")
        won = self._take(temporary, path, content)
        if won:
            reach("publish.after-link")
            reach("publish.after-sync")
        return won

    def _take(self, temporary: str, path: str, content: bytes) -> bool:
        """Give a file that has this content a name; False if something has it, then the file is gone."""
        doubts = _Doubts()

        def rename() -> bool:
            failure = UnansweredError(errno.EIO, "HDFS renames to no such name, and nothing has it", path)
            try:
                with doubts:
                    if _is_true(self._rename(temporary, path), path):
                        return True
            except UnansweredError as cause:
                failure = cause
            else:
                if not doubts.exist and self.exists(path):
                    return False
                if not doubts.exist and not self.exists(temporary):
                    raise FileNotFoundError(errno.ENOENT, "its folder has been deleted", path)
            if doubts.exist and (found := self._content_if_any(path)) is not None:
                return found == content
            raise failure

        won = self._outcome(
            rename,
            doubts,
            f"{path!r}: HDFS must say whether it has the file, got no answer; look at the table's history "
            "before you write the rows again",
        )
        if not won:
            self._delete(temporary)
        return won

    def _content_if_any(self, path: str) -> bytes | None:
        try:
            return hdfs_client.read(self._location, inside(path))
        except (FileNotFoundError, UnansweredError):
            return None

    def replace(self, path: str, content: bytes, mode: int = _ANYBODY) -> None:
        """Put other content under a name; of a reader, the old or the new is read."""
        self._move(self._written(path, content, mode), path)

    def _move(self, source: str, path: str) -> None:
        """Give a file a name, whatever has it; only an ``UnansweredError`` leaves open whether it has it.

        Raises:
            FileNotFoundError: the file is not there.
        """
        doubts = _Doubts()

        def rename() -> Reply | None:
            try:
                with doubts:
                    return self._rename(source, path, renameoptions="OVERWRITE")
            except FileNotFoundError:
                if not doubts.exist:
                    raise
                return None  # an earlier try has done it

        reply = self._repeated(rename)
        if reply is not None and reply.body and not _is_true(reply, path):
            raise _refusal(path)

    def versioned(self, path: str) -> Versioned | None:
        """The content of a file and its number; None if there is none."""
        while (number := self._number(path)) is not None:
            try:
                content = self.read(path)
            except FileNotFoundError:
                continue
            if self._number(path) == number:
                return Versioned(content, number)
        return None

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = _ANYBODY) -> bool:
        """Put other content in the place of what was seen; False if that is gone.

        An ``OSError`` means that it has not happened.
        """
        folder, _, name = path.rpartition("/")
        self.prepare(folder)
        unique = uuid4().hex
        own = f"{folder}/.{name}-{unique}{TEMPORARY_SUFFIX}"
        proposal = f"{folder}/.{name}-after-{seen.version}"
        self.replace(f"{own}/{unique}", content, mode)
        if not self._claim(own, proposal, unique):
            self._delete(own, is_recursive=True)
            self._help(path, proposal, seen.version)
            return False
        reach("swap.after-claim")
        try:
            return self._finish(path, proposal, unique, seen.version)
        except UnansweredError as cause:
            raise UnknownOutcomeError(
                f"{path!r}: HDFS must say whether it has replaced the file, got no answer; look at the table"
            ) from cause

    def _claim(self, folder: str, name: str, unique: str) -> bool:
        """Give a folder, which has a file ``unique``, a name; False if something has it."""
        doubts = _Doubts()

        def rename() -> bool:
            try:
                with doubts:
                    # without the option, a folder that has the name would take it in
                    self._rename(folder, name, renameoptions="NONE")
            except FileExistsError:
                return doubts.exist and not self.exists(f"{folder}/{unique}")
            except FileNotFoundError:
                if not doubts.exist:
                    raise  # else an earlier try has done it
            return True

        unknown = f"{name!r}: HDFS must say whether it is taken, got no answer; look at the table"
        return self._outcome(rename, doubts, unknown)

    def _finish(self, path: str, proposal: str, unique: str, version: str) -> bool:
        """Do what is to be done with the own proposal; whether it has replaced what was seen."""
        if self._number(path) == version:
            self._adopt(path, proposal, unique)
            return True
        # either another process has moved the proposal, and maybe others have followed, or none ever will
        if is_late := self.stat(f"{proposal}/{unique}") is not None:
            self._delete(f"{proposal}/{unique}")
        self._clear(proposal)
        return not is_late

    def _help(self, path: str, proposal: str, version: str) -> None:
        """Move what another one has proposed, who may be dead."""
        proposed = [name for name in self.names(proposal) if not name.startswith(".")]
        # after the look: what was proposed before this was there is all that can replace it
        if proposed and self._number(path) == version:
            self._adopt(path, proposal, proposed[0])

    def _adopt(self, path: str, proposal: str, unique: str) -> None:
        reach("swap.before-move")
        try:
            self._move(f"{proposal}/{unique}", path)
        except FileNotFoundError:
            return  # another process was faster
        reach("swap.after-move")
        self._clear(proposal)

    def _clear(self, proposal: str) -> None:
        """Delete the folder of a proposal that is gone from it."""
        try:
            self._delete(proposal)
        except OSError as failure:
            if failure.errno != errno.ENOTEMPTY:  # the next one has proposed, and will see that it is late
                raise

    def _number(self, path: str) -> str | None:
        if (found := self.stat(path)) is None:
            return None
        number, _ = found.version if isinstance(found.version, tuple) else (None, None)
        if number is None:
            raise ConfigurationError(
                f"{path!r}: HDFS must number its files, got a server that does not; CREATE TABLE and INSERT "
                "INTO it"
            )
        return str(number)

    def take_away(self, path: str, instead: bytes) -> None:
        """Swap a file for what means none: a deletion could come between another's look and move."""
        while (seen := self.versioned(path)) is not None and not self.swap(path, instead, seen):
            pass  # another one was faster: what it has put goes too

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

        return self._repeated(create)

    def prepare(self, folder: str) -> None:
        """Make sure, once in a process, that a rename overwrites if asked to, and else never.

        Other stores have gateways that speak this protocol.
        """
        if self._is_sound:
            return
        probe = f"{folder}/probe-{uuid4().hex}"
        won = [self._take(self._written(probe, content), probe, content) for content in (b"first", b"second")]
        self.replace(probe, b"third")
        found = self.read(probe)
        self.delete(probe)
        if won != [True, False] or found != b"third":
            raise _refusal(folder)
        self._is_sound = True

    def _upload(self, path: str, source: str) -> None:
        with open(source, "rb") as file:
            self._move(self._written(path, file), path)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._repeated(partial(hdfs_client.read, self._location, inside(path)))

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of a file, and for how many seconds it has it by the name node's clock.

        A process that replaces it meanwhile makes it younger, never older than it is.
        """
        try:
            content = self.read(path)
            reply = self._asked(path, "GETFILESTATUS")
        except FileNotFoundError:
            return None
        found = hdfs_client.entry(hdfs_client.value(reply, path, "FileStatus"), path)
        return content, hdfs_client.clock(reply, path) - found.stat.modified_ns / 1e9

    def _download(self, path: str, target: str) -> None:
        def save() -> None:
            with open(target, "wb") as file:
                for chunk in hdfs_client.chunks(self._location, inside(path)):
                    file.write(chunk)

        self._repeated(save)

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file, whose version is its number and when it was written; None if none is."""
        try:
            reply = self._asked(path, "GETFILESTATUS")
        except FileNotFoundError:
            return None
        found = hdfs_client.entry(hdfs_client.value(reply, path, "FileStatus"), path)
        return found.stat if found.is_file else None

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
                    yield Found(f"{within}/{entry.name}"[1:], partial(getattr, entry, "stat"))
                else:
                    folders.append(f"{within}/{entry.name}")

    def _listed(self, folder: str) -> list[Entry]:
        try:
            reply = self._asked(folder, "LISTSTATUS")
        except FileNotFoundError:
            return []
        found = hdfs_client.value(reply, folder, "FileStatuses", "FileStatus")
        entries = [hdfs_client.entry(status, folder) for status in found]
        return [entry for entry in entries if entry.name]  # of a file there is one without a name

    def delete(self, path: str) -> bool:
        """Delete a file; False if it is known that there was none."""
        local_cache().drop(path)
        return self._delete(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, at one moment."""
        self._delete(folder, is_recursive=True)

    def _delete(self, path: str, *, is_recursive: bool = False) -> bool:
        doubts = _Doubts()

        def delete() -> bool:
            with doubts:
                recursive = str(is_recursive).lower()
                return _is_true(self._ask("DELETE", path, "DELETE", recursive=recursive), path)

        return self._repeated(delete) or doubts.exist

    def _rename(self, source: str, path: str, **parameters: str) -> Reply:
        return self._ask("PUT", source, "RENAME", destination=inside(path), **parameters)

    def _asked(self, path: str, operation: str) -> Reply:
        return self._repeated(partial(self._ask, "GET", path, operation))

    def _ask(self, method: str, path: str, operation: str, **parameters: str) -> Reply:
        return hdfs_client.ask(self._location, method, inside(path), operation, **parameters)

    def _outcome(self, action: Callable[[], T], doubts: _Doubts, unknown: str) -> T:
        """What an action gives that may be done again; an ``UnknownOutcomeError`` if it may happen yet."""
        try:
            return self._repeated(action)
        except UnansweredError:
            if not doubts.exist:
                raise
        raise UnknownOutcomeError(unknown)

    def _repeated(self, action: Callable[[], T]) -> T:
        return repeated(action, self._sleep)


def inside(path: str) -> str:
    """The path within the cluster.

    >>> inside("hdfs://namenode:8020/folder/name")
    '/folder/name'
    """
    return "/" + path.partition("://")[2].partition("/")[2]


def _is_true(reply: Reply, path: str) -> bool:
    return hdfs_client.value(reply, path, "boolean") is True


def _refusal(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path!r}: a rename must fail where something has the name, and overwrite with renameoptions="
        "OVERWRITE, as in HDFS, got a server that does otherwise; give the address of a name node, no "
        "gateway's"
    )
