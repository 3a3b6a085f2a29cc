"""Tables that nobody sees yet: what ``CREATE TABLE … AS SELECT`` fills before it is a table (FLIP-218).

A staged table lies at its own place in the warehouse, with an *entry*, ``staged.json``, beside its
``table.json``. A catalog does not see it before its first commit, which is the store's own atomic step, or,
where there is no commit to see, before its entry says that it is done.

Whoever fills the table holds a lock on its folder, the entry's lease: the kernel lets go of it when the
process dies, however that happens. A staged table that nobody holds is swept away by the next statement
that wants its name.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self, cast

from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checked_json import content_of, parse_versioned
from upsert.store.failpoints import reach
from upsert.store.publication import put_if_absent
from upsert.store.storage import storage_of
from upsert.store.storage.local import make_parent, sync_folder

ENTRY_FILE: Final = "staged.json"

POINTS: Final = (
    "create-as.after-entry",
    "create-as.after-table",
    "create-as.after-fill",
    "create-as.after-done",
    "create-as.before-exchange",
    "create-as.after-exchange",
)
"""Points of ``upsert.store.failpoints`` at which a test can kill the process that creates a table."""

Mode = Literal["batch", "streaming"]


@dataclass(frozen=True)
class Entry:
    """What ``staged.json`` says.

    Attributes:
        owner: host and process that fills the table, for messages; its lock says whether it lives.
        mode: whether a batch job fills the table, or a streaming query.
        checkpoint: the query's checkpoint, by which the same statement knows that it goes on; "" for a batch.
        is_done: whether the table can be seen although it has no commit.
        made: what the statement has made outside of the warehouse, such as topics.
    """

    owner: str
    mode: Mode
    checkpoint: str = ""
    is_done: bool = False
    made: tuple[str, ...] = ()

    @classmethod
    def of_this_process(cls, mode: Mode, checkpoint: str = "") -> Self:
        """The entry of a table that this process begins to fill."""
        return cls(f"process {os.getpid()} on {socket.gethostname()}", mode, checkpoint)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        """The entry that a file has.

        Raises:
            KeyError, TypeError: it has none.
        """
        owner, mode, checkpoint, is_done = (value[key] for key in ("owner", "mode", "checkpoint", "is_done"))
        made = value["made"]
        texts = (owner, mode, checkpoint, *made)
        if not all(isinstance(text, str) for text in texts) or mode not in ("batch", "streaming"):
            raise TypeError(f"it is {value!r}")
        if not isinstance(is_done, bool):
            raise TypeError(f"'is_done' is {is_done!r}")
        return cls(owner, cast(Mode, mode), checkpoint, is_done, tuple(made))

    def to_json(self) -> bytes:
        """The content of the file."""
        return content_of(asdict(self), ENTRY_FILE)


def entry_of(folder: str) -> Entry | None:
    """The entry of the table in a folder; None for one that is not, or no longer, staged.

    Raises:
        CorruptTableError: it is damaged.
    """
    path = os.path.join(folder, ENTRY_FILE)
    try:
        content = storage_of(path).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = parse_versioned(content, path, ENTRY_FILE)
    try:
        return Entry.of_json(value)
    except (KeyError, TypeError) as cause:
        raise CorruptTableError(
            f"{path}: a staged table's entry cannot be read, {cause!r}; delete the folder to begin anew"
        ) from cause


def is_visible(folder: str) -> bool:
    """Whether a catalog sees the table in a folder that has a ``table.json``."""
    entry = entry_of(folder)
    return entry is None or entry.is_done or has_commit(folder)


def has_commit(folder: str) -> bool:
    """Whether a managed table has ever had a commit; expiry always leaves the latest snapshot."""
    names = paths.named_files(folder, paths.SNAPSHOT_FOLDER, "")
    return any(paths.snapshot_id(name) is not None for name in names)


class Lease:
    """A lock on a folder, held until it is released or this process dies."""

    def __init__(self, folder: str, descriptor: int) -> None:
        """Use ``Lease.take``."""
        self.folder = folder
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, folder: str) -> Self | None:
        """The lock on an existing folder; None while another holder lives."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(folder, descriptor)

    def release(self) -> None:
        """Let go of it; again is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def begin(folder: str, entry: Entry) -> Lease:
    """Make an empty folder for a staged table, with its entry, and hold its lock.

    The caller holds the catalog's lock and has made sure that nothing lies there. After a crash there is a
    folder without a table, or a staged one that nobody holds.
    """
    make_parent(os.path.join(folder, ENTRY_FILE))
    lease = Lease.take(folder)
    if lease is None:  # the catalog's lock excludes that
        raise RuntimeError(f"folder {folder!r} is locked although it is new")
    put_if_absent(os.path.join(folder, ENTRY_FILE), entry.to_json())
    reach("create-as.after-entry")
    return lease


def mark(folder: str, *, is_done: bool | None = None, made: tuple[str, ...] | None = None) -> None:
    """Change the entry of a staged table, at one moment; nothing if it has none."""
    entry = entry_of(folder)
    if entry is None:
        return
    changed = replace(
        entry,
        is_done=entry.is_done if is_done is None else is_done,
        made=entry.made if made is None else made,
    )
    if changed != entry:
        path = os.path.join(folder, ENTRY_FILE)
        storage_of(path).replace(path, changed.to_json())


def forget(folder: str) -> None:
    """Take the entry away: the table is one like any other, also if it has no commit."""
    with suppress(FileNotFoundError):  # it was interrupted after that
        os.unlink(os.path.join(folder, ENTRY_FILE))
    sync_folder(folder)
