"""A folder of tables by name: made and dropped with SQL, read and written with Spark.

The tables of a catalog are the folders ``<warehouse>/<name>``, nothing else is stored, so two processes
with catalogs of one folder see the same tables. A managed table lies in its folder; of a table with a
connector (``WITH ('connector' = 'upsert-kafka', …)``) only the definition does, and its state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.catalog.connectors.base import Connector
from upsert.catalog.context import Context
from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.namespace import Databases
from upsert.catalog.results import given_frame
from upsert.catalog.run.scans import metadata_options, read_managed, system_frame, with_declared
from upsert.catalog.system_tables import split
from upsert.errors import ConfigurationError, SchemaError, own_errors_first
from upsert.managed import frames
from upsert.managed.writer import sink_of
from upsert.materializer.choice import mode_of
from upsert.schema import Index, TableSchema, listed
from upsert.spark.connect import check_is_session, is_connect
from upsert.store import Table
from upsert.store.predicate import Where
from upsert.store.table_options import SINK_MATERIALIZE

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.query_recorder import QueryRecorder
    from upsert.catalog.results import Result
    from upsert.sql.parameters import Args
    from upsert.views.view import View


class Catalog:
    """The tables in one folder.

    Args:
        warehouse: a local folder, a ``file:`` URI, or a folder in an object store or HDFS, as
            ``s3://bucket/folder`` (docs/object-stores.md); it is made with the first table.
        optimize: ``planner.optimize``, or a function like it. Every DataFrame given to ``write_changes``
            passes through it, so that its joins become delta joins and its ``_row_kind`` is carried along.
            If it has a parameter ``sink_key``, it gets the table's primary key, () for none: a table that
            replaces rows by key needs no ``-U``. If it has one ``sink_rule``, it gets the option by which the
            table makes one row of several of a key. If it has a parameter ``view``, materialized views are
            refreshed through it: by what has changed, where that is possible.
        name: may stand before the name of a database, as in ``main.default.orders``.

    Attributes:
        catalogs: this warehouse by its name, those of CREATE CATALOG, and the current one.
        options: what ``SET`` sets: how statements run, and defaults of new tables; see
            ``upsert.catalog.session``.
        mirrors: the queries by which this catalog keeps mirrors, by the folder of the table.
        context: what statements are executed in.

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
        self.context = Context(warehouse, optimize, name)
        self.catalogs = self.context.catalogs
        self.options = self.context.options
        self.mirrors = self.context.mirrors

    def __repr__(self) -> str:
        return f"Catalog({self.warehouse!r})"

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            f"catalog of {self.warehouse!r}: is a session of its process, it cannot be pickled or copied; "
            "make one in the other process, Catalog(warehouse), or send tables, catalog.table(name)"
        )

    def _follow(self) -> None:
        """Let the sessions that this catalog is exposed to see which tables there are."""
        for spark in list(self.context.exposed_to):
            self.expose(spark)

    @property
    def databases(self) -> Databases:
        """The databases of the current catalog; names of tables are looked up in the current one of these."""
        return self.context.databases

    @property
    def warehouse(self) -> str:
        """The absolute path of the current catalog's folder."""
        return self.context.warehouse

    def sql(self, text: str, spark: SparkSession | None = None, *, args: Args | None = None) -> Result:
        """Execute one statement.

        ``CREATE TABLE``, also ``AS SELECT``, ``DROP TABLE``, ``ALTER TABLE``, ``INSERT``, ``DELETE FROM``,
        ``UPDATE``, ``MERGE INTO``, queries, ``SHOW``, ``DESCRIBE``, ``SET``, databases: docs/sql.md. Follows
        FLIP-188, FLIP-218, FLIP-486 (``INDEX``), FLIP-149 and FLIP-107. A table appears and disappears
        atomically, also in a crash.
        ``DROP TABLE`` deletes a managed table's rows and history; of a table with a connector the definition,
        the state of its readers and its mirror, and nothing outside, no topic.

        Args:
            text: the statement; ``upsert.catalog.script.split_statements`` splits a text with several.
            spark: the session that runs queries; the active one of this thread if None.
            args: values for the parameters of its expressions, as ``spark.sql`` takes them: by name for
                ``:name``, a list for each ``?``. They are bound as literals, never put into the text.

        Returns:
            See ``upsert.catalog.results``: ``Rows`` of what is shown, the ``Frame`` of a query, or the rows
            that it has ``Found`` where there is no session and none is needed, the ``Running`` query of a
            streaming statement, or that the statement is ``Done``.

        Raises:
            SchemaError: the text is no statement (the message has the position), contradicts itself, or does
                not fit the tables.
            ConfigurationError: a name, a connector or an option is not possible, or a session is missing.
            TableExistsError: ``CREATE TABLE`` without IF NOT EXISTS of an existing table.
            TableNotFoundError: there is no such table.

        >>> import tempfile
        >>> catalog = Catalog(tempfile.mkdtemp())
        >>> catalog.sql("CREATE TABLE words (word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED)")
        <CREATE TABLE words: created>
        >>> catalog.sql("INSERT INTO words VALUES ('a', 1), ('b', 2)", spark)
        <INSERT INTO words: written, snapshot 1: 2 rows>
        >>> catalog.sql("SELECT word FROM words WHERE n > 1", spark)
        <SELECT: DataFrame[word: string]>
        >>> catalog.sql("DELETE FROM words WHERE word = :word", args={"word": "a"})
        <DELETE FROM words: deleted, snapshot 2: 1 row>
        """
        # Every task of a query imports this module; the parser behind it is for the few that read SQL.
        from upsert.catalog.run.dispatch import execute
        from upsert.catalog.run.jobs import read_by
        from upsert.sql.parameters import bound
        from upsert.sql.parser import parse
        from upsert.sql.statements import OtherTables

        if not isinstance(text, str):
            raise SchemaError(f"statement: must be a text of SQL, got {type(text).__name__}; write it in SQL")
        if spark is not None:
            check_is_session(spark, "statement: its second argument", "give values of parameters as args=…")
        with own_errors_first():
            statement = bound(parse(read_by(spark, text)), args)
            result = execute(self.context, statement, spark)
            if isinstance(statement, OtherTables):
                self._follow()
            return result

    def tables(self, database: str | None = None) -> tuple[str, ...]:
        """Names of all tables of a database, sorted; of the current one if None."""
        return self.context.tables(database)

    def table(self, name: str) -> Table:
        """The managed table of this name; of a topic or a Delta table its mirror, which is for reading only.

        Raises:
            ConfigurationError: no table can have this name, or the table has a connector and no mirror.
            TableNotFoundError: there is no such table.
            CorruptTableError: its files are damaged, or of another format version.
        """
        return self.context.table(name)

    def schema(self, name: str) -> TableSchema:
        """What a table looks like, of whatever connector it is.

        Raises:
            ConfigurationError: no table can have this name.
            TableNotFoundError: there is no such table.
        """
        return self.context.schema(name)

    def connected(self, name: str, options: Mapping[str, str] = {}) -> Connector | None:
        """The table with a connector; None for a managed table.

        Args:
            name: the table.
            options: those that replace options of the table.

        Raises:
            ConfigurationError: no table can have this name, or an option is wrong.
            TableNotFoundError: there is no such table.
        """
        return self.context.connected(name, options)

    def mirror(
        self,
        spark: SparkSession,
        name: str,
        trigger: Mapping[str, Any] | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
    ) -> StreamingQuery:
        """Keep a managed table equal to a topic with keys or a Delta table, for joins to look its rows up.

        The mirror has the indexes that CREATE TABLE declares, and its options that begin with ``mirror.``,
        as in ``'mirror.bucket' = '4'``. One query maintains it, exactly once, with its checkpoint beside the
        mirror in the warehouse. A later call continues where the last query stopped, or returns the query
        that runs in this session. ``table(name)`` is the mirror, and the planner uses it by itself. Stop the
        query before ``DROP TABLE``, which drops the mirror too.

        Args:
            spark: the session that runs the query.
            name: a table of the connector ``upsert-kafka``; or with a PRIMARY KEY of ``delta``, or of
                ``kafka`` with a format of Debezium.
            trigger: of the query, as ``DataStreamWriter.trigger`` takes it: ``{"availableNow": True}``.
            checkpoints: folder in which the checkpoint gets a folder; None: beside the mirror, of a warehouse
                in an object store ``'checkpoint.location'`` of ``SET``.

        Raises:
            ConfigurationError: the table is managed, or of another connector; or there is no folder for the
                checkpoint; or the Delta table keeps no change data feed.
            SchemaError: the Delta table has lost a column, or has it with another type.
            TableNotFoundError: there is no such table.
            KafkaUnavailableError: the brokers do not answer.
        """
        from upsert.catalog.run.connector_changes import start_mirror

        check_is_session(spark, "mirror: its first argument", "write mirror(spark, name)")
        return start_mirror(self.context, name, spark, trigger, checkpoints)

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
        table = self.context.managed(name)
        check_is_session(spark, "read_changes: its first argument", "write read_changes(spark, name)")
        df = frames.read_changes(spark, table.path, **metadata_options(table.schema), **options)
        return with_declared(df, table.schema)

    def read(
        self,
        spark: SparkSession,
        name: str,
        snapshot: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> DataFrame:
        """A table's rows as a batch DataFrame: of the snapshot with this id, or of the latest one now.

        Such a DataFrame has the same rows whenever it runs, until its snapshot expires; call ``read`` again
        for later rows. Only a stream that looks rows up in it (``planner.explain``: form "lookup") finds the
        newest ones. Computed columns stand at their places. For a system table such as ``orders$files`` it
        has the rows of this moment.

        Rows of a web service or of PostgreSQL can only be looked up by key: such a DataFrame is for a join
        that ``planner.optimize`` turns into lookups, and cannot be read by itself.

        Name ``columns`` to read less: Spark does not pass to Python which columns a query needs. Comparisons
        in ``where`` and ``filter`` of the DataFrame reach the read of a large table by themselves;
        over Spark Connect name them here. ``Catalog.sql`` takes both from the text.

        Args:
            spark: the session; the format is registered in it.
            name: the table.
            snapshot: id of the snapshot; None for the latest one.
            columns: names of the columns, in this order; None for all.
            where: which rows, by stored columns, as ``Snapshot.scan`` takes it: ``[("id", ">", 7)]``. No
                comparison is true for NaN, which in Spark is the greatest number.

        Raises:
            ConfigurationError: columns or rows are asked for of a table with a connector or a system table,
                or a snapshot of one with a connector.
            SchemaError: a column is unknown or ``where`` does not fit the table.
        """
        own, system = split(name)
        connected = None if system is not None else self.connected(name)
        if system is None and connected is None:
            check_is_session(spark, "read: its first argument", "write read(spark, name)")
            return read_managed(spark, self.context.managed(name), snapshot, columns, where)
        if columns is not None or where is not None:
            raise ConfigurationError(
                f"table {name!r}: a system table, or one with a connector, is read whole, got columns "
                f"{columns!r} and where {where!r}; select and filter the DataFrame"
            )
        if connected is None:
            return system_frame(spark, self.context.managed(own), str(system), snapshot)
        if snapshot is not None:
            raise ConfigurationError(
                f"table {name!r}: a table with a connector has no snapshots, got {snapshot!r}; leave it out"
            )
        if connected.is_looked_up and not is_connect(spark):
            return connected.lookup_rows(spark, None)
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

        A managed table takes each batch exactly once; for a topic ``sink.delivery-guarantee`` decides.
        With a column ``_row_kind`` the rows are changes, without it upserts. A catalog made with ``optimize``
        reads the query's plan: it keeps ``_row_kind`` through projections, and finds out whether the table's
        key tells the rows apart. If it does not, a hidden table keeps all rows of each key, and the table has
        the newest one that remains; see ``sink.materialize`` in docs/sql.md. The caller adds
        ``option("checkpointLocation", …)`` and starts the writer.

        Args:
            df: the stream.
            name: the table.
            sink_materialize: ``sink.materialize`` of this query; None: the table's own.
            start_from: checkpoint of a stopped query over the same tables, from whose versions a query of
                delta joins continues with a new checkpoint, without a first load; see ``planner.optimize``.
                Leave it out once the new query has done a micro-batch.

        Raises:
            ConfigurationError: the DataFrame is no stream, or has no ``_row_kind`` and the catalog no
                ``optimize``; or it cannot continue from another checkpoint, or ``sink.materialize`` cannot be
                what it is.
            SchemaError: its columns do not fit the table.

        Warns:
            UnprovenKeyWarning: it is not known whether the key tells the rows apart.
        """
        df = given_frame(df, f"write_changes into {name!r}")
        given = {} if sink_materialize is None else {SINK_MATERIALIZE.key: sink_materialize}
        mode = mode_of(given, f"table {name!r}")
        if (connected := self.connected(name, given)) is not None:
            if sink_materialize is not None and not connected.sink_key:
                raise ConfigurationError(
                    f"table {name!r}: sink_materialize needs a table in which a row replaces the earlier one "
                    f"of its PRIMARY KEY, got {sink_materialize!r} for another; leave it out"
                )
            return connected.write_changes(self.context.optimized(df, name, connected.sink, start_from))
        table = self.context.managed(name)
        changes = self.context.optimized(df, name, sink_of(table, mode), start_from)
        return frames.write_changes(changes, table.path, given, self.context.in_arrow)

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
        df = given_frame(df, f"write_upsert into {name!r}")
        return connected.write_upsert(self.context.optimized(df, name, connected.sink))

    def create_view(
        self,
        name: str,
        query: str,
        *,
        primary_key: Sequence[str] = (),
        partitioned_by: Sequence[str] = (),
        indexes: Iterable[Sequence[str]] = (),
        options: Mapping[str, str] = {},
        comment: str | None = None,
        if_not_exists: bool = False,
        or_replace: bool = False,
        spark: SparkSession | None = None,
    ) -> View:
        """Create a materialized view: a table with the rows of a query, refreshed as its tables change.

        The view appears with all rows of its query, or not at all, whatever fails or is killed in between.
        ``view.refresh()`` brings it up to date, ``view.start()`` keeps it so; at each of its snapshots it
        equals the query over one version of each table that it reads. See docs/views.md.

        Args:
            name: of the view.
            query: a SELECT over managed tables of this catalog and views, which depends on nothing else.
            primary_key: columns that tell the rows apart; without them the view is a multiset of rows.
            partitioned_by: the partition columns.
            indexes: the columns of each secondary index.
            options: as in ``WITH (…)``: those of a table.
            comment: of the view.
            if_not_exists: do nothing if there is a table or view of this name.
            or_replace: replace an existing view atomically.
            spark: the session that runs the query; the active one of this thread if None.

        Raises:
            TableExistsError: there is a table or view of this name.
            SchemaError: it is no text, no query, or one that is no function of its tables.
            ConfigurationError: the arguments do not fit together, or a session is missing.
            ChangelogError: two rows of the query have one key.

        >>> import tempfile
        >>> catalog = Catalog(tempfile.mkdtemp())
        >>> _ = catalog.sql("CREATE TABLE sold (id INT, fruit STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        >>> _ = catalog.sql("INSERT INTO sold VALUES (1, 'pear', 2), (2, 'pear', 3)", spark)
        >>> query = "SELECT fruit, sum(n) AS n FROM sold GROUP BY fruit"
        >>> view = catalog.create_view("totals", query, primary_key=["fruit"], spark=spark)
        >>> _ = catalog.sql("DELETE FROM sold WHERE id = 1", spark)
        >>> view.refresh(), catalog.table("totals").snapshot().scan().to_pylist()
        (True, [{'fruit': 'pear', 'n': 3}])
        """
        from upsert.catalog.run import views
        from upsert.catalog.run.jobs import read_by
        from upsert.sql.query import QueryText
        from upsert.sql.statements import CreateView

        if not isinstance(query, str):
            raise SchemaError(
                f"view {name!r}: its query must be SQL text, got {type(query).__name__}: other processes "
                "refresh the view, too, and do not have that; write the query in SQL"
            )
        statement = CreateView(
            name,
            QueryText.of(read_by(spark, query), subject=f"view {name!r}"),
            listed(primary_key, "primary_key"),
            listed(partitioned_by, "partitioned_by"),
            tuple(listed(columns, "each of indexes") for columns in indexes),
            comment,
            options,
            if_not_exists,
            or_replace,
        )
        with own_errors_first():
            views.create(self.context, statement, spark)
            self._follow()
            return views.opened(self.context, name, spark)

    def view(self, name: str, spark: SparkSession | None = None) -> View:
        """The materialized view of this name.

        Args:
            name: of the view.
            spark: the session that refreshes it; the active one of this thread if None.

        Raises:
            TableNotFoundError: there is no such table.
            ConfigurationError: it is no materialized view.
        """
        from upsert.catalog.run import views

        return views.opened(self.context, name, spark)

    def record_queries(self, spark: SparkSession) -> QueryRecorder:
        """Let the streaming queries of a session leave in the warehouse what they do, for ``deltajoin ui``.

        From now on each query that the session starts, over any tables, has a small file in ``.queries`` of
        the current catalog's warehouse: its name, its checkpoint, its last 60 micro-batches, its position in
        each table, and the error with which it failed. A thread of the driver writes at most one file a
        second; no micro-batch waits for it. If a file cannot be written, a ``QueryRecordWarning`` says so,
        and the queries continue. A second call returns the same recorder. The command ``deltajoin`` records
        its queries by itself.

        Args:
            spark: the session.

        Returns:
            The recorder; its ``close()`` stops it, and writes the ends of queries that have ended.

        >>> import tempfile
        >>> catalog = Catalog(tempfile.mkdtemp())
        >>> recorder = catalog.record_queries(spark)
        >>> stream = spark.readStream.format("rate").load()
        >>> query = stream.writeStream.format("noop").queryName("beat").start()
        >>> query.stop()
        >>> recorder.close()
        >>> from upsert.catalog.query_records import read_all
        >>> [(record.name, record.state) for record in read_all(catalog.warehouse).queries]
        [('beat', 'ended')]
        """
        from upsert.catalog.query_recorder import QueryRecorder

        recorders = self.context.recorders
        for of, one in [*recorders.items()]:
            if one.is_closed:
                recorders.pop(of, None)  # it has the session
        if (found := recorders.get(own := (spark, self.warehouse))) is None:
            found = recorders[own] = QueryRecorder(self.warehouse)
            found.start(spark)
        return found

    def expose(self, spark: SparkSession) -> tuple[str, ...]:
        """Let plain Spark SQL have the tables of the current catalog, under their own names.

        ``spark.sql("SELECT … FROM orders")``, ``spark.table``, ``INSERT INTO`` and ``INSERT OVERWRITE``,
        ``writeStream.toTable`` and tools that only know Spark (a Thrift server) work on managed tables and
        views, always on their newest snapshot. ``readStream.table("orders__changes")`` reads the changes with
        ``_row_kind``. Statements of this catalog that create, alter, rename or drop tables are followed;
        those of other processes by the next call. Tables with a connector, UPDATE, DELETE, MERGE, hints and
        FOR SYSTEM_VERSION are for ``catalog.sql`` alone. ``DROP TABLE`` in plain Spark SQL takes the name
        away, and no row.

        Args:
            spark: the session.

        Returns:
            The tables, with their databases.

        Raises:
            ConfigurationError: Spark has another table of such a name, or a session catalog that is not its
                own (Delta Lake's, Iceberg's).

        >>> import tempfile
        >>> catalog = Catalog(tempfile.mkdtemp())
        >>> _ = catalog.sql("CREATE TABLE pears (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        >>> catalog.expose(spark)
        ('default.pears',)
        >>> _ = spark.sql("INSERT INTO pears VALUES (1, 5), (2, 6)")
        >>> spark.sql("SELECT sum(n) AS n FROM pears").collect()
        [Row(n=11)]
        >>> _ = catalog.sql("DROP TABLE pears")
        >>> spark.catalog.tableExists("pears")
        False
        >>> catalog.unexpose(spark)
        """
        from upsert.catalog.expose import expose

        check_is_session(spark, "expose: its argument", "write expose(spark)")
        names = expose(self.context, spark)
        self.context.exposed_to.add(spark)
        return names

    def unexpose(self, spark: SparkSession) -> None:
        """Take back what ``expose`` has given a session; the tables stay as they are, and so do databases."""
        from upsert.catalog.expose import unexpose

        self.context.exposed_to.discard(spark)
        unexpose(self.context, spark)

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
        """Create a table with the rows of a DataFrame; a reader sees all of them or no table (FLIP-218).

        The table's columns are the DataFrame's. A batch is committed atomically: before it there is no
        table, after it the whole one, whatever fails or is killed in between. A streaming query shows the
        table with its first commit, and keeps it when it fails; the same call with the same checkpoint
        continues it. A table with a connector is defined when its rows have been sent; its topic is deleted
        after a failure only if this call has created it.

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
            or_replace: a batch atomically replaces an existing managed table.
            checkpoint: folder of the streaming query's checkpoint.
            trigger: of the streaming query, as ``DataStreamWriter.trigger`` takes it.
            query_name: of the streaming query.
            drop_on_cancel: drop the table when a user stops the streaming query.
            hook: notified when the job begins and ends.

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
        from upsert.catalog.create_as.create_as import StreamSettings, TableFromQuery

        table_ref = self.context.new(name)
        statement = TableFromQuery(
            table_ref.name,
            listed(primary_key, "primary_key"),
            listed(partitioned_by, "partitioned_by"),
            tuple(Index.over(columns) for columns in indexes),
            dict(options),
            comment,
            if_not_exists,
            or_replace,
            StreamSettings(os.fspath(checkpoint or ""), trigger or {}, query_name, drop_on_cancel),
            hook or JobStatusHook(),
        )
        given = given_frame(df, f"create_table_as {name!r}")
        query = statement.execute(table_ref.tables, given, self.context.optimized, self.context.in_arrow)
        self._follow()
        return query
