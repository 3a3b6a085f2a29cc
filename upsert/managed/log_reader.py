"""A stream of a table's changes out of its log: a snapshot from the files first, where the scan mode says so.

While the snapshot is read, offsets are those of ``reader``. The offset at which it is complete has a position
in the log too: the one that the snapshot itself knows. From there on the stream reads records, and skips
those of snapshots that it has; so there is neither a gap nor an overlap, whatever is published meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.log.offset import LOG, LogOffset, LogRange, ranges
from upsert.log.planning import LogPlanner, log_ended
from upsert.log.publisher import LogTopic
from upsert.log.reading import LogRead, Output, output_of
from upsert.managed.options import ALL_ROWS, DEFAULT_MAX_ROWS, ReadOptions
from upsert.managed.reader import ChangesPartition, ChangesReader, version_of
from upsert.managed.stepping import Offset, check_same_histories
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.batches import to_spark
from upsert.spark.formats import FORMAT
from upsert.spark.task import QUERY_ID, task_property
from upsert.store.log.files import beginning_of
from upsert.store.table import Table
from upsert.store.version import Version

_OF_FILES: Final = ("consumer", "table", "version")


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """A range of the log, for one task."""

    part: LogRange


@dataclass(frozen=True)
class RememberedPartition(InputPartition):
    """The rows of one bucket of a snapshot, which a task remembers; it gives no rows."""

    part: LogRange
    snapshot: int


def stream_reader(options: ReadOptions, asked: StructType) -> DataSourceStreamReader:
    """The reader of a stream: of the table's log or of its files, as ``scan.source`` says."""
    table = Table.open(options.path)
    if options.reads_log_of(table):
        return LogReader(options.beginning_as(table), asked)
    if (option := options.of_log) is not None:
        raise ConfigurationError(
            f"{FORMAT}: option {option!r} needs a stream that reads a table's log, got one of the files of "
            f"table {table.name!r}; leave it out, or ALTER TABLE … SET ('log.system' = 'kafka')"
        )
    return ChangesReader(options, asked)


