"""Spark's tasks that stage rows, and tasks that fold what others have staged: the driver handles names alone.

A task that has only some rows of a bucket stages them as they are, and they are folded before the commit
names the files. The committing process does that by itself while the rows are few, for a Spark job takes as
long as `FOLDED_BY_DRIVER` of them. More rows are folded by tasks, which have some buckets each; see
docs/decisions/0074.

Rows that a sequence or a merge engine combines with those of the table stay as they are: that needs the
snapshot that the commit builds on.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import SparkContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Row, SparkSession

from upsert.managed.process_memory import note_worker, peak_bytes
from upsert.managed.writer import BatchWriter, StreamWriter
from upsert.store.commit.staging import StagedFiles, of_each_bucket
from upsert.store.table import Table

FOLDED_BY_DRIVER: Final = 200_000
"""Rows that the committing process folds by itself, in less than a tenth of a second."""

_TASKS_A_CORE: Final = 4
_STAGED: Final = "staged BINARY, peak BIGINT"
_NOTHING: Final = pickle.dumps(None)
_LOCK: Final = threading.Lock()

_ByJob = dict[str, list[bytes]]


def staged_by_tasks(
    rows: DataFrame, writer: BatchWriter | StreamWriter, query: str | None = None
) -> list[StagedFiles]:
    """What the tasks of a DataFrame stage of its rows; nothing is published.

    What their processes take of memory is noted for the ``query``, if it is given.
    """
    staged = _collected(rows, StageRows(writer), writer.discard)
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
    if rows <= FOLDED_BY_DRIVER or table.layout.merge.needs_present_rows or not has_one_definition:
        return staged
    work = FoldBuckets(table.path, table.uuid, of_each_bucket(staged))
    count = len(work.buckets)
    tasks = min(count, _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    found = _collected(spark.range(0, count, 1, tasks), work, table.discard)
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


class _Told:
    """Spark's `AccumulatorParam` of what the tasks of each job have staged."""

    def zero(self, value: _ByJob) -> _ByJob:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: _ByJob, value2: _ByJob) -> _ByJob:  # noqa: N802
        for job, staged in value2.items():
            value1.setdefault(job, []).extend(staged)
        return value1


_TOLD: Final[Any] = _Told()
_own: tuple[SparkContext, Accumulator[_ByJob]] | None = None


def _collected(
    rows: DataFrame, work: StageRows | FoldBuckets, discard: Callable[[Iterable[StagedFiles]], None]
) -> list[Row]:
    """What tasks tell that stage files; if one fails for good, ``discard`` gets what the others have staged.

    Spark's own writer would give them to ``abort``. Here they come by an accumulator, for a job that fails
    has no result; of tasks that still run then nothing is known, and ``clean`` deletes what they leave.
    """
    global _own
    context, job = rows.sparkSession.sparkContext, uuid4().hex
    with _LOCK:
        if _own is None or _own[0] is not context:
            _own = context, context.accumulator({}, _TOLD)
        told = _own[1]
    try:
        return rows.mapInArrow(_Telling(work, told, job), _STAGED).collect()
    except Exception:  # whatever fails a job
        if staged := told.value.get(job):
            discard(map(pickle.loads, staged))
        raise
    finally:
        told.value.pop(job, None)


@dataclass(frozen=True)
class _Telling:
    """Tells the driver what a task has staged, also if another task fails."""

    work: StageRows | FoldBuckets
    told: Accumulator[_ByJob]
    job: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in self.work(batches):
            self.told.add({self.job: [one for one in row.column(0).to_pylist() if one != _NOTHING]})
            yield row


def _row(staged: StagedFiles | None) -> pa.RecordBatch:
    """What was staged, and the most memory that this process has taken."""
    told = pa.array([pickle.dumps(staged)], pa.binary())
    return pa.record_batch({"staged": told, "peak": pa.array([peak_bytes()])})
