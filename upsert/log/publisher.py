"""The topic of a table's log, and the changes of committed snapshots on their way into it, each exactly once.

One transaction a snapshot: its changes, then a mark in every partition, and the snapshot's id as the offset
of a consumer group, by which the next publisher, wherever it runs, knows where to continue. What a publisher
that died has left open is aborted when the next one begins. A compaction changes no rows, and is not
published.

Up to which snapshot the log is complete, the log itself tells (`last_published`): the offset of the consumer
group is asked first. Kafka forgets such offsets a week after the last one; then the newest mark in the topic
tells, and where Kafka has deleted that too, what the table's own consumer holds. Each of them can only be too
low, and is so only if no reader can read any more what would be sent twice.

One process of a host at a time publishes (`turn`): Kafka itself fences all but the last one that began and
aborts their transactions, so the lock only saves work. A process that dies releases it.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import pyarrow as pa

from upsert.errors import ConfigurationError, FencedError, KafkaUnavailableError, SnapshotExpiredError
from upsert.failpoints import reach
from upsert.flock import FileLock
from upsert.kafka.client.admin import earliest_offsets, existing_topic, latest_offsets
from upsert.kafka.client.connection import PATIENCE_SECONDS, Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import Marker, produce_once, read_marker, settled_marker
from upsert.log.messages import LogDecoder, LogEncoder, marks
from upsert.retry import retried
from upsert.store.commit.committer import note_ends
from upsert.store.log.base import LoggedTable
from upsert.store.log.files import beginning_of
from upsert.store.log.publishing import hold
from upsert.store.log_options import LogOptions
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.change_files import Scope
from upsert.store.read.changes import changes_between
from upsert.store.read.steps import StepLimit, cut
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.rows.partitions import partition_name
from upsert.store.version import Version, step_between


@dataclass(frozen=True)
class LogTopic:
    """The topic of one table: its cluster, its name, and of how many buckets, which are its partitions."""

    connection: Connection
    name: str
    buckets: int

    @classmethod
    def of(cls, log: LogOptions, buckets: int, owner: str, patience_s: float = PATIENCE_SECONDS) -> LogTopic:
        """The topic of an existing table's log; ``ConfigurationError`` if it has none."""
        if not log.is_kafka or log.topic is None:
            raise ConfigurationError(
                f"{owner}: a table with a log is needed, got 'log.system' = {log.system!r}; "
                "ALTER TABLE … SET ('log.system' = 'kafka') gives it one"
            )
        return cls(Connection(log.properties, patience_s), log.topic, buckets)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Its partitions, that of bucket 0 first."""
        return tuple(TopicPartition(self.name, bucket) for bucket in range(self.buckets))

    def ends(self) -> dict[int, int]:
        """Of each partition the offset behind the last committed record."""
        found = latest_offsets(self.connection, self.partitions)
        return {one.partition: offset for one, offset in found.items()}

    def named_ends(self) -> dict[str, int]:
        """The same by the partition's number as text, as a snapshot names them."""
        return {str(partition): offset for partition, offset in self.ends().items()}

    def id(self) -> str | None:
        """What tells the topic from another one of its name; None where the brokers have no ids."""
        return existing_topic(self.connection, self.name).id

    def ends_of_all(self) -> dict[int, int]:
        """The same of all records, also those of transactions that are open; errors as for ``ends``."""
        properties = {**self.connection.properties, "isolation.level": "read_uncommitted"}
        return replace(self, connection=replace(self.connection, properties=properties)).ends()


@contextmanager
def turn(uuid: str, patience_s: float) -> Iterator[None]:
    """Hold the lock of a table's log; wait for it, but not for ever where another process sends to it."""
    path = os.path.join(tempfile.gettempdir(), f"deltajoin-log-{os.getuid()}-{uuid}.lock")

    def taken() -> FileLock:
        if (lock := FileLock.take(path)) is None:
            raise KafkaUnavailableError(
                f"log of table {uuid!r}: another process has been sending to it for more than "
                f"{patience_s:g} s, and holds the lock {path!r}; check whether Kafka answers"
            )
        return lock

    with retried(
        taken,
        is_passing=lambda failure: isinstance(failure, KafkaUnavailableError),
        first_pause_s=0.002,
        longest_pause_s=0.1,
        patience_s=patience_s,
    ):
        yield


_FIRST_LOOK: Final = 100
"""Offsets at the end of a partition in which the newest mark is looked for first."""


def transactional_id(uuid: str) -> str:
    """The name under which a table's log is written: one writer at a time has it."""
    return f"deltajoin-log-{uuid}"


def last_published(table: LoggedTable, topic: LogTopic) -> int:
    """Id of the snapshot up to which the log is complete; 0 for a new one."""
    marker = read_marker(topic.connection, topic.name, transactional_id(table.uuid))
    return _position(table, topic, marker)


