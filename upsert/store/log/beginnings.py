"""Where the log of a table began, for logs that were not made with their tables, and which of them are over.

A table knows its log by the name of the topic, which stands in its options. ``log/log-<hash of the topic>``
is written before ALTER TABLE makes the topic, so that a topic of a process that died is known as the table's
own; and it says from which snapshot on the log is complete. It stays when the log is over: no later log of
the table may have its name, for offsets in checkpoints and snapshots would be taken for those of the new
one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from upsert.codec import Jsonable
from upsert.store import paths
from upsert.store.checksums import content_of, subject_of
from upsert.store.log.protocol import LEASE_S
from upsert.store.log_options import CLIENT_PREFIX, KAFKA, LogOptions, file_mode
from upsert.store.metadata import json_file
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.storage import storage_of
from upsert.store.version import Version

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
    """A log of a table.

    Attributes:
        topic: its name.
        data_version: the log has the changes of every snapshot after this one; 0 for all.
        time_ms: when that one was published; 0 likewise.
        state: ``MADE``, ``OVER`` or ``GONE``.
        properties: those of the log's client, by which its brokers are found; may hold secrets.
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

    @property
    def log(self) -> LogOptions:
        """As much of the log as it takes to delete it."""
        return LogOptions(KAFKA, self.topic, properties=self.properties)

    def write(self, root: str, uuid: str) -> None:
        """Make this what the table with this uuid says of the log.

        A crash leaves what it said before, or this.
        """
        name = paths.log_file(self.topic)
        path = os.path.join(root, name)
        said = replace(self, properties={}) if self.state == GONE else self
        mode = file_mode(CLIENT_PREFIX + key for key in self.properties)
        storage_of(path).replace(path, content_of(said.to_json(), subject_of(uuid, name)), mode)

    def forget(self, root: str) -> None:
        """Say nothing of the log any more: the topic turned out to be another table's."""
        path = os.path.join(root, paths.log_file(self.topic))
        storage_of(path).delete(path)


def read(root: str, uuid: str, topic: str) -> LogBeginning | None:
    """What the table with this uuid says of one of its logs; None of one that was made with the table."""
    return _read(root, uuid, paths.log_file(topic))


def beginning_of(root: str, uuid: str, topic: str) -> LogBeginning:
    """The same; a log that was made with the table has all of its changes."""
    return read(root, uuid, topic) or LogBeginning(topic)


def read_all(root: str, uuid: str) -> tuple[LogBeginning, ...]:
    """All that the table with this uuid says of logs."""
    names = paths.named_files(root, paths.LOG_FOLDER, _PREFIX)
    found = (_read(root, uuid, f"{paths.LOG_FOLDER}/{_PREFIX}{name}") for name in names)
    return tuple(each for each in found if each is not None)


def left(root: str, uuid: str, present: str | None) -> list[LogBeginning]:
    """The logs that a table does not have, and whose topics may be there."""
    return [each for each in read_all(root, uuid) if each.topic != present and each.state != GONE]


def hold(history: History, published: int) -> None:
    """Keep the snapshot up to which a log is complete, and all that follow, from expiring."""
    consumers.hold(history, CONSUMER, Version.complete(published), LEASE_S)


def _read(root: str, uuid: str, name: str) -> LogBeginning | None:
    must = "what a table says of its log must have valid fields"
    return json_file.read(root, uuid, name, LogBeginning.from_json, must, "restore the file")
