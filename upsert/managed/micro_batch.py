"""A micro-batch of a stream of changes into a table: computed by the driver if they are few, else by tasks.

Spark takes a process to plan a write, tasks, and a process to commit, for one row as for millions. Where a
stream reads one of this project's sources, the step is read in the driver by the very reader that Spark's
tasks use, its rows are staged by the very writer, and the driver publishes. More rows are read and staged by
tasks. Both are the same micro-batch: of the offsets that Spark has logged, committed with the query's id and
the number of the micro-batch, of which the store takes each once. So a query may take the one way now and the
other after a restart, or for a replay; see docs/decisions/0055.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from upsert.failpoints import reach
from upsert.managed.checkpoint_mark import CheckpointMark
from upsert.managed.log_reader import LogReader
from upsert.managed.options import WriteOptions
from upsert.managed.stepping import SUFFIX, SharedStep, SteppingReader, StepSource
from upsert.managed.task_counts import counted_at_end
from upsert.managed.tasks import (
    MadeRows,
    RowsOfCut,
    blobs_by_bucket,
    folded_by_tasks,
    staged_by_tasks,
    tasks_for_buckets,
)
from upsert.managed.writer import StreamWriter
from upsert.materializer.micro_batch import by_bucket
from upsert.spark.batches import read_up_to
from upsert.spark.formats import FORMAT, known_format
from upsert.spark.planned_batch import PlannedBatch, QueryInArrow, ReadForArrow, RowByRow
from upsert.spark.query_writer import QueryWriter
from upsert.spark.settings import set_for_now
from upsert.spark.task import query_of_micro_batch
from upsert.store.commit.staging import StagedFiles
from upsert.store.metadata.looks import looking_once
from upsert.store.rows.computed import Chosen, InArrow, NotInArrowError
from upsert.store.storage.local import synced_together
from upsert.store.table import Table

FEW_ROWS: Final = 100_000
"""So many changed rows are joined in the driver: Spark's fixed costs are more than theirs."""

FEW_EVALUATED_ROWS: Final = 20_000
"""The same where Spark has to evaluate expressions of the rows, for which they go to the JVM and back."""

FEW_BYTES: Final = 64 << 20
"""So many bytes may be read, and come of them; see also `FEW_ROWS`."""

FOLDED_BUCKETS: Final = 4
"""Up to so many a stream's commit folds itself; a shuffle would take longer: docs/decisions/0023."""

_BLOBS_MAY_DIFFER: Final = {
    f"spark.sql.shuffle.orderIndependentChecksum.{name}": "false"
    for name in ("enabled", "enableFullRetryOnMismatch")
}
"""For jobs in which blobs alone are shuffled. A task that runs again gives each bucket the same rows, but may
cut and order them otherwise: then Spark would take it for one of other rows, and fail the job where some
tasks have read its first blobs. See docs/decisions/0109."""

POINTS: Final = ("step.after-stage", "step.after-publish")
"""Points of ``upsert.failpoints`` at which a test can kill the driver."""


def step_writer(
    df: DataFrame,
    table: Table,
    options: Mapping[str, str],
    bucket_of: Callable[[Table], str | None],
    in_arrow: ReadForArrow | None,
) -> QueryWriter | None:
    """A writer of a stream into a table by `WriteStep`; None if the driver cannot read the stream.

    Options that the writer is given until it starts are added to ``options``. ``bucket_of`` gives Spark SQL
    for the bucket of a row of a table, None where tasks are not to have whole buckets. ``in_arrow`` finds out
    what Arrow can compute; without it Spark evaluates all expressions.
    """
    source = RowByRow.of(df)
    reader = None if source is None else _reader(source)
    if source is None or reader is None:
        return None

    def step(given: Mapping[str, str]) -> WriteStep:
        asked = WriteOptions.parse({**given, **options})
        asked.check_for_a_stream()
        raw, own = (
            StreamWriter(replace(asked, bucketed=buckets), df.schema, overwrite=False)
            for buckets in (0, table.options.bucket)
        )
        of = table.path, table.uuid
        columns = tuple(df.columns)
        query = None if in_arrow is None else QueryInArrow(in_arrow, source.schema)
        bucket = bucket_of(table)
        return WriteStep(df.sparkSession, source, reader, raw, own, columns, of, bucket_of, bucket, query)

    return _StepWriter(df, step)


