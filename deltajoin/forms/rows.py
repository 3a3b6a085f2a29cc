"""The rows that a step emits from its changes, whatever brought them together; and their types in Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from deltajoin.changes import Changes
from deltajoin.step import JoinStep
from deltajoin.tables import JoinedTables
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark_table import spark_schema


def joined_rows(
    tables: JoinedTables, step: JoinStep, changes: Sequence[Changes], shard: int = 0, shards: int = 1
) -> Iterator[pa.RecordBatch]:
    """Net rows of the join, in batches of ``tables.output``.

    Args:
        tables: the join.
        step: the versions at which to look up.
        changes: of each table the net changes, all of the step or those of one shard.
        shard: which shard.
        shards: of how many.
    """
    yield from tables.evaluate(changes, step.old, step.new, shard=shard, shards=shards)


def output_type(tables: JoinedTables) -> StructType:
    """Spark's schema of the join's output."""
    if not tables.spec.columns:  # SELECT 1: all that comes out is how often
        return StructType([StructField(ROW_KIND_COLUMN, StringType())])
    return spark_schema(TableSchema.of(tables.output), row_kind=True)
