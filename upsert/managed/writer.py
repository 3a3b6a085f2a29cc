"""Spark rows into a table: tasks stage files, the driver publishes them in one commit.

A stream is written exactly once. The writer id is the query's id and the transaction the number of the
micro-batch, both kept by Spark's checkpoint; the store takes a transaction once, however often it is
replayed. Tasks get the query's id from Spark and send it along, because ``commit`` runs in a process that
knows no query. What a failed or a superseded attempt has staged is in no snapshot; ``Table.clean`` removes
it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from upsert.blobs import by_number, gathered
from upsert.errors import ConfigurationError, StaleWriterError
from upsert.managed.checkpoint_mark import CheckpointMark
from upsert.managed.options import WriteOptions
from upsert.materializer.choice import SEQUENCE, Sink, check_raw
from upsert.materializer.hidden_table import FOLDER, HiddenTable, KeptRows
from upsert.schema import TableSchema
from upsert.spark.batches import from_spark
from upsert.spark.columns import check_fits, merge_schema
from upsert.spark.formats import FORMAT
from upsert.spark.task import QUERY_ID, begin_task, task_property
from upsert.store.commit.append import LeftoverWarning
from upsert.store.commit.change import check_is_no_view
from upsert.store.commit.staging import StagedFiles
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import Order
from upsert.store.rows.merge_rules import DEDUPLICATE
from upsert.store.rows.partitions import Overwrite, check_within, filled, specified
from upsert.store.storage.local import synced_together
from upsert.store.table import Table
from upsert.store.table_options import TableOptions


def sink_of(table: Table, materialize: str | None = None) -> Sink:
    """A table as a sink; ``materialize`` is the ``sink.materialize`` of one write, None: the table's own."""
    return described_sink(table.name, table.schema, table.options, materialize)


def described_sink(
    name: str, schema: TableSchema, options: TableOptions, materialize: str | None = None
) -> Sink:
    """A table that may not be there yet as a sink; see ``sink_of``."""
    merge = options.merge
    combined = "merge-engine" if merge.engine != DEDUPLICATE else SEQUENCE if merge.sequence else None
    return Sink(f"table {name!r}", schema.primary_key, materialize or options.materialize, combined)


def hidden_table(table: Table) -> HiddenTable:
    """Where the rows of its keys are kept: with its files, in as many buckets, by the same hash."""
    return HiddenTable(
        f"table {table.name!r}",
        os.path.join(table.root, FOLDER),
        KeptRows(table.schema, table.schema.primary_key),
        table.options.bucket,
        table.options.bucket_key or table.schema.primary_key,
    )


SESSION_MODE: Final = "spark.sql.sources.partitionOverwriteMode"
"""The setting of a session that says what an overwrite replaces, in Spark's own tables of files and here."""