class _StepWriter(QueryWriter):
    def __init__(self, df: DataFrame, step: Callable[[Mapping[str, str]], WriteStep]) -> None:
        super().__init__(df)
        self._step_with = step
        self._begun = begun = list[WriteStep]()
        # no micro-batch comes before the start; of the writer itself the function may know nothing
        self.foreachBatch(lambda rows, batch: begun[-1](rows, batch))

    def begin(self) -> None:
        self._begun.append(self._step_with(self.given))


@dataclass(frozen=True)
class WriteStep:
    """Writes each micro-batch of a stream; Spark calls it in the driver, again after a failure.

    Attributes:
        reader: of ``source``, which holds nothing: that of the query does.
        raw: stages what a task has, any rows of any bucket.
        own: stages all rows of a bucket, as a task or the driver has them, so that they are folded at once.
        columns: names of the columns of the stream.
        table: folder and uuid of the table.
        bucket_of: gives ``bucket`` for the table.
        bucket: Spark SQL for the bucket of a row, if tasks are to have whole buckets.
        in_arrow: what Arrow computes for the query; None if Spark evaluates all of its expressions.
    """

    spark: SparkSession
    source: RowByRow
    reader: SteppingReader[Any]
    raw: StreamWriter
    own: StreamWriter
    columns: tuple[str, ...]
    table: tuple[str, str]
    bucket_of: Callable[[Table], str | None]
    bucket: str | None
    in_arrow: QueryInArrow | None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch, unless an earlier call has."""
        with looking_once():
            self._write(rows, batch)

    def _write(self, rows: DataFrame, batch: int) -> None:
        query = query_of_micro_batch(rows, f"{FORMAT}: micro-batches of write_changes")
        table = Table.open(*self.table)
        if CheckpointMark.of(self.own.checkpoint, query).has_rows(table, batch):
            return
        planned, now = PlannedBatch.of(self.spark, query, batch), self._in_buckets_of(table)
        with synced_together():
            staged = now._staged(planned, rows, table.options.bucket, query)
            reach(POINTS[0])
            with table.discarded_if_failed(staged):
                folded = folded_by_tasks(rows.sparkSession, table, staged)
                with table.discarded_if_failed(folded):
                    self.own.publish(folded, query, batch)
        reach(POINTS[1])

    def _in_buckets_of(self, table: Table) -> WriteStep:
        """The step for the buckets that the table has now: ALTER TABLE may have changed their number."""
        buckets = table.options.bucket
        if self.own.buckets == buckets:
            return self
        return replace(self, own=self.own.in_buckets(buckets), bucket=self.bucket_of(table))

    def _staged(
        self, planned: PlannedBatch | None, rows: DataFrame, buckets: int, query: str
    ) -> list[StagedFiles]:
        """The rows of a micro-batch as files: by the driver if they are few, else by tasks."""
        if planned is None:
            return self._staged_by_spark(rows, buckets, query)
        made = self._made(planned, rows)
        few = self._few(planned, made, rows.sparkSession)
        if few is None:
            return self._staged_by_tasks(planned, made, rows, buckets, query)
        own = self.own.stage(iter(few.to_batches()))
        return [] if own is None else [own]

    def _made(self, planned: PlannedBatch, rows: DataFrame) -> Chosen | InArrow | None:
        """What makes the rows of a micro-batch of those of its source; None if Spark has to."""
        if self.source.chosen is not None:
            return Chosen(self.source.chosen, self.columns)
        return None if self.in_arrow is None else self.in_arrow.computes(planned, rows)

    def _few(
        self, planned: PlannedBatch, made: Chosen | InArrow | None, session: SparkSession
    ) -> pa.Table | None:
        """The rows of a micro-batch, computed here; None if they are many."""
        read = self._read(planned, FEW_ROWS if made is not None else min(FEW_ROWS, FEW_EVALUATED_ROWS))
        if read is None:
            return None
        planned.note_rows(read.num_rows)
        if not read.num_rows:
            return read
        if made is not None:
            with suppress(NotInArrowError):  # Spark says what is wrong
                found = made.made([read])
                planned.tell(session, made.observed(found.told))
                return found.rows
        return planned.computed(read, self.source.schema, session, is_observed=self.source.is_observed)

    def _read(self, planned: PlannedBatch, few: int) -> pa.Table | None:
        """What the stream's source gives between the offsets of a micro-batch; None if it is not few rows."""
        reader, start, end = self.reader, planned.start, planned.end
        few_bytes = min(FEW_BYTES, reader.readable_bytes)
        rows, size = reader.size(start, end)
        if rows > few or size > few_bytes:
            return None
        with counted_at_end() as counted:
            batches = chain.from_iterable(map(reader.read, reader.partitions(start, end)))
            found = read_up_to(batches, few, few_bytes, pa.schema([]))
            if found is None:
                counted.clear()  # tasks do all of it
        return found

    def _staged_by_tasks(
        self,
        planned: PlannedBatch,
        made: Chosen | InArrow | None,
        rows: DataFrame,
        buckets: int,
        query: str,
    ) -> list[StagedFiles]:
        """What tasks stage of a micro-batch, sharing it in the cheapest way."""
        spark, start, end = rows.sparkSession, planned.start, planned.end
        step = self.reader.as_batch(spark, start, end)
        if made is not None:
            own = step or self.reader.by_partitions(spark, start, end)
            if own is None:
                return []
            with suppress(NotInArrowError):  # Spark does all of it, and says what is wrong
                return self._read_and_staged(own, made, planned, buckets, query)
        # what is observed, Spark adds up for the plan of the query itself
        if step is not None and not self.source.is_observed:
            planned.note_rows(self.reader.size(start, end).rows)
            rows = planned.over(step.given.mapInArrow(step.rows_of, self.source.schema)).toDF(*self.columns)
        return self._staged_by_spark(rows, self._tasks(spark, planned, buckets), query)

    def _tasks(self, spark: SparkSession, planned: PlannedBatch, buckets: int) -> int:
        """How many tasks share the buckets of the table."""
        size = self.reader.size(planned.start, planned.end)
        return tasks_for_buckets(buckets, spark.sparkContext.defaultParallelism, size)

    def _staged_by_spark(self, rows: DataFrame, tasks: int, query: str) -> list[StagedFiles]:
        """What tasks stage of rows that Spark gives them."""
        writer = self.raw if self.bucket is None else self.own
        return staged_by_tasks(by_bucket(rows, tasks, self.bucket), writer, query).staged

    def _read_and_staged(
        self, step: SharedStep, made: Chosen | InArrow, planned: PlannedBatch, buckets: int, query: str
    ) -> list[StagedFiles]:
        """What tasks stage of the rows that they read: none of these goes through the JVM.

        Raises:
            NotInArrowError: Spark has to compute the rows; nothing of them is staged.
        """
        given, rows_of = step.given, MadeRows(step.rows_of, made)
        with set_for_now(given.sparkSession, _BLOBS_MAY_DIFFER):
            if self.bucket is None or buckets <= FOLDED_BUCKETS:
                told = staged_by_tasks(given, self.raw, query, rows_of)
            else:
                tasks = self._tasks(given.sparkSession, planned, buckets)
                blobs = blobs_by_bucket(given, self.own, rows_of, tasks)
                told = staged_by_tasks(blobs, self.own, query, RowsOfCut(made))
        try:
            planned.tell(given.sparkSession, made.observed(made.merged(told.figures)))
            planned.note_rows(told.rows)
        except Exception:  # also Java's; the caller has no names of these files yet
            self.raw.discard(told.staged)
            raise
        return told.staged


def _reader(source: RowByRow) -> SteppingReader[Any] | None:
    """The reader of a stream's source, which holds nothing; None if a step of it cannot be read by itself."""
    format_ = known_format(source.format + SUFFIX)
    if format_ is None or not issubclass(format_, StepSource):
        return None
    found = format_.stream({**source.options, "consumer.lease": "0 s"}).streamReader(source.schema)
    assert isinstance(found, SteppingReader)
    return None if isinstance(found, LogReader) else found
