"""Streams of changes into a table with a key in another system: what all such sinks have in common.

A micro-batch is written by a function of the system's own, in whose hands it counts once. Here its rows are
brought together by key, folded to one of each key, and, where the key does not tell the rows of the query
apart, taken through a hidden table first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.errors import ConfigurationError
from upsert.materializer.choice import Changes, Sink, choose
from upsert.materializer.hidden_table import FOLDER, HiddenTable, KeptRows
from upsert.materializer.micro_batch import Materialize, Write, micro_batch_writer, whole_keys
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark.columns import check_fits, spark_schema
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import fold, naming
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows
from upsert.stream_keys import UpsertKey
from upsert.types import quoted


@dataclass(frozen=True)
class KeyedSink:
    """A table with a key in another system, as streams write into it.

    Attributes:
        sink: what counts of it.
        schema: the columns that are written, and the key.
        state: folder for the rows of keys that do not tell the rows of a query apart.
        prepare: checks the table, and makes what writes need, before a query starts.
        write: writes a micro-batch, as often as it is called for it; it counts once.
    """

    sink: Sink
    schema: TableSchema
    state: str
    prepare: Callable[[SparkSession], None]
    write: Write

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of a stream's rows, changes or upserts; each micro-batch counts once.

        Changes that the primary key does not tell apart go through a hidden table, see
        ``upsert.materializer``. The caller adds at least ``option("checkpointLocation", …)`` and starts it.

        Raises:
            ConfigurationError: the DataFrame is no stream, or one that another key tells apart.
            SchemaError: the columns do not fit the table.
        """
        if not df.isStreaming:
            raise ConfigurationError(
                f"{self.sink.name}: write_changes needs a streaming DataFrame, got a batch one; use an INSERT"
            )
        schema = df.schema.jsonValue()
        upserts = UpsertKey.of_schema(schema)
        self._check(df)
        if upserts is not None:
            upserts.check_is_key(self.sink.key, of=self.sink.name)
        self.prepare(df.sparkSession)
        if choose(self.sink, Changes.of_schema(schema)).is_materialized:
            kept = KeptRows(self.schema, self.sink.key)
            hidden = HiddenTable(self.sink.name, f"{self.state}/{FOLDER}", kept, 1, self.sink.key)
            return micro_batch_writer(df, Materialize(hidden, self.write))
        writer = micro_batch_writer(df, self.write)
        return writer if upserts is None or upserts.is_append else writer.outputMode("update")

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode, for aggregates whose rows replace each other by the primary key."""
        self._check(df)
        self.prepare(df.sparkSession)
        return micro_batch_writer(df, self.write).outputMode("update")

    def _check(self, df: DataFrame) -> None:
        check_fits(df.schema, self.schema, of=self.sink.name)


def as_declared(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Rows, or changes with ``_row_kind``, in the columns and types of a table, other columns left out."""
    from pyspark.sql import functions as F

    wanted = spark_schema(schema, row_kind=False)
    columns = [F.col(quoted(field.name)).cast(field.dataType).alias(field.name) for field in wanted]
    kinds = [F.col(ROW_KIND_COLUMN)] if ROW_KIND_COLUMN in rows.columns else []
    return rows.select(*columns, *kinds)


def folded(schema: TableSchema, owner: str, batches: Iterable[pa.RecordBatch]) -> Iterator[SortedRows]:
    """Of each key what its rows do to it, some keys at a time; the rows ascend by key.

    Raises:
        ChangelogError: two different rows of one key are left.
    """
    layout = Layout.of(TableSchema(schema.columns, schema.primary_key))
    for given in whole_keys(batches, schema.primary_key):
        rows, weights = conform(layout, given, owner)
        with naming(owner):
            found = fold(layout, rows, weights, "none")
        if found.rows.num_rows:
            yield found
