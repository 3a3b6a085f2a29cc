"""What a step of a log's reader reads: asks Kafka where the log ends, and looks at the last step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from upsert.errors import KafkaUnavailableError
from upsert.kafka.client import offsets
from upsert.kafka.client.offsets import share
from upsert.kafka.client.records import TopicPartition
from upsert.log.changes import expired
from upsert.log.offset import LogOffset, offsets_of_snapshot
from upsert.log.publisher import last_published, published_at_least
from upsert.log.topics import LogTopic
from upsert.store.log.beginnings import beginning_of
from upsert.store.table import Table
from upsert.store.version import Version

LOG: Final = logging.getLogger("upsert.log")

MOVE_EVERY_S: Final = 10.0
"""How often a reader asks which snapshot it has reached; that only says what need not be kept for it."""

SETTLE_S: Final = 1.0
"""How long the end of the transactions that are open is waited for where it matters."""

_PAUSE_S: Final = 0.02


class LogPlanner:
    """Plans the steps of one reader; lives in one process, and keeps nothing that matters.

    Args:
        topic: the table's log.
        is_eventual: whether changes come into it before they are committed.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self, topic: LogTopic, *, is_eventual: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.topic = topic
        self._is_eventual = is_eventual
        self._now = now
        self._until: Mapping[int, int] | None = None
        self._has_looked = False
        self._asked_s: float | None = None

    def stop_here(self) -> None:
        """Read no further than the present end, which includes a commit that was just published."""
        self._until, _ = self._settled_ends()

    def offsets_after(self, table: Table, snapshot: int) -> dict[int, int]:
        """Where a reader that has read a snapshot continues in the log: no change of a later one lies below.

        It is the position that the snapshot names, where changes of earlier ones may follow; or the end, if
        nothing follows.
        """
        # changes that come into a log before their commit say nothing of where the snapshot is
        if not self._is_eventual:
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
        """The first records after a time from which no snapshot is left.

        Raises:
            RecordsExpiredError: no record of that time or before is left either, or the log began later.
        """
        if timestamp_ms < beginning_of(table.root, table.uuid, self.topic.name).time_ms:
            raise expired(table.name, f"all changes after {timestamp_ms} ms")
        connection, partitions = self.topic.connection, self.topic.partitions
        earliest = offsets.earliest_offsets(connection, partitions)
        found = offsets.offsets_for_time(connection, partitions, timestamp_ms + 1)
        if any(0 < earliest[partition] == offset for partition, offset in found.items()):
            raise expired(table.name, f"all changes after {timestamp_ms} ms")
        return {partition.partition: offset for partition, offset in found.items()}

    def next(self, table: Table, start: LogOffset, max_rows: int | None, *, moves: bool) -> LogOffset:
        """Where a step ends; ``start`` itself when nothing is new.

        Args:
            table: the table.
            start: an earlier answer, or where the reader came into the log.
            max_rows: about how many changes the step may read; None: all.
            moves: whether the reader needs no snapshot before those that it has read.
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
        is_whole = at == ends and not self._is_eventual
        version = reached if is_whole else start.version
        return replace(start, at=at, version=version, is_whole=is_whole, topic_id=topic_id)

    def _settled_ends(self) -> tuple[dict[int, int], bool]:
        """The ends, and whether all that has been written lies below, which is waited for a moment."""
        written, deadline = self.topic.ends_of_all(), self._now() + SETTLE_S
        while True:
            ends = self.topic.ends()
            has_all = all(ends[partition] >= offset for partition, offset in written.items())
            if has_all or self._now() >= deadline:
                return ends, has_all
            time.sleep(_PAUSE_S)

    def _is_due(self) -> bool:
        now = self._now()
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
            earliest = offsets.earliest_offsets(self.topic.connection, self.topic.partitions)
            for partition, first in earliest.items():
                if start.at[partition.partition] < first:
                    raise expired(
                        table.name, f"offsets {start.at[partition.partition]} to {first - 1} of {partition}"
                    )
            self._has_looked = True
