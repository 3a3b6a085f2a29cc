"""Kafka tables as DataFrames: what ``Catalog`` and `write_upsert` give their users.

`Distribution` says which task writes which rows: each key has one task, in every micro-batch and every replay
of it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from upsert import types
from upsert.errors import ConfigurationError
from upsert.kafka.declaration import given_options, struct_of
from upsert.kafka.encode import sink_key, sink_of, written_schema
from upsert.kafka.options import UPSERT, key_of
from upsert.kafka.sink import declared_for_write, record_maker
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.kafka.topics import cleanup_warning, partitions_of, warning_of_write
from upsert.materializer.choice import Changes, choose
from upsert.materializer.hidden_table import FOLDER, HiddenTable, KeptRows
from upsert.materializer.micro_batch import Materialize, micro_batch_writer
from upsert.registration import register
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.query_writer import query_writer
from upsert.spark.task import query_of_micro_batch
from upsert.store.paths import table_folder
from upsert.stream_keys import UpsertKey

__all__ = ["read", "read_changes", "write", "write_changes", "write_upsert"]

_OWN = ("sink.parallelism", "sink.row-order", "sink.micro-batch", "sink.materialize")


@dataclass(frozen=True)
class Distribution:
    """How the rows of a query are shared among tasks, and the format and options that write them so.

    Attributes:
        options: all of the format's; may hold secrets.
        tasks: how many tasks there are; None: as many as the query has.
        task: Spark SQL for the task of a row; None where any will do.
    """

    table: str
    format: str
    options: dict[str, str] = field(repr=False)
    tasks: int | None
    task: str | None

    def of(self, df: DataFrame) -> DataFrame:
        """The rows, so shared."""
        if self.tasks is None:
            return df
        if self.task is None:
            return df.coalesce(self.tasks)
        from pyspark.sql.functions import expr

        return df.repartitionById(self.tasks, expr(self.task))

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch; Spark calls it in the driver, for the same one again after a failure."""
        query = query_of_micro_batch(rows, f"{self.table}: micro-batches of write_upsert")
        writer = self.of(rows).write.format(self.format).options(**self.options)
        writer.option("sink.micro-batch", f"{query}:{batch}").mode("append").save()


def distribution_of(table: KafkaTable, df: DataFrame) -> Distribution:
    """How the rows of a DataFrame are brought into a table; its topics are there, or are created now.

    Rows of an upsert table go to the task ``pmod(xxhash64(key), tasks)``, of ``sink.parallelism`` tasks or as
    many as the topic has partitions. Other tables keep every row, in the tasks that have them, or in at most
    ``sink.parallelism`` ones.
    """
    record_maker(table, df.schema)
    partitions = partitions_of(table)
    if warning := warning_of_write(table, partitions, df.columns):
        warnings.warn(warning, stacklevel=4)  # as users call this through write_changes
    register(df.sparkSession)
    options = {name: text for name, text in given_options(table).items() if name.lower() not in _OWN}
    tasks: int | None = table.values["sink.parallelism"]
    task = None
    if table.is_upsert:
        tasks = tasks or max(partitions.values())
        # Spark hashes an INT otherwise than a BIGINT: the table's type counts, in which tasks check it
        columns = (table.schema.column(name) for name in table.primary_key)
        casts = (f"CAST({types.quoted(c.name)} AS {types.sql_name(c.type)})" for c in columns)
        task = f"CAST(pmod(xxhash64({', '.join(casts)}), {tasks}L) AS INT)"
        options |= {"sink.parallelism": str(tasks), "sink.row-order": "none", "sink.materialize": "none"}
    return Distribution(table.name, SPARK_FORMATS[table.connector], options, tasks, task)


def write_upsert(df: DataFrame, table: KafkaTable | Mapping[str, str]) -> DataStreamWriter:
    """A writer of a stream's rows as upserts, in output mode ``update``.

    For aggregates whose rows change, because Python sinks of Spark have no update mode. Each row replaces the
    one of its key; with a column ``_row_kind`` a row may also delete its key. A micro-batch may have several
    rows of a key only if they cancel, are equal, or ``sequence.field`` orders them. Changes that the key does
    not tell apart go through a hidden table as the option ``sink.materialize`` says, see
    ``upsert.materializer``. The caller adds at least ``option("checkpointLocation", …)`` and starts it.

    The rows are distributed by their key, so that ``sink.delivery-guarantee`` = ``exactly-once`` holds when
    any process dies: only those tasks write a repeated micro-batch that have not written it yet.

    Args:
        df: a streaming DataFrame.
        table: options of the format ``upsert-kafka``, or a table. Without the option ``columns`` the columns
            are those of ``df``.

    Raises:
        ConfigurationError: the DataFrame is no stream, an option is wrong, or a topic is missing.
        SchemaError: its columns do not fit the table.

    Example:
        >>> counts = spark.readStream.format("rate").load().groupBy("value").count()
        >>> writer = write_upsert(counts, {
        ...     "primary-key": "value", "topic": "counts", "topic.partitions": "2",
        ...     "key.format": "json", "value.format": "json",
        ...     "properties.bootstrap.servers": kafka.bootstrap_servers,
        ... })
        >>> type(writer).__name__
        'QueryWriter'
    """
    if not isinstance(table, KafkaTable):
        table = declared_for_write(UPSERT, table, df.schema)
    if not df.isStreaming or not table.is_upsert:
        raise ConfigurationError(
            f"{table.name}: write_upsert is for streams into 'upsert-kafka', got a "
            f"{'stream' if df.isStreaming else 'batch'} into {table.connector!r}; use df.write or "
            "write_changes"
        )
    distribution = distribution_of(table, df)
    if choose(sink_of(table), Changes.of_schema(df.schema.jsonValue())).is_materialized:
        hidden = _hidden_table(table, df, distribution)
        return micro_batch_writer(df, Materialize(hidden, distribution.write))
    return micro_batch_writer(df, distribution.write).outputMode("update")


