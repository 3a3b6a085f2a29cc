"""What a task of any physical form does: it reads the changes of a step, and gives the rows that they emit.

A change is cut to the columns and rows that take part in the join. A shard of a step has all changes of its
join keys, so that what consolidates to nothing meets in one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import gcd

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from deltajoin.core.codes import have_values
from deltajoin.core.consolidate import consolidate_changes
from deltajoin.core.rows import Changes
from deltajoin.spark.offsets import JoinStep
from deltajoin.spark.tables import JoinedTables
from upsert.blobs import by_number
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.spark_table import spark_schema
from upsert.store.predicate import parse_where
from upsert.store.version import step_between


def buckets_reached(tables: JoinedTables, step: JoinStep, table: int) -> list[int]:
    """Buckets of a table in which the step may have changed a row."""
    reached = step_between(step.old[table], step.new[table])
    if reached.is_empty:
        return []
    return [b for b in range(tables.tables[table].options.bucket) if reached.hashes_of(b) is not None]


def bucket_changes(tables: JoinedTables, step: JoinStep, table: int, buckets: Collection[int]) -> pa.Table:
    """Signed rows of some buckets: selected columns, filters passed, no NULL where that takes no part."""
    part, side = tables.spec.tables[table], tables.sides[table]
    changed = side.changes_between(step.old[table], step.new[table], part.columns, buckets)
    # Each signed row by itself: an update may leave, enter or stay within the filter.
    passed = parse_where(part.where, side.schema).apply(changed)
    schema = tables.changes(table)
    rows = passed.select(schema.names).combine_chunks().cast(schema)
    usable = have_values(rows, tables.needed_keys(table))
    return rows if usable.all() else rows.filter(pa.array(usable))


def shard_changes(tables: JoinedTables, step: JoinStep, table: int, shard: int, shards: int) -> Changes:
    """The consolidated changes of a table in one of so many shards.

    Several shards read bucket by bucket and cut at once, so memory holds the shard and one bucket; a single
    one, which keeps all, reads all at once.
    """
    buckets = [
        bucket
        for bucket in buckets_reached(tables, step, table)
        if _may_hold(tables, table, bucket, shard, shards)
    ]
    pieces = [[bucket] for bucket in buckets] if shards > 1 else [buckets] if buckets else []
    parts = (bucket_changes(tables, step, table, piece) for piece in pieces)
    return consolidated_changes(
        tables, table, [tables.split.of_shard(table, rows, shard, shards) for rows in parts]
    )


def _may_hold(tables: JoinedTables, table: int, bucket: int, shard: int, shards: int) -> bool:
    """Whether a bucket may have rows of a shard: where both follow from one hash, only some can meet."""
    side, columns = tables.sides[table], tables.split.columns[table]
    types = [side.schema.type_of(column) for column in columns or ()]
    if side.bucket_key != columns or types != list(tables.split.types[table] or ()):
        return True
    common = gcd(side.table.options.bucket, shards)
    return bucket % common == shard % common


def by_shard(rows: pa.Table, tables: JoinedTables, table: int, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard that has any; all of them for each shard where all shards need all."""
    if not rows.num_rows:
        return
    shard = tables.split.shard_of(table, rows, shards)
    if shard is None:
        yield from ((number, rows) for number in range(tables.split.count(shards)))
        return
    yield from by_number(rows, shard, shards)


def consolidated_changes(tables: JoinedTables, table: int, parts: list[pa.Table]) -> Changes:
    """Changes of a table that were read bucket by bucket, without rows that cancel."""
    part, side = tables.spec.tables[table], tables.sides[table]
    rows = pa.concat_tables([tables.changes(table).empty_table(), *parts]).combine_chunks()
    changes = Changes(rows)
    # Images that hold the whole primary key are consolidated already: each key is in one bucket, once.
    key = set(side.primary_key)
    is_consolidated = bool(key) and key <= set(part.select) and part.columns == part.select
    return changes if is_consolidated else consolidate_changes(changes)


def output_type(tables: JoinedTables) -> StructType:
    """Spark's schema of the join's output."""
    if not tables.spec.columns:  # SELECT 1: all that comes out is how often
        return StructType([StructField(ROW_KIND_COLUMN, StringType())])
    return spark_schema(TableSchema.of(tables.output), row_kind=True)
