"""Compare-and-swap in HDFS, by renames that fail where a name is taken: what follows is proposed first.

A file has a number there that no other file ever gets. Whoever wants to replace file 7 makes a folder with
the new file in it, under a name that is used once, and renames the folder to ``.<name>-after-7``: one of many
can. Then it looks. If 7 is still there, nothing but a move out of that folder will ever replace it, so the
new file is moved over it; if not, 7 will never be there again, and what was proposed is deleted. Whoever
finds the folder taken has lost, and does the move for its owner, who may be dead. The proposed file's name is
used once, so it is moved once, however often that is asked for.

A file that is replaced in this way is never replaced in another one.
"""

from __future__ import annotations

import errno
from typing import Final, Protocol
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.store.failpoints import reach
from upsert.store.storage.base import FileStat, Versioned
from upsert.store.storage.hdfs_client import UnansweredError
from upsert.store.storage.hdfs_names import HdfsNames
from upsert.store.storage.local import TEMPORARY_SUFFIX

POINTS: Final = ("swap.after-claim", "swap.before-move", "swap.after-move")
"""Where a test can kill the process; see ``upsert.store.failpoints``."""


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
    """Put other content in the place of what was seen; False if that is there no more.

    Raises:
        UnknownOutcomeError: HDFS has not answered for a minute or more; it may have happened, or may yet.
        OSError: it has not happened.
    """
    folder, _, name = path.rpartition("/")
    unique = uuid4().hex
    own, place = f"{folder}/.{name}-{unique}{TEMPORARY_SUFFIX}", f"{folder}/.{name}-after-{seen.version}"
    files.write(f"{own}/{unique}", content, mode)
    if not names.claim(own, place, unique):
        names.delete(own, is_recursive=True)
        _help(files, names, path, place, seen.version)
        return False
    reach("swap.after-claim")
    try:
        return _finish(files, names, path, place, unique, seen.version)
    except UnansweredError as cause:
        raise UnknownOutcomeError(
            f"{path!r}: HDFS must say whether it has replaced the file, got no answer; look at the table"
        ) from cause


def _finish(files: Files, names: HdfsNames, path: str, place: str, unique: str, version: str) -> bool:
    """Do what is to be done with the own proposal; whether it has replaced what was seen."""
    if _number(files, path) == version:
        _move(names, path, place, unique)
        return True
    # either somebody has moved the proposal, and maybe others have followed, or nobody ever will
    if is_late := files.stat(f"{place}/{unique}") is not None:
        names.delete(f"{place}/{unique}")
    _clear(names, place)
    return not is_late


def _help(files: Files, names: HdfsNames, path: str, place: str, version: str) -> None:
    """Move what another one has proposed, who may be dead."""
    proposed = [name for name in files.names(place) if not name.startswith(".")]
    # after the look: what was proposed before this was there is all that can replace it
    if proposed and _number(files, path) == version:
        _move(names, path, place, proposed[0])


def _move(names: HdfsNames, path: str, place: str, unique: str) -> None:
    reach("swap.before-move")
    try:
        names.move(f"{place}/{unique}", path)
    except FileNotFoundError:
        return  # somebody else was faster
    reach("swap.after-move")
    _clear(names, place)


def _clear(names: HdfsNames, place: str) -> None:
    """Delete the folder of a proposal that is gone from it."""
    try:
        names.delete(place)
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
