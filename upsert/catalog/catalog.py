"""A folder of tables by name: made and dropped with SQL, read and written with Spark.

The tables of a catalog are the folders ``<warehouse>/<name>``, nothing else is stored, so two processes
with catalogs of one folder see the same tables. A managed table lies in its folder; of a table with a
connector (``WITH ('connector' = 'upsert-kafka', …)``) only the definition does, and its state.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.catalog import persistence
from upsert.catalog.connectors import ConnectorTable, connect
from upsert.catalog.databases import Databases
from upsert.catalog.declared_columns import metadata_options, with_declared
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.session import SessionOptions
from upsert.errors import ConfigurationError
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Index, TableSchema
from upsert.store import Table
from upsert.store.paths import table_folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.results import Result


class Catalog:
    """The tables in one folder.

    Args:
        warehouse: a local folder, a ``file:`` URI or ``s3://bucket/folder``; it is made with the first table.
        optimize: ``planner.optimize``, or a function like it. Every DataFrame given to ``write_changes``
            passes through it, so that its joins become delta joins and its ``_row_kind`` is carried along.
            If it has a parameter ``sink_key``, it is told the table's primary key, () for none: a table that
            replaces rows by key needs no ``-U``.
        name: may stand before the name of a database, as in ``main.default.orders``.

    Attributes:
        databases: the databases of the warehouse; names of tables are looked up in the current one.
        options: what ``SET`` sets: how statements run, and defaults of new tables; see
            ``upsert.catalog.session``.
        mirrors: the queries by which this catalog keeps mirrors of topics, by the folder of the table.

    Raises:
        ConfigurationError: the warehouse is neither a local folder nor one in an object store.

    >>> import tempfile, pyarrow as pa
    >>> catalog = Catalog(tempfile.mkdtemp())
    >>> catalog.sql("CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    <CREATE TABLE fruit: created>
    >>> _ = catalog.table("fruit").write(pa.table({"id": [1, 2], "name": ["apple", "pear"]}))
    >>> catalog.table("fruit").snapshot().lookup(["id"], pa.table({"id": [2]})).to_pylist()
    [{'id': 2, 'name': 'pear'}]
    >>> catalog.tables()
    ('fruit',)
    """

    def __init__(
        self,
        warehouse: str | os.PathLike[str],
        optimize: Callable[..., DataFrame] | None = None,
        name: str = "main",
    ) -> None:
        self.databases = Databases(table_folder(warehouse), name)
        self.options = SessionOptions()
        self._optimize = optimize
        self.mirrors: dict[str, StreamingQuery] = {}

    def __repr__(self) -> str:
        return f"Catalog({self.warehouse!r})"

    @property
    def warehouse(self) -> str:
        """The absolute path of the folder."""
        return self.databases.folder

    def sql(self, text: str, spark: SparkSession | None = None) -> Result:
        """Carry out one statement.

        ``CREATE TABLE``, also ``AS SELECT``, ``DROP TABLE``, ``ALTER TABLE``, ``INSERT``, ``DELETE FROM``,
        queries, ``SHOW``, ``DESCRIBE``, ``SET``, databases: docs/sql.md. Follows FLIP-188, FLIP-218, FLIP-486
        (``INDEX``), FLIP-149 and FLIP-107. A table is there, or gone, for everybody at one moment; a crash
        leaves either the one or the other. ``DROP TABLE`` deletes a managed table's rows and history; of a
        table with a connector the definition, the state of its readers and its mirror, and nothing outside,
        no topic.

        Args:
            text: the statement; ``upsert.catalog.script.split_statements`` splits a text with several.
            spark: the session that runs queries; the active one of this thread if None.

        Returns:
            See ``upsert.catalog.results``: ``Rows`` of what is shown, the ``Frame`` of a query, the
            ``Running`` query of a streaming statement, or that the statement is ``Done``.

        Raises:
            SchemaError: the text is no statement (the message has the place), contradicts itself, or does not
                fit the tables.
            ConfigurationError: a name, a connector or an option is not possible, or a session is missing.
            TableExistsError: ``CREATE TABLE`` without IF NOT EXISTS, and the table is there.
            TableNotFoundError: there is no such table.

        >>> import tempfile
        >>> catalog = Catalog(tempfile.mkdtemp())
        >>> catalog.sql("CREATE TABLE words (word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED)")
        <CREATE TABLE words: created>
        >>> catalog.sql("INSERT INTO words VALUES ('a', 1), ('b', 2)", spark)
        <INSERT INTO words: written>
        >>> catalog.sql("SELECT word FROM words WHERE n > 1", spark)
        <SELECT: DataFrame[word: string]>
        """
        # Every task of a query imports this module; the parser behind it is for the few that read SQL.
        from upsert.catalog.execution import execute
        from upsert.catalog.parser import parse

        return execute(self, parse(text), spark)

    def create_table_as(
        self,
        name: str,
        df: DataFrame,
        *,
        primary_key: Sequence[str] = (),
        partitioned_by: Sequence[str] = (),
        indexes: Iterable[Sequence[str]] = (),
        options: Mapping[str, str] = {},
        comment: str | None = None,
        if_not_exists: bool = False,
        or_replace: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        drop_on_cancel: bool = False,
        hook: JobStatusHook | None = None,
    ) -> StreamingQuery | None:
        """Create a table with the rows of a DataFrame; whoever sees it sees all of it (FLIP-218).

        The table's columns are the DataFrame's. A batch is committed at one moment: before it there is no
        table, after it the whole one, whatever fails or is killed in between. A streaming query shows the
        table with its first commit, and keeps it when it fails; the same call with the same checkpoint goes
        on. A table with a connector is defined when its rows have been sent; its topic is deleted after a
        failure only if this call has created it.

        Args:
            name: of the table.
            df: a batch or a streaming DataFrame; a stream passes through the catalog's ``optimize``.
            primary_key: columns of the key; without it an aggregate over changes gives its groups, and other
                rows make a table without a key.
            partitioned_by: the partition columns.
            indexes: the columns of each secondary index.
            options: as in ``WITH (…)``.
            comment: of the table.
            if_not_exists: do nothing at all if there is a finished table.
            or_replace: a batch takes the place of an existing managed table, at one moment.
            checkpoint: folder of the streaming query's checkpoint.
            trigger: of the streaming query, as ``DataStreamWriter.trigger`` takes it.
            query_name: of the streaming query.
            drop_on_cancel: drop the table when a user stops the streaming query.
            hook: told how the job begins and ends.

        Returns:
            The running query of a stream; None for a batch, or if there was nothing to do.

        Raises:
            TableExistsError: the table exists, or another process is creating it.
            ConfigurationError: the arguments do not fit together.
            SchemaError: the DataFrame's columns can be no table's, or the key does not fit them.

        Example:
            >>> import tempfile
            >>> catalog = Catalog(tempfile.mkdtemp())
            >>> catalog.create_table_as("squares", spark.sql("SELECT id, id * id AS square FROM range(4)"))
            >>> catalog.table("squares").snapshot().scan().num_rows
            4
        """
        from upsert.catalog.table_from_query import TableFromQuery

        place = self.databases.place(name)
        statement = TableFromQuery(
            place.name,
            tuple(primary_key),
            tuple(partitioned_by),
            tuple(Index.over(columns) for columns in indexes),
            dict(options),
            comment,
            if_not_exists,
            or_replace,
            None if checkpoint is None else os.fspath(checkpoint),
            trigger or {},
            query_name,
            drop_on_cancel,
            hook or JobStatusHook(),
        )
        return statement.carry_out(place.tables, df, self.optimized)

    def tables(self, database: str | None = None) -> tuple[str, ...]:
        """Names of all tables of a database, sorted; of the current one if None."""
        return self.databases.tables(database).names()

    def table(self, name: str) -> Table:
        """The managed table of this name; of an upsert topic its mirror, which is for reading only.

        Raises:
            ConfigurationError: no table can have this name, or the table has a connector and no mirror.
            TableNotFoundError: there is no such table.
            CorruptTableError: its files are damaged, or of another format version.
        """
        connected = self.connected(name)
        return self._managed(name) if connected is None else connected.mirror_table()

    def mirror(
        self, spark: SparkSession, name: str, trigger: Mapping[str, Any] | None = None
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

        Raises:
            ConfigurationError: the table is managed, or of another connector.
            TableNotFoundError: there is no such table.
            KafkaUnavailableError: the brokers do not answer.
        """
        connected = self.connected(name)
        if connected is None:
            raise ConfigurationError(
                f"table {name!r}: only a table of the connector 'upsert-kafka' has a mirror, got a managed "
                "one, which can be looked up itself; use it as it is"
            )
        query = connected.keep_mirror(spark, trigger or {})
        self.mirrors[self.databases.place(name).path] = query
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
        """A table's rows as a batch DataFrame: of the latest snapshot, or of the one with this id.

        Computed columns stand at their places.

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

    def write_changes(self, df: DataFrame, name: str) -> DataStreamWriter:
        """A writer that applies a streaming DataFrame to a table.

        A managed table takes each batch exactly once; of a topic ``sink.delivery-guarantee`` decides.
        With a column ``_row_kind`` the rows are changes. Without it they are upserts, which only a look at
        the query's plan can tell from changes that have lost their kind; a catalog made with ``optimize``
        takes that look, and carries the kind through. The caller adds ``option("checkpointLocation", …)``
        and starts it.

        Raises:
            ConfigurationError: the DataFrame is no stream, or has no ``_row_kind`` and the catalog no
                ``optimize``.
            SchemaError: its columns do not fit the table.
        """
        if (connected := self.connected(name)) is not None:
            return connected.write_changes(self.optimized(df, name, connected.sink_key))
        table = self._managed(name)
        return frames.write_changes(self.optimized(df, name, table.schema.primary_key), table.path)

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
        return connected.write_upsert(self.optimized(df, name, connected.sink_key))

    def optimized(self, df: DataFrame, name: str, sink_key: Sequence[str] | None) -> DataFrame:
        """A DataFrame as it may be written: what ``optimize`` made of it, or changes with their kinds.

        Args:
            df: a batch, which comes back as it is, or a stream.
            name: the table, for messages.
            sink_key: the table's primary key; () for none, None if that is not known.

        Raises:
            ConfigurationError: the stream has no ``_row_kind``, and the catalog no ``optimize``.
        """
        if self._optimize is not None and df.isStreaming:
            if "sink_key" in inspect.signature(self._optimize).parameters:
                return self._optimize(df, sink_key=sink_key)
            return self._optimize(df)
        if df.isStreaming and ROW_KIND_COLUMN not in df.columns:
            raise ConfigurationError(
                f"table {name!r}: a stream must have the column {ROW_KIND_COLUMN!r}, or changes that have "
                "lost their kind would look like upserts; make the catalog as "
                "Catalog(warehouse, optimize=planner.optimize), which can tell them apart"
            )
        return df

    def schema(self, name: str) -> TableSchema:
        """What a table looks like, of whatever connector it is.

        Raises:
            ConfigurationError: no table can have this name.
            TableNotFoundError: there is no such table.
        """
        definition = persistence.load(self.databases.place(name).existing())
        return self._managed(name).schema if definition is None else definition.schema

    def connected(self, name: str, options: Mapping[str, str] = {}) -> ConnectorTable | None:
        """The table with a connector; None for a managed table.

        Args:
            name: the table.
            options: those that replace options of the table.

        Raises:
            ConfigurationError: no table can have this name, or an option is wrong.
            TableNotFoundError: there is no such table.
        """
        place = self.databases.place(name)
        path = place.existing()
        definition = persistence.load(path)
        if definition is None:
            return None
        changed = replace(definition, options={**definition.options, **options})
        return connect(place.shown, changed, path)

    def _managed(self, name: str) -> Table:
        return Table.open(self.databases.place(name).existing())
