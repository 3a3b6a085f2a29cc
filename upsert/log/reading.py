"""What a task does with a table's log: the records of a range become rows, as the reader wants them.

A range is a part of one partition, which holds all changes of the keys of one bucket. Chunks are passed on
one by one where nothing has to be remembered, so a task needs memory for a few of them only.

UPDATE_BEFORE for a log that lacks it comes from the snapshots of the table. A message says which snapshot its
change belongs to, and the table's files hold what was there before. So what a change replaces is looked up at
the snapshot that it starts from, once for the keys of a range; what the range itself has changed since is
kept beside that. Follows FLIP-188's normalize node, without its state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np
import pyarrow as pa

from upsert.changelog.image_log import ImageLog
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import Keyed, fold, normalize_keyed, split_kinds, with_kinds
from upsert.changelog.rules import Rules
from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.log.changes import CHUNK_ROWS, Changes, ChangesOfRange, log_ended
from upsert.log.offset import LogRange
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.log_options import ALL, LogOptions
from upsert.store.predicate import Filter, parse_where
from upsert.store.read.changes import Scope, halves_where
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.read.snapshot import PinnedTable
from upsert.store.table import Table


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

    Args:
        name: of the table, for messages.
        log: its log.
        changelog: "all" or "upsert".
        state_path: where rows may be remembered.

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
        uuid: the table.
        columns: the columns that it gives.
        where: which rows.
        output: what it gives of them.
        topic: the log.
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
        """The rows of a range: the read's columns and ``_row_kind``.

        Raises:
            RecordsExpiredError: Kafka has deleted some of them, or the table has no such log any more.
            UntrackedChangesError: a commit in the range was written with ``change-tracking = false``.
            SnapshotExpiredError: what a change replaces can no longer be looked up.
            MissingStateError: what the query remembers is gone.
        """
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
                yield from _newest((each.rows for each in changes), source.pinned.layout.key, where)
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


def _newest(changes: Iterable[pa.Table], key: Sequence[str], where: Filter) -> Iterator[pa.Table]:
    """One row for each key; what is kept at any time is at most twice that, and a chunk."""
    kept: list[pa.Table] = []
    folded = 0
    for rows in changes:
        kept.append(_left(rows, where))
        if sum(map(len, kept)) > 2 * folded + 8 * CHUNK_ROWS:
            kept = [fold(pa.concat_tables(kept), key)]
            folded = len(kept[0])
    if kept:
        yield fold(pa.concat_tables(kept), key)


def _left(rows: pa.Table, where: Filter) -> pa.Table:
    """The rows; those that a filter leaves out are deletions: an earlier row of the key may have passed."""
    if not where.alternatives:
        return rows
    values, is_value = split_kinds(rows)
    return with_kinds(values, is_value & where.mask(values).to_numpy())
