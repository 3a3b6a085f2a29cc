"""Spark's tasks that stage rows, and tasks that fold what others have staged: the driver handles names alone.

Rows of a DataFrame come to a task from the JVM. What this project's own readers give needs no JVM: a task
reads its part of a step and stages it, both in one process; see docs/decisions/0101.

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
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import SparkContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Row, SparkSession

from upsert.blobs import BLOB_COLUMN, from_blob, rows_of_blobs, to_blobs
from upsert.managed.process_memory import note_worker, peak_bytes
from upsert.managed.stepping import RowsOf
from upsert.managed.writer import BatchWriter, StreamWriter
from upsert.spark.batches import mapped
from upsert.store.commit.staging import StagedFiles, of_each_bucket
from upsert.store.read.steps import StepSize
from upsert.store.rows.computed import Chosen, InArrow, NotInArrowError
from upsert.store.table import Table

FOLDED_BY_DRIVER: Final = 200_000
"""Rows that the committing process folds by itself, in less than a tenth of a second."""

ROWS_OF_A_TASK: Final = 100_000
BYTES_OF_A_TASK: Final = 64 << 20
"""What of a step's changes a task that has whole buckets should get at least, where there are many."""

_TASKS_A_CORE: Final = 4
_STAGED: Final = "staged BINARY, peak BIGINT, rows BIGINT, figures BINARY, why_not STRING"
_BUCKET: Final = "bucket"
_READ: Final = "read"
_FIGURES: Final = "figures"
_CUT: Final = f"{_BUCKET} INT, {_READ} BIGINT, {BLOB_COLUMN} BINARY, {_FIGURES} BINARY"
_NOTHING: Final = pickle.dumps(None)
_LOCK: Final = threading.Lock()

_ByJob = dict[str, list[bytes]]


@dataclass
class Read:
    """What was read: how many rows, and figures of them, if they are observed."""

    rows: int = 0
    figures: pa.Table | None = None


CountedRowsOf = Callable[[Iterator[pa.RecordBatch], Read], Iterator[pa.RecordBatch]]
"""Makes rows of what a task is given, and notes what it has read."""


@dataclass(frozen=True)
class MadeRows:
    """Makes rows of those that another function reads, a batch at a time."""

    rows_of: RowsOf
    made: Chosen | InArrow

    def __call__(self, batches: Iterator[pa.RecordBatch], read: Read) -> Iterator[pa.RecordBatch]:
        """The rows of what a task is given."""
        for batch in self.rows_of(batches):
            read.rows += batch.num_rows
            rows, told = self.made.made([pa.Table.from_batches([batch])])
            if told is not None:
                read.figures = told if read.figures is None else self.made.merged([read.figures, told])
            yield from rows.to_batches()


class Told(NamedTuple):
    """What tasks tell: the files that they have staged, how many rows they have read, and their figures."""

    staged: list[StagedFiles]
    rows: int
    figures: list[pa.Table]


def staged_by_tasks(
    given: DataFrame,
    writer: BatchWriter | StreamWriter,
    query: str | None = None,
    rows_of: CountedRowsOf | None = None,
) -> Told:
    """What the tasks of a DataFrame stage of its rows, or of the ``rows_of`` these; nothing is published.

    What their processes take of memory is noted for the ``query``, if it is given.

    Raises:
        NotInArrowError: Arrow does not compute the ``rows_of`` what a task is given; all files are deleted.
    """
    told = _collected(given, StageRows(writer, rows_of), writer.discard)
    if query is not None:
        note_worker(query, max((row.peak for row in told), default=0))
    staged = [one for row in told if (one := pickle.loads(row.staged)) is not None]
    for row in told:
        if row.why_not is not None:
            writer.discard(staged)
            raise NotInArrowError(row.why_not)
    figures = [from_blob(row.figures)[0] for row in told if row.figures is not None]
    return Told(staged, sum(row.rows for row in told), figures)


