"""Changes as blobs by shard, for the forms that join above the source: one task for each bucket that changed.

A blob holds changes of one table in one shard, labelled with the step that they belong to; see
``upsert.blobs`` and docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from deltajoin.core.rows import Changes
from deltajoin.spark.offsets import JoinStep
from deltajoin.spark.reader import JoinStepReader
from deltajoin.spark.tables import JoinedTables
from deltajoin.spark.tasks import bucket_changes, buckets_reached, by_shard, consolidated_changes
from deltajoin.spec import DeltaJoinSpec
from upsert.blobs import BLOB_BYTES, from_blob, to_blobs
from upsert.codec import Jsonable
from upsert.errors import BrokenPayloadError, ConfigurationError
from upsert.managed.stepping import Offset


@dataclass(frozen=True)
class BlobLabel(Jsonable):
    """What every blob says: whose join it is, the step, and the number of the table that changed."""

    fingerprint: str
    step: JoinStep
    table: int


@dataclass(frozen=True)
class Payload:
    """Changes of one table that lie in one shard."""

    label: BlobLabel
    rows: pa.Table


def encode(label: BlobLabel, rows: pa.Table, *, blob_bytes: int = BLOB_BYTES) -> Iterator[bytes]:
    """The rows as blobs of about ``blob_bytes`` at most; a single row may exceed it.

    >>> from upsert.store.version import Version
    >>> step = JoinStep((Version.EMPTY,), (Version.complete(1),))
    >>> blobs = list(encode(BlobLabel("2f6c", step, 0), pa.table({"k": [1, 2]})))
    >>> decode(blobs[0]).rows.to_pydict()
    {'k': [1, 2]}
    """
    return to_blobs(rows, label.to_json(), blob_bytes=blob_bytes)


def decode(blob: bytes | pa.Buffer) -> Payload:
    """The changes in a blob.

    Raises:
        BrokenPayloadError: the bytes are no blob of a delta join.
    """
    rows, about = from_blob(blob)
    try:
        label = BlobLabel.from_json(about)
        if not 0 <= label.table < len(label.step.old):
            raise ValueError(f"there is no table {label.table!r}")
    except (KeyError, TypeError, ValueError, ConfigurationError) as cause:
        raise BrokenPayloadError(
            "delta join: a shard must get changes from the join's own source, got rows labelled "
            f"{about!r} ({cause}); run the micro-batch again"
        ) from cause
    return Payload(label, rows)


SHARD_COLUMN: Final = "shard"
PAYLOAD_COLUMN: Final = "payload"
BLOBS: Final = f"{SHARD_COLUMN} INT, {PAYLOAD_COLUMN} BINARY"
_ROWS: Final = pa.schema([pa.field(SHARD_COLUMN, pa.int32()), pa.field(PAYLOAD_COLUMN, pa.binary())])


@dataclass(frozen=True)
class BucketChanges(InputPartition):
    """What one task reads: the changes of one table's bucket in one step."""

    table: int
    bucket: int
    step: JoinStep


class ChangesReader(JoinStepReader):
    """Reads the changes of each step as rows of (shard, payload)."""

    def partitions(self, start: Offset, end: Offset) -> list[BucketChanges]:
        """One for each bucket of each table that the step reaches."""
        tables = JoinedTables.open(self._spec)
        step = self.step(tables, start, end)
        return [
            BucketChanges(table, bucket, step)
            for table in step.moved
            for bucket in buckets_reached(tables, step, table)
        ]

    def read(self, partition: BucketChanges) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The bucket's changes as blobs, one row each: ones of several megabytes are enough for a batch."""
        tables = JoinedTables.open(self._spec, partition.step.tables)
        rows = bucket_changes(tables, partition.step, partition.table, [partition.bucket])
        changes = consolidated_changes(tables, partition.table, [rows])
        label = BlobLabel(self._spec.fingerprint, partition.step, partition.table)
        for shard, part in by_shard(changes.rows, tables, partition.table, self._spec.shards):
            for blob in encode(label, part):
                yield pa.record_batch(
                    [pa.array([shard], pa.int32()), pa.array([blob], pa.binary())], schema=_ROWS
                )


def join_blobs(
    spec: DeltaJoinSpec, shard: int, blobs: Iterable[bytes | pa.Buffer]
) -> Iterator[pa.RecordBatch]:
    """Consolidated rows of one shard, from all of its blobs in one micro-batch."""
    payloads = [decode(blob) for blob in blobs]
    if not payloads:
        return
    step = _one_step(payloads, spec)
    tables = JoinedTables.open(spec, step.tables)
    changes = [_changes(payloads, tables, table) for table in range(len(spec.tables))]
    yield from tables.evaluate(step, changes, shard=shard, shards=spec.shards)


def _one_step(payloads: list[Payload], spec: DeltaJoinSpec) -> JoinStep:
    steps = {(payload.label.fingerprint, payload.label.step) for payload in payloads}
    fingerprint, step = payloads[0].label.fingerprint, payloads[0].label.step
    if len(steps) != 1 or fingerprint != spec.fingerprint or len(step.old) != len(spec.tables):
        raise BrokenPayloadError(
            f"delta join {spec}: a shard must get the changes of one step of join {spec.fingerprint}, "
            f"got {sorted(map(str, steps))}; run the micro-batch again"
        )
    return step


def _changes(payloads: list[Payload], tables: JoinedTables, table: int) -> Changes:
    """The changes of a table in this shard, consolidated over all buckets."""
    schema = tables.changes(table)
    parts = [payload.rows for payload in payloads if payload.label.table == table]
    for rows in parts:
        if rows.schema != schema:
            raise BrokenPayloadError(
                f"delta join {tables.spec}: changes of table {table} must have the columns "
                f"{schema.to_string()!r}, got {rows.schema.to_string()!r}; stop the query and start it again"
            )
    return consolidated_changes(tables, table, parts)
