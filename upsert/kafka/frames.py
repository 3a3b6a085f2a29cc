"""Kafka tables as DataFrames: what ``Catalog`` gives its users."""

from __future__ import annotations

import warnings

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.errors import ConfigurationError
from upsert.kafka.cleanup import cleanup_warning
from upsert.kafka.declaration import given_options
from upsert.kafka.options import key_of
from upsert.kafka.sink_columns import sink_of
from upsert.kafka.sink_distribution import distribution_of
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.kafka.write_upsert import write_upsert
from upsert.materializer.choice import Changes, choose
from upsert.spark_formats import register
from upsert.stream_keys import UpsertKey

__all__ = ["read", "read_changes", "write", "write_changes", "write_upsert"]


def read_changes(spark: SparkSession, table: KafkaTable, **options: object) -> DataFrame:
    """A table as a streaming DataFrame: its columns, then ``_row_kind`` where its rows are changes.

    Args:
        spark: the session; the formats are registered in it.
        table: the table.
        **options: those of the connector, as keywords: ``changelog="upsert"``,
            ``max_rows_per_trigger=10_000``. For this query they replace those of the table.

    Raises:
        ConfigurationError: an option is unknown or wrong.
        KafkaUnavailableError: the brokers do not answer.

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
    changed = _changed(table, options)
    if warning := cleanup_warning(changed):
        warnings.warn(warning, stacklevel=4)  # as the catalog calls this
    if changed.is_changelog and changed.values["scan.parallelism"] is not None:
        warnings.warn(
            f"{changed.name}: option 'scan.parallelism' does nothing for a topic of changes: one task "
            "reads each partition, for the order of its keys; give it more partitions, or leave it out",
            stacklevel=4,
        )
    register(spark)
    reader = spark.readStream.format(SPARK_FORMATS[changed.connector])
    return reader.options(**given_options(changed)).load()


def read(spark: SparkSession, table: KafkaTable) -> DataFrame:
    """The rows that a table holds now, as a batch DataFrame.

    Of an upsert topic these are the rows that are not deleted, without ``_row_kind``; of a topic of changes
    the changes, with it; of other topics all rows.
    """
    register(spark)
    reader = spark.read.format(SPARK_FORMATS[table.connector]).options(**given_options(table))
    return reader.option("row-kind", str(not table.is_upsert).lower()).load()


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
    return distribution.of(df).writeStream.format(distribution.format).options(**distribution.options)


def write(df: DataFrame, table: KafkaTable) -> None:
    """Send all rows of a batch DataFrame to a table.

    Raises:
        ConfigurationError: the DataFrame is a stream, or a topic is missing.
        SchemaError: its columns do not fit the table.
        KafkaUnavailableError: the brokers do not answer.
        DeliveryError: they did not take a record; others may have arrived.
    """
    if df.isStreaming:
        raise ConfigurationError(
            f"{table.name}: write needs a batch DataFrame, got a streaming one; use write_changes"
        )
    distribution = distribution_of(table, df)
    writer = distribution.of(df).write.format(distribution.format).options(**distribution.options)
    writer.mode("append").save()


def _changed(table: KafkaTable, options: dict[str, object]) -> KafkaTable:
    if not options:
        return table
    new = {key_of(keyword): str(value) for keyword, value in options.items()}
    given = {name: text for name, text in table.given.items() if key_of(name) not in new}
    return KafkaTable.called(table.name, table.connector, table.schema, given | new)
