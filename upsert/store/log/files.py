"""What the folder of a table says of its logs: where the table lay when one was made, and where each began.

The log's home says where the table lay: a copy of its folder does not take the original's topic away.

A table knows its log by the name of the topic, which stands in its options. ``log/log-<hash of the topic>``
is written before ALTER TABLE makes the topic: so a statement that died is repeated, DROP TABLE finds every
topic of a table, and it says from which snapshot on the log is complete. It stays when the log is over: no
later log of the table may have its name, for offsets in checkpoints and snapshots would be taken for those of
the new one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from upsert.codec import MAY_BE_MISSING, Jsonable
from upsert.store import paths
from upsert.store.checksums import content_of, read_file, subject_of
from upsert.store.log_options import CLIENT_PREFIX, file_mode
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.storage import storage_of

_claimed: set[tuple[str, str]] = set()
"""Folders, and uuids of tables, of which this process knows that they have the file."""


@dataclass(frozen=True)
class _Home(Jsonable):
    """Where a table lay when its log was made."""

    folder: str
    inode: int | None = field(default=None, metadata=MAY_BE_MISSING)


def claim(root: str, uuid: str, *, replaces: bool = False) -> None:
    """Say that a table's log belongs to the table in this folder; what is said stays, but for a new log."""
    if (root, uuid) in _claimed and not replaces:
        return
    path, storage = os.path.join(root, paths.LOG_HOME), storage_of(root)
    content = content_of(_Home(root, _inode(root)).to_json(), subject_of(uuid, paths.LOG_HOME))
    if replaces:
        storage.replace(path, content)
    elif not storage.exists(path):
        storage.prepare(os.path.dirname(path))
        storage.put_if_absent(path, content)
    _claimed.add((root, uuid))


def is_home(root: str, uuid: str) -> bool:
    """Whether the log of the table in a folder is its own."""
    must = "it must name a folder and an inode"
    home = read_file(root, uuid, paths.LOG_HOME, _Home.from_json, must, "restore it")
    if home is None or home.folder == root:
        return True
    return home.inode is not None and home.inode == _inode(root)


def _inode(root: str) -> int | None:
    """What stays the same when a local folder is moved, and differs in a copy; None elsewhere."""
    return os.stat(root).st_ino if storage_of(root).is_local else None


State = Literal["made", "over", "gone"]

MADE: Final = "made"
"""The topic is there, or about to be."""

OVER: Final = "over"
"""The table has no such log any more, or is about to give it up; the topic is to be deleted."""

GONE: Final = "gone"
"""The topic has been deleted."""

_PREFIX: Final = "log-"


@dataclass(frozen=True)
class LogBeginning(Jsonable):
    """A log that was not made with its table.

    It has the changes of every snapshot after ``data_version``, published at ``time_ms``; 0 and 0 for all.
    The client's ``properties``, by which its brokers are found, may hold secrets.
    """

    topic: str
    data_version: int = 0
    time_ms: int = 0
    state: State = MADE
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no version and no time."""
        if self.data_version < 0 or self.time_ms < 0:
            raise ValueError(f"{(self.data_version, self.time_ms)!r} is no version with a time")

    @classmethod
    def at(cls, topic: str, head: SnapshotInfo, properties: Mapping[str, str]) -> Self:
        """A new log whose first changes are those after ``head``."""
        return cls(topic, head.data_version, head.time_ms, MADE, dict(properties))

    def write(self, root: str, uuid: str) -> None:
        """Make this what the table with this uuid says of the log; a crash leaves what it said, or this."""
        name = paths.log_file(self.topic)
        path = os.path.join(root, name)
        said = replace(self, properties={}) if self.state == GONE else self
        mode = file_mode(CLIENT_PREFIX + key for key in self.properties)
        storage_of(path).replace(path, content_of(said.to_json(), subject_of(uuid, name)), mode)

    def forget(self, root: str) -> None:
        """Say nothing of the log any more: the topic turned out to be another table's."""
        path = os.path.join(root, paths.log_file(self.topic))
        storage_of(path).delete(path)


def beginning_of(root: str, uuid: str, topic: str) -> LogBeginning:
    """Where one of a table's logs began; a log that was made with the table has all of its changes."""
    return stated(root, uuid, topic) or LogBeginning(topic)


def stated(root: str, uuid: str, topic: str) -> LogBeginning | None:
    """What the table with this uuid says of one log; None for nothing."""
    return _read(root, uuid, paths.log_file(topic))


def beginnings(root: str, uuid: str) -> tuple[LogBeginning, ...]:
    """All that the table with this uuid says of logs."""
    names = paths.named_files(root, paths.LOG_FOLDER, _PREFIX)
    found = (_read(root, uuid, f"{paths.LOG_FOLDER}/{_PREFIX}{name}") for name in names)
    return tuple(each for each in found if each is not None)


def _read(root: str, uuid: str, name: str) -> LogBeginning | None:
    must = "what a table says of its log must have valid fields"
    return read_file(root, uuid, name, LogBeginning.from_json, must, "restore the file")


def leftovers(root: str, uuid: str, present: str | None) -> list[LogBeginning]:
    """The logs that a table does not have, and whose topics may be there."""
    return [each for each in beginnings(root, uuid) if each.topic != present and each.state != GONE]
