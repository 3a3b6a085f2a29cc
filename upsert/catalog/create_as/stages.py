"""Tables that no reader sees yet: what ``CREATE TABLE … AS SELECT`` fills before it is a table (FLIP-218).

A staged table has an *entry*, ``staged.json`` beside its ``table.json`` (in an object store a part of that
file). A catalog does not see the table before its first commit, which is the store's own atomic step, or,
where there is no commit to see, before its entry says that it is done.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final, Literal, Self

from upsert.codec import Jsonable
from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checksums import parse_versioned
from upsert.store.storage import storage_of

POINTS: Final = (
    "create-as.after-entry",
    "create-as.after-table",
    "create-as.after-fill",
    "create-as.after-done",
    "create-as.before-exchange",
    "create-as.after-exchange",
)
"""Points of ``upsert.failpoints`` at which a test can kill the process that creates a table."""

Mode = Literal["batch", "streaming"]


@dataclass(frozen=True)
class Entry(Jsonable):
    """What ``staged.json`` says.

    Attributes:
        owner: host and process that fills the table, for messages.
        mode: whether a batch job fills the table, or a streaming query.
        checkpoint: the query's, by which the same statement recognizes its table; "" for a batch.
        is_done: whether the table is visible although it has no commit.
        made: what the statement has created outside the warehouse, such as topics.
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


def entry_of(folder: str) -> Entry | None:
    """The entry of the table in a folder; None for one that is not, or no longer, staged."""
    path = os.path.join(folder, paths.ENTRY_FILE)
    try:
        content = storage_of(path).read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = parse_versioned(content, path, paths.ENTRY_FILE)
    try:
        return Entry.from_json(value)
    except (KeyError, TypeError) as cause:
        raise CorruptTableError(
            f"{path}: a staged table's entry cannot be read, {cause!r}; delete the folder to start over"
        ) from cause


def is_visible(folder: str) -> bool:
    """Whether a catalog sees the table in a folder that has a ``table.json``."""
    entry = entry_of(folder)
    return entry is None or entry.is_done or has_commit(folder)


def has_commit(folder: str) -> bool:
    """Whether a managed table has ever had a commit; expiry always leaves the latest snapshot."""
    names = paths.named_files(folder, paths.SNAPSHOT_FOLDER, "")
    return any(paths.snapshot_id(name) is not None for name in names)
