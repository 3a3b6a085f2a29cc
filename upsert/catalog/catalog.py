"""A folder of tables by name: made and dropped with SQL, read and written with Spark.

The tables of a catalog are the folders ``<warehouse>/<name>``, nothing else is stored, so two processes
with catalogs of one folder see the same tables. A managed table lies in its folder; of a table with a
connector (``WITH ('connector' = 'upsert-kafka', …)``) only the definition does, and its state.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.catalog import persistence
from upsert.catalog.connectors import ConnectorTable, connect
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.statements import CreateTable, DropTable
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, TableExistsError
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Index
from upsert.store import Table
from upsert.store.paths import table_folder

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Catalog:
    """The tables in one folder.

    Args:
        warehouse: a local folder or a ``file:`` URI; it is made with the first table.
        optimize: ``planner.optimize``, or a function like it. Every DataFrame given to ``write_changes``
            passes through it, so that its joins become delta joins and its ``_row_kind`` is carried along.
            If it has a parameter ``sink_key``, it is told the table's primary key, () for none: a table that
            replaces rows by key needs no ``-U``.

    Raises:
        ConfigurationError: the warehouse is no local folder.

    >>> import tempfile, pyarrow as pa
    >>> catalog = Catalog(tempfile.mkdtemp())
    >>> catalog.sql("CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
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
    ) -> None:
        self._tables = Warehouse(table_folder(warehouse))
        self._optimize = optimize
        self._mirrors: dict[str, StreamingQuery] = {}

    def __repr__(self) -> str:
        return f"Catalog({self.warehouse!r})"

    @property
    def warehouse(self) -> str:
        """The absolute path of the folder."""
        return self._tables.folder

    def sql(self, text: str) -> None:
        """Carry out one statement: ``CREATE TABLE`` or ``DROP TABLE``.

        Follows FLIP-188, FLIP-486 (``INDEX``), and for connectors FLIP-149 and FLIP-107 (``METADATA``).
        A table is there, or gone, for everybody at one moment; a crash leaves either the one or the other.
        ``DROP TABLE`` deletes a managed table's rows and history; of a table with a connector the definition,
        the state of its readers and its mirror, and nothing outside, no topic.

        Raises:
            SchemaError: the statement is none of these, contradicts itself, or its columns do not fit the
                connector.
            ConfigurationError: the table's name, its connector or one of its options is not possible.
            TableExistsError: ``CREATE TABLE`` without IF NOT EXISTS, and the table is there.
            TableNotFoundError: ``DROP TABLE`` without IF EXISTS, and there is no such table.
        """
        # Every task of a query imports this module; the parser behind it is for the few that read DDL.
        from upsert.catalog.ddl import parse

        statement = parse(text)
        match statement:
            case CreateTable():
                self._create(statement)
            case DropTable():
                self._drop(statement)

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

        statement = TableFromQuery(
            name,
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
        return statement.carry_out(self._tables, df, self._optimized)

    def tables(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""
        return self._tables.names()

    def table(self, name: str) -> Table:
        """The managed table of this name; of an upsert topic its mirror, which is for reading only.

        Raises:
            ConfigurationError: no table can have this name, or the table has a connector and no mirror.
            TableNotFoundError: there is no such table.
            CorruptTableError: its files are damaged, or of another format version.
        """
        path = self._tables.existing(name)
        connected = self._connected(name, path)
        return Table.open(path) if connected is None else connected.mirror_table()

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
        path = self._tables.existing(name)
        connected = self._connected(name, path)
        if connected is None:
            raise ConfigurationError(
                f"table {name!r}: only a table of the connector 'upsert-kafka' has a mirror, got a managed "
                "one, which can be looked up itself; use it as it is"
            )
        self._mirrors[name] = connected.keep_mirror(spark, trigger or {})
        return self._mirrors[name]

    def read_changes(self, spark: SparkSession, name: str, **options: object) -> DataFrame:
        """A table's changes as a streaming DataFrame: its columns, then ``_row_kind``.

        A ``kafka`` table whose records are only added, in a format of rows, has no ``_row_kind``.

        Args:
            spark: the session; the format is registered in it.
            name: the table.
            **options: those of the format ``upsert-table`` or of the connector, as keywords:
                ``scan_mode="latest"``, ``max_rows_per_trigger=10_000``. For one query they replace those of
                CREATE TABLE.
        """
        path = self._tables.existing(name)
        if (connected := self._connected(name, path)) is not None:
            return connected.read_changes(spark, **options)
        return frames.read_changes(spark, path, **options)

    def read(self, spark: SparkSession, name: str, snapshot: int | None = None) -> DataFrame:
        """A table's rows as a batch DataFrame: of the latest snapshot, or of the one with this id.

        Raises:
            ConfigurationError: the table has a connector, and a snapshot is asked for.
        """
        path = self._tables.existing(name)
        if (connected := self._connected(name, path)) is None:
            return frames.read(spark, path, snapshot)
        if snapshot is not None:
            raise ConfigurationError(
                f"table {name!r}: a table with a connector has no snapshots, got {snapshot!r}; leave it out"
            )
        return connected.read(spark)

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
        path = self._tables.existing(name)
        if (connected := self._connected(name, path)) is not None:
            return connected.write_changes(self._optimized(df, name, connected.sink_key))
        return frames.write_changes(self._optimized(df, name, Table.open(path).schema.primary_key), path)

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
        connected = self._connected(name, self._tables.existing(name))
        if connected is None:
            raise ConfigurationError(
                f"table {name!r}: write_upsert needs a table of the connector 'upsert-kafka', got a managed "
                "one; use write_changes"
            )
        return connected.write_upsert(self._optimized(df, name, connected.sink_key))

    def _optimized(self, df: DataFrame, name: str, sink_key: Sequence[str] | None) -> DataFrame:
        """The DataFrame as it may be written: what ``optimize`` made of it, or changes with their kinds."""
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

    def _connected(self, name: str, path: str) -> ConnectorTable | None:
        """The table with a connector; None for a managed table."""
        definition = persistence.load(path)
        return None if definition is None else connect(name, definition, path)

    def _create(self, statement: CreateTable) -> None:
        name = statement.name
        path = self._tables.path(name)
        if os.path.isfile(path):
            raise TableExistsError(f"table {name!r}: {path!r} is a file; choose another name")
        try:
            if "connector" in statement.options:
                self._define(name, path, statement)
            else:
                with persistence.ddl_lock(self.warehouse):
                    self._sweep(name)
                    Table.create(path, statement.schema, statement.options)
        except TableExistsError:
            if not statement.if_not_exists:
                raise

    def _define(self, name: str, path: str, statement: CreateTable) -> None:
        options = dict(statement.options)
        definition = persistence.Definition(options.pop("connector"), statement.schema, options)
        connect(name, definition, path)
        with persistence.ddl_lock(self.warehouse):
            self._sweep(name)
            persistence.create(path, definition)

    def _sweep(self, name: str) -> None:
        """Take away what a CREATE TABLE AS that died has left under a name."""
        from upsert.catalog.new_tables import clean_up
        from upsert.catalog.staged_tables import StagedTables

        StagedTables(self._tables, clean_up).sweep(name)

    def _drop(self, statement: DropTable) -> None:
        name = statement.name
        if (query := self._mirrors.get(name)) is not None and query.isActive:
            raise ConfigurationError(
                f"table {name!r}: its mirror is kept by a query that runs; stop it first, with "
                f"catalog.mirror(spark, {name!r}).stop()"
            )
        if not self._tables.drop(name) and not statement.if_exists:
            raise self._tables.not_found(name)
