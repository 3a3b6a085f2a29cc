"""``CREATE TABLE … AS SELECT``: a table that is there with the rows of a query, or is not there (FLIP-218).

A batch fills a staged table in one commit; before it nobody sees the table, after it everybody sees all of
it. A streaming query makes the table visible with its first commit, and keeps it: the same statement with
the same checkpoint goes on after a failure. FLIP-218 creates the table first and leaves it to the sink to
clean up; this is stricter, and a crash of the driver at any moment leaves no half of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from upsert import types
from upsert.catalog.job_hooks import Job, JobStatusHook
from upsert.catalog.staged import Entry
from upsert.catalog.stages import Stage, Stages
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.store.failpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Target(Protocol):
    """A kind of table that a query can fill: what creating and writing it means."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def schema(self) -> TableSchema:
        """Its columns and keys."""

    def create(self, folder: str) -> None:
        """Make the empty table, or the definition of one that lies elsewhere."""

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the table that was begun in a folder."""

    def make_outside(self, folder: str) -> tuple[str, ...]:
        """Make what the table needs outside of the warehouse and does not find; what was made."""

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Refuse a place outside of the warehouse that has rows already, before a stream begins there."""

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows of a batch DataFrame, in one commit where the table has commits."""

    def write(self, folder: str, changes: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame."""


@dataclass(frozen=True)
class StreamSettings:
    """How the query of a streaming statement runs.

    Attributes:
        checkpoint: its checkpoint folder.
        trigger: as ``DataStreamWriter.trigger`` takes it.
        query_name: its name in Spark, None for none.
        drop_on_cancel: whether the table goes away when a user stops the query (FLIP-218's way).
    """

    checkpoint: str
    trigger: Mapping[str, Any] = field(default_factory=dict)
    query_name: str | None = None
    drop_on_cancel: bool = False

    @property
    def ends_by_itself(self) -> bool:
        """Whether the query ends when it has read what is there."""
        return bool(self.trigger.get("availableNow") or self.trigger.get("once"))


def fill_table(tables: Stages, target: Target, rows: DataFrame, hook: JobStatusHook) -> None:
    """Create a table with the rows of a batch DataFrame.

    Raises:
        TableExistsError: the table exists, or is being created.
        Exception: whatever made the query fail; there is no table then, unless its rows were committed.
    """
    stage = tables.begin(target.name, Entry.of_this_process("batch"), target.create)
    run_job(stage, target, lambda: target.fill(stage.folder, rows), hook)


def run_job(stage: Stage, target: Target, fill: Callable[[], None], hook: JobStatusHook) -> None:
    """Fill a staged table and make it visible; if that fails, take it away."""
    job = Job(target.name, "batch")
    try:
        prepare(stage, target)
        hook.on_created(job)
        fill()
        reach("create-as.after-fill")
        stage.done(forget=True)
    except BaseException as cause:
        _give_up(stage, cause)
        _tell_end(hook, job, cause)
        raise
    hook.on_finished(job)


def prepare(stage: Stage, target: Target) -> None:
    """Make what the table needs outside, and remember in its entry what was made."""
    if made := target.make_outside(stage.folder):
        stage.remember(made)


def _give_up(stage: Stage, cause: BaseException) -> None:
    if stage.is_visible:
        stage.done(forget=True)
        cause.add_note("The rows were committed before this happened, so the table is there, and whole.")
    else:
        stage.discard()


def _tell_end(hook: JobStatusHook, job: Job, cause: BaseException) -> None:
    if isinstance(cause, KeyboardInterrupt):
        hook.on_canceled(job)
    else:
        hook.on_failed(job, cause)


def replace_table(tables: Stages, target: Target, rows: DataFrame, hook: JobStatusHook) -> None:
    """Put a table with the rows of a batch DataFrame in the place of an existing managed one.

    Raises:
        ConfigurationError: the file system cannot exchange two folders.
        TableNotFoundError: the old table has been dropped meanwhile.
        Exception: whatever made the query fail; the old table is as it was.
    """
    job = Job(target.name, "batch")
    hook.on_created(job)
    try:
        with tables.successor(target.name) as folder:
            target.create(folder)
            reach("create-as.after-table")
            target.fill(folder, rows)
            reach("create-as.after-fill")
    except BaseException as cause:
        _tell_end(hook, job, cause)
        raise
    hook.on_finished(job)


def stream_into_table(
    tables: Stages,
    target: Target,
    changes: DataFrame,
    settings: StreamSettings,
    hook: JobStatusHook,
) -> StreamingQuery:
    """Create a table that a streaming query fills, or go on with one that this statement began.

    Raises:
        TableExistsError: the table exists and was begun by another statement, or its query still runs.
        ConfigurationError: the table was begun for other columns.
        Exception: Spark cannot start the query; then there is no table, unless an earlier run committed.
    """
    from upsert.catalog.query_watcher import QueryWatcher

    stage = tables.resume(target.name, settings.checkpoint)
    is_new = stage is None
    if stage is not None:
        check_same_columns(target, stage)
    else:
        entry = Entry.of_this_process("streaming", settings.checkpoint)
        stage = tables.begin(target.name, entry, target.create)
    try:
        if is_new:
            target.check_unused(stage.folder, changes.sparkSession)
        prepare(stage, target)
        writer = target.write(stage.folder, changes).option("checkpointLocation", settings.checkpoint)
        if settings.trigger:
            writer = writer.trigger(**settings.trigger)
        if settings.query_name is not None:
            writer = writer.queryName(settings.query_name)
        watcher = QueryWatcher(changes.sparkSession, tables, stage, target.name, settings, hook)
        query = watcher.watch(writer)
    except BaseException:
        stage.discard()
        raise
    return query


def check_same_columns(target: Target, stage: Stage) -> None:
    """Refuse to go on with a table that was begun for other rows.

    Raises:
        ConfigurationError: the statement's columns or keys are not those of the table.
    """
    own, begun = target.schema, target.schema_in(stage.folder)
    if _outline(own) != _outline(begun):
        stage.let_go()
        raise ConfigurationError(
            f"table {target.name!r}: a statement with the table's checkpoint goes on with it, so it must "
            f"have its columns and keys, {_shown(begun)}, got {_shown(own)}; give another name and "
            "checkpoint to begin anew"
        )


def _outline(schema: TableSchema) -> tuple[object, ...]:
    columns = tuple((column.name, column.type) for column in schema.columns)
    return columns, schema.primary_key, schema.partitioned_by


def _shown(schema: TableSchema) -> str:
    columns = ", ".join(f"{column.name} {types.sql_name(column.type)}" for column in schema.columns)
    return (
        f"({columns}, PRIMARY KEY ({', '.join(schema.primary_key)}))"
        if schema.primary_key
        else f"({columns})"
    )