def is_dynamic(options: WriteOptions, schema: TableSchema, session: str | None) -> bool:
    """Whether an overwrite replaces only the partitions that get rows: as its options say, or its session.

    The session's `SESSION_MODE` is for a table with partitions of which the write names none. The rows of a
    view are all replaced.
    """
    if options.overwrite_mode is not None:
        return options.overwrite_mode == "dynamic"
    is_open = bool(schema.partitioned_by) and not options.partition and options.stands_for is None
    return is_open and session is not None and session.lower() == "dynamic"


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What one task has staged, None for no rows, for which query, and the `SESSION_MODE` of its session."""

    query_id: str | None
    staged: StagedFiles | None
    session_mode: str | None = None


class _Writer:
    """What batch and stream have in common: the schema check, and staging."""

    is_batch: ClassVar[bool]

    def __init__(self, options: WriteOptions, given: StructType, overwrite: bool) -> None:
        table = Table.open(options.path)
        if options.merge_schema and self.is_batch:
            merge_schema(table, given, options.partition or ())
        began = options.definition
        definition = table.definition if began is None else table.published.definition_at(began)
        if options.stands_for is None:
            check_is_no_view(definition, table.name)
        self._of = f"table {table.name!r}"
        self._partition = specified(definition.schema, options.partition or {}, of=self._of)
        check_fits(given, definition.schema, of=self._of, known=dict(self._partition))
        self._path = table.path
        self._uuid = table.uuid
        self._definition = definition.version
        self._options = options
        self._schema = definition.schema
        self._overwrite = self.replaced(None) if overwrite else None
        if not self.is_batch:
            options.check_for_a_stream()
        elif not overwrite:
            options.check_adds_rows()

    def replaced(self, session_mode: str | None) -> Overwrite:
        """What an overwrite replaces, in a session of this `SESSION_MODE`."""
        return Overwrite(self._partition, is_dynamic(self._options, self._schema, session_mode))

    @property
    def checkpoint(self) -> str | None:
        """Where the query has its checkpoint, if the writer was told."""
        return self._options.checkpoint

    @property
    def buckets(self) -> int:
        """In how many buckets rows come to tasks, each in one of them; 0 if they come in any way."""
        return self._options.bucketed

    def in_buckets(self, count: int) -> Self:
        """The same writer for rows that come in so many buckets."""
        other = copy(self)
        other._options = replace(self._options, bucketed=count)
        return other

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Stage one task's rows; publishes nothing. An attempt that fails leaves nothing that counts."""
        return TaskResult(task_property(QUERY_ID), self.stage(iterator), task_property(SESSION_MODE))

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedFiles | None:
        """Write files of some rows, as Spark gives them; None for no rows."""
        begin_task()
        if (given := self._given(iterator)) is None:
            return None
        table, began, rows = given
        if self._options.bucketed:
            staged = table.stage(rows, order="none", definition=began.version)
        else:
            staged = table.stage_raw(rows, definition=began.version)
        check_within(staged.partitions, self._partition, of=self._of)
        return staged

    def cut(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        """Some rows, as Spark gives them, by the number of their bucket, for the task that stages it."""
        begin_task()
        if (given := self._given(iterator)) is None:
            return
        table, began, rows = given
        layout = began.layout
        for some in gathered(rows):
            stored, _ = conform(layout, some, self._of)
            yield from by_number(some, layout.buckets_of(stored), table.options.bucket)

    def _given(
        self, iterator: Iterator[pa.RecordBatch]
    ) -> tuple[Table, Definition, pa.RecordBatchReader] | None:
        """The table, the definition whose columns some rows have, and these; None for no rows."""
        given = from_spark(iterator)
        first = next((batch for batch in given if batch.num_rows), None)
        if first is None:
            return None
        table = self._table()
        # the query continues with the columns that it began with, whatever the table has now
        began = table.published.definition_at(self._definition)
        buckets = self._options.bucketed
        # rows of a batch stay in the buckets that it began with: its commit brings them into others
        stays = self.is_batch and buckets and table.options.bucket != buckets
        if began.schema.has_columns_of(table.schema) and not stays:
            began = table.definition  # which may have other constraints
        if buckets and buckets != began.options.bucket:
            raise StaleWriterError(
                f"{self._of}: rows must be brought into the {began.options.bucket} buckets that it has now, "
                f"they came in {buckets}; start the query again, which goes on from its checkpoint, or write "
                "the rows again"
            )
        batches = pa.RecordBatchReader.from_batches(first.schema, chain([first], given))
        return table, began, filled(began.schema, batches, self._partition)

    def publish(
        self, staged: Sequence[StagedFiles], writer_id: str | None, transaction: int | None
    ) -> Snapshot | None:
        """Commit what was staged, unless the writer has committed this transaction before; None: no rows."""
        options = self._options
        # a batch without rows is no commit: replaying it writes nothing either
        if not (staged or self._overwrite or options.stands_for):
            return None
        table = self._table()
        mark = None
        if writer_id is not None and transaction is not None:
            mark = CheckpointMark.of(options.checkpoint, writer_id)
            mark.has_rows(table, transaction)
        snapshot = table.commit(
            staged,
            writer_id=writer_id,
            transaction=transaction,
            overwrite=self._overwrite,
            tracked=options.change_tracking,
            unchanged_since=options.unchanged_since,
            stands_for=options.stands_for,
        )
        if mark is not None and transaction is not None:
            mark.note(table, transaction)
        table_file.show_stream(self._path)
        return snapshot

    def discard(self, staged: Iterable[StagedFiles]) -> None:
        """Delete what was staged and will not be published."""
        self._table().discard(staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: ARG002, N803
        """Remove what the tasks staged, where it certainly was not published."""
        # Only when a task has failed is it sure that commit() never began. Otherwise it may have published
        # the files, or may still be at it in a process that lost its query: they stay, and are harmless.
        if any(message is None for message in messages):
            try:
                self.discard(_staged(messages))
            except Exception as failure:  # Spark would tell neither this one nor why the task has failed
                warnings.warn(
                    f"{self._of}: files of a write that has failed could not be deleted — {failure!r}; "
                    "clean() deletes them",
                    LeftoverWarning,
                    stacklevel=3,
                )

    def _table(self) -> Table:
        table = Table.open(self._path)
        if table.uuid != self._uuid:
            raise ConfigurationError(
                f"{FORMAT}: {self._path!r} was replaced by another table during the query; start it again"
            )
        return table


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: one commit, of kind append or overwrite; that of a micro-batch counts once."""

    is_batch = True

    def __init__(self, options: WriteOptions, given: StructType, overwrite: bool) -> None:
        """See `_Writer`; a batch keeps no rows for later, so ``sink.materialize`` may not force that."""
        super().__init__(options, given, overwrite)
        if options.materialize == "force":
            raise ConfigurationError(
                f"{self._of}: 'sink.materialize' = 'force' is for streams of changes, got a batch; leave it "
                "out"
            )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        if self._overwrite is not None:
            modes = (message.session_mode for message in messages if isinstance(message, TaskResult))
            self._overwrite = self.replaced(next(modes, None))
        self.publish(_staged(messages), *(self._options.micro_batch or (None, None)))

    def commit_here(self, rows: pa.Table, order: Order) -> Snapshot | None:
        """Write rows that this process has, as Spark collects them; for ``order`` see ``Table.stage``.

        It gives the snapshot with the rows, None for no rows.
        """
        with synced_together():
            staged = []
            if (given := self._given(iter(rows.to_batches()))) is not None:
                table, began, read = given
                found = read.read_all()
                staged = [table.stage(found, order=order, definition=began.version, is_committed_here=True)]
            with self._table().discarded_if_failed(staged):
                for one in staged:
                    check_within(one.partitions, self._partition, of=self._of)
                return self.publish(staged, *(self._options.micro_batch or (None, None)))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: one commit a micro-batch, exactly once; complete mode overwrites the table."""

    is_batch = False

    def __init__(self, options: WriteOptions, given: StructType, overwrite: bool) -> None:
        """See `_Writer`; also refuses what only ``catalog.write_changes`` can write, by the option's help."""
        super().__init__(options, given, overwrite)
        check_raw(sink_of(Table.open(options.path), options.materialize), given.jsonValue())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks staged, unless this query's micro-batch was published before."""
        query_ids = {message.query_id for message in messages if isinstance(message, TaskResult)}
        if len(query_ids) != 1 or None in query_ids:
            raise ConfigurationError(
                f"{FORMAT}: the tasks of a micro-batch must name one query, got "
                f"{sorted(map(str, query_ids))}; report this as a bug"
            )
        self.publish(_staged(messages), query_ids.pop(), batchId)


def _staged(results: Sequence[WriterCommitMessage | None]) -> list[StagedFiles]:
    return [one.staged for one in results if isinstance(one, TaskResult) and one.staged is not None]
