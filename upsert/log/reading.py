"""Reading a table's log: how a task makes rows of the records of a range.

A range is a part of one partition, which holds all changes of the keys of one bucket. Chunks are passed on
one by one where nothing has to be remembered, so a task needs memory for a few of them only.

UPDATE_BEFORE for a log that lacks it comes from the snapshots of the table. A message says which snapshot its
change belongs to, and the table's files hold what was there before. So what a change replaces is looked up at
the snapshot that it starts from, once for the keys of a range; what the range itself has changed since is
kept beside that. Follows FLIP-188's normalize node, without its state.

What is read once only is decided here too: messages of snapshots that were read from the files are skipped by
their headers, and a mark that says that something is missing stops the reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions, one_array
from upsert.changelog.image_log import ImageLog, NewestImages
from upsert.changelog.normalizer import Rules, folded, split_kinds, with_kinds
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    RecordsExpiredError,
    SnapshotExpiredError,
)
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition
from upsert.log.messages import DEFINITION_HEADER, Headers, LogChanges, LogDecoder, Mark
from upsert.log.offset import LogRange
from upsert.log.planning import expired, log_ended
from upsert.nested import reshaped_column
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.log_options import ALL, LogOptions
from upsert.store.metadata.definition import Definition
from upsert.store.predicate import Filter, parse_where
from upsert.store.read.change_files import Scope, check_tracked, not_tracked
from upsert.store.read.changes import halves_where
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere
from upsert.store.read.snapshot import PinnedTable
from upsert.store.table import Table

CHUNK_ROWS: Final = 65_536
"""Records that are read and decoded at once: many enough for speed, few beside a task's memory."""


@dataclass(frozen=True)
class Changes:
    """Some changes of one bucket, in the order of the log.

    Attributes:
        rows: all columns of the table and ``_row_kind``.
        snapshots: the snapshot of each row, ascending; 0 for a change that was sent before its commit.
        bases: of each row the snapshot that its change starts from; 0 as above.
    """

    rows: pa.Table
    snapshots: Positions
    bases: Positions

    def where(self, mask: Mask) -> Changes:
        """Those for which a mask is true."""
        if mask.all():
            return self
        return Changes(self.rows.filter(pa.array(mask)), self.snapshots[mask], self.bases[mask])


class ChangesOfRange:
    """Reads ranges of a table's log in one task, in the form of the table as it is given.

    Commits that are not tracked stop it if they have changed anything of its ``scope``.
    """

    def __init__(self, table: Table, scope: Scope) -> None:
        self.definition: Definition = table.definition
        self.pinned = table.as_logged().rows
        self._uuid = table.uuid
        self._log = table.options.log
        self._scope = scope
        self._decoders: dict[int, LogDecoder] = {}
        self._looked_up: dict[tuple[int, int], int] = {}

    def read(self, part: LogRange, *, needs_bases: bool = False) -> Iterator[Changes]:
        """The changes of a range, without those that the reader has from elsewhere.

        ``needs_bases`` if the reader looks up what the changes replace; else ``bases`` may be too high
        where the mark of a snapshot is not among the records that are decoded with it.
        """
        through = 0
        for records in self._records(part):
            for definition, run in _by_definition(records, self.definition.version, self.pinned.name):
                found = self._decoder(definition).decode(run)
                for mark in found.marks:
                    if mark.snapshot > part.skip:
                        through = self._checked(mark, through)
                rows = _in_form_of(found.rows, self._schema(definition), self.definition.schema)
                is_new = (found.snapshots > part.skip) | (found.snapshots == 0)
                bases, is_marked = _bases(found)
                changes = Changes(rows, found.snapshots, bases).where(is_new)
                if needs_bases and not is_marked.all():
                    changes = self._with_bases(part, changes)
                yield changes

    def _with_bases(self, part: LogRange, changes: Changes) -> Changes:
        """The changes of snapshots over expired ones, with the base that the mark further on says."""
        oldest = self.pinned.published.latest().oldest
        bases = changes.bases.copy()
        for snapshot in np.unique(changes.snapshots[(changes.snapshots > 0) & (bases < oldest)]).tolist():
            is_own = changes.snapshots == snapshot
            bases[is_own] = np.minimum(bases[is_own], self._since(part, snapshot))
        return replace(changes, bases=bases)

    def _since(self, part: LogRange, snapshot: int) -> int:
        """Where the changes of a snapshot start; its mark may lie behind the range."""
        key = part.partition, snapshot
        if key not in self._looked_up:
            self._looked_up[key] = snapshot - 1
            partition, connection = self._partition(part)
            end = admin.latest_offsets(connection, [partition])[partition]
            marks = (
                mark
                for records in read_range(connection, partition, part.start, end, {"headers"}, CHUNK_ROWS)
                for mark in self._decoder(self.definition.version).marks(records)
            )
            if (found := next((mark for mark in marks if mark.snapshot >= snapshot), None)) is not None:
                self._looked_up[key] = found.since
        return self._looked_up[key]

    def _partition(self, part: LogRange) -> tuple[TopicPartition, Connection]:
        assert self._log.topic is not None, "a table with a log has a topic"
        return TopicPartition(self._log.topic, part.partition), Connection(self._log.properties)

    def _records(self, part: LogRange) -> Iterator[pa.Table]:
        partition, connection = self._partition(part)
        end = part.behind_records
        try:
            yield from read_range(connection, partition, part.start, end, {"headers"}, CHUNK_ROWS)
        except RecordsExpiredError as cause:
            what = f"offsets {part.start} to {part.end - 1} of {partition}"
            raise expired(self.pinned.name, what) from cause

    def _decoder(self, definition: int) -> LogDecoder:
        if definition not in self._decoders:
            self._decoders[definition] = LogDecoder(self._schema(definition), self._log, self._uuid)
        return self._decoders[definition]

    def _schema(self, definition: int) -> TableSchema:
        return self.pinned.published.definition_at(definition).schema

    def _checked(self, mark: Mark, through: int) -> int:
        """Make sure that nothing is missing before a mark; the snapshot up to which the range is complete."""
        if through and mark.since > through:
            raise expired(self.pinned.name, f"the changes of snapshots {through + 1} to {mark.since}")
        if mark.untracked is not None and not self._scope.skips_untracked:
            # a mark without names says that the log has nothing of its snapshot, wherever the reader looks
            if not mark.untracked or mark.since + 1 < self.pinned.published.latest().oldest:
                raise not_tracked(self.pinned, mark.snapshot, "")
            for commit in self.pinned.data_commits(mark.since, mark.snapshot):
                check_tracked(self.pinned, commit, self._scope)
        return max(through, mark.snapshot)


