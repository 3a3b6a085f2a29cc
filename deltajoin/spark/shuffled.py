"""The join after a shuffle by join key: one task for each shard, with or without an operator that has state.

All changes of a join key meet in one task, which is what consolidating needs; any operator may follow. In the
form ``shuffled`` a task is stateless, in ``mapInArrow``.

The form ``stateful`` runs in ``applyInPandasWithState``, grouped by shard: FLIP-486's own physical form. An
exact join of managed tables has nothing to remember, so the state stays empty; the form is there for plans
that have to look like those of joins that do. Rows cross pandas as one binary column, in and out, for pandas
would make floats of integers with NULLs, and fail on the year 9999. The number of its tasks is the session's
``spark.sql.shuffle.partitions``, whatever the number of shards. Spark goes on with a checkpoint only with the
stateful operators that wrote it: for a change from or to this form see ``deltajoin.reached``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from deltajoin.spark.blobs import PAYLOAD_COLUMN, SHARD_COLUMN, join_blobs
from deltajoin.spark.tables import JoinedTables
from deltajoin.spark.tasks import output_type
from deltajoin.spec import DeltaJoinSpec
from upsert.blobs import from_blob, to_blobs


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


def stateful(blobs: DataFrame, tables: JoinedTables) -> DataFrame:
    """The join of the source's blobs, a group for each shard."""
    joined = blobs.groupBy(SHARD_COLUMN).applyInPandasWithState(
        JoinGroup(tables.located),
        outputStructType=f"{PAYLOAD_COLUMN} BINARY",
        stateStructType="unused BOOLEAN",
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )
    return joined.mapInArrow(rows_of_blobs, output_type(tables))


@dataclass(frozen=True)
class JoinGroup:
    """The group of one shard: its blobs in, blobs of consolidated rows out."""

    spec: DeltaJoinSpec

    def __call__(
        self,
        key: tuple[Any, ...],
        batches: Iterable[pd.DataFrame],
        state: GroupState,  # noqa: ARG002
    ) -> Iterator[pd.DataFrame]:
        """Blobs of the shard's consolidated rows."""
        blobs = (blob for batch in batches for blob in batch[PAYLOAD_COLUMN])
        for rows in join_blobs(self.spec, int(key[0]), blobs):
            yield pd.DataFrame({PAYLOAD_COLUMN: list(to_blobs(pa.Table.from_batches([rows]), {}))})


def rows_of_blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the operator's blobs."""
    for batch in batches:
        for blob in batch.column(PAYLOAD_COLUMN):
            yield from from_blob(blob.as_buffer())[0].to_batches()
