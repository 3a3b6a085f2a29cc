"""Tables of a catalog as DataFrames: read, written, and mirrored."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.catalog.declared_columns import metadata_options, with_declared
from upsert.catalog.known_tables import KnownTables
from upsert.catalog.session import CHECKPOINT
from upsert.errors import ConfigurationError
from upsert.managed import frames
from upsert.managed.writer import sink_of
from upsert.materializer.choice import (
    SINK_MATERIALIZE,
    Changes,
    Sink,
    UnprovenKeyWarning,
    choose,
    mode_of,
)
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.storage import storage_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class TableFrames(KnownTables):
    """The methods of a catalog that read and write tables with Spark."""

    def __init__(
        self, warehouse: str | os.PathLike[str], optimize: Callable[..., DataFrame] | None, name: str
    ) -> None:
        """As ``Catalog``."""
        super().__init__(warehouse, name)
        self._optimize = optimize

    def mirror(
        self,
        spark: SparkSession,
        name: str,
        trigger: Mapping[str, Any] | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
    ) -> StreamingQuery:
        """Keep a managed table equal to an upsert topic, so that a join can look its rows up.

        The mirror has the indexes of the topic's table, and its options that begin with ``mirror.``, as in
        ``'mirror.bucket' = '4'``. One query keeps it, exactly once, with its checkpoint beside the mirror in
        the warehouse: called again, this goes on where the last query stopped, or gives the one that runs in
        this session. ``table(name)`` is the mirror; the planner uses it by itself; ``DROP TABLE`` takes it
        away, once the query is stopped.

        Args:
            spark: the session that runs the query.
            name: a table of the connector ``upsert-kafka``.
            trigger: of the query, as ``DataStreamWriter.trigger`` takes it: ``{"availableNow": True}``.
            checkpoints: folder in which the checkpoint gets a folder; None: beside the mirror, of a warehouse
                in an object store ``'checkpoint.location'`` of ``SET``.

        Raises:
            ConfigurationError: the table is managed, or of another connector; or there is no folder for the
                checkpoint.
            TableNotFoundError: there is no such table.
            KafkaUnavailableError: the brokers do not answer.
        """
        connected = self.connected(name)
        if connected is None:
            raise ConfigurationError(
                f"table {name!r}: only a table of the connector 'upsert-kafka' has a mirror, got a managed "
                "one, which can be looked up itself; use it as it is"
            )
        path = self.databases.place(name).path
        if checkpoints is None and not storage_of(path).is_local:
            checkpoints = self.options.value(CHECKPOINT)
        folder = None if checkpoints is None else os.fspath(checkpoints)
        query = self.mirrors[path] = connected.keep_mirror(spark, trigger or {}, folder)
        return query

    def read_changes(self, spark: SparkSession, name: str, **options: object) -> DataFrame:
        """A table's changes as a streaming DataFrame: its columns, then ``_row_kind``.

        A ``kafka`` table whose records are only added, in a format of rows, has no ``_row_kind``. Computed
        columns stand at their places, and ``WATERMARK`` is the DataFrame's.

        Args:
            spark: the session; the format is registered in it.
            name: the table.
            **options: those of the format ``upsert-table`` or of the connector, as keywords:
                ``scan_mode="latest"``, ``max_rows_per_trigger=10_000``. For one query they replace those of
                CREATE TABLE.
        """
        if (connected := self.connected(name)) is not None:
            return with_declared(connected.read_changes(spark, **options), self.schema(name))
        table = self._managed(name)
        df = frames.read_changes(spark, table.path, **metadata_options(table.schema), **options)
        return with_declared(df, table.schema)

    def read(self, spark: SparkSession, name: str, snapshot: int | None = None) -> DataFrame:
        """A table's rows as a batch DataFrame: of the snapshot with this id, or of the latest one now.

        Such a DataFrame has the same rows whenever it runs, until its snapshot expires; call ``read`` again
        for what was written since. Only a stream that looks its rows up in it (``planner.explain``: form
        "lookup") finds the newest ones. Computed columns stand at their places.

        Raises:
            ConfigurationError: the table has a connector, and a snapshot is asked for.
        """
        if (connected := self.connected(name)) is None:
            table = self._managed(name)
            df = frames.read(spark, table.path, snapshot, options=metadata_options(table.schema))
            return with_declared(df, table.schema)
        if snapshot is not None:
            raise ConfigurationError(
                f"table {name!r}: a table with a connector has no snapshots, got {snapshot!r}; leave it out"
            )
        return with_declared(connected.read(spark), self.schema(name))

    def write_changes(
        self,
        df: DataFrame,
        name: str,
        *,
        sink_materialize: str | None = None,
        start_from: str | os.PathLike[str] | None = None,
    ) -> DataStreamWriter:
        """A writer that applies a streaming DataFrame to a table.

        A managed table takes each batch exactly once; of a topic ``sink.delivery-guarantee`` decides.
        With a column ``_row_kind`` the rows are changes. Without it they are upserts, which only a look at
        the query's plan can tell from changes that have lost their kind; a catalog made with ``optimize``
        takes that look, and carries the kind through. It also finds out whether the table's key tells the
        rows apart; where it does not, all rows of each key are kept aside and the table holds the newest that
        is left, as the option ``sink.materialize`` says: docs/sql.md. The caller adds
        ``option("checkpointLocation", …)`` and starts it.

        Args:
            df: the stream.
            name: the table.
            sink_materialize: ``sink.materialize`` of this query; None: the table's own.
            start_from: checkpoint of a stopped query over the same tables, from whose versions a query of
                delta joins goes on with a new checkpoint, without a first load; see ``planner.optimize``.
                Leave it out once the new query has done a micro-batch.

        Raises:
            ConfigurationError: the DataFrame is no stream, or has no ``_row_kind`` and the catalog no
                ``optimize``; or it cannot go on from another checkpoint, or ``sink.materialize`` cannot be
                what it is.
            SchemaError: its columns do not fit the table.

        Warns:
            UnprovenKeyWarning: nobody has looked whether the key tells the rows apart.
        """
        given = {} if sink_materialize is None else {SINK_MATERIALIZE.key: sink_materialize}
        mode = mode_of(given, f"table {name!r}")
        if (connected := self.connected(name, given)) is not None:
            if sink_materialize is not None and not connected.sink_key:
                raise ConfigurationError(
                    f"table {name!r}: sink_materialize is for a table in which a row replaces the one of its "
                    f"PRIMARY KEY, got {sink_materialize!r} for another; leave it out"
                )
            return connected.write_changes(self.optimized(df, name, connected.sink, start_from))
        table = self._managed(name)
        changes = self.optimized(df, name, sink_of(table, mode), start_from)
        return frames.write_changes(changes, table.path, given)

    def write_upsert(self, df: DataFrame, name: str) -> DataStreamWriter:
        """A writer of a streaming DataFrame in update mode, such as an aggregate, into an upsert topic.

        Each row replaces the one with its key. Spark gives Python sinks no update mode, so every micro-batch
        is written by ``foreachBatch``, with the guarantees of ``write_changes``. The caller adds
        ``option("checkpointLocation", …)`` and starts it.

        Raises:
            ConfigurationError: the table is not one of the connector ``upsert-kafka``, or the catalog has no
                ``optimize``.
            SchemaError: the DataFrame's columns do not fit the table.
        """
        connected = self.connected(name)
        if connected is None:
            raise ConfigurationError(
                f"table {name!r}: write_upsert needs a table of the connector 'upsert-kafka', got a managed "
                "one; use write_changes"
            )
        return connected.write_upsert(self.optimized(df, name, connected.sink))

    def optimized(
        self,
        df: DataFrame,
        name: str,
        sink: Sink | None,
        start_from: str | os.PathLike[str] | None = None,
    ) -> DataFrame:
        """A DataFrame as it may be written: what ``optimize`` made of it, or changes with their kinds.

        Args:
            df: a batch, which comes back as it is, or a stream.
            name: the table, for messages.
            sink: the table as a sink; None if that is not known.
            start_from: the checkpoint whose query it goes on from; None for none.

        Raises:
            ConfigurationError: the stream has no ``_row_kind``, and the catalog no ``optimize``, or that
                knows no ``start_from``; or ``sink.materialize`` cannot be what it is.

        Warns:
            UnprovenKeyWarning: nobody has looked whether the key tells the rows apart.
        """
        changes = self._carried(df, name, None if sink is None else sink.key, start_from)
        if not changes.isStreaming or sink is None:
            return changes
        choice = choose(sink, Changes.of_schema(changes.schema.jsonValue()))
        if choice.is_materialized and start_from is not None:
            raise ConfigurationError(
                f"{sink.name}: {choice.reason}, and the rows of its keys are kept for the query of the other "
                "checkpoint alone; leave start_from out"
            )
        if sink.mode == "force":
            # a sink that keeps its rows needs every kind of change, as one without a key does
            return self._carried(df, name, (), start_from)
        if choice.is_unproven:
            warnings.warn(
                f"{sink.name}: {choice.reason} of this stream; make the catalog as Catalog(warehouse, "
                "optimize=planner.optimize), which finds out, or say 'sink.materialize' = 'none' if it "
                "does, 'force' if it does not",
                UnprovenKeyWarning,
                stacklevel=3,
            )
        return changes

    def _carried(
        self,
        df: DataFrame,
        name: str,
        sink_key: Sequence[str] | None,
        start_from: str | os.PathLike[str] | None,
    ) -> DataFrame:
        known = {} if self._optimize is None else inspect.signature(self._optimize).parameters
        if start_from is not None and "start_from" not in known:
            raise ConfigurationError(
                f"table {name!r}: start_from needs a catalog that plans delta joins; make it as "
                "Catalog(warehouse, optimize=planner.optimize)"
            )
        if self._optimize is not None and df.isStreaming:
            given: dict[str, Any] = {"sink_key": sink_key} if "sink_key" in known else {}
            before = {} if start_from is None else {"start_from": os.fspath(start_from)}
            return self._optimize(df, **given, **before)
        if df.isStreaming and ROW_KIND_COLUMN not in df.columns:
            raise ConfigurationError(
                f"table {name!r}: a stream must have the column {ROW_KIND_COLUMN!r}, or changes that have "
                "lost their kind would look like upserts; make the catalog as "
                "Catalog(warehouse, optimize=planner.optimize), which can tell them apart"
            )
        return df
