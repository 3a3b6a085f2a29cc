"""Streams in update mode into an upsert topic: what a Python sink cannot do, through ``foreachBatch``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.errors import ConfigurationError
from upsert.kafka.options import UPSERT
from upsert.kafka.sink import declared_for_write
from upsert.kafka.sink_columns import sink_key, sink_of, written_schema
from upsert.kafka.sink_distribution import Distribution, distribution_of
from upsert.kafka.table import KafkaTable
from upsert.materializer.choice import Changes, choose
from upsert.materializer.hidden_table import FOLDER, HiddenTable, KeptRows
from upsert.materializer.micro_batch import write_materialized
from upsert.store.paths import table_folder
from upsert.streaming_query import query_of_micro_batch


def write_upsert(df: DataFrame, table: KafkaTable | Mapping[str, str]) -> DataStreamWriter:
    """A writer of a stream's rows as upserts, in output mode ``update``.

    For aggregates whose rows change, which Spark hands to no Python sink. Each row replaces the one of
    its key; with a column ``_row_kind`` a row may also delete its key. A micro-batch may have several rows of
    a key only if they cancel, are equal, or ``sequence.field`` orders them. Changes that the key does not
    tell apart go through a hidden table as the option ``sink.materialize`` says, see ``upsert.materializer``.
    The caller adds at least ``option("checkpointLocation", …)`` and starts it.

    The rows are distributed by their key, so that ``sink.delivery-guarantee`` = ``exactly-once`` holds
    whatever process dies: a micro-batch that comes again is written only by the tasks that had not done so.

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
        'DataStreamWriter'
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
    write = WriteBatch(table.name, distribution)
    if choose(sink_of(table), Changes.of_schema(df.schema.jsonValue())).is_materialized:
        return write_materialized(df, _hidden_table(table, df, distribution), write)
    return df.writeStream.outputMode("update").foreachBatch(write)


def _hidden_table(table: KafkaTable, df: DataFrame, distribution: Distribution) -> HiddenTable:
    """Where the rows of the topic's keys are kept: with its state, in a bucket for each task that writes.

    Raises:
        ConfigurationError: it is not known where the state lies.
    """
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


@dataclass(frozen=True)
class WriteBatch:
    """Writes one micro-batch; Spark calls it in the driver, for the same one again after a failure.

    Attributes:
        table: the table, for messages.
        distribution: how its rows are shared among tasks, and written.
    """

    table: str
    distribution: Distribution

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch.

        Raises:
            ConfigurationError: the call comes from no query, or its thread does not know which.
        """
        query = query_of_micro_batch(rows, f"{self.table}: micro-batches of write_upsert")
        options = self.distribution.options | {"sink.micro-batch": f"{query}:{batch}"}
        writer = self.distribution.of(rows).write.format(self.distribution.format)
        writer.options(**options).mode("append").save()
