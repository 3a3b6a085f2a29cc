"""The Spark format ``delta-join``: the changes of all tables of a join as one source, or their join.

One source reads all tables, so that one offset pins all their versions: see `deltajoin.spark.reader`.

In the form ``fused`` the join runs in the source's own ``read()``: no shuffle, no state, one crossing into
the JVM. A task has one shard of the join keys. It reads the changes of all tables and keeps those of its
shard, which costs each task that reading again, and is still dearer than a shuffle only beyond what a
micro-batch holds: docs/decisions/0010 has the figures. Where a table is bucketed by the join key, a task
reads only the buckets that can hold its keys.

The first load needs no shards. While all other tables are empty at their old versions, the rows of one table
that is in every output row, the *root*, bring the whole result: each task reads a slice of the root's rows,
and looks the others up where they are at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from deltajoin.spark.blobs import BLOBS, ChangesReader
from deltajoin.spark.offsets import JoinStep, Versions
from deltajoin.spark.options import FORMAT, SourceOptions
from deltajoin.spark.reader import JoinStepReader
from deltajoin.spark.tables import JoinedTables
from deltajoin.spark.tasks import output_type, shard_changes
from upsert.managed.stepping import Offset, StepSource
from upsert.spark_formats import make_known
from upsert.spark_table import arrow_schema
from upsert.store.read.changes import touched_rows
from upsert.store.version import MAX_HASH, Version


class DeltaJoinSource(DataSource):
    """The format ``delta-join``; made for ``deltajoin.read_join``. See ``deltajoin.spark.options``."""

    @classmethod
    def name(cls) -> str:
        """``delta-join``."""
        return FORMAT

    def schema(self) -> StructType | str:
        """The join's columns and ``_row_kind``; or shards, and the changes in them."""
        options = SourceOptions.parse(self.options)
        return output_type(JoinedTables.open(options.spec)) if options.gives_joined else BLOBS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        options = SourceOptions.parse(self.options)
        return JoiningReader(options, schema) if options.gives_joined else ChangesReader(options)


class JoinStepSource(StepSource):
    """The changes of a join between two states of its tables, as a batch."""

    stream = DeltaJoinSource


def register(spark: SparkSession) -> None:
    """Make the formats known to a session; doing it again changes nothing."""
    make_known(spark, DeltaJoinSource)
    make_known(spark, JoinStepSource)


TASK_ROWS: Final = 50_000
"""Changed rows that are worth a task of their own: it costs about as long as it takes to join them."""

SLICE_ROWS: Final = 500_000
"""Rows of the root that a task of the first load reads at most, about."""


@dataclass(frozen=True)
class ShardOfStep(InputPartition):
    """What one task joins: one of so many shards of a step."""

    step: JoinStep
    shard: int = 0
    shards: int = 1


class JoiningReader(JoinStepReader):
    """Reads the consolidated rows of the join itself."""

    def __init__(
        self,
        options: SourceOptions,
        asked: StructType,
        *,
        task_rows: int = TASK_ROWS,
        slice_rows: int = SLICE_ROWS,
    ) -> None:
        """Nothing is opened yet; ``asked`` is the schema that Spark wants every batch to have."""
        super().__init__(options)
        self._schema = arrow_schema(asked)
        self._task_rows = task_rows
        self._slice_rows = slice_rows

    def takes_all(self, tables: JoinedTables, old: Versions) -> bool:
        """The first step of all, unless it is to be cut: memory is bounded by its slices."""
        is_first = all(version == Version.EMPTY for version in old)
        return is_first and self._options.first_load != "micro-batches" and root_of(tables) is not None

    def partitions(self, start: Offset, end: Offset) -> list[ShardOfStep]:
        """One for each slice of the root in the first load, else as many as the changes are worth."""
        tables = JoinedTables.open(self._spec)
        step = self.step(tables, start, end)
        root = root_of(tables) if step.is_first else None
        if root is not None:
            return slices(step, tables, root, self._slice_rows)
        rows = sum(
            touched_rows(table.pinned(), old, new)
            for table, old, new in zip(tables.tables, step.old, step.new, strict=True)
        )
        shards = tables.split.count(min(self._spec.shards, -(-rows // self._task_rows))) if rows else 0
        return [ShardOfStep(step, shard, shards) for shard in range(shards)]

    def read(self, partition: ShardOfStep) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The consolidated rows of a shard."""
        tables, step = JoinedTables.open(self._spec, partition.step.tables), partition.step
        changes = [
            shard_changes(tables, step, table, partition.shard, partition.shards)
            for table in range(len(tables.tables))
        ]
        for batch in tables.evaluate(step, changes, shard=partition.shard, shards=partition.shards):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


def root_of(tables: JoinedTables) -> int | None:
    """The table that drives a first load: of those in every output row the one with most rows."""
    return max(tables.roots, key=lambda table: tables.tables[table].snapshot().row_count, default=None)


def slices(
    step: JoinStep, tables: JoinedTables, root: int, slice_rows: int = SLICE_ROWS
) -> list[ShardOfStep]:
    """A first step in parts that need nothing of each other: ranges of the root's rows.

    To each of them the other tables do not move: they are where they are at the end.
    """
    end = step.new[root]
    if end == Version.EMPTY:
        return []
    bounds = [*_cuts(tables, end, root, slice_rows), end]
    return [
        ShardOfStep(replace(step, old=_with(step.new, root, low), new=_with(step.new, root, high)))
        for low, high in zip([Version.EMPTY, *bounds[:-1]], bounds, strict=True)
    ]


def _cuts(tables: JoinedTables, end: Version, root: int, slice_rows: int) -> Iterator[Version]:
    """Versions between the empty table and ``end``: even ranges of hashes, for hashes are spread evenly."""
    table = tables.tables[root]
    buckets = table.options.bucket
    wanted = max(-(-touched_rows(table.pinned(), Version.EMPTY, end) // slice_rows), tables.spec.shards)
    in_bucket = -(-wanted // buckets)
    for part in range(1, buckets * in_bucket):
        cursor = part // in_bucket, part % in_bucket * ((MAX_HASH + 1) // in_bucket)
        if end.cursor is None or cursor < end.cursor:
            yield Version(0, end.target, cursor)


def _with(versions: Versions, table: int, version: Version) -> Versions:
    return (*versions[:table], version, *versions[table + 1 :])
