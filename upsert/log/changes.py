"""The changes in a range of a table's log, in the present form of the table, each for the first time.

What is read once only is decided here: messages of snapshots that were read from the files are skipped by
their headers, and a mark that says that something is missing stops the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions, one_array
from upsert.errors import CorruptTableError, RecordsExpiredError
from upsert.kafka.client import offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition
from upsert.log.messages import DEFINITION_HEADER, Headers, LogChanges, LogDecoder, Mark
from upsert.log.offset import LogRange
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.log_options import LogOptions
from upsert.store.metadata.definition import Definition
from upsert.store.read.changes import Scope, check_tracked, data_commits, not_tracked
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
    """Reads ranges of a table's log in one task.

    Args:
        table: the table, as of its latest snapshot.
        log: its log.
        scope: what the reader wants; commits that are not tracked stop it if they have changed any of that.
    """

    def __init__(self, table: Table, log: LogOptions, scope: Scope) -> None:
        self.definition: Definition = table.definition
        self.pinned = table.as_logged().rows
        self._uuid = table.uuid
        self._log = log
        self._scope = scope
        self._decoders: dict[int, LogDecoder] = {}
        self._looked_up: dict[tuple[int, int], int] = {}

    def read(self, part: LogRange, *, needs_bases: bool = False) -> Iterator[Changes]:
        """The changes of a range, without those that the reader has from elsewhere.

        Args:
            part: the range.
            needs_bases: whether the reader looks up what the changes replace; else ``bases`` may be too high
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
            end = offsets.latest_offsets(connection, [partition])[partition]
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
        try:
            yield from read_range(
                connection, partition, part.start, part.behind_records, {"headers"}, max_rows=CHUNK_ROWS
            )
        except RecordsExpiredError as cause:
            raise expired(
                self.pinned.name, f"offsets {part.start} to {part.end - 1} of {partition}"
            ) from cause

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
            self._check_tracked(mark)
        return max(through, mark.snapshot)

    def _check_tracked(self, mark: Mark) -> None:
        # a mark without names says that the log has nothing of its snapshot, wherever the reader looks
        if not mark.untracked or mark.since + 1 < self.pinned.published.latest().oldest:
            raise not_tracked(self.pinned, mark.snapshot, "")
        for commit in data_commits(self.pinned, mark.since, mark.snapshot):
            check_tracked(self.pinned, commit, self._scope)


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
    """Rows of one definition in the columns of another, by field ids: NULL where a column was not there."""
    if [(c.id, c.name, c.type) for c in old.physical] == [(c.id, c.name, c.type) for c in new.physical]:
        return rows
    names = {column.id: column.name for column in old.physical}
    columns = [
        rows.column(names[column.id]).cast(column.type)
        if column.id in names
        else pa.nulls(rows.num_rows, column.type)
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
