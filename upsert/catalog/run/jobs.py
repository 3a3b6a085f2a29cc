"""The Spark session of a statement, and streaming statements: where their checkpoints lie, how they start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from upsert.catalog.create_as.create_as import StreamSettings
from upsert.catalog.session import CHECKPOINT, PIPELINE, TRIGGER, SessionOptions
from upsert.errors import ConfigurationError, SchemaError
from upsert.store.storage import storage_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.catalog.context import Context


def active(spark: SparkSession | None) -> SparkSession | None:
    """The session that was given, else the active one of this thread; None if there is none."""
    return SparkSession.getActiveSession() if spark is None else spark


class SparkNeededError(ConfigurationError):
    """A statement needs a Spark session, and there is none; it may be executed again with one."""


def needed(spark: SparkSession | None, what: str, options: Mapping[str, str] = {}) -> SparkSession:
    """The session that runs a statement, with the options that were set for it."""
    found = active(spark)
    if found is None:
        raise SparkNeededError(
            f"{what}: needs a Spark session, found none; give it as catalog.sql(text, spark)"
        )
    for key, value in options.items():
        found.conf.set(key, value)
    return found


_JOBS: Final = ".jobs"
"""Folder in the warehouse for checkpoints of named jobs; no table can have such a name."""


@dataclass(frozen=True)
class Job:
    """A streaming statement.

    Attributes:
        name: the table that it writes, as messages show it.
        checkpoint: its folder: below ``checkpoint.location``, or that of the warehouse for a named job; one
            for each job and table, so several statements of a script do not meet.
        query_name: of the query in Spark; None for none.
    """

    name: str
    checkpoint: str
    query_name: str | None = None

    @classmethod
    def of(cls, context: Context, name: str, what: str, uuid: str = "") -> Self:
        """The job of a statement that writes the table ``name``; the options say where its checkpoint lies.

        With the table's uuid: one that is dropped and created again starts from the beginning.
        """
        options = context.options
        location, pipeline = options.value(CHECKPOINT), options.value(PIPELINE)
        if location is None and pipeline is None:
            raise ConfigurationError(
                f"{what}: a streaming statement needs a checkpoint, by which it continues after a stop; "
                f"SET '{CHECKPOINT}' = 'folder', or SET '{PIPELINE}' = 'name' for one in the warehouse"
            )
        if location is None and not storage_of(context.warehouse).is_local:
            raise unreachable_checkpoint(what)
        table_ref = context.databases.resolve(name)
        _, database, own = table_ref.qualified.split(".")
        folder = f"{database}.{own}" + (f"-{uuid[:8]}" if uuid else "")
        base = os.path.join(location or os.path.join(table_ref.warehouse, _JOBS), pipeline or "")
        if uuid and os.path.isdir(base):  # under whatever name the table had when the job began
            begun = (entry for entry in sorted(os.listdir(base)) if entry.endswith(f"-{uuid[:8]}"))
            folder = next(begun, folder)
        checkpoint = os.path.join(base, folder)
        return cls(table_ref.shown, checkpoint, f"{pipeline}: {table_ref.shown}" if pipeline else None)

    @property
    def has_begun(self) -> bool:
        """Whether a micro-batch of the job is done, so that its checkpoint says where it continues."""
        commits = os.path.join(self.checkpoint, "commits")
        return os.path.isdir(commits) and any(name.isdecimal() for name in os.listdir(commits))

    def settings(self, options: SessionOptions) -> StreamSettings:
        """How the query of the job runs."""
        return StreamSettings(self.checkpoint, options.value(TRIGGER), self.query_name)

    def started(self, writer: DataStreamWriter, settings: StreamSettings) -> StreamingQuery:
        """The query, running; refuses what Spark has no way to run as a stream."""
        try:
            return settings.applied(writer).start()
        except AnalysisException as cause:
            reason = str(cause.getMessage() or cause).splitlines()[0]
            raise SchemaError(
                f"table {self.name!r}: Spark cannot write this query as a stream: {reason}; an aggregate of "
                "rows that are only added needs a WATERMARK among its groups, or a table of the connector "
                "'upsert-kafka' keyed by them"
            ) from cause

    def refuse_left_checkpoint(self, context: Context) -> None:
        """Refuse to create a table whose rows an earlier table of its name has received."""
        is_used = os.path.isdir(os.path.join(self.checkpoint, "offsets"))
        table_ref = context.databases.resolve(self.name)
        if is_used and not table_ref.tables.is_taken(table_ref.name):
            raise ConfigurationError(
                f"table {self.name!r}: the checkpoint {self.checkpoint!r} is that of a dropped table, so "
                f"the new one would lack its rows; delete the folder, or SET another '{PIPELINE}' or "
                f"'{CHECKPOINT}'"
            )


def unreachable_checkpoint(what: str) -> ConfigurationError:
    """The refusal of a statement whose checkpoint would lie in an object store."""
    return ConfigurationError(
        f"{what}: the warehouse is in an object store, which Spark's checkpoints may not reach; SET "
        f"'{CHECKPOINT}' = 'folder'"
    )
