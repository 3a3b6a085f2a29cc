"""The join after a shuffle by join key: one task for each shard, with or without an operator that has state.

The source gives the changes as blobs: one has changes of one table in one shard, labelled with the step that
they belong to; see ``upsert.blobs`` and docs/decisions/0004. All changes of a join key meet in one task,
which is what consolidating needs; any operator may follow. In the form ``shuffled`` a task is stateless, in
``mapInArrow``.

The form ``stateful`` runs in ``applyInPandasWithState``, grouped by shard: FLIP-486's own physical form. An
exact join of managed tables has nothing to remember, so the state stays empty; the form is there for plans
that have to look like those of joins that do. Rows cross pandas as one binary column, in and out, for pandas
would make floats of integers with NULLs, and fail on the year 9999. The number of its tasks is the session's
``spark.sql.shuffle.partitions``, whatever the number of shards. Spark goes on with a checkpoint only with the
stateful operators that wrote it: for a change from or to this form see ``deltajoin.reached``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from deltajoin.core.rows import Changes
from deltajoin.spark.offsets import JoinStep
from deltajoin.spark.tables import JoinedTables, output_type
from deltajoin.spec import DeltaJoinSpec
from upsert.blobs import BLOB_COLUMN, rows_and_label, to_blobs
from upsert.codec import MAY_BE_MISSING, Jsonable
from upsert.errors import BrokenPayloadError, ConfigurationError
from upsert.managed.task_counts import add
from upsert.spark.batches import for_spark, rows_for_spark
from upsert.spark.task import begin_task

SHARD_COLUMN: Final = "shard"
BLOBS: Final = f"{SHARD_COLUMN} INT, {BLOB_COLUMN} BINARY"


@dataclass(frozen=True)
class BlobLabel(Jsonable):
    """What every blob says: whose join it is, the step, the table that changed, and where lookups count."""

    fingerprint: str
    step: JoinStep
    table: int
    counter: int | None = field(default=None, metadata=MAY_BE_MISSING)


class Payload(NamedTuple):
    """Changes of one table that lie in one shard."""

    label: BlobLabel
    rows: pa.Table


def decode(blob: bytes | pa.Buffer) -> Payload:
    """The changes in a blob, which must be one of a delta join."""
    rows, text = rows_and_label(blob)
    return Payload(_label(text), rows)


@lru_cache(maxsize=256)
def _label(text: bytes) -> BlobLabel:
    """What the text of a label says; all blobs of a table have the same one."""
    about: Any = text
    try:
        about = json.loads(text)
        label = BlobLabel.from_json(about)
        if not 0 <= label.table < len(label.step.old):
            raise ValueError(f"there is no table {label.table!r}")
    except (KeyError, TypeError, ValueError, ConfigurationError) as cause:
        raise BrokenPayloadError(
            "delta join: a shard must get changes from the join's own source, got rows labelled "
            f"{about!r} ({cause}); run the micro-batch again"
        ) from cause
    return label


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
    figures = Counter[str]()
    yield from tables.evaluate(step, changes, shard=shard, shards=spec.shards, figures=figures)
    add(payloads[0].label.counter, figures)


def _one_step(payloads: list[Payload], spec: DeltaJoinSpec) -> JoinStep:
    labels = {id(payload.label): payload.label for payload in payloads}.values()
    steps = {(label.fingerprint, label.step) for label in labels}
    fingerprint, step = payloads[0].label.fingerprint, payloads[0].label.step
    if len(steps) != 1 or fingerprint != spec.fingerprint or len(step.old) != len(spec.tables):
        raise BrokenPayloadError(
            f"delta join {spec}: a shard must get the changes of one step of join {spec.fingerprint}, "
            f"got {sorted(map(str, steps))}; run the micro-batch again"
        )
    return step


def _changes(payloads: list[Payload], tables: JoinedTables, table: int) -> Changes:
    """The changes of a table in this shard, consolidated over all buckets."""
    schema = tables.changes[table]
    parts = [payload.rows for payload in payloads if payload.label.table == table]
    for rows in parts:
        if rows.schema != schema:
            raise BrokenPayloadError(
                f"delta join {tables.spec}: changes of table {table} must have the columns "
                f"{schema.to_string()!r}, got {rows.schema.to_string()!r}; stop the query and start it again"
            )
    return tables.consolidated(table, parts)


def shuffled(blobs: DataFrame, tables: JoinedTables) -> DataFrame:
    """The join of the source's blobs, a partition for each shard."""
    spec = tables.located
    return sharded(blobs, spec).mapInArrow(JoinShard(spec), output_type(tables))


def sharded(blobs: DataFrame, spec: DeltaJoinSpec) -> DataFrame:
    """The source's blobs with those of a shard in one partition."""
    return blobs.repartitionById(spec.shards, SHARD_COLUMN)


@dataclass(frozen=True)
class JoinShard:
    """The task of one shard: its blobs in, consolidated rows of the join out."""

    spec: DeltaJoinSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consolidated rows of the shard."""
        begin_task()
        blobs: list[pa.Buffer] = []
        shard = 0
        for batch in batches:
            blobs += (blob.as_buffer() for blob in batch.column(BLOB_COLUMN))
            if batch.num_rows:
                shard = batch.column(SHARD_COLUMN)[0].as_py()
        yield from for_spark(join_blobs(self.spec, shard, blobs))


def stateful(blobs: DataFrame, tables: JoinedTables) -> DataFrame:
    """The join of the source's blobs, a group for each shard."""
    joined = blobs.groupBy(SHARD_COLUMN).applyInPandasWithState(
        JoinGroup(tables.located),
        outputStructType=f"{BLOB_COLUMN} BINARY",
        stateStructType="unused BOOLEAN",
        outputMode="append",
        timeoutConf=GroupStateTimeout.NoTimeout,
    )
    return joined.mapInArrow(rows_for_spark, output_type(tables))


@dataclass(frozen=True)
class JoinGroup:
    """The group of one shard: its blobs in, blobs of consolidated rows out."""

    spec: DeltaJoinSpec

    def __call__(self, key: tuple[Any, ...], batches: Iterable[Any], _state: GroupState) -> Iterator[Any]:
        """Blobs of the shard's consolidated rows, in frames of pandas."""
        import pandas as pd  # the source, which knows this file, is loaded by processes without need of it

        blobs = (blob for batch in batches for blob in batch[BLOB_COLUMN])
        for rows in join_blobs(self.spec, int(key[0]), blobs):
            yield pd.DataFrame({BLOB_COLUMN: list(to_blobs(pa.Table.from_batches([rows]), {}))})
