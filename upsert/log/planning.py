"""How far a step of a reader of a log goes, by what the brokers have and what the table's snapshots say."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from upsert.errors import KafkaUnavailableError, RecordsExpiredError
from upsert.kafka.client import admin
from upsert.kafka.client.records import TopicPartition, share
from upsert.log.offset import LogOffset, offsets_of_snapshot
from upsert.log.publisher import LogTopic, last_published, published_at_least
from upsert.store.log.files import beginning_of
from upsert.store.table import Table
from upsert.store.version import Version

LOG: Final = logging.getLogger("upsert.log")

MOVE_EVERY_S: Final = 10.0
"""How often a reader asks which snapshot it has reached; that only says what need not be kept for it."""

SETTLE_S: Final = 1.0
"""How long the end of the transactions that are open is waited for where it matters."""

_PAUSE_S: Final = 0.02


@dataclass
class LogPlanner:
    """Plans the steps of one reader; lives in one process, and keeps nothing that matters."""

    topic: LogTopic
    is_eventual: bool
    _until: Mapping[int, int] | None = None
    _has_looked: bool = False
    _asked_s: float | None = None

    def stop_here(self) -> None:
        """Read no further than the present end, which includes a commit that was just published."""
        self._until, _ = self._settled_ends()

    def offsets_after(self, table: Table, snapshot: int) -> dict[int, int]:
        """Where a reader that has read a snapshot continues in the log: no change of a later one lies below.

        It is the position that the snapshot names, where changes of earlier ones may follow; or the end, if
        nothing follows.
        """
        # changes that come into a log before their commit say nothing of where the snapshot is
        if not self.is_eventual:
            ends = self.topic.ends()
            soon = replace(self.topic, connection=replace(self.topic.connection, patience_s=SETTLE_S))
            try:
                if last_published(table.as_logged(), soon) <= snapshot:
                    return ends
            except KafkaUnavailableError as cause:
                # a publisher is at work, or died: it may be about to send what follows
                LOG.info("%s; reading the log from where snapshot %d says", cause, snapshot)
        known = table.snapshot(snapshot).info.log_offsets
        return offsets_of_snapshot(known, self.topic.buckets)

    def offsets_at(self, table: Table, timestamp_ms: int) -> dict[int, int]:
        """The first records after a time from which no snapshot is left; the log must reach back so far."""
        if timestamp_ms < beginning_of(table.root, table.uuid, self.topic.name).time_ms:
            raise expired(table.name, f"all changes after {timestamp_ms} ms")
        connection, partitions = self.topic.connection, self.topic.partitions
        earliest = admin.earliest_offsets(connection, partitions)
        found = admin.offsets_for_time(connection, partitions, timestamp_ms + 1)
        if any(0 < earliest[partition] == offset for partition, offset in found.items()):
            raise expired(table.name, f"all changes after {timestamp_ms} ms")
        return {partition.partition: offset for partition, offset in found.items()}

    def next(self, table: Table, start: LogOffset, max_rows: int | None, *, moves: bool) -> LogOffset:
        """Where a step of about ``max_rows`` changes ends; ``start`` itself when nothing is new.

        ``moves``: whether the reader needs no snapshot before those that it has read.
        """
        ends = self.topic.ends()
        topic_id = start.topic_id
        if ends != start.at or not self._has_looked:
            topic_id = self._checked_id(table, start)
        self._check_is_there(table, start, ends)
        reached = start.version
        if moves and ends != start.at and self._is_due():
            published = published_at_least(table.as_logged(), self.topic)
            # brokers end a transaction in one partition after the other: its marker may be seen before its
            # records are, and a reader that has the snapshot skips them
            ends, has_all = self._settled_ends()
            if has_all:
                reached = Version.complete(max(reached.base, published))
        wanted = ends if self._until is None else {n: min(end, self._until[n]) for n, end in ends.items()}
        ahead = {TopicPartition(self.topic.name, n): (at, max(at, wanted[n])) for n, at in start.at.items()}
        at = {partition.partition: offset for partition, offset in share(ahead, max_rows).items()}
        if at == start.at:
            return start
        is_whole = at == ends and not self.is_eventual
        version = reached if is_whole else start.version
        return replace(start, at=at, version=version, is_whole=is_whole, topic_id=topic_id)

    def _settled_ends(self) -> tuple[dict[int, int], bool]:
        """The ends, and whether all that has been written lies below, which is waited for a moment."""
        written, deadline = self.topic.ends_of_all(), time.monotonic() + SETTLE_S
        while True:
            ends = self.topic.ends()
            has_all = all(ends[partition] >= offset for partition, offset in written.items())
            if has_all or time.monotonic() >= deadline:
                return ends, has_all
            time.sleep(_PAUSE_S)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._asked_s is not None and now < self._asked_s + MOVE_EVERY_S:
            return False
        self._asked_s = now
        return True

    def _checked_id(self, table: Table, start: LogOffset) -> str | None:
        """The id of the topic, which must be the one that was read; a checkpoint without one takes it."""
        found = self.topic.id()
        if None not in (found, start.topic_id) and found != start.topic_id:
            raise expired(
                table.name,
                f"the topic {self.topic.name!r} with the id {start.topic_id!r} was deleted and made again as "
                f"{found!r}: its changes",
            )
        return found or start.topic_id

    def _check_is_there(self, table: Table, start: LogOffset, ends: Mapping[int, int]) -> None:
        for number, offset in start.at.items():
            if ends[number] < offset:
                raise expired(
                    table.name, f"offsets below {offset} of partition {number}, which ends at {ends[number]},"
                )
        if not self._has_looked:  # once in the life of a process; later the clients of tasks notice
            earliest = admin.earliest_offsets(self.topic.connection, self.topic.partitions)
            for partition, first in earliest.items():
                if start.at[partition.partition] < first:
                    raise expired(
                        table.name, f"offsets {start.at[partition.partition]} to {first - 1} of {partition}"
                    )
            self._has_looked = True


def expired(name: str, what: str) -> RecordsExpiredError:
    """The error of a reader for which the log is too short."""
    return RecordsExpiredError(
        f"table {name!r}: the log must hold all that has not been read, {what} are no longer in it; begin "
        "with a new checkpoint, which reads a snapshot first, or set 'scan.source' = 'files' with it; a "
        "longer 'log.retention' keeps more"
    )


def log_ended(name: str, topic: str) -> RecordsExpiredError:
    """The error of a reader whose log the table does not have any more."""
    return RecordsExpiredError(
        f"table {name!r}: a stream that reads a log can go on while the table has it, the log {topic!r} was "
        "turned off; begin with a new checkpoint, which reads a snapshot first, and then the files, or the "
        "table's next log"
    )
