"""Reading a table's log: which ranges a step has, and how a task makes rows of the records of a range.

A range is a part of one partition, which holds all changes of the keys of one bucket. Chunks are passed on
one by one where nothing has to be remembered, so a task needs memory for a few of them only.

UPDATE_BEFORE for a log that lacks it comes from the snapshots of the table. A message says which snapshot its
change belongs to, and the table's files hold what was there before. So what a change replaces is looked up at
the snapshot that it starts from, once for the keys of a range; what the range itself has changed since is
kept beside that. Follows FLIP-188's normalize node, without its state.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

import numpy as np
import pyarrow as pa

from upsert.changelog.image_log import ImageLog
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import Keyed, folded, normalize_keyed, split_kinds, with_kinds
from upsert.changelog.rules import Rules
from upsert.errors import ConfigurationError, KafkaUnavailableError, SnapshotExpiredError
from upsert.kafka.client import offsets
from upsert.kafka.client.offsets import share
from upsert.kafka.client.records import TopicPartition
from upsert.log.changes import Changes, ChangesOfRange, expired, log_ended
from upsert.log.offset import LogOffset, LogRange, offsets_of_snapshot
from upsert.log.publisher import last_published, published_at_least
from upsert.log.topics import LogTopic
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.log.lifecycle import beginning_of
from upsert.store.log_options import ALL, LogOptions
from upsert.store.predicate import Filter, parse_where
from upsert.store.read.changes import Scope, halves_where
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.read.snapshot import PinnedTable
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


def with_images_before(
    changes: Iterable[Changes], table: PinnedTable, compare: Sequence[str], *, begins_whole: bool = False
) -> Iterator[pa.Table]:
    """The changes of one bucket with ``-U`` before each ``+U``, all columns and ``_row_kind``.

    Args:
        changes: upserts and deletions, those of a range in its order.
        table: the table, in the form that the changes have.
        compare: columns that make two rows different; an update that changes none of them gives nothing.
        begins_whole: whether all changes of their first snapshot are among them.
    """
    rules = Rules(table.layout.key, tuple(compare))
    images: NewestImages | None = None
    first = 0
    for chunk in changes:
        for part in _first_apart(chunk, first):
            snapshot = int(part.snapshots[0])
            if images is None or first == 0:
                images, first = _images_at(table, int(part.bases[0])), -1 if begins_whole else snapshot
            elif first > 0 and snapshot > first:
                # a range may begin in the middle of a snapshot: from its end on all keys are there
                images, first = _images_at(table, first), -1
            yield _normalized(part.rows, images, rules)


def _first_apart(chunk: Changes, first: int) -> list[Changes]:
    """A chunk cut where the first snapshot of the range ends; no empty parts."""
    if not len(chunk.snapshots):
        return []
    if first < 0:
        return [chunk]
    is_first = chunk.snapshots == (first or chunk.snapshots[0])
    return [part for part in (chunk.where(is_first), chunk.where(~is_first)) if len(part.snapshots)]


def _images_at(table: PinnedTable, snapshot: int) -> NewestImages:
    try:
        return NewestImages.above(table.snapshot(snapshot), table.layout.key)
    except SnapshotExpiredError as cause:
        raise SnapshotExpiredError(
            f"{cause}; the log has no UPDATE_BEFORE ('log.changelog-mode' = 'upsert'), which is looked up "
            "there: begin with a new checkpoint, or read with 'changelog' = 'upsert'"
        ) from cause


def _normalized(rows: pa.Table, images: NewestImages, rules: Rules) -> pa.Table:
    values, is_value = split_kinds(rows)
    found, groups = images.meet(values)
    changes, changed = normalize_keyed(found, Keyed(values, np.asarray(is_value), groups), rules)
    images.put(changed)
    return changes


class Output(StrEnum):
    """What a read gives of the records of a log."""

    CHANGES = "the changes that the log holds, which are all"
    WITH_BEFORE = "all changes: those of the log, and what they replace, from the table's snapshots"
    REMEMBERED = "all changes: those of the log, and what they replace, from what the query remembers"
    NEWEST = "the newest row of each key, +U or -D"


def output_of(name: str, log: LogOptions, changelog: str, state_path: str | None) -> Output:
    """What a stream gives of a table's log.

    Raises:
        ConfigurationError: rows must be remembered, and 'state.path' is missing.
    """
    if log.changelog_mode == ALL:
        if changelog == "upsert":
            raise ConfigurationError(
                f"table {name!r}: option 'changelog' = 'upsert' is for a log without UPDATE_BEFORE, got one "
                "with 'log.changelog-mode' = 'all'; leave it out"
            )
        return Output.CHANGES
    if changelog == "upsert":
        return Output.NEWEST
    if not log.is_eventual:
        return Output.WITH_BEFORE
    if state_path is None:
        raise ConfigurationError(
            f"table {name!r}: its log has no UPDATE_BEFORE and may repeat changes ('log.consistency' = "
            "'eventual'), so a stream remembers the newest row of each key, and needs the option "
            "'state.path', a folder that the driver and all executors share, got none; set it, say "
            "'changelog' = 'upsert' for a sink with the same key, or read the files with 'scan.source' = "
            "'files'"
        )
    return Output.REMEMBERED


@dataclass(frozen=True)
class LogRead:
    """One read of a table's log, for its tasks.

    Attributes:
        path: folder of the table.
        output: what it gives of them.
        skips_untracked: whether commits that are not tracked are skipped.
        state_path: where rows are remembered.
    """

    path: str
    uuid: str
    columns: PinnedColumns
    where: PinnedWhere
    output: Output
    topic: str
    skips_untracked: bool = False
    state_path: str | None = None

    def rows(self, part: LogRange, query_id: str | None) -> Iterator[pa.Table]:
        """The rows of a range: the read's columns and ``_row_kind``."""
        table = Table.open(self.path, self.uuid)
        if table.options.log.topic != self.topic:
            raise log_ended(table.name, self.topic)
        where = parse_where(self.where.now(table.schema), table.schema)
        source = ChangesOfRange(table, table.options.log, Scope(where, self.skips_untracked))
        for rows in self._output(source, part, where, query_id):
            if rows.num_rows:
                yield self.columns.read(source, _columns_of(rows))

    def _output(
        self, source: ChangesOfRange, part: LogRange, where: Filter, query_id: str | None
    ) -> Iterator[pa.Table]:
        changes = source.read(part, needs_bases=self.output is Output.WITH_BEFORE)
        names = [*self.columns.names_in(source.definition.schema), *where.columns]
        compare = list(dict.fromkeys(names))
        found: Iterator[pa.Table]
        match self.output:
            case Output.CHANGES:
                found = (each.rows for each in changes)
            case Output.WITH_BEFORE:
                found = with_images_before(changes, source.pinned, compare, begins_whole=part.begins_whole)
            case Output.REMEMBERED:
                log = self._images(source.pinned, part, query_id)
                records = (each.rows for each in changes)
                found = log.advance(part.start + 1, part.end + 1, records, compare=compare)
            case Output.NEWEST:
                rows_left = (_left(each.rows, where) for each in changes)
                yield from folded(rows_left, source.pinned.layout.key)
                return
            case _:
                assert_never(self.output)
        for rows in found:
            yield halves_where(rows, where)

    def settle(self, part: LogRange, snapshot: int, query_id: str | None) -> None:
        """Remember the rows of a snapshot as those at the start of a range; a second call changes nothing."""
        table = Table.open(self.path, self.uuid)
        pinned = ChangesOfRange(table, table.options.log, Scope()).pinned
        found = pinned.snapshot(snapshot)
        buckets = [bucket for bucket in found.files.groups if bucket[1] == part.partition]
        rows = found.scan(places=buckets)
        images = with_kinds(rows, np.ones(rows.num_rows, np.bool_))
        self._images(pinned, part, query_id).take_over(images, part.start + 1)

    def _images(self, table: PinnedTable, part: LogRange, query_id: str | None) -> ImageLog:
        """What the query remembers of a partition; positions are offsets plus one, as 0 is before all."""
        if query_id is None or self.state_path is None:
            raise ConfigurationError(
                f"table {table.name!r}: rows are remembered by a streaming query only, with 'state.path'"
            )
        folder = os.path.join(self.state_path, query_id, part.stream or "", str(part.partition))
        return ImageLog.open(folder, table.layout.schema, f"{table.name}-{part.partition}", beginning=0)


def _columns_of(rows: pa.Table) -> Callable[[tuple[str, ...]], pa.Table]:
    return lambda names: rows.select([*names, ROW_KIND_COLUMN])


def _left(rows: pa.Table, where: Filter) -> pa.Table:
    """The rows; those that a filter leaves out are deletions: an earlier row of the key may have passed."""
    if not where.alternatives:
        return rows
    values, is_value = split_kinds(rows)
    return with_kinds(values, is_value & where.mask(values).to_numpy())