class LogReader(ChangesReader):
    """Reads a table's log step by step; the first step of ``scan.mode = full`` is a snapshot."""

    def __init__(self, options: ReadOptions, asked: StructType) -> None:
        super().__init__(options, asked)
        table = Table.open(options.path)
        log = table.options.log
        self._topic = LogTopic.of(log, table.options.bucket, f"table {table.name!r}")
        self._begun = beginning_of(table.root, table.uuid, self._topic.name).data_version
        self._read = LogRead(
            options.path,
            table.uuid,
            self._columns,
            self._where,
            output_of(table.name, log, options.changelog, options.state_path),
            self._topic.name,
            options.skips_untracked,
            options.state_path,
        )
        self._is_eventual = log.is_eventual
        self._planner: LogPlanner | None = None
        self._latest: LogOffset | None = None
        self._has_released = False

    def __getstate__(self) -> dict[str, Any]:
        """Without the planner, which belongs to the process that made it."""
        return self.__dict__ | {"_planner": None}

    @property
    def _planning(self) -> LogPlanner:
        if self._planner is None:
            self._planner = LogPlanner(self._topic, is_eventual=self._is_eventual)
        return self._planner

    @property
    def _needs_snapshots(self) -> bool:
        """Whether records alone are not enough: what they replace is looked up."""
        return self._read.output is Output.WITH_BEFORE

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the present end."""
        super().prepareForTriggerAvailableNow()
        self._planning.stop_here()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max-rows-per-trigger``; a log does not say what its records take in memory."""
        rows = self._options.max_rows
        return ReadMaxRows(DEFAULT_MAX_ROWS if rows == ALL_ROWS else rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next step; ``start`` itself when nothing is new."""
        table = Table.open(self._options.path)
        if table.options.log.topic != self._topic.name:
            raise log_ended(table.name, self._topic.name)
        if LOG not in start:
            return self._before_log(table, start, limit)
        begun = self._position(start, table)
        check_same_histories([table], [begun.version])
        self._keep(start, table, begun)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._planning.next(table, begun, max_rows, moves=self._needs_snapshots)
        try:
            self._keep(start, table, begun, end)
        except SnapshotExpiredError:
            # it expired just after it was chosen, and nothing is held yet: begin without it
            end = replace(end, version=begun.version)
        self._latest = end
        return start if end is begun else self._offset(start, end)

    def _before_log(self, table: Table, start: Offset, limit: ReadLimit) -> Offset:
        """The next step through the snapshot, or to where the log begins; the last one leads into the log."""
        version = version_of(start, table)
        end = start
        if version is None or version == Version.EMPTY or not self._is_in_log(version):
            try:
                end = super().latestOffset(start, limit)
            except SnapshotExpiredError:
                # scan.mode = from-timestamp may begin in the log, if records alone are enough
                at_ms, output = self._options.timestamp_ms, self._read.output
                if version is not None or at_ms is None or output not in (Output.CHANGES, Output.NEWEST):
                    raise
                at, id_ = self._planning.offsets_at(table, at_ms), self._topic.id()
                position = LogOffset(table.uuid, Version.EMPTY, at, self._topic.name, topic_id=id_)
                return self._offset(start, position)
        there = version_of(end, table)
        if there is None or not self._is_in_log(there):
            return end
        stream = uuid4().hex if self._read.output is Output.REMEMBERED else None
        at = self._planning.offsets_after(table, there.base)
        topic_id = self._topic.id()
        position = LogOffset(table.uuid, there, at, self._topic.name, True, stream, topic_id)
        if self._needs_snapshots and self._holding.consumer_of(end) is None:
            # an empty table has nothing to hold, and will have
            end = {**end, **self._holding.in_offset(self._holding.new_id())}
        return self._offset(end, position)

    def _is_in_log(self, version: Version) -> bool:
        """Whether the log has all that follows a version."""
        return version.is_complete and version.base >= self._begun

    def _offset(self, before: Offset, position: LogOffset) -> Offset:
        consumer = self._holding.in_offset(self._holding.consumer_of(before))
        return {**self.columns_in_offset, **consumer, **position.to_json()}

    def _keep(self, offset: Offset, table: Table, begun: LogOffset, end: LogOffset | None = None) -> None:
        if self._needs_snapshots:
            ahead = None if end is None else [end.version]
            self._holding.keep(self._holding.consumer_of(offset), [table], [begun.version], ahead)

    def commit(self, end: Offset) -> None:
        """Nothing before ``end`` is read again, so a reader of records alone holds no snapshot any more."""
        if LOG not in end:
            super().commit(end)
            return
        table = Table.open(self._options.path)
        consumer = self._holding.consumer_of(end)
        if self._needs_snapshots:
            self._holding.tell(consumer, [table], [self._position(end, table).version])
        elif consumer is not None and not self._has_released:
            table.release(consumer)
            self._has_released = True

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Where the stream will be when it has read all: for the progress that Spark shows."""
        return super().reportLatestOffset() if self._latest is None else self._latest.to_json()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # type: ignore[override]
        """One for each bucket that the step reaches, of the snapshot or of the log."""
        if LOG not in end:
            return [*super().partitions(start, end)]
        table = Table.open(self._options.path)
        last = self._position(end, table)
        if LOG not in start:
            found: list[InputPartition] = [
                *super().partitions(start, {name: end[name] for name in _OF_FILES if name in end})
            ]
            if self._read.output is Output.REMEMBERED:
                base = last.version.base
                parts = (LogRange(number, at, at, base, stream=last.stream) for number, at in last.at.items())
                found += [RememberedPartition(part, base) for part in parts]
            return found
        first = self._position(start, table)
        self._keep(end, table, first)
        return [LogPartition(part) for part in ranges(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a bucket: of the snapshot, or of a range of the log."""
        if isinstance(partition, ChangesPartition):
            for batch in super().read(partition):
                if self._read.output is Output.NEWEST:
                    kinds = batch.column(ROW_KIND_COLUMN)
                    batch = batch.filter(pc.not_equal(kinds, RowKind.UPDATE_BEFORE.value))
                yield batch
            return
        if isinstance(partition, RememberedPartition):
            self._read.settle(partition.part, partition.snapshot, task_property(QUERY_ID))
        elif isinstance(partition, LogPartition):
            for rows in self._read.rows(partition.part, task_property(QUERY_ID)):
                yield from to_spark(rows, self._asked)

    def _position(self, offset: Offset, table: Table) -> LogOffset:
        version_of({name: offset.get(name) for name in _OF_FILES}, table)
        self.check_columns(offset, table)
        found = LogOffset.from_json(offset, f"table {table.name!r}")
        if found.topic != self._topic.name:
            raise log_ended(table.name, found.topic)
        if found.at.keys() != set(range(self._topic.buckets)):
            raise ConfigurationError(
                f"table {table.name!r}: the checkpoint must have an offset in each of {self._topic.buckets} "
                f"partitions, got {sorted(found.at)}; choose another one"
            )
        return found
