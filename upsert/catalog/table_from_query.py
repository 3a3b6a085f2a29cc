"""What a statement says about the table that it makes from a query, and making it (FLIP-218)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from upsert.catalog.create_as import StreamSettings, Target, fill_table, replace_table, stream_into_table
from upsert.catalog.derived_schema import derived_schema
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.new_tables import NewConnectorTable, NewManagedTable, clean_up
from upsert.catalog.persistence import Definition
from upsert.catalog.staged_tables import refuse_connector, stages_of
from upsert.catalog.stages import Stages
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Sink
from upsert.schema import Index, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Optimized = Callable[["DataFrame", str, Sink | None], "DataFrame"]
"""From a DataFrame, the table's name and the table (None: not known yet) to what may be written."""


@dataclass(frozen=True)
class TableFromQuery:
    """``CREATE TABLE … AS SELECT``, without its query.

    Attributes:
        name: of the table.
        primary_key: its key; empty: that of the query, if it has one.
        partitioned_by: its partition columns.
        indexes: its secondary indexes.
        options: as in ``WITH (…)``; with ``connector`` the table is one with a connector.
        comment: of the table.
        if_not_exists: do nothing if there is a finished table.
        or_replace: put the new table in the place of an old one.
        checkpoint: of the streaming query; None for a batch.
        trigger: of the streaming query, as ``DataStreamWriter.trigger`` takes it.
        query_name: of the streaming query, in Spark.
        drop_on_cancel: whether the table goes away when a user stops the streaming query.
        hook: told how the job begins and ends.
    """

    name: str
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    comment: str | None = None
    if_not_exists: bool = False
    or_replace: bool = False
    checkpoint: str | None = None
    trigger: Mapping[str, Any] = field(default_factory=dict)
    query_name: str | None = None
    drop_on_cancel: bool = False
    hook: JobStatusHook = field(default_factory=JobStatusHook)

    def execute(self, tables: Warehouse, df: DataFrame, optimized: Optimized) -> StreamingQuery | None:
        """Make the table; the running query of a streaming DataFrame, None for a batch.

        Raises:
            ConfigurationError: the parts of the statement do not fit together, or do not fit the DataFrame.
            SchemaError: the DataFrame's columns can be no table's, or the key does not fit them.
            TableExistsError: the table exists, or is being created by another statement.
        """
        self._check(df)
        staged = stages_of(tables, clean_up)
        exists = self.name in tables.names()
        if exists and self.if_not_exists and not self._goes_on(staged):
            return None
        target, rows = self._target(df, optimized)
        if df.isStreaming:
            settings = StreamSettings(
                str(self.checkpoint), self.trigger, self.query_name, self.drop_on_cancel
            )
            return stream_into_table(staged, target, rows, settings, self.hook)
        if exists and self.or_replace:
            refuse_connector(self.name, tables.existing(self.name))
            replace_table(staged, target, rows, self.hook)
        else:
            fill_table(staged, target, rows, self.hook)
        return None

    def _check(self, df: DataFrame) -> None:
        if self.or_replace and self.if_not_exists:
            raise self._wrong("either OR REPLACE or IF NOT EXISTS, got both", "leave one out")
        if df.isStreaming and not self.checkpoint:
            raise self._wrong(
                "a checkpoint for its streaming query, by which it goes on after a failure, got none",
                "give checkpoint=…",
            )
        if df.isStreaming and self.or_replace:
            raise self._wrong("no OR REPLACE for a streaming query", "DROP TABLE first, or use a batch")
        if not df.isStreaming and (self.checkpoint or self.trigger or self.drop_on_cancel):
            raise self._wrong(
                "no checkpoint, trigger or drop_on_cancel for a batch, which ends by itself", "leave them out"
            )

    def _wrong(self, expected: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"table {self.name!r}: CREATE TABLE AS needs {expected}; {remedy}")

    def _goes_on(self, stages: Stages) -> bool:
        """Whether this statement began the table and has not finished it."""
        entry = stages.entry(self.name)
        return entry is not None and entry.checkpoint == self.checkpoint and not entry.is_done

    def _target(self, df: DataFrame, optimized: Optimized) -> tuple[Target, DataFrame]:
        if not df.isStreaming:
            return self._new_table(df, self.primary_key), df
        columns = optimized(df, self.name, None)
        key = self.primary_key or self._schema(columns).primary_key
        sink = self._new_table(columns, key).sink
        rows = optimized(df, self.name, sink)
        return self._new_table(rows, key), rows

    def _new_table(self, rows: DataFrame, key: Sequence[str]) -> NewManagedTable | NewConnectorTable:
        schema, options = self._schema(rows, key), dict(self.options)
        if (connector := options.pop("connector", None)) is None:
            return NewManagedTable(self.name, schema, options)
        return NewConnectorTable(self.name, Definition(connector, schema, options))

    def _schema(self, rows: DataFrame, key: Sequence[str] = ()) -> TableSchema:
        return derived_schema(
            self.name,
            rows.schema,
            primary_key=key,
            partitioned_by=self.partitioned_by,
            indexes=self.indexes,
            comment=self.comment,
        )
