"""Micro-batches of a stream into a managed table through ``foreachBatch``: what a Python sink cannot do.

The upserts of an aggregate change rows that went out before, which Spark gives to no Python sink.
`WriteBatch` writes each micro-batch as a batch that knows the query and its own number, so that the store
takes it once.

`Materialize` goes through the hidden table, in two steps of which each counts once. First the rows go into
the hidden table, in one commit. Then the newest row of each key that this has touched is looked up before and
after the commit, and what differs is written into the sink. Both steps share the work by the hash of the key,
so a task has all rows of its keys; none holds more than a part of its rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from upsert.failpoints import reach
from upsert.materializer.hidden_table import ARRIVAL, COUNT, HiddenTable, KeptRows
from upsert.registration import register
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.batches import for_spark, from_spark
from upsert.spark.columns import bucket_expression, spark_schema, stored_text
from upsert.spark.connect import is_connect
from upsert.spark.formats import FORMAT
from upsert.spark.query_writer import QueryWriter
from upsert.spark.task import checkpoint_of_micro_batch, query_of_micro_batch
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.keys import equal_rows, order_by
from upsert.store.rows.merge import gather
from upsert.store.table import Table
from upsert.store.version import Version
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class WriteBatch:
    """Writes one micro-batch; Spark calls it in the driver, for the same one again after a failure.

    Attributes:
        buckets: how many buckets the table had when the query began.
        definition: version of the table's definition that the rows' columns are of; None for the present.
    """

    path: str
    uuid: str
    buckets: int
    definition: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch, unless an earlier call has."""
        table = Table.open(self.path, self.uuid)
        buckets, bucket = table.options.bucket, bucket_expression(table)
        self._write(by_bucket(rows, buckets, bucket), batch, 0 if bucket is None else buckets)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write rows of which those of one of the ``buckets`` are in one task, unless an earlier call has."""
        Table.open(self.path, self.uuid)
        self._write(rows, batch, self.buckets)

    def _write(self, rows: DataFrame, batch: int, buckets: int) -> None:
        query = query_of_micro_batch(rows, f"{FORMAT}: micro-batches of write_changes")
        register(rows.sparkSession)
        writer = rows.write.format(FORMAT).option("path", self.path).option("micro-batch", f"{query}:{batch}")
        writer = writer.options(**self.options)
        if self.definition is not None:
            writer = writer.option("definition", str(self.definition))
        if buckets:
            writer = writer.option("bucketed", str(buckets))
        if (checkpoint := checkpoint_of_micro_batch()) is not None:
            writer = writer.option("checkpointLocation", checkpoint)
        writer.mode("append").save()


def by_bucket(rows: DataFrame, tasks: int, bucket: str | None) -> DataFrame:
    """The rows in some tasks, with those of a bucket in one of them, where Spark can compute the bucket."""
    if bucket is None:
        return rows
    from pyspark.sql.functions import expr

    return rows.repartitionById(tasks, expr(bucket).cast("int"))


def micro_batch_writer(df: DataFrame, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """A writer that calls a function with each micro-batch, in which `query_of_micro_batch` knows the query.

    Over Spark Connect the server calls it, so it must be there too.
    """
    if is_connect(df):
        from upsert.materializer.connect_writer import ConnectWriter

        return cast("DataStreamWriter", ConnectWriter(df, write))
    return QueryWriter(df).foreachBatch(write)


POINTS: Final = ("materialize.before-rows", "materialize.after-rows", "materialize.after-sink")
"""Points of ``upsert.failpoints`` at which a test can kill the driver."""

_MOST_ROWS: Final = 100_000
"""Rows, or keys, of which a task makes entries at once."""

Write = Callable[[DataFrame, int], None]
"""Writes the rows of a micro-batch into the sink, as often as it is called for it; they count once."""


@dataclass(frozen=True)
class Materialize:
    """Writes one micro-batch of a stream of changes into a sink that keeps all rows of each key.

    Attributes:
        write: writes rows of which those of a bucket of the hidden table are in one task.
        write_any: writes rows however they come, where the hidden table was made with other buckets than the
            sink has; None if ``write`` does.
    """

    hidden: HiddenTable
    write: Write
    write_any: Write | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch."""
        hidden = self.hidden
        query = query_of_micro_batch(rows, f"{hidden.sink}: micro-batches of 'sink.materialize'")
        register(rows.sparkSession)
        table = hidden.opened(query, batch)
        base = hidden.base(table, query, batch)
        if table.published.latest().writers.get(query, -1) < batch:
            reach("materialize.before-rows")
            keep = Keep(hidden.sink, hidden.rows, table.path, table.uuid, base.id, batch)
            keep.write(rows)
            reach("materialize.after-rows")
        target = table.published.latest()
        if target.writers.get(query, -1) == batch:
            newest = Newest(hidden.rows, table.path, table.uuid, base.id, target.id)
            buckets = table.options.bucket
            write = self.write if self.write_any is None or buckets == hidden.buckets else self.write_any
            write(newest.rows(rows, buckets), batch)
            reach("materialize.after-sink")