def published_at_least(table: LoggedTable, topic: LogTopic) -> int:
    """The same without waiting for a transaction that is open: the log may be complete up to a later one."""
    marker = read_marker(topic.connection, topic.name, transactional_id(table.uuid), settled=False)
    return _position(table, topic, marker)


def taken_over(table: LoggedTable, topic: LogTopic, wait_s: float) -> int:
    """The same for a process that is about to publish: a transaction that is open for so long is aborted."""
    marker = settled_marker(topic.connection, topic.name, transactional_id(table.uuid), wait_s)
    return _position(table, topic, marker)


def _position(table: LoggedTable, topic: LogTopic, marker: Marker | None) -> int:
    if marker is None:
        begun = beginning_of(table.published.root, table.published.uuid, topic.name).data_version
        newest = _newest_mark(table, topic)
        held = consumers.read(table.published.root, table.published.uuid, CONSUMER)
        return max(newest, 0 if held is None else held.version.base, begun)
    # a copy of the table may have written into the log, or the table before it was restored
    published, head = marker.batch, table.published.latest()
    is_other = published > head.id
    if head.oldest <= published <= head.id:
        is_other = table.published.info(published, head).uuid != marker.fingerprint
    if is_other:
        raise ConfigurationError(
            f"{table.owner}: its log {topic.name!r} must hold the table's own snapshots, it holds snapshot "
            f"{published} of another history, as if the table was copied or restored; create a table with a "
            "log of its own, and copy the rows"
        )
    return published


def _newest_mark(table: LoggedTable, topic: LogTopic) -> int:
    """The snapshot of the newest mark in partition 0; 0 if there is none."""
    partition = topic.partitions[0]
    end = topic.ends()[0]
    begin = earliest_offsets(topic.connection, [partition])[partition] if end else 0
    decoder = LogDecoder(table.definition.schema, table.log, table.uuid)
    look = _FIRST_LOOK
    while begin < end:
        start = max(begin, end - look)
        newest = 0
        for records in read_range(topic.connection, partition, start, end, {"headers"}):
            marks = decoder.marks(records)
            newest = marks[-1].snapshot if marks else newest
        if newest or start == begin:
            return newest
        look *= 10
    return 0


DEAD_AFTER_S: Final = 2.0
"""A transaction of the log that stays open for longer is that of a publisher that died, or that is locked out
now: who was locked out waits twice as long for the next one, so that one of them gets through."""

PIECE_ROWS: Final = 1_000_000
"""About so many changed keys are in memory at once."""

POINTS: Final = (
    "create.after-log",
    "commit.after-announcement",
    "log.before-transaction",
    "log.after-bucket",
    "log.after-marks",
    "log.after-transaction",
    "log.after-hold",
)
"""Points of ``upsert.failpoints`` at which a test can kill the process that uses a table with a log."""


@dataclass(frozen=True)
class Step:
    """What one transaction brings into the log: the changes from one state of the table to a later one.

    Attributes:
        since: id of the snapshot up to which the log is complete; 0 for an empty log.
        target: the snapshot up to which it will be.
        uuid: of that, or of one with the same rows.
        untracked: None if its changes show; else the partitions that do not, () for all.
        is_announced: whether the log has the changes since before the commit.
    """

    since: int
    target: int
    uuid: str
    untracked: tuple[str, ...] | None
    is_announced: bool = False


def publish(table: LoggedTable, topic: LogTopic, *, accept_gap: bool = False) -> int:
    """Send what the log lacks of the existing snapshots; how many transactions that took.

    If changes have expired that the log lacks, ``accept_gap`` continues behind them; readers stop there.
    Calling it again is right, whatever Kafka did not take.
    """
    patience_s = topic.connection.patience_s
    waits_s = (DEAD_AFTER_S * 2**tries for tries in count())
    with turn(table.uuid, 2 * patience_s):
        return retried(
            lambda: _publish(table, topic, accept_gap, next(waits_s)),
            # another one has taken over, and has not sent anything yet
            is_passing=lambda failure: isinstance(failure, FencedError),
            first_pause_s=0.05,
            longest_pause_s=1.0,
            patience_s=patience_s,
            jitter=random.uniform,
        )


def _publish(table: LoggedTable, topic: LogTopic, accept_gap: bool, wait_s: float) -> int:
    position = taken_over(table, topic, wait_s)
    sent = 0
    while (step := next_step(table, position, accept_gap)) is not None:
        try:
            _send(table, topic, step)
        except (ConfigurationError, FencedError):
            # a publisher on another host was faster: the log is further than it was a moment ago
            ahead = taken_over(table, topic, 2 * wait_s)
            if ahead <= position:
                raise
            position = ahead
        else:
            position = step.target
            sent += 1
    if sent:
        hold(table.published, position)
        reach("log.after-hold")
        note_ends(table.uuid, topic.name, topic.named_ends())
    return sent


