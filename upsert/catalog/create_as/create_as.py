"""``CREATE TABLE … AS SELECT``: a table exists with all rows of a query, or not at all (FLIP-218).

A batch fills a staged table in one commit; before it no reader sees the table, after it every reader sees all
of it. A streaming query makes the table visible with its first commit, and keeps it: the same statement with
the same checkpoint continues after a failure. FLIP-218 creates the table first and leaves it to the sink to
clean up; this is stricter, and a crash of the driver at any time leaves no half of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from upsert import types
from upsert.catalog.connectors.base import Connector
from upsert.catalog.connectors.definition import Definition, connect, define, definition_in
from upsert.catalog.create_as.local import LocalStage, LocalStages
from upsert.catalog.create_as.object_store import ObjectStoreStage, ObjectStoreStages
from upsert.catalog.create_as.stages import Entry
from upsert.catalog.job_hooks import Job, JobStatusHook
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, SchemaError
from upsert.failpoints import reach
from upsert.managed import frames
from upsert.managed.writer import described_sink
from upsert.materializer.choice import Sink
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Index, TableSchema
from upsert.spark.columns import column_of
from upsert.spark.queries import stop_listening
from upsert.spark.query_writer import triggered
from upsert.sql.declared import Declared
from upsert.store import Table
from upsert.store.storage import storage_of
from upsert.store.table_options import TableOptions, with_own_columns
from upsert.stream_keys import UpsertKey
from upsert.types import any_case, first_repeated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.spark.planned_batch import ReadForArrow

Stage = LocalStage | ObjectStoreStage
Stages = LocalStages | ObjectStoreStages


def derived_schema(
    name: str,
    rows: StructType,
    *,
    primary_key: Sequence[str] = (),
    partitioned_by: Sequence[str] = (),
    indexes: Iterable[Index] = (),
    comment: str | None = None,
) -> TableSchema:
    """The schema of a table for rows of a DataFrame: its columns but ``_row_kind``, comments included.

    A column is NOT NULL where Spark knows that. Without ``primary_key`` an aggregate over changes, whose rows
    replace each other by its groups, gives the key; any other query gives a table without one.

    >>> schema = derived_schema("t", StructType().add("id", "long").add("n", "integer"), primary_key=["id"])
    >>> schema.names, schema.primary_key
    (('id', 'n'), ('id',))

    Raises:
        SchemaError: two columns have one name, or a column or the key is not possible in a table.
    """
    of = f"table {name!r}"
    columns = tuple(column_of(field, of) for field in rows.fields if field.name != ROW_KIND_COLUMN)
    if repeated := first_repeated(column.name for column in columns):
        raise SchemaError(f"{of}: its query gives two columns {repeated!r}; give one another name with AS")
    key = tuple(primary_key) or _group_key(rows)
    return Declared(columns, key, tuple(indexes), tuple(partitioned_by), comment).schema(of)


def _group_key(rows: StructType) -> tuple[str, ...]:
    """The columns by which rows of an aggregate replace each other; empty if there are none."""
    key = UpsertKey.of_schema(rows.jsonValue())
    if key is None or not all(key.keys):
        return ()
    return tuple(names[0] for names in key.keys) or key.constants[:1]


@dataclass(frozen=True)
class NewTable:
    """A table that a query can create and fill: a managed one, which its first commit shows.

    With a ``definition`` it is one with a connector: the definition here, and for example a topic elsewhere.
    """

    name: str
    schema: TableSchema
    options: Mapping[str, str]
    definition: Definition | None = None

    def _connected(self, folder: str) -> Connector | None:
        return None if self.definition is None else connect(self.name, self.definition, folder)

    @property
    def sink(self) -> Sink:
        """The table as a sink of changes, whether it exists or not."""
        if (connected := self._connected("")) is not None:
            return connected.sink
        options = TableOptions.parse(self.options, self.schema, f"table {self.name!r}")
        return described_sink(self.name, self.schema, options)

    def create(self, folder: str) -> None:
        """Make the empty table in a folder, or write the definition."""
        if self.definition is None:
            Table.create(folder, self.schema, self.options)
        else:
            define(folder, self.definition)

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the table that was begun in a folder."""
        if self.definition is None:
            return Table.open(folder).schema
        found = definition_in(folder)
        if found is None:
            raise ConfigurationError(
                f"table {self.name!r}: the statement has a connector, the table that it began has none; give "
                "another name and checkpoint to start over"
            )
        return found.schema

    def make_outside(self, folder: str) -> tuple[str, ...]:
        """Create what the table lacks outside the warehouse, such as its topic; what was created."""
        connected = self._connected(folder)
        return () if connected is None else connected.prepare()

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Refuse a topic or folder outside that has rows."""
        if (connected := self._connected(folder)) is not None:
            connected.check_unused(spark)

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows of a batch, in one commit where the table has commits."""
        if (connected := self._connected(folder)) is None:
            frames.write(rows, folder)
        else:
            connected.fill(rows)

    def write(self, folder: str, changes: DataFrame, in_arrow: ReadForArrow | None) -> DataStreamWriter:
        """A writer of a stream; ``in_arrow`` as for ``frames.write_changes``."""
        if (connected := self._connected(folder)) is None:
            return frames.write_changes(changes, folder, {}, in_arrow)
        return connected.write_changes(changes)


