"""The Spark format ``delta-join``: the changes of all tables of a join as one source, or their join.

One source reads all tables, so that one offset pins all their versions. A micro-batch knows the versions from
and to which each table moves from Spark's offset log, and a replayed batch is the same batch.

In the form ``fused`` the join runs in the source's own ``read()``: no shuffle, no state, one crossing into
the JVM. A task has one shard of the join keys. It reads the changes of all tables and keeps those of its
shard; of other tasks' rows it reads nothing but the join key, and where a table is bucketed by the join key
only the buckets that can hold its keys. What the first task of a process finds of them, the next ones use:
docs/decisions/0095. With very many tasks a shuffle is cheaper: docs/decisions/0083. A writer that plans each
micro-batch itself then reads the step in the form ``shuffled``, by `JoiningReader.as_batch`.

The first load needs no shards. While all other tables are empty at their old versions, the rows of one table
that is in every output row, the *root*, bring the whole result: each task reads a slice of the root's rows,
and looks the others up where they are at the end of the step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from deltajoin.core.shards import TASK_ROWS, roots
from deltajoin.settings import FIRST_LOADS
from deltajoin.spark.offsets import JoinOffset, JoinStep, Versions
from deltajoin.spark.shuffled import BLOBS, SHARD_COLUMN, BlobLabel, JoinShard, sharded
from deltajoin.spark.tables import JoinedTables, output_type
from deltajoin.spec import DeltaJoinSpec
from upsert.blobs import BLOB_BYTES, BLOB_COLUMN, head, to_blobs
from upsert.managed.options import OF_STREAMS
from upsert.managed.stepping import (
    CONSUMER,
    Offset,
    SharedStep,
    SteppingReader,
    StepSource,
    check_same_histories,
    size_of,
)
from upsert.managed.task_counts import add
from upsert.managed.task_memory import TASK_MEMORY
from upsert.options import Option, boolean, held, integer, json_object, one_of, parse, text, values_held
from upsert.spark.batches import arrow_schema, as_asked
from upsert.spark.formats import make_known
from upsert.spark.task import begin_task
from upsert.store.read.steps import step_size
from upsert.store.table import Table
from upsert.store.version import MAX_HASH, Version

FORMAT: Final = "delta-join"

OPTIONS: Final = (
    Option("spec", text, "the join: JSON text of a DeltaJoinSpec"),
    Option(
        "rows",
        one_of("joined", "changes"),
        "joined: the source joins and gives rows; changes: it gives the changes of each shard as blobs, "
        "for a join above it",
        default="joined",
    ),
    Option(
        "first-load",
        one_of(*FIRST_LOADS),
        "batch: the first micro-batch joins all existing rows, at pinned versions; micro-batches: it obeys "
        "max_rows_per_trigger as any other; auto: batch if one table is in every row of the result",
        default="auto",
    ),
    Option(
        "by-cost",
        boolean,
        "whether a writer that plans each micro-batch may shuffle the changes of a large one",
        default=False,
    ),
    Option(
        "start", json_object, "where to begin: the offset that another checkpoint has reached", default=None
    ),
    Option(
        "counter",
        integer(0),
        "number of the accumulator in which lookups are counted, which planner.optimize and read_join set",
        default=None,
    ),
    *OF_STREAMS,
)


_read: Final = partial(held, OPTIONS)


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read, converted.

    ``gives_joined`` says whether the source joins itself, ``is_by_cost`` whether it may be another form where
    that is cheaper, ``counter`` where lookups are counted: see `upsert.managed.task_counts`.
    """

    spec: DeltaJoinSpec
    gives_joined: bool = True
    first_load: str = _read("first-load")
    start: Mapping[str, Any] | None = _read("start")
    consumer_id: str | None = _read("consumer-id")
    lease_ms: int = _read("consumer.lease")
    task_memory: int = _read(TASK_MEMORY.key)
    is_by_cost: bool = _read("by-cost")
    counter: int | None = _read("counter")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options that a read was given."""
        values = parse(FORMAT, OPTIONS, options)
        return cls(_spec(values["spec"]), values["rows"] == "joined", **values_held(cls, values))

    def to_options(self) -> dict[str, str]:
        """The texts that ``parse`` reads as these options."""
        options = {
            "spec": self.spec.to_json(),
            "rows": "joined" if self.gives_joined else "changes",
            "first-load": self.first_load,
            "consumer.lease": str(self.lease_ms),
            TASK_MEMORY.key: str(self.task_memory),
            "by-cost": str(self.is_by_cost).lower(),
        }
        if self.consumer_id is not None:
            options["consumer-id"] = self.consumer_id
        if self.counter is not None:
            options["counter"] = str(self.counter)
        return options if self.start is None else {**options, "start": json.dumps(self.start)}


@lru_cache(maxsize=256)
def _spec(text: str) -> DeltaJoinSpec:
    """The spec of an option, which every step asks for again."""
    return DeltaJoinSpec.from_json(text)


class DeltaJoinSource(DataSource):
    """The format ``delta-join``; made for ``deltajoin.read_join``."""

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


class _JoinStepReader(SteppingReader[JoinedTables]):
    """Finds the end of each step of all tables of a join; a form of the join reads it."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options.consumer_id, options.lease_ms, options.task_memory)
        self._options = options
        self._spec = options.spec

    def initialOffset(self) -> Offset:  # noqa: N802
        """All tables before their first commit, so that the first load is read as changes.

        With the option ``start`` it is where another checkpoint of the same join has got to.
        """
        identity = self.opened().identity
        if self._options.start is not None:
            # the other query may go on: this one holds its versions under an id of its own
            return replace(JoinOffset.of(self._options.start, identity), consumer=None).to_json()
        return JoinOffset(identity, (Version.EMPTY,) * len(self._spec.tables)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._spec.max_rows_per_trigger)

    def opened(self) -> JoinedTables:
        return JoinedTables.open(self._spec)

    def tables_of(self, opened: JoinedTables) -> tuple[Table, ...]:
        return opened.tables

    def versions_of(self, opened: JoinedTables, offset: Offset) -> Versions:
        return JoinOffset.of(offset, opened.identity).versions

    def offset_at(self, opened: JoinedTables, versions: Versions, consumer: str | None = None) -> Offset:
        owner = self._holding.in_offset(consumer).get(CONSUMER)
        return JoinOffset(opened.identity, versions, owner).to_json()

    def ends(
        self, opened: JoinedTables, versions: tuple[Version | None, ...], max_rows: int | None
    ) -> Versions:
        old = tuple(version or Version.EMPTY for version in versions)
        until = self._until or self.versions_seen(opened)
        if self.takes_all(opened, old):
            moves = zip(opened.tables, old, until, strict=True)
            return tuple(table.advance(version, until=last) for table, version, last in moves)
        numbers = range(len(old))
        # a task holds its shard of all changes, and one bucket of which it takes its shard
        room = max(1, self.readable_bytes // 2)

        shares = [1 if columns is None else self._spec.shards for columns in opened.split.columns]

        def end(table: int, share: float) -> Version:
            return opened.tables[table].advance(
                old[table],
                max_rows=max_rows,
                max_bytes=max(1, int(share * shares[table])),
                max_bytes_of_bucket=room,
                until=until[table],
            )

        def taken(table: int) -> float:
            # what a step reads that is cut within a commit is told too large
            size = step_size(opened.tables[table].pinned(), old[table], ends[table])
            return min(room / len(old), size.bytes / shares[table])

        ends = [end(table, room / len(old)) for table in numbers]
        more = [table for table in numbers if ends[table] != Version.complete(until[table])]
        takes = [taken(table) for table in numbers] if more else []
        if (left := room - sum(takes)) > 0:
            # what some tables leave of the room is for those that have more
            for table in more:
                ends[table] = end(table, takes[table] + left / len(more))
        return tuple(ends)

    def takes_all(self, tables: JoinedTables, old: Versions) -> bool:  # noqa: ARG002
        """Whether the step from these versions ignores the read limit."""
        return False

    def step(self, tables: JoinedTables, start: Offset, end: Offset) -> JoinStep:
        """What lies between two offsets of this join; a replay finds it held."""
        old, new = (self.versions_of(tables, offset) for offset in (start, end))
        check_same_histories(tables.tables, old, new)
        self._holding.keep(self._holding.consumer_of(end), tables.tables, old, new)
        return JoinStep(old, new, tables.identity.tables)


_BLOB_ROWS: Final = pa.schema([pa.field(SHARD_COLUMN, pa.int32()), pa.field(BLOB_COLUMN, pa.binary())])


@dataclass(frozen=True)
class BucketChanges(InputPartition):
    """What one task reads: the changes of one table's bucket in one step."""

    table: int
    bucket: int
    step: JoinStep


class ChangesReader(_JoinStepReader):
    """Reads the changes of each step as rows of (shard, payload)."""

    def partitions(self, start: Offset, end: Offset) -> list[BucketChanges]:
        """One for each bucket of each table that the step reaches."""
        tables = self.opened_lately()
        step = self.step(tables, start, end)
        return [
            BucketChanges(table, bucket, step)
            for table in step.moved
            for bucket in tables.buckets_reached(step, table)
        ]

    def read(self, partition: BucketChanges) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The bucket's changes as blobs, a row each."""
        begin_task()
        tables, table = JoinedTables.open(self._spec, partition.step.tables), partition.table
        changes = tables.consolidated(
            table, [tables.bucket_changes(partition.step, table, [partition.bucket])]
        )
        label = BlobLabel(self._spec.fingerprint, partition.step, table, self._options.counter).to_json()
        beginning = head(changes.rows.schema, label)
        blobs = (
            (shard, blob)
            for shard, part in tables.by_shard(table, changes.rows)
            for blob in to_blobs(part, beginning)
        )
        yield from _batches(blobs)


def _batches(blobs: Iterable[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    """Shards and their blobs, in batches of about as many bytes as one blob may have."""
    waiting: list[tuple[int, bytes]] = []
    size = 0
    for shard, blob in blobs:
        if waiting and size + len(blob) > BLOB_BYTES:
            yield _batch(waiting)
            waiting, size = [], 0
        waiting.append((shard, blob))
        size += len(blob)
    if waiting:
        yield _batch(waiting)


def _batch(blobs: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    shards, content = zip(*blobs, strict=True)
    columns = [pa.array(shards, pa.int32()), pa.array(content, pa.binary())]
    return pa.record_batch(columns, schema=_BLOB_ROWS)


SLICE_ROWS: Final = 500_000
"""Rows of the root that a task of the first load reads at most, about."""


@dataclass(frozen=True)
class ShardOfStep(InputPartition):
    """What one task joins: one of so many shards of a step of a micro-batch."""

    step: JoinStep
    shard: int = 0
    shards: int = 1


class JoiningReader(_JoinStepReader):
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
        return is_first and self._options.first_load != "micro-batches" and has_root(tables)

    def partitions(self, start: Offset, end: Offset) -> list[ShardOfStep]:
        """One for each slice of the root in the first load, else as many as the changes are worth."""
        tables = self.opened_lately()
        step = self.step(tables, start, end)
        root = root_of(tables, step.new) if step.is_first else None
        if root is not None:
            return slices(step, tables, root, self._slice_rows, self.readable_bytes)
        shards = self._tasks(tables, step)
        return [ShardOfStep(step, shard, shards) for shard in range(shards)]

    def _tasks(self, tables: JoinedTables, step: JoinStep) -> int:
        """As many as the changes are worth."""
        size = size_of(tables.tables, step.old, step.new)
        shards = self._spec.shards
        by_rows = -(-size.rows // self._task_rows)
        # fewer tasks would take more memory each
        least = min(shards, -(-size.bytes // max(1, self.readable_bytes // 2)))
        tasks = max(least, tables.agreeing(min(shards, max(by_rows, least)), shards))
        return tables.split.count(tasks) if size.rows else 0

    def as_batch(self, spark: SparkSession, start: Offset, end: Offset) -> SharedStep | None:
        """The form shuffled for a step that it serves better: see `deltajoin.core.costs`."""
        if not self._options.is_by_cost:
            return None
        tables = self.opened_lately()
        step = self.step(tables, start, end)
        tasks = 1 if step.is_first and has_root(tables) else self._tasks(tables, step)
        if tasks < 2 or not tables.cost(step, tasks).is_shuffled:
            return None
        spec = replace(self._spec, shards=tasks)
        changes = ChangesReader(replace(self._options, spec=spec, gives_joined=False, lease_ms=0))
        # no source of Spark's, for which it would start processes that plan it
        read = changes.by_partitions(spark, start, end)
        if read is None:
            return None
        blobs = read.given.mapInArrow(read.rows_of, BLOBS)
        located = replace(tables, spec=spec).located
        return SharedStep(sharded(blobs, located), JoinShard(located))

    def read(self, partition: ShardOfStep) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The consolidated rows of a shard."""
        begin_task()
        return self._joined(JoinedTables.open(self._spec, partition.step.tables), partition)

    def rows_between(
        self, opened: JoinedTables, start: Sequence[Version], end: Sequence[Version]
    ) -> Iterator[pa.RecordBatch]:
        """The consolidated rows of a step, by one task's work."""
        uuids = tuple(table.uuid for table in opened.tables)
        return self._joined(opened, ShardOfStep(JoinStep(tuple(start), tuple(end), uuids)))

    def _joined(self, tables: JoinedTables, partition: ShardOfStep) -> Iterator[pa.RecordBatch]:
        step, shard, shards = partition.step, partition.shard, partition.shards
        changes = [tables.shard_changes(step, table, shard, shards) for table in range(len(tables.tables))]
        figures = Counter[str]()
        for batch in tables.evaluate(step, changes, shard=shard, shards=shards, figures=figures):
            yield as_asked(batch, self._schema)
        add(self._options.counter, figures)


def has_root(tables: JoinedTables) -> bool:
    """Whether a first load can be cut: some table is in every output row."""
    return bool(roots(tables.spec.tree))


def root_of(tables: JoinedTables, versions: Versions) -> int | None:
    """The table that drives a first load: of those in every output row the one with most rows."""
    found = sorted(roots(tables.spec.tree))
    ends = {table: tables.tables[table].snapshot(versions[table].target) for table in found}
    return max(found, key=lambda table: ends[table].row_count, default=None)


def slices(
    step: JoinStep, tables: JoinedTables, root: int, slice_rows: int, slice_bytes: int
) -> list[ShardOfStep]:
    """A first step in parts that need nothing of each other: ranges of the root's rows.

    To each of them the other tables do not move: they are where they are at the end.
    """
    end = step.new[root]
    if end == Version.EMPTY:
        return []
    bounds = [*_cuts(tables, end, root, slice_rows, slice_bytes), end]
    return [
        ShardOfStep(replace(step, old=_with(step.new, root, low), new=_with(step.new, root, high)))
        for low, high in zip([Version.EMPTY, *bounds[:-1]], bounds, strict=True)
    ]


def _cuts(
    tables: JoinedTables, end: Version, root: int, slice_rows: int, slice_bytes: int
) -> Iterator[Version]:
    """Versions between the empty table and ``end``: even ranges of hashes, for hashes are spread evenly."""
    table = tables.tables[root]
    buckets = table.pinned().buckets_between(0, end.target)
    size = step_size(table.pinned(), Version.EMPTY, end)
    wanted = max(-(-size.rows // slice_rows), -(-size.bytes // slice_bytes), tables.spec.shards)
    in_bucket = -(-wanted // buckets)
    for part in range(1, buckets * in_bucket):
        cursor = part // in_bucket, part % in_bucket * ((MAX_HASH + 1) // in_bucket)
        if end.cursor is None or cursor < end.cursor:
            yield Version(0, end.target, cursor)


def _with(versions: Versions, table: int, version: Version) -> Versions:
    return (*versions[:table], version, *versions[table + 1 :])