def _by_definition(records: pa.Table, present: int, name: str) -> Iterator[tuple[int, pa.Table]]:
    """Neighbours whose columns are named as one version of the table's definition says.

    A mark names none, and stays with the changes before it.
    """
    texts = Headers(one_array(records.column("headers"))).values(DEFINITION_HEADER)
    is_number = pc.match_substring_regex(texts, "^[0-9]{1,18}$").fill_null(True)
    if not pc.all(is_number).as_py():
        other = texts.filter(pc.invert(is_number))[0].as_py()
        raise CorruptTableError(
            f"table {name!r}: every record of its log must name a version of the table's definition, got "
            f"{other[:60]!r}; let nothing else write to the topic of a table"
        )
    known = pc.fill_null_forward(texts.cast(pa.string()).cast(pa.int64()))
    versions = known.fill_null(present).to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
    for low, high in pairwise(edges):
        yield int(versions[low]), records.slice(low, high - low)


def _in_form_of(rows: pa.Table, old: TableSchema, new: TableSchema) -> pa.Table:
    """Rows of one definition in the columns of another, by field ids; in new ones that of older rows."""
    before, after = ([(c.id, c.name, c.type, c.fields) for c in one.physical] for one in (old, new))
    if before == after:
        return rows
    was = {column.id: column for column in old.physical}
    columns = [
        reshaped_column(rows.column(was[column.id].name), was[column.id].form, column.form)
        if column.id in was
        else column.in_older_rows(rows.num_rows)
        for column in new.physical
    ]
    kinds = rows.column(ROW_KIND_COLUMN)
    fields = [pa.field(column.name, column.type) for column in new.physical]
    return pa.Table.from_arrays([*columns, kinds], schema=pa.schema([*fields, rows.field(ROW_KIND_COLUMN)]))


def _bases(found: LogChanges) -> tuple[Positions, Mask]:
    """Of each row where its change starts, as the mark behind it says, else at the snapshot before it.

    And whether that was said, or is so for every row of an uncommitted change.
    """
    bases = np.maximum(found.snapshots - 1, 0)
    ends = np.array([mark.record for mark in found.marks], np.int64)
    since = np.array([mark.since for mark in found.marks], np.int64)
    of_mark = np.searchsorted(ends, found.records)
    is_marked = (of_mark < len(ends)) & (found.snapshots > 0)
    bases[is_marked] = np.minimum(bases[is_marked], since[of_mark[is_marked]])
    return bases, is_marked | (found.snapshots == 0)


def with_images_before(
    changes: Iterable[Changes], table: PinnedTable, compare: Sequence[str], *, begins_whole: bool = False
) -> Iterator[pa.Table]:
    """The changes of one bucket with ``-U`` before each ``+U``, all columns and ``_row_kind``.

    ``changes`` are upserts and deletions, those of a range in its order, in the form of ``table``. An update
    that changes none of the columns of ``compare`` gives nothing. ``begins_whole``: all changes of their
    first snapshot are among them.
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
            yield images.normalize(*split_kinds(part.rows), rules)


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


class Output(StrEnum):
    """What a read gives of the records of a log."""

    CHANGES = "the changes that the log holds, which are all"
    WITH_BEFORE = "all changes: those of the log, and what they replace, from the table's snapshots"
    REMEMBERED = "all changes: those of the log, and what they replace, from what the query remembers"
    NEWEST = "the newest row of each key, +U or -D"


def output_of(name: str, log: LogOptions, changelog: str, state_path: str | None) -> Output:
    """What a stream gives of a table's log; refuses what its options cannot have."""
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
    """One read of a table's log, for its tasks."""

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
        source = ChangesOfRange(table, Scope(where, self.skips_untracked))
        for rows in self._output(source, part, where, query_id):
            if rows.num_rows:
                yield self.columns.read(source, partial(_selected, rows))

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
        pinned = table.as_logged().rows
        found = pinned.before_commits(snapshot)  # in as many buckets as the log has partitions
        buckets = [bucket for bucket in found.files.groups if bucket[1] == part.partition]
        rows = found.scan(buckets=buckets)
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


def _selected(rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
    return rows.select([*names, ROW_KIND_COLUMN])


def _left(rows: pa.Table, where: Filter) -> pa.Table:
    """The rows; those that a filter leaves out are deletions: an earlier row of the key may have passed."""
    if not where.alternatives:
        return rows
    values, is_value = split_kinds(rows)
    return with_kinds(values, is_value & where.mask(values).to_numpy())
