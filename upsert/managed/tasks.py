"""Spark's tasks that stage rows, and tasks that fold what others have staged: the driver handles names alone.

A task that has only some rows of a bucket stages them as they are, and they are folded before the commit
names the files. The committing process does that by itself while the rows are few, for a Spark job takes as
long as `FEW_ROWS` of them. More rows are folded by tasks, which have some buckets each; docs/decisions/0074.

Rows that a sequence or a merge engine combines with those of the table stay as they are: that needs the
snapshot that the commit builds on.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from upsert.managed.writer import BatchWriter, StreamWriter
from upsert.process_memory import note_worker, peak_bytes
from upsert.store.commit.staging import StagedFiles, of_each_bucket
from upsert.store.table import Table

FEW_ROWS: Final = 200_000
"""Rows that the committing process folds by itself, in less than a tenth of a second."""

_TASKS_A_CORE: Final = 4
_STAGED: Final = "staged BINARY, peak BIGINT"


def staged_by_tasks(
    rows: DataFrame, writer: BatchWriter | StreamWriter, query: str | None = None
) -> list[StagedFiles]:
    """What the tasks of a DataFrame stage of its rows; nothing is published.

    What their processes take of memory is noted for the ``query``, if it is given.
    """
    staged = rows.mapInArrow(StageRows(writer), _STAGED).collect()
    if query is not None:
        note_worker(query, max((row.peak for row in staged), default=0))
    return [one for row in staged if (one := pickle.loads(row.staged)) is not None]


@dataclass(frozen=True)
class StageRows:
    """Stages the rows of a task."""

    writer: BatchWriter | StreamWriter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What was staged, in one row."""
        yield _row(self.writer.stage(batches))


def folded_by_tasks(
    spark: SparkSession, table: Table, staged: Sequence[StagedFiles]
) -> Sequence[StagedFiles]:
    """What tasks have staged, as data files if it is much; a commit deletes what these are made of."""
    raw = [file for one in staged for file in one.raw]
    rows = sum(part.rows for file in raw for part in file.parts)
    has_one_definition = len({file.definition for file in raw}) < 2  # else the commit says what is wrong
    if rows <= FEW_ROWS or table.layout.merge.needs_present_rows or not has_one_definition:
        return staged
    work = FoldBuckets(table.path, table.uuid, of_each_bucket(staged))
    count = len(work.buckets)
    tasks = min(count, _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    found = spark.range(0, count, 1, tasks).mapInArrow(work, _STAGED).collect()
    rest = [replace(one, raw=(), folded=one.raw) for one in staged]
    return [*rest, *(pickle.loads(row.staged) for row in found)]


@dataclass(frozen=True)
class FoldBuckets:
    """Folds what several tasks have staged for the buckets whose numbers come as a task's rows."""

    path: str
    uuid: str
    buckets: Sequence[StagedFiles]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The data files of each bucket."""
        table = Table.open(self.path, self.uuid)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield _row(table.folded(self.buckets[number]))


def _row(staged: StagedFiles | None) -> pa.RecordBatch:
    """What was staged, and the most memory that this process has taken."""
    told = pa.array([pickle.dumps(staged)], pa.binary())
    return pa.record_batch({"staged": told, "peak": pa.array([peak_bytes()])})