@dataclass(frozen=True)
class StageRows:
    """Stages the rows of a task."""

    writer: BatchWriter | StreamWriter
    rows_of: CountedRowsOf | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What was staged, in one row."""
        read = Read()
        rows = batches if self.rows_of is None else self.rows_of(batches, read)
        try:
            staged = self.writer.stage(rows)
        except NotInArrowError as cause:  # an answer: a task that fails is tried again
            yield _row(None, Read(), why_not=str(cause))
            return
        yield _row(staged, read)


def tasks_for_buckets(buckets: int, cores: int, size: StepSize) -> int:
    """How many tasks share the buckets of a step's rows: no more than the cores and the rows ask for.

    >>> [tasks_for_buckets(buckets, 2, StepSize(500_000, 1 << 20)) for buckets in (6, 64)]
    [6, 8]
    >>> [tasks_for_buckets(64, 2, StepSize(rows, 1 << 20)) for rows in (2_000_000, 20_000_000)]
    [20, 64]
    """
    by_size = max(size.rows // ROWS_OF_A_TASK, size.bytes // BYTES_OF_A_TASK)
    return min(buckets, max(_TASKS_A_CORE * cores, by_size))


def blobs_by_bucket(given: DataFrame, writer: StreamWriter, rows_of: CountedRowsOf, tasks: int) -> DataFrame:
    """The rows of what tasks are given as blobs, all of a bucket in one task: no row goes through the JVM."""
    cut = given.mapInArrow(CutRows(writer, rows_of), _CUT)
    return cut.repartitionById(tasks, _BUCKET)


@dataclass(frozen=True)
class CutRows:
    """Gives the rows of a task bucket by bucket."""

    writer: StreamWriter
    rows_of: CountedRowsOf

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blobs, each of one bucket; the last one has no rows, but tells what was read.

        It tells nothing where Arrow does not compute the rows.
        """
        read = Read()
        try:
            for bucket, rows in self.writer.cut(self.rows_of(batches, read)):
                for blob in to_blobs(rows, {}):
                    yield _blob(bucket, blob, 0)
        except NotInArrowError:
            yield _blob(0, None, None)
        else:
            yield _blob(0, None, read.rows, _blob_of(read.figures))


def _blob(bucket: int, blob: bytes | None, read: int | None, figures: bytes | None = None) -> pa.RecordBatch:
    blobs = {BLOB_COLUMN: pa.array([blob], pa.binary()), _FIGURES: pa.array([figures], pa.binary())}
    return pa.record_batch(
        {_BUCKET: pa.array([bucket], pa.int32()), _READ: pa.array([read], pa.int64()), **blobs}
    )


@dataclass(frozen=True)
class RowsOfCut:
    """The rows of blobs that `CutRows` gives, in the task of their bucket.

    Attributes:
        made: what they were made by.
    """

    made: Chosen | InArrow

    def __call__(self, batches: Iterator[pa.RecordBatch], read: Read) -> Iterator[pa.RecordBatch]:
        """The rows of what a task is given.

        Raises:
            NotInArrowError: one of the tasks that read has not computed its rows.
        """
        for batch in batches:
            for count in batch.column(_READ).to_pylist():
                if count is None:
                    raise NotInArrowError("rows that another task has read")
                read.rows += count
            told = [from_blob(blob.as_buffer())[0] for blob in batch.column(_FIGURES).drop_null()]
            if told:
                read.figures = self.made.merged(told if read.figures is None else [read.figures, *told])
            yield from rows_of_blobs([batch])


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
                yield _row(table.folded(self.buckets[number]), Read())


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
        return mapped(rows, _Telling(work, told, job), _STAGED).collect()
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


def _row(staged: StagedFiles | None, read: Read, why_not: str | None = None) -> pa.RecordBatch:
    """What was staged, the most memory that this process has taken, and what it has read.

    Nothing is staged where Arrow does not compute the rows; then it is said why.
    """
    told = pa.array([pickle.dumps(staged)], pa.binary())
    columns = {"staged": told, "peak": pa.array([peak_bytes()]), "rows": pa.array([read.rows])}
    figures, why = pa.array([_blob_of(read.figures)], pa.binary()), pa.array([why_not], pa.string())
    return pa.record_batch({**columns, "figures": figures, "why_not": why})


def _blob_of(figures: pa.Table | None) -> bytes | None:
    """Figures as a blob; None where nothing is added up, as in an observation of constants."""
    return None if figures is None else next(to_blobs(figures, {}), None)
