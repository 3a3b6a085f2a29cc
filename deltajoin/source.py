"""The changes of both tables of a join as one Spark source, so that one offset pins both versions.

A micro-batch knows (A0 → A1, B0 → B1) from Spark's offset log, and a replayed batch is the same batch.
The source emits rows of (shard, payload): the changes of a bucket whose join keys fall into one shard are one
blob, see `deltajoin.payload`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from deltajoin.changes import Changes, consolidated
from deltajoin.offset import JoinOffset
from deltajoin.options import FORMAT, spec_of
from deltajoin.payload import Step, encode
from deltajoin.row_codes import key_columns
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tables import JoinedTables
from upsert.store.filters import parse_where
from upsert.store.hashing import bucket_of, hash_columns
from upsert.store.version import Version, step_between

SHARD_COLUMN: Final = "shard"
PAYLOAD_COLUMN: Final = "payload"
_ROWS: Final = pa.schema([pa.field(SHARD_COLUMN, pa.int32()), pa.field(PAYLOAD_COLUMN, pa.binary())])

Offset = dict[str, Any]


@dataclass(frozen=True)
class BucketChanges(InputPartition):
    """What one task reads: the changes of one side's bucket in one step, and the versions they will meet."""

    side: int
    bucket: int
    start: Version
    end: Version
    step: Step


class DeltaJoinSource(DataSource):
    """The format ``delta-join``; made for ``deltajoin.read_join``, which puts the join on top of it."""

    @classmethod
    def name(cls) -> str:
        """``delta-join``."""
        return FORMAT

    def schema(self) -> str:
        """Which shard, and the changes in it."""
        return f"{SHARD_COLUMN} INT, {PAYLOAD_COLUMN} BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """A stream read."""
        return DeltaJoinReader(spec_of(self.options))


class DeltaJoinReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Steps through the versions of both tables and reads the changes of each step.

    Tables are opened anew in every call: Spark pickles readers and keeps them as long as it likes.
    """

    def __init__(self, spec: DeltaJoinSpec) -> None:
        """Nothing is opened yet."""
        self._spec = spec
        self._until: tuple[int, int] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Both tables before their first commit, so that the first load is read as changes."""
        tables = JoinedTables.open(self._spec)
        return JoinOffset(tables.identity, (Version.EMPTY, Version.EMPTY)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max_rows_per_trigger``, of each table."""
        return ReadMaxRows(self._spec.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than what is there now."""
        left, right = JoinedTables.open(self._spec).tables
        self._until = left.snapshot().info.data_version, right.snapshot().info.data_version

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next step of both tables; ``start`` itself when nothing is new.

        Raises:
            CheckpointMismatchError: ``start`` belongs to another join or to other tables.
            SnapshotExpiredError: the changes after ``start`` are gone.
            UntrackedChangesError: a commit was written with ``change-tracking = false``.
        """
        tables = JoinedTables.open(self._spec)
        offset = JoinOffset.of(start, tables.identity)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        left, right = (
            table.advance(
                version, max_rows=max_rows, until=None if self._until is None else self._until[side]
            )
            for side, (table, version) in enumerate(zip(tables.tables, offset.versions, strict=True))
        )
        return (
            start
            if (left, right) == offset.versions
            else JoinOffset(tables.identity, (left, right)).to_json()
        )

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Where the stream will be when it has read all: for the progress that Spark shows."""
        tables = JoinedTables.open(self._spec)
        left, right = (Version.complete(table.snapshot().info.data_version) for table in tables.tables)
        return JoinOffset(tables.identity, (left, right)).to_json()

    def partitions(self, start: Offset, end: Offset) -> list[BucketChanges]:
        """One for each bucket of each table that the step reaches."""
        tables = JoinedTables.open(self._spec)
        old, new = (
            JoinOffset.of(start, tables.identity).versions,
            JoinOffset.of(end, tables.identity).versions,
        )
        meets = Step(self._spec.fingerprint, left_old=old[0], right_new=new[1])
        return [
            BucketChanges(side, bucket, old[side], new[side], meets)
            for side, table in enumerate(tables.tables)
            if not (step := step_between(old[side], new[side])).is_empty
            for bucket in range(table.options.bucket)
            if step.hashes_of(bucket) is not None
        ]

    def read(self, partition: BucketChanges) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The bucket's changes as blobs, one row each: ones of several megabytes are enough for a batch."""
        tables = JoinedTables.open(self._spec)
        for shard, rows in by_shard(changes_to_join(tables, partition), tables, self._spec.shards):
            for blob in encode(partition.step, partition.side, rows):
                yield pa.record_batch(
                    [pa.array([shard], pa.int32()), pa.array([blob], pa.binary())], schema=_ROWS
                )


def changes_to_join(tables: JoinedTables, partition: BucketChanges) -> Changes:
    """The net changes of a bucket that can meet a row: selected columns, filters passed, no NULL key."""
    table, side = tables.tables[partition.side], tables.spec.sides[partition.side]
    changed = table.changes_between(
        partition.start, partition.end, columns=side.table.columns, buckets=[partition.bucket]
    )
    # Each signed row by itself: an update may leave, enter or stay within the filter.
    passed = parse_where(side.table.pushed, table.schema).apply(changed)
    schema = tables.changes(partition.side)
    rows = passed.select(schema.names).combine_chunks().cast(schema)
    changes = Changes(_without_null(rows, side.keys), side.keys)
    return changes if side.table.columns == side.select else consolidated(changes)


def _without_null(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Rows of which every key column has a value; the others match nothing."""
    for key in keys:
        if rows.column(key).null_count:
            rows = rows.filter(pc.is_valid(rows.column(key)))
    return rows


def by_shard(changes: Changes, tables: JoinedTables, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """The changes of each shard that has any; a key has one shard, whatever the width of its integers."""
    if not changes.rows.num_rows:
        return
    hashes = hash_columns(key_columns(changes.rows, changes.keys, tables.types.keys))
    shard = bucket_of(hashes, shards)
    rows = changes.rows.take(pa.array(np.argsort(shard, kind="stable")))
    start = 0
    for number, count in enumerate(np.bincount(shard, minlength=shards).tolist()):
        if count:
            yield number, rows.slice(start, count)
        start += count


def register(spark: SparkSession) -> None:
    """Make the format ``delta-join`` known to a session; doing it again changes nothing."""
    spark.dataSource.register(DeltaJoinSource)
