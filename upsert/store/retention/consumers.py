"""Consumers: readers that go on later from where they are, and what is kept for them until then.

A consumer holds one version by a *lease*, which it renews as it goes on. Expiry keeps the snapshots from
there on that the consumer would read after a restart. A consumer that does not come back loses the lease when
its time is over, and nothing is kept for it any more. ``consumer/consumer-<name>`` says all that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.checksums import content_of, read_file, subject_of
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.tag_file import checked_name
from upsert.store.retention.lock import lifetime_lock
from upsert.store.storage import storage_of
from upsert.store.version import Version

DEFAULT_LEASE_S: Final = 3 * 86_400.0
"""Long enough for a nightly job and for a weekend; a query that never runs again costs so much history."""

LONGEST_LEASE_S: Final = 1_000 * 366 * 86_400.0
"""A thousand years: its end is a time that a TIMESTAMP can have."""


@dataclass(frozen=True)
class Consumer(Jsonable):
    """A reader that holds a version.

    Attributes:
        name: its id.
        version: what it would read on from.
        renewed_ms: when it last said so, in milliseconds since 1970.
        until_ms: when its lease ends.
    """

    name: str
    version: Version
    renewed_ms: int
    until_ms: int

    def __post_init__(self) -> None:
        if not 0 <= self.renewed_ms <= self.until_ms:
            raise ValueError(f"a lease cannot go from {self.renewed_ms} to {self.until_ms}")

    def is_lapsed(self, now_ms: int) -> bool:
        """Whether the lease is over."""
        return now_ms > self.until_ms

    def content(self, uuid: str) -> bytes:
        """The content of the consumer's file, for the table with this uuid; the file's name says the name."""
        value = self.to_json()
        del value["name"]
        return content_of(value, subject_of(uuid, paths.consumer_file(self.name)))


def needed(version: Version) -> tuple[int, ...]:
    """Data versions that a reader at a version needs, all but the empty one."""
    return tuple(sorted({version.base, version.target} - {0}))


def hold(
    history: History, name: str, version: Version, lease_s: float, now_s: float | None = None
) -> Consumer:
    """Keep what a reader at ``version`` needs for a time, in place of what the name held before.

    When it returns, nothing that the version needs can expire before the lease is over, also if the lease
    before had lapsed. A crash leaves the old hold or the new one. A ``CommitConflictError`` says that this
    process stalled so long that the version may have expired; hold it again.
    """
    path = _path(history.root, name)
    if not hasattr(version, "base"):
        raise ConfigurationError(
            f"consumer {name!r}: where it reads on must be a Version, got {version!r}; write "
            "Version.complete(id) for the state of a snapshot"
        )
    if not (hasattr(lease_s, "__float__") and 0 < lease_s <= LONGEST_LEASE_S):
        raise ConfigurationError(
            f"consumer {name!r}: the lease must be longer than 0 s and no longer than 1000 years, got "
            f"{lease_s!r}; a tag keeps a snapshot for good"
        )
    with lifetime_lock(history) as lock:
        head = history.latest()
        for data_version in needed(version):
            history.equal_to(data_version, head)
        now_ms = int((time.time() if now_s is None else now_s) * 1000)
        consumer = Consumer(name, version, now_ms, now_ms + int(lease_s * 1000))
        reach("hold.before-file")
        storage_of(path).prepare(os.path.dirname(path))
        with history.publishing(path):
            storage_of(path).replace(path, consumer.content(history.uuid))
        reach("hold.after-file")
        lock.check()
    return consumer


def release(history: History, name: str) -> bool:
    """Keep nothing for a consumer any more; whether it held anything."""
    path = _path(history.root, name)
    with lifetime_lock(history):
        was_there = storage_of(path).exists(path)
        storage_of(path).delete(path)
    return was_there


def read(root: str, uuid: str, name: str) -> Consumer | None:
    """A consumer of the table with this uuid; None if there is none of this name."""
    return read_file(
        root,
        uuid,
        paths.consumer_file(checked_name("consumer", name)),
        lambda value: Consumer.from_json({**value, "name": name}),
        "a consumer must have a version and times",
        "delete the file if no query needs it",
    )


def read_all(root: str, uuid: str) -> tuple[Consumer, ...]:
    """All consumers of the table with this uuid by name, also those whose lease is over."""
    found = (read(root, uuid, name) for name in paths.named_files(root, paths.CONSUMER_FOLDER, "consumer-"))
    return tuple(consumer for consumer in found if consumer)


def held_versions(
    consumers: Iterable[Consumer], head: SnapshotInfo, oldest_state: int, now_ms: int
) -> list[int]:
    """Data versions that expiry must keep, with all that follows, for the consumers whose lease goes on.

    What is older than the oldest state is kept by a tag or not at all: it fences nothing off.
    """
    return [
        version
        for consumer in consumers
        if not consumer.is_lapsed(now_ms)
        for version in needed(consumer.version)
        if oldest_state <= version <= head.id
    ]


def remove_lapsed(root: str, consumers: Iterable[Consumer], now_ms: int) -> None:
    """Delete the files of those whose lease is over; the caller holds the lifetime lock."""
    for consumer in consumers:
        if consumer.is_lapsed(now_ms):
            storage_of(root).delete(_path(root, consumer.name))


def _path(root: str, name: str) -> str:
    return os.path.join(root, paths.consumer_file(checked_name("consumer", name)))
