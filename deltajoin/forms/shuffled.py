"""The join after a shuffle by join key: stateless tasks, one per shard, in ``mapInArrow``.

All changes of a join key meet in one task, which is what netting needs; any operator may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from deltajoin.changes import Changes, consolidated
from deltajoin.errors import BrokenPayloadError
from deltajoin.options import FORMAT
from deltajoin.payload import Payload, Step, decode
from deltajoin.semantics import inner_join
from deltajoin.source import PAYLOAD_COLUMN, SHARD_COLUMN, register
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tables import SIDES, JoinedTables
from upsert.managed.spark_schema import spark_schema
from upsert.schema import TableSchema


def read_join(spark: SparkSession, spec: DeltaJoinSpec) -> DataFrame:
    """A stream of the join's net changes: ``t0_<column>`` …, ``t1_<column>`` …, ``_row_kind``.

    Every micro-batch moves both tables forward by one step of at most ``max_rows_per_trigger`` changes each,
    from the empty table on. The checkpoint keeps the two versions and nothing else; after a crash the
    same micro-batch is made again, row for row. FLIP-486 describes the join, this one is exact. Snapshots
    that the query still has to read must not expire: it then stops with ``SnapshotExpiredError``.

    Example::

        orders = Side("warehouse/orders", ("order_id", "product_id", "amount"), ("product_id",))
        products = Side("warehouse/products", ("id", "name"), ("id",))
        changes = read_join(spark, DeltaJoinSpec.of("inner", orders, products))

    Args:
        spark: the session; the format ``delta-join`` is registered in it.
        spec: what to join.

    Raises:
        TableNotFoundError: a table is missing.
        SchemaError: a column is unknown, keys cannot be compared, or a table lacks an index; the message
            names the INDEX to add.
    """
    register(spark)
    tables = JoinedTables.open(spec)
    tables.check_lookups()
    located = tables.located
    changes = spark.readStream.format(FORMAT).option("spec", located.to_json()).load()
    sharded = changes.repartitionById(spec.shards, SHARD_COLUMN)
    return sharded.mapInArrow(JoinShard(located), output_type(tables))


def output_type(tables: JoinedTables) -> StructType:
    """Spark's schema of the join's output."""
    return spark_schema(TableSchema.of(tables.types.output), row_kind=True)


@dataclass(frozen=True)
class JoinShard:
    """The task of one shard: its blobs in, net rows of the join out."""

    spec: DeltaJoinSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Net rows of the shard.

        Raises:
            BrokenPayloadError: a blob is damaged, or belongs to another join or micro-batch.
        """
        blobs = (blob.as_buffer() for batch in batches for blob in batch.column(PAYLOAD_COLUMN))
        payloads = [decode(blob) for blob in blobs]
        if not payloads:
            return
        tables = JoinedTables.open(self.spec)
        step = _one_step(payloads, self.spec)
        left, right = (_changes(payloads, tables, side) for side in (0, 1))
        yield from inner_join(
            left, right, tables.match(0, step.left_old), tables.match(1, step.right_new), tables.types
        )


def _one_step(payloads: list[Payload], spec: DeltaJoinSpec) -> Step:
    steps = {payload.step for payload in payloads}
    if len(steps) != 1 or payloads[0].step.fingerprint != spec.fingerprint:
        raise BrokenPayloadError(
            f"delta join {spec}: a shard must get the changes of one step of join {spec.fingerprint}, "
            f"got {sorted(map(str, steps))}; run the micro-batch again"
        )
    return payloads[0].step


def _changes(payloads: list[Payload], tables: JoinedTables, side: int) -> Changes:
    """The changes of a side in this shard, net over all buckets."""
    part, table = tables.spec.sides[side], tables.tables[side]
    schema = tables.changes(side)
    parts = [payload.rows for payload in payloads if payload.side == side]
    for rows in parts:
        if rows.schema != schema:
            raise BrokenPayloadError(
                f"delta join {tables.spec}: changes of the {SIDES[side]} side must have the columns "
                f"{schema.to_string()!r}, got {rows.schema.to_string()!r}; stop the query and start it again"
            )
    changes = Changes(pa.concat_tables([schema.empty_table(), *parts]).combine_chunks(), part.keys)
    # Images that hold the whole primary key are net already: each key is in one bucket, once.
    is_net = bool(table.schema.primary_key) and set(table.schema.primary_key) <= set(part.select)
    return changes if is_net else consolidated(changes)
