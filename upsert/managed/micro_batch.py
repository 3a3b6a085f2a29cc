"""Streams in update mode into a managed table: what a Python sink cannot do, through ``foreachBatch``.

The upserts of an aggregate change rows that went out before, which Spark gives to no Python sink. Each
micro-batch is written as a batch that knows the query and its own number, so that the store takes it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.managed.options import FORMAT
from upsert.store.table import Table
from upsert.streaming_query import query_of_micro_batch


@dataclass(frozen=True)
class WriteBatch:
    """Writes one micro-batch; Spark calls it in the driver, for the same one again after a failure.

    Attributes:
        path: folder of the table.
        uuid: the table.
        buckets: how many tasks write, each the rows of one bucket.
        bucket: Spark SQL for the bucket of a row; None where Spark cannot compute it.
        definition: version of the table's definition that the rows' columns are of; None for the present.
        options: more options of the format's writer.
    """

    path: str
    uuid: str
    buckets: int
    bucket: str | None
    definition: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch, unless an earlier call has.

        Raises:
            ConfigurationError: the call comes from no query, or its thread does not know which.
            TableNotFoundError: another table lies there than when the query was started.
        """
        self.write(self.shared(rows), batch)

    def shared(self, rows: DataFrame) -> DataFrame:
        """The rows with those of a bucket in one task."""
        return by_bucket(rows, self.buckets, self.bucket)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write rows that are so shared, unless an earlier call has.

        Raises:
            ConfigurationError, TableNotFoundError: as when called.
        """
        Table.open(self.path, self.uuid)
        query = query_of_micro_batch(rows, f"{FORMAT}: micro-batches of write_changes")
        writer = rows.write.format(FORMAT).option("path", self.path).option("micro-batch", f"{query}:{batch}")
        writer = writer.options(**self.options)
        if self.definition is not None:
            writer = writer.option("definition", str(self.definition))
        if self.bucket is not None:
            writer = writer.option("bucketed", "true")
        writer.mode("append").save()


def write_in_update_mode(df: DataFrame, write: WriteBatch) -> DataStreamWriter:
    """A writer of a stream whose rows replace those of earlier micro-batches."""
    return df.writeStream.outputMode("update").foreachBatch(write)


def by_bucket(rows: DataFrame, buckets: int, bucket: str | None) -> DataFrame:
    """The rows with those of a bucket in one task, where Spark can compute the bucket."""
    if bucket is None:
        return rows
    from pyspark.sql.functions import expr

    return rows.repartitionById(buckets, expr(bucket).cast("int"))