def _send(table: LoggedTable, topic: LogTopic, step: Step) -> None:
    reach("log.before-transaction")
    produce_once(
        topic.connection,
        topic.name,
        _records(table, topic, step),
        transactional_id=transactional_id(table.uuid),
        batch=step.target,
        fingerprint=step.uuid,
    )
    reach("log.after-transaction")


def _records(table: LoggedTable, topic: LogTopic, step: Step) -> Iterator[pa.Table]:
    """The changes of a step, one bucket after the other, and its marks."""
    if step.untracked != () and not step.is_announced:
        definition = table.definition
        encoder = LogEncoder(definition.schema, table.log, table.uuid, definition.version)
        columns = [column.name for column in definition.schema.physical]
        scope = Scope(skips_untracked=step.untracked is not None)
        for bucket, start, end in _pieces(table, topic, step, scope):
            changes = changes_between(table.rows, start, end, columns=columns, buckets=[bucket], scope=scope)
            yield from encoder.records(changes, bucket, step.target)
            reach("log.after-bucket")
    yield marks(table.uuid, topic.buckets, step.target, step.since, step.untracked)
    reach("log.after-marks")


def _pieces(
    table: LoggedTable, topic: LogTopic, step: Step, scope: Scope
) -> Iterator[tuple[int, Version, Version]]:
    """The buckets of a step, in order, and in large ones ranges of keys: memory is bounded."""
    start, end = Version.complete(step.since), Version.complete(step.target)
    while start != end:
        following = cut(
            table.rows, step.since, step.target, start.cursor or (0, 0), StepLimit(PIECE_ROWS), scope
        )
        piece = step_between(start, following)
        for bucket in range(topic.buckets):
            if piece.hashes_of(bucket) is not None:
                yield bucket, start, following
        start = following


def next_step(table: LoggedTable, position: int, accept_gap: bool = False) -> Step | None:
    """What the log gets next; None if it lacks nothing. What it lacks may have expired, see `publish`."""
    head = table.published.latest()
    if head.data_version <= position:
        return None
    oldest = table.published.info(max(head.oldest, 1), head)
    if position == 0:
        return _first_step(table, oldest, head)
    try:
        before = table.rows.snapshot(position)
    except SnapshotExpiredError as cause:
        if not accept_gap:
            raise SnapshotExpiredError(
                f"{table.owner}: changes must be published before they expire, the log is complete up to "
                f"snapshot {position}, the earliest that is left is {oldest.id}; "
                "publish_log(accept_gap=True) continues from there, and readers of the log must start again"
            ) from cause
        return Step(position, oldest.data_version, oldest.uuid, ())
    if table.rows.has_gap(before, head.data_version):
        return _step_over(position, oldest)
    return _step_of(table, position, next(table.rows.data_commits(position, head.data_version)))


def _first_step(table: LoggedTable, oldest: SnapshotInfo, head: SnapshotInfo) -> Step:
    """The rows of the oldest state that is left are the sum of the changes that led to it."""
    if oldest.data_version == 0:
        oldest = next(table.rows.data_commits(0, head.data_version))
    is_first_commit = oldest.changes_rows and oldest.states == 1
    step = _step_of(table, 0, oldest) if is_first_commit else _step_over(0, oldest)
    # of an empty table all partitions are new: which of the rows do not show is not known
    return step if step.untracked is None else replace(step, untracked=())


def _step_of(table: LoggedTable, position: int, commit: SnapshotInfo) -> Step:
    hidden: tuple[str, ...] | None = ()
    if commit.tracked:
        hidden = tuple(partition_name(partition) for partition in commit.untracked) or None
    return Step(position, commit.id, commit.uuid, hidden, _is_announced(table, commit))


def _step_over(position: int, oldest: SnapshotInfo) -> Step:
    """To the oldest state that is left, over commits that have expired."""
    hidden = () if oldest.last_untracked > position else None
    return Step(position, oldest.data_version, oldest.uuid, hidden)


def _is_announced(table: LoggedTable, commit: SnapshotInfo) -> bool:
    """Whether the log has a commit's changes since before it, and no older ones of the same keys behind them.

    A writer that announces changes has seen the log complete, and begins after the snapshot that the files
    name. So it is enough that no other commit, and no other definition, has come between
    that snapshot and this one.
    """
    if not table.log.is_eventual or commit.kind != "append":
        return False
    head = table.published.latest()
    base = min((entry.base for entry in table.published.delta(commit).added), default=0)
    if base + 1 < head.oldest:
        return False
    between = (table.published.info(number, head) for number in range(base + 1, commit.id))
    return not any(info.changes_rows or info.kind == "alter" for info in between)