def _hidden_table(table: KafkaTable, df: DataFrame, distribution: Distribution) -> HiddenTable:
    """Where the rows of the topic's keys are kept: with its state, in a bucket for each task that writes."""
    if (state := table.values["state.path"]) is None:
        raise ConfigurationError(
            f"{table.name}: 'sink.materialize' keeps the rows of each key in a folder that the driver and "
            "all executors share, got none; set 'state.path', or say 'sink.materialize' = 'none'"
        )
    sequence = table.values["sequence.field"]
    return HiddenTable(
        table.name,
        os.path.join(table_folder(state), FOLDER),
        KeptRows(written_schema(table, df.columns), sink_key(table), () if sequence is None else (sequence,)),
        distribution.tasks or 1,
        table.primary_key,
    )


def read_changes(spark: SparkSession, table: KafkaTable, **options: object) -> DataFrame:
    """A table as a streaming DataFrame: its columns, then ``_row_kind`` where its rows are changes.

    Args:
        spark: the session; the formats are registered in it.
        table: the table.
        **options: those of the connector, as keywords: ``changelog="upsert"``,
            ``max_rows_per_trigger=10_000``. For this query they replace those of the table.

    Example:
        >>> import pyarrow as pa
        >>> from upsert.kafka.client.admin import create_topic
        >>> from upsert.kafka.client.connection import Connection
        >>> from upsert.schema import TableSchema
        >>> where = {"bootstrap.servers": kafka.bootstrap_servers}
        >>> create_topic(Connection(where), "frames-example", 1, {"cleanup.policy": "compact"})
        >>> given = {"topic": "frames-example", "key.format": "json", "value.format": "json"}
        >>> given |= {f"properties.{name}": value for name, value in where.items()}
        >>> schema = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])
        >>> table = KafkaTable.of("upsert-kafka", schema, given)
        >>> read_changes(spark, table, changelog="upsert").columns
        ['word', 'n', '_row_kind']
    """
    changed = table
    if options:
        new = {key_of(keyword): str(value) for keyword, value in options.items()}
        given = {name: text for name, text in table.given.items() if key_of(name) not in new}
        changed = KafkaTable.called(table.name, table.connector, table.schema, given | new)
    if warning := cleanup_warning(changed):
        warnings.warn(warning, stacklevel=4)  # as the catalog calls this
    register(spark)
    reader = spark.readStream.format(SPARK_FORMATS[changed.connector])
    return reader.options(**given_options(changed)).load()


def read(spark: SparkSession, table: KafkaTable, columns: Collection[str] | None = None) -> DataFrame:
    """The rows that a table holds now, as a batch DataFrame.

    Of an upsert topic these are the rows that are not deleted, without ``_row_kind``; of a topic of changes
    the changes, with it; of other topics all rows. Without ``columns`` they have all columns.
    """
    register(spark)
    reader = spark.read.format(SPARK_FORMATS[table.connector]).options(**given_options(table))
    reader = reader.option("row-kind", str(not table.is_upsert).lower())
    if columns is not None:
        asked = struct_of(table, row_kind=not table.is_upsert)
        known = {*columns, ROW_KIND_COLUMN}
        reader = reader.schema(StructType([field for field in asked.fields if field.name in known]))
    return reader.load()


def write_changes(df: DataFrame, table: KafkaTable) -> DataStreamWriter:
    """A writer of a streaming DataFrame's rows, changes or not, into a table.

    Rows of an upsert table are distributed by their key and folded to one a key and micro-batch; changes that
    its key does not tell apart go through a hidden table, see ``upsert.materializer``. A table of
    the connector ``kafka`` gets all rows as they come. The upserts of an aggregate are written in output mode
    update, as often as a group changes. The caller adds at least
    ``option("checkpointLocation", …)`` and starts it.

    Raises:
        ConfigurationError: the DataFrame is no stream, or a topic is missing.
        SchemaError: its columns do not fit the table.
        KafkaUnavailableError: the brokers do not answer.
    """
    if not df.isStreaming:
        raise ConfigurationError(
            f"{table.name}: write_changes needs a streaming DataFrame, got a batch one; use "
            f"df.write.format({SPARK_FORMATS[table.connector]!r})"
        )
    schema = df.schema.jsonValue()
    if choose(sink_of(table), Changes.of_schema(schema)).is_materialized:
        return write_upsert(df, table)
    if (key := UpsertKey.of_schema(schema)) is not None:
        key.check_is_key(table.primary_key, of=table.name)
        if not key.is_append:
            return write_upsert(df, table)
    distribution = distribution_of(table, df)
    return query_writer(distribution.of(df)).format(distribution.format).options(**distribution.options)


def write(df: DataFrame, table: KafkaTable) -> None:
    """Send all rows of a batch DataFrame to a table."""
    if df.isStreaming:
        raise ConfigurationError(
            f"{table.name}: write needs a batch DataFrame, got a streaming one; use write_changes"
        )
    distribution = distribution_of(table, df)
    writer = distribution.of(df).write.format(distribution.format).options(**distribution.options)
    writer.mode("append").save()
