"""How files in HDFS get their names, and are replaced: by renames, whatever answers are lost.

An unanswered request is sent again for about a minute. A temporary name is used once, so what has it
is renamed once, however often that is asked for.

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
import random
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.retry import retried
from upsert.store.storage import hdfs_client
from upsert.store.storage.base import FileStat, T, Versioned
from upsert.store.storage.hdfs_client import Entry, NotDoneError, Reply, UnansweredError
from upsert.store.storage.local import TEMPORARY_SUFFIX
from upsert.store.storage.locations import HdfsLocation

_TRIES: Final = 20
_FIRST_PAUSE_S: Final = 0.05

_LONGEST_PAUSE_S: Final = 5.0
"""Together the pauses last about a minute: a stand-by name node needs less to take over."""


class _Doubts:
    """Notes whether a request that got no answer may have been carried out; its error goes on."""

    exist = False

    def __enter__(self) -> None:
        """Begin a request."""

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        """End it."""
        self.exist |= isinstance(failure, UnansweredError) and not isinstance(failure, NotDoneError)


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
        doubts = _Doubts()

        def rename() -> bool:
            failure = UnansweredError(errno.EIO, "HDFS renames to no such name, and nothing has it", path)
            try:
                with doubts:
                    if self.is_true(self._rename(source, path), path):
                        return True
            except UnansweredError as cause:
                failure = cause
            else:
                if not doubts.exist and self.has(path):
                    return False
                if not doubts.exist and not self.has(source):
                    raise FileNotFoundError(errno.ENOENT, "its folder has been deleted", path)
            if doubts.exist and (found := self._content_if_any(path)) is not None:
                return found == content
            raise failure

        return self._outcome(
            rename,
            doubts,
            f"{path!r}: HDFS must say whether it has the file, got no answer; look at the table's history "
            "before you write the rows again",
        )

    def move(self, source: str, path: str) -> None:
        """Give a file a name, whatever has it; of a reader, the old or the new is read.

        Raises:
            FileNotFoundError: the file is not there.
            NotDoneError: it has not happened.
            UnansweredError: it may have happened, or may yet.
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

        reply = self.repeat(rename)
        if reply is not None and reply.body and not self.is_true(reply, path):
            raise refusal(path)

    def claim(self, folder: str, name: str, unique: str) -> bool:
        """Give a folder, which has a file ``unique``, a name; False if something has it.

        Raises:
            UnknownOutcomeError: HDFS has not answered for a minute or more; it may happen yet.
            OSError: it has not happened.
        """
        doubts = _Doubts()

        def rename() -> bool:
            try:
                with doubts:
                    # without the option, a folder that has the name would take it in
                    self._rename(folder, name, renameoptions="NONE")
            except FileExistsError:
                return doubts.exist and not self.has(f"{folder}/{unique}")
            except FileNotFoundError:
                if not doubts.exist:
                    raise  # else an earlier try has done it
            return True

        unknown = f"{name!r}: HDFS must say whether it is taken, got no answer; look at the table"
        return self._outcome(rename, doubts, unknown)

    def _outcome(self, action: Callable[[], T], doubts: _Doubts, unknown: str) -> T:
        try:
            return self.repeat(action)
        except UnansweredError:
            if not doubts.exist:
                raise
        raise UnknownOutcomeError(unknown)

    def delete(self, path: str, *, is_recursive: bool = False) -> bool:
        """Delete a file or a folder; False if it is known that there was none."""
        doubts = _Doubts()

        def delete() -> bool:
            with doubts:
                recursive = str(is_recursive).lower()
                return self.is_true(self.ask("DELETE", path, "DELETE", recursive=recursive), path)

        return self.repeat(delete) or doubts.exist

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
        return retried(
            action,
            is_passing=lambda failure: isinstance(failure, UnansweredError),
            first_pause_s=_FIRST_PAUSE_S,
            longest_pause_s=_LONGEST_PAUSE_S,
            tries=_TRIES,
            jitter=random.uniform,
            sleep=self.sleep,
        )

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


POINTS: Final = ("swap.after-claim", "swap.before-move", "swap.after-move")
"""Where a test can kill the process; see ``upsert.failpoints``."""


class Files(Protocol):
    """What this asks of the files in HDFS."""

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Write a new file."""

    def read(self, path: str) -> bytes:
        """The content of a file."""

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file; its version is its number, and when it was written."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder."""


def versioned(files: Files, path: str) -> Versioned | None:
    """A file as it is at one moment; None if there is none."""
    while (number := _number(files, path)) is not None:
        try:
            content = files.read(path)
        except FileNotFoundError:
            continue
        if _number(files, path) == number:
            return Versioned(content, number)
    return None


def swap(files: Files, names: HdfsNames, path: str, content: bytes, seen: Versioned, mode: int) -> bool:
    """Put other content in the place of what was seen; False if that is gone.

    Raises:
        UnknownOutcomeError: HDFS has not answered for a minute or more; it may have happened, or may yet.
        OSError: it has not happened.
    """
    folder, _, name = path.rpartition("/")
    unique = uuid4().hex
    own, proposal = f"{folder}/.{name}-{unique}{TEMPORARY_SUFFIX}", f"{folder}/.{name}-after-{seen.version}"
    files.write(f"{own}/{unique}", content, mode)
    if not names.claim(own, proposal, unique):
        names.delete(own, is_recursive=True)
        _help(files, names, path, proposal, seen.version)
        return False
    reach("swap.after-claim")
    try:
        return _finish(files, names, path, proposal, unique, seen.version)
    except UnansweredError as cause:
        raise UnknownOutcomeError(
            f"{path!r}: HDFS must say whether it has replaced the file, got no answer; look at the table"
        ) from cause


def _finish(files: Files, names: HdfsNames, path: str, proposal: str, unique: str, version: str) -> bool:
    """Do what is to be done with the own proposal; whether it has replaced what was seen."""
    if _number(files, path) == version:
        _move(names, path, proposal, unique)
        return True
    # either another process has moved the proposal, and maybe others have followed, or none ever will
    if is_late := files.stat(f"{proposal}/{unique}") is not None:
        names.delete(f"{proposal}/{unique}")
    _clear(names, proposal)
    return not is_late


def _help(files: Files, names: HdfsNames, path: str, proposal: str, version: str) -> None:
    """Move what another one has proposed, who may be dead."""
    proposed = [name for name in files.names(proposal) if not name.startswith(".")]
    # after the look: what was proposed before this was there is all that can replace it
    if proposed and _number(files, path) == version:
        _move(names, path, proposal, proposed[0])


def _move(names: HdfsNames, path: str, proposal: str, unique: str) -> None:
    reach("swap.before-move")
    try:
        names.move(f"{proposal}/{unique}", path)
    except FileNotFoundError:
        return  # another process was faster
    reach("swap.after-move")
    _clear(names, proposal)


def _clear(names: HdfsNames, proposal: str) -> None:
    """Delete the folder of a proposal that is gone from it."""
    try:
        names.delete(proposal)
    except OSError as failure:
        if failure.errno != errno.ENOTEMPTY:  # the next one has proposed, and will see that it came too late
            raise


def _number(files: Files, path: str) -> str | None:
    if (found := files.stat(path)) is None:
        return None
    number, _ = found.version if isinstance(found.version, tuple) else (None, None)
    if number is None:
        raise ConfigurationError(
            f"{path!r}: HDFS must number its files, got a server that does not; CREATE TABLE and INSERT "
            "INTO it"
        )
    return str(number)
