"""A folder of tables by name: made and dropped with SQL, read and written with Spark.

The tables of a catalog are the folders ``<warehouse>/<name>``, nothing else is stored, so two processes
with catalogs of one folder see the same tables. A managed table lies in its folder; of a table with a
connector (``WITH ('connector' = 'upsert-kafka', …)``) only the definition does, and its state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from upsert.catalog.job_hooks import JobStatusHook
from upsert.catalog.table_frames import TableFrames
from upsert.schema import Index

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.results import Result


class Catalog(TableFrames):
    """The tables in one folder.

    Args:
        warehouse: a local folder, a ``file:`` URI, ``s3://bucket/folder`` or ``hdfs://host/folder``; it is
            made with the first table.
        optimize: ``planner.optimize``, or a function like it. Every DataFrame given to ``write_changes``
            passes through it, so that its joins become delta joins and its ``_row_kind`` is carried along.
            If it has a parameter ``sink_key``, it is told the table's primary key, () for none: a table that
            replaces rows by key needs no ``-U``.
        name: may stand before the name of a database, as in ``main.default.orders``.

    Attributes:
        catalogs: this warehouse by its name, those of CREATE CATALOG, and the current one.
        databases: the databases of the current catalog; names of tables are looked up in the current one.
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
        super().__init__(warehouse, optimize, name)

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
        from upsert.errors import own_errors_first

        with own_errors_first():
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