@dataclass(frozen=True)
class StreamSettings:
    """How the query of a streaming statement runs.

    ``checkpoint`` is "" for none, ``trigger`` as ``DataStreamWriter.trigger`` takes it. With
    ``drop_on_cancel`` the table is dropped when a user stops the query (FLIP-218's way).
    """

    checkpoint: str = ""
    trigger: Mapping[str, Any] = field(default_factory=dict)
    query_name: str | None = None
    drop_on_cancel: bool = False

    def applied(self, writer: DataStreamWriter) -> DataStreamWriter:
        """The writer with these settings."""
        writer = writer.option("checkpointLocation", self.checkpoint)
        writer = triggered(writer, self.trigger)
        return writer if self.query_name is None else writer.queryName(self.query_name)


@dataclass(eq=False)
class QueryWatcher(StreamingQueryListener):
    """Follows one query of ``CREATE TABLE … AS SELECT`` through Spark's own events.

    If the driver dies no event comes; then the table's own files say whether it exists.
    """

    _spark: SparkSession
    _tables: Stages
    _stage: Stage
    _name: str
    _settings: StreamSettings
    _hook: JobStatusHook
    _run: str | None = None
    _query_id: str | None = None
    _ended: dict[str, str | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def watch(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query and follow it."""
        self._spark.streams.addListener(self)
        try:
            query = writer.start()
        except BaseException:
            stop_listening(self._spark, self)
            raise
        with self._lock:
            self._run, self._query_id = str(query.runId), str(query.id)
            has_ended = self._run in self._ended  # Spark may report the end before start() returns
        self._hook.on_created(self._job())
        if has_ended:
            self._end(self._ended[self._run])
        return query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing: the id of the query is known when ``start`` returns."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is committed, so a table without commits of its own may be seen."""
        if str(event.progress.runId) == self._run:
            self._stage.show_after_commit()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query has ended, by itself, by a user, or by a failure."""
        with self._lock:
            if self._run is None:  # later the run is known, and the ends of others do not count
                self._ended[str(event.runId)] = event.exception
            is_own = str(event.runId) == self._run
        if is_own:
            self._end(event.exception)

    def _end(self, failure: str | None) -> None:
        stop_listening(self._spark, self)
        trigger = self._settings.trigger
        if failure is not None:
            self._stage.discard()
            self._hook.on_failed(self._job(), failure)
        elif trigger.get("availableNow") or trigger.get("once"):  # it has read the existing rows
            self._stage.done(forget=False)
            self._hook.on_finished(self._job())
        else:
            self._stage.discard()
            if self._settings.drop_on_cancel:
                self._tables.tables.drop(self._name)
            self._hook.on_canceled(self._job())

    def _job(self) -> Job:
        return Job(self._name, "streaming", self._query_id)


def fill_table(tables: Stages, target: NewTable, rows: DataFrame, hook: JobStatusHook) -> None:
    """Create a table with the rows of a batch; after a failure there is none, unless it was committed."""
    stage = tables.begin(target.name, Entry.of_this_process("batch"), target.create)
    job = Job(target.name, "batch")
    try:
        _make_outside(stage, target)
        hook.on_created(job)
        target.fill(stage.folder, rows)
        reach("create-as.after-fill")
        stage.done(forget=True)
    except BaseException as cause:
        if stage.is_visible:
            stage.done(forget=True)
            cause.add_note("The rows were committed before this happened, so the table exists, and is whole.")
        else:
            stage.discard()
        _notify_end(hook, job, cause)
        raise
    hook.on_finished(job)


def _make_outside(stage: Stage, target: NewTable) -> None:
    """Create what the table needs outside the warehouse, and record that in its entry."""
    if made := target.make_outside(stage.folder):
        stage.remember(made)


def _notify_end(hook: JobStatusHook, job: Job, cause: BaseException) -> None:
    if isinstance(cause, KeyboardInterrupt):
        hook.on_canceled(job)
    else:
        hook.on_failed(job, cause)


def replace_table(tables: Stages, target: NewTable, rows: DataFrame, hook: JobStatusHook) -> None:
    """Replace a managed table by one with the rows of a batch; after a failure the old one is unchanged."""
    job = Job(target.name, "batch")
    hook.on_created(job)
    try:
        with tables.successor(target.name) as folder:
            target.create(folder)
            reach("create-as.after-table")
            target.fill(folder, rows)
            reach("create-as.after-fill")
    except BaseException as cause:
        _notify_end(hook, job, cause)
        raise
    hook.on_finished(job)


def _stream_into_table(
    tables: Stages,
    target: NewTable,
    changes: DataFrame,
    settings: StreamSettings,
    hook: JobStatusHook,
    in_arrow: ReadForArrow | None,
) -> StreamingQuery:
    """Create a table that a streaming query fills, or continue one that this statement began.

    If Spark cannot start the query there is no table, unless an earlier run committed.
    """
    stage = tables.resume(target.name, settings.checkpoint)
    is_new = stage is None
    if stage is None:
        entry = Entry.of_this_process("streaming", settings.checkpoint)
        stage = tables.begin(target.name, entry, target.create)
    else:
        _check_same_columns(target, stage)
    try:
        if is_new:
            target.check_unused(stage.folder, changes.sparkSession)
        _make_outside(stage, target)
        writer = settings.applied(target.write(stage.folder, changes, in_arrow))
        watcher = QueryWatcher(changes.sparkSession, tables, stage, target.name, settings, hook)
        return watcher.watch(writer)
    except BaseException:
        stage.discard()
        raise


def _check_same_columns(target: NewTable, stage: Stage) -> None:
    """Refuse to continue a table that was begun for other rows."""
    own, begun = target.schema, target.schema_in(stage.folder)
    if _outline(own) != _outline(begun):
        stage.let_go()
        raise ConfigurationError(
            f"table {target.name!r}: a statement with the table's checkpoint continues it, so it must "
            f"have its columns and keys, {_shown(begun)}, got {_shown(own)}; give another name and "
            "checkpoint to start over"
        )


def _outline(schema: TableSchema) -> tuple[object, ...]:
    columns = tuple((column.name, column.type) for column in schema.columns)
    return columns, schema.primary_key, schema.partitioned_by


def _shown(schema: TableSchema) -> str:
    columns = ", ".join(f"{column.name} {types.sql_name(column.type)}" for column in schema.columns)
    key = f", PRIMARY KEY ({', '.join(schema.primary_key)})" if schema.primary_key else ""
    return f"({columns}{key})"


def stages_of(tables: Warehouse) -> Stages:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse, on a disk or in an object store."""
    return LocalStages(tables) if storage_of(tables.folder).is_local else ObjectStoreStages(tables)


Optimized = Callable[["DataFrame", str, Sink | None], "DataFrame"]
"""From a DataFrame, the table's name and the table (None: not known yet) to what may be written."""


@dataclass(frozen=True)
class TableFromQuery:
    """``CREATE TABLE … AS SELECT``, without its query; see ``Catalog.create_table_as``."""

    name: str
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    comment: str | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    stream: StreamSettings = field(default_factory=StreamSettings)
    hook: JobStatusHook = field(default_factory=JobStatusHook)

    def execute(
        self, tables: Warehouse, df: DataFrame, optimized: Optimized, in_arrow: ReadForArrow | None
    ) -> StreamingQuery | None:
        """Create the table; returns the running query of a streaming DataFrame, None for a batch.

        ``in_arrow`` as for ``frames.write_changes``.
        """
        self._check(df)
        staged = stages_of(tables)
        exists = self.name in tables.names()
        if exists and self.if_not_exists:
            begun = staged.entry(self.name)
            if begun is None or begun.is_done or begun.checkpoint != (self.stream.checkpoint or None):
                return None
        target, rows = self._target(df, optimized)
        if df.isStreaming:
            return _stream_into_table(staged, target, rows, self.stream, self.hook, in_arrow)
        if exists and self.or_replace:
            if definition_in(tables.existing(self.name)) is not None:  # what it holds lies elsewhere
                raise ConfigurationError(
                    f"table {self.name!r}: only a managed table can be replaced, got one with a connector; "
                    "DROP TABLE first, or choose another name"
                )
            replace_table(staged, target, rows, self.hook)
        else:
            fill_table(staged, target, rows, self.hook)
        return None

    def _check(self, df: DataFrame) -> None:
        if self.or_replace and self.if_not_exists:
            raise self._wrong("either OR REPLACE or IF NOT EXISTS, got both", "leave one out")
        if df.isStreaming and not self.stream.checkpoint:
            raise self._wrong(
                "a checkpoint for its streaming query, by which it continues after a failure, got none",
                "give checkpoint=…",
            )
        if df.isStreaming and self.or_replace:
            raise self._wrong("no OR REPLACE for a streaming query", "DROP TABLE first, or use a batch")
        own = self.stream
        if not df.isStreaming and (own.checkpoint or own.trigger or own.drop_on_cancel):
            raise self._wrong(
                "no checkpoint, trigger or drop_on_cancel for a batch, which ends by itself", "leave them out"
            )

    def _wrong(self, expected: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"table {self.name!r}: CREATE TABLE AS needs {expected}; {remedy}")

    def _target(self, df: DataFrame, optimized: Optimized) -> tuple[NewTable, DataFrame]:
        if not df.isStreaming:
            return self._new_table(df, self.primary_key), df
        columns = optimized(df, self.name, None)
        target = self._new_table(columns, self.primary_key)
        rows = optimized(df, self.name, target.sink)
        return self._new_table(rows, target.schema.primary_key), rows

    def _new_table(self, rows: DataFrame, key: Sequence[str]) -> NewTable:
        schema = derived_schema(
            self.name,
            rows.schema,
            primary_key=key,
            partitioned_by=self.partitioned_by,
            indexes=self.indexes,
            comment=self.comment,
        )
        options = with_own_columns(self.options, any_case(schema.names))
        if (connector := options.pop("connector", None)) is None:
            return NewTable(self.name, schema, options)
        return NewTable(self.name, schema, options, Definition(connector, schema, options))