@dataclass(frozen=True)
class Keep:
    """Makes entries of the hidden table of the rows of a micro-batch."""

    sink: str
    form: KeptRows
    path: str
    uuid: str
    base: int
    batch: int

    def write(self, rows: DataFrame) -> None:
        """Commit the entries as the micro-batch of the query."""
        from pyspark.sql import functions as F

        table = Table.open(self.path, self.uuid)
        kept = spark_schema(self.form.table_schema(), row_kind=True)
        named = [
            F.expr(stored_text(quoted(column.name), column))
            .cast(kept[self.form.own(column.name)].dataType)
            .alias(self.form.own(column.name))
            for column in self.form.schema.columns
        ]
        kinds = [F.col(ROW_KIND_COLUMN)] if ROW_KIND_COLUMN in rows.columns else []
        buckets, bucket = table.options.bucket, bucket_expression(table)
        shared = by_bucket(rows.select(*named, *kinds), buckets, bucket)
        entries = shared.sortWithinPartitions(*self.form.kept_key).mapInArrow(self, kept)
        WriteBatch(table.path, table.uuid, buckets).write(entries, self.batch)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entries of a task, which has all rows of its keys, ascending by key."""
        base = Table.open(self.path, self.uuid).snapshot(self.base)
        form = self.form
        for given in whole_keys(from_spark(batches), form.kept_key):
            rows, weights = form.conformed(given, self.sink)
            yield from for_spark(form.entries(base, rows, weights, self.batch).to_batches())


@dataclass(frozen=True)
class Newest:
    """Gives what a step of the hidden table changes in the sink."""

    form: KeptRows
    path: str
    uuid: str
    base: int
    target: int

    def rows(self, like: DataFrame, buckets: int) -> DataFrame:
        """The rows to write, a task for each bucket, in the session of another DataFrame."""
        numbers = like.sparkSession.range(0, buckets, 1, buckets)
        return numbers.mapInArrow(self, spark_schema(self.form.schema, row_kind=True))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of some buckets."""
        table = Table.open(self.path, self.uuid)
        base, target = table.snapshot(self.base), table.snapshot(self.target)
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                for keys in self._touched(table, base, target, bucket):
                    yield from for_spark(self.form.written(base, target, keys).to_batches())

    def _touched(self, table: Table, base: Snapshot, target: Snapshot, bucket: int) -> Iterator[pa.Table]:
        """The keys of a bucket of which an entry has changed, each once, in parts."""
        versions = (Version.complete(one.info.data_version) for one in (base, target))
        key = list(self.form.kept_key)
        changes = table.changes_between(*versions, columns=[*key, COUNT, ARRIVAL], buckets=[bucket])
        order = order_by([changes.column(name) for name in key])
        keys = gather(changes.select(key), order.firsts)
        for start in range(0, keys.num_rows, _MOST_ROWS):
            yield keys.slice(start, _MOST_ROWS)


def whole_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...], most_rows: int = _MOST_ROWS
) -> Iterator[pa.Table]:
    """Batches that ascend by key as tables that end where a key ends, of some rows at least.

    >>> batches = [pa.record_batch({"k": keys}) for keys in ([1, 2], [2, 2], [3])]
    >>> [table["k"].to_pylist() for table in whole_keys(batches, ("k",), most_rows=2)]
    [[1], [2, 2, 2], [3]]
    """
    held: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        held = table if held is None else pa.concat_tables([held, table])
        if held.num_rows < most_rows:
            continue
        last = pa.array(np.full(held.num_rows, held.num_rows - 1))
        columns = [held.column(name) for name in key]
        if end := int(np.argmax(equal_rows(columns, [column.take(last) for column in columns]))):
            yield held.slice(0, end)
            held = held.slice(end)
    if held is not None:
        yield held
