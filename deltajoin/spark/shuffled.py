"""The join after a shuffle by join key: stateless tasks, one per shard, in ``mapInArrow``.

All changes of a join key meet in one task, which is what consolidating needs; any operator may follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from deltajoin.spark.blobs import PAYLOAD_COLUMN, SHARD_COLUMN, join_blobs
from deltajoin.spark.tables import JoinedTables
from deltajoin.spark.tasks import output_type
from deltajoin.spec import DeltaJoinSpec


def shuffled(blobs: DataFrame, tables: JoinedTables) -> DataFrame:
    """The join of the source's blobs, a partition for each shard."""
    spec = tables.located
    sharded = blobs.repartitionById(spec.shards, SHARD_COLUMN)
    return sharded.mapInArrow(JoinShard(spec), output_type(tables))


@dataclass(frozen=True)
class JoinShard:
    """The task of one shard: its blobs in, consolidated rows of the join out."""

    spec: DeltaJoinSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consolidated rows of the shard."""
        blobs: list[pa.Buffer] = []
        shard = 0
        for batch in batches:
            blobs += (blob.as_buffer() for blob in batch.column(PAYLOAD_COLUMN))
            if batch.num_rows:
                shard = batch.column(SHARD_COLUMN)[0].as_py()
        yield from join_blobs(self.spec, shard, blobs)
