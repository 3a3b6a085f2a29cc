"""The join in ``applyInPandasWithState``, FLIP-486's own form: by shard, with lookups in flight together.

A task of each side packs its changes, by the hash of the join key, as Arrow bytes: neither the JVM nor pandas
converts a value, and a shard is one call of Python, not one a key. The stateful step folds, looks up, joins;
a last step unpacks. Rows of a side come from the cache where it has them, else from the side's source.
What a micro-batch cost goes along as numbers, which ``observe`` adds up.

What is kept of a shard: Spark's state has an epoch of the shard's caches, the rows that wait, and how many
steps the shard made. A lookup reads what is newest, so a micro-batch that is run again would not emit the
rows that it emitted before, and a sink may have these already. So the first attempt settles what the
micro-batch is, by the commit of its images to a managed table; every other attempt emits the changes between
the images before and after.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from deltajoin.errors import CheckpointMismatchError, LookupFailedError
from deltajoin.latest import metrics
from deltajoin.latest.journal import EpochCaches, Journal, caches_of
from deltajoin.latest.metrics import OBSERVED, Measures
from deltajoin.latest.spec import SIDES, LatestJoin
from deltajoin.latest.step import (
    ArrivedChanges,
    Drivers,
    Found,
    StepResult,
    TaskRows,
    Waiting,
    all_wait,
    change_schema,
    codes_of,
    is_among,
    join_keys,
    step,
)
from deltajoin.lookup.batch import LookupCounts, Lookups, Pending, open_lookups
from deltajoin.lookup.cache import CacheCounts, Cached, RowCache
from deltajoin.lookup.protocol import Answer
from upsert.arrays import Positions, one_array
from upsert.blobs import BLOB_COLUMN, bucket_ids, from_blob, gathered, sent, to_blob, to_blobs
from upsert.changelog.image_log import ImageLog
from upsert.errors import BrokenPayloadError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.spark.batches import from_spark, mapped, rows_for_spark
from upsert.spark.columns import spark_schema
from upsert.spark.task import QUERY_ID, query_of_task, task_number
from upsert.store import paths
from upsert.store.rows.hashing import bucket_of, hash_columns
from upsert.stream_keys import UPSERTS_MARK, UpsertKey
from upsert.types import quoted


class SideFinder:
    """Finds rows of one side for one step; a `deltajoin.latest.step.Finder`.

    The cache knows rows by whole join keys, whichever of their columns the source is asked by: all changes
    of a join key come to one shard, so an entry of this shard's cache misses none of them.
    """

    def __init__(self, join: LatestJoin, side: int, lookups: Lookups, cache: RowCache | None) -> None:
        self._join, self._side = join, side
        self._lookups, self._cache = lookups, cache
        self.columns = join.sides[side].columns
        self._asked = join_keys(join, side, self.columns.empty_table())
        self.lookup_counts = LookupCounts()

    def take_cache_counts(self) -> CacheCounts:
        """What the cache did since this was asked last."""
        return CacheCounts() if self._cache is None else self._cache.counts()

    def start(self, keys: pa.Table) -> _SidePending:
        """Begin to look up distinct join keys without NULLs, those that the cache does not know."""
        cached = None if self._cache is None else self._cache.get(keys)
        self._asked = keys if cached is None else keys.take(pa.array(cached.missing))
        names = self._lookups.source.keys
        at = [self._join.keys(self._side).index(name) for name in names]
        in_source_order = self._asked.select([str(n) for n in at]).rename_columns(list(names))
        return _SidePending(self, cached, self._lookups.start(in_source_order))

    def learn(self, keys: pa.Table, rows: pa.Table, changes: Drivers) -> None:
        """Remember rows that were asked for, and apply changes to those that are known.

        FLIP-486 does it so: the other side's lookups make entries, the own side's changes only keep them up.
        """
        if self._cache is None:
            return
        own_keys = join_keys(self._join, self._side, rows)
        new = self._asked.filter(pa.array(is_among(self._asked, keys)))
        is_new = is_among(own_keys, new)
        fresh = rows.filter(pa.array(is_new))
        # all keys of the fresh rows are among the new ones, so their codes are positions among these
        codes = codes_of(pa.concat_tables([new, own_keys.filter(pa.array(is_new))]), new.column_names)
        self._cache.put(new, Answer(codes[new.num_rows :], fresh))
        known = changes.where(~is_among(join_keys(self._join, self._side, changes.rows), new))
        if len(known):
            self._cache.update(known.rows.drop_columns([ROW_KIND_COLUMN]), (~known.is_value).tolist())


class _SidePending(NamedTuple):
    finder: SideFinder
    cached: Cached | None
    lookups: Pending

    def result(self) -> Found:
        """Wait for them: rows from the cache and from the source, and failures by position of the key."""
        answer, counts = self.lookups.result()
        self.finder.lookup_counts += counts
        columns = self.finder.columns
        rows = pa.Table.from_arrays(answer.rows.select(columns.names).columns, schema=columns)
        if self.cached is None:
            return Found(rows, answer.failures)
        failures = {int(self.cached.missing[at]): failure for at, failure in answer.failures.items()}
        return Found(pa.concat_tables([self.cached.rows, rows]), failures)

    def cancel(self) -> None:
        self.lookups.cancel()


_FOLDER: Final = "deltajoin-caches"


def caches_of_shard(join: LatestJoin, run: str, shard: int) -> EpochCaches:
    """The caches of a shard in one run of the query."""
    settings = join.settings
    sizes = settings.left_cache_size, settings.right_cache_size
    folder = _folder(shard) if settings.cache_enabled else None

    def make() -> EpochCaches:
        left, right = (
            RowCache(
                side.columns,
                join.keys(number),
                side.upsert_key,
                max_keys=sizes[number],
                max_bytes=settings.cache_max_bytes,
                is_recorded=folder is not None,
            )
            for number, side in enumerate(join.sides)
        )
        return EpochCaches(left, right, None if folder is None else Journal(folder, run))

    return caches_of((run, shard), make)


def _folder(shard: int) -> str | None:
    """Where the worker processes of this executor leave what they did; it goes away with the application."""
    if TaskContext.get() is None:
        return None
    return os.path.join(SparkFiles.getRootDirectory(), _FOLDER, query_of_task("lookup join"), str(shard))


WHOLE_MARK: Final = "deltajoin.whole"
"""Metadata of the ``_row_kind`` of a lookup join that gives every kind of change."""

_PACKED: Final = f"shard INT, {BLOB_COLUMN} BINARY"
_MEASURES: Final = tuple((f"{side}_{name}", name) for side in SIDES for name in metrics.NAMES)
"""Columns of the measures of both sides, and the measure in each."""

_RETRY_MS: Final = 10_000
_JOB_GROUP: Final = "spark.jobGroup.id"
_JOB_TAGS: Final = "spark.job.tags"
_OWN_SESSION: Final = re.compile(r"(?:^|,)spark-session-([0-9a-f-]+)-execution-root-id-")
"""The session in which the micro-batch itself is executed, whatever its ``foreachBatch`` executes."""


def join_streams(left: DataFrame, right: DataFrame, join: LatestJoin, shards: int) -> DataFrame:
    """A stream of the join of two streams, which meets the conditions; columns are ``join.output``."""
    packed = mapped(left, Pack(join, 0, shards), _PACKED).unionByName(
        mapped(right, Pack(join, 1, shards), _PACKED)
    )
    queues = join.settings.on_error == "queue"
    timeout = GroupStateTimeout.ProcessingTimeTimeout if queues else GroupStateTimeout.NoTimeout
    keep = int(str(left.sparkSession.conf.get("spark.sql.streaming.minBatchesToRetain")))
    emitted = None
    if join.is_whole and join.settings.state_path is not None:
        emitted = EmittedRows(join, paths.table_folder(join.settings.state_path), shards, keep)
    counts = [StructField(column, LongType()) for column, _ in _MEASURES]
    joined = packed.groupBy("shard").applyInPandasWithState(
        JoinShard(join, shards, emitted),
        StructType([StructField(BLOB_COLUMN, BinaryType()), *counts]),
        COLUMNS,
        "append",
        timeout,
    )
    # the measures of a micro-batch, over its shards
    totals = [
        (F.max if name in metrics.MAXIMA else F.sum)(column).alias(column) for column, name in _MEASURES
    ]
    unpacked = spark_schema(TableSchema.of(join.columns), row_kind=True)
    rows = joined.observe(OBSERVED, *totals).select(BLOB_COLUMN).mapInArrow(rows_for_spark, unpacked)
    return rows.select(*(F.col(quoted(name)) for name in rows.columns[:-1]), _kind(join))


def _kind(join: LatestJoin) -> Column:
    """The kind of the result's rows, with a mark by which a reader of Spark's plan knows the operator."""
    if join.is_whole:
        return F.col(ROW_KIND_COLUMN).alias(ROW_KIND_COLUMN, metadata={WHOLE_MARK: True})
    key = UpsertKey(tuple((name,) for name in join.output_key), of="a lookup join", is_append=True)
    # whether a row is new to the sink is not known after a replay: upserts are +U and -D alone
    upserts = F.when(F.col(ROW_KIND_COLUMN) == RowKind.DELETE.value, RowKind.DELETE.value)
    kind = upserts.otherwise(RowKind.UPDATE_AFTER.value)
    return kind.alias(ROW_KIND_COLUMN, metadata={UPSERTS_MARK: key.to_text()})


@dataclass(frozen=True)
class Pack:
    """A task of one side: its changes as blobs, each of one shard, numbered in the order of arrival."""

    join: LatestJoin
    side: int
    shards: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blobs with the number of their shard."""
        ids, parts = bucket_ids(self.shards), map(self._changes, gathered(from_spark(batches)))
        for shard, blob in sent(parts, self.shards, {"side": self.side, "task": task_number()}):
            yield pa.record_batch({"shard": ids[[shard]], BLOB_COLUMN: pa.array([blob], pa.binary())})

    def _changes(self, rows: pa.Table) -> tuple[pa.Table, Positions]:
        """The changes, and the shard of each."""
        of = self.join.sides[self.side]
        columns = [rows.column(name).cast(of.columns.field(name).type) for name in of.columns.names]
        changes = pa.Table.from_arrays([*columns, rows.column(ROW_KIND_COLUMN)], schema=change_schema(of))
        keys = join_keys(self.join, self.side, changes)
        return changes, bucket_of(hash_columns([one_array(column) for column in keys.columns]), self.shards)


@dataclass(frozen=True)
class JoinShard:
    """What Spark calls for each shard that has rows in a batch, or whose waiting rows are due."""

    join: LatestJoin
    shards: int
    given: EmittedRows | None = None

    def __call__(self, key: tuple[Any, ...], frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
        """Blobs of the result, then one row of measures."""
        before = ShardState(*state.get) if state.exists else ShardState(0)
        before.check_is_of(self.join, self.shards)
        shard, given = int(key[0]), None
        if self.given is not None:
            given = self.given.of_shard(query_of_task("lookup join"), shard, before.position)
        blobs = (blob for frame in frames for blob in frame[BLOB_COLUMN])
        changes = before.waiting(self.join), self._parts(blobs)
        result = None if given is None else self._settled(given, *changes)
        caches = caches_of_shard(self.join, _run(), shard)
        # caches learn nothing in a step that has been settled before, so they miss its changes
        caches.begin(before.epoch or None if result is None else None)
        finders = self._finder(0, caches), self._finder(1, caches)
        if result is None:
            result = step(self.join, *changes, finders)
            self._check(result)
            result = result if given is None else self._whole(given, result, *changes)
        for piece in result.output:
            for blob in to_blobs(piece, {}):
                yield _frame(blob, (Measures(), Measures()))
        position = 0 if given is None else given.position + 1
        state.update(tuple(ShardState.of(self.join, self.shards, caches.seal(), result.waiting, position)))
        if result.waiting != (None, None) and self.join.settings.on_error == "queue":
            state.setTimeoutDuration(_RETRY_MS)
        yield _frame(None, self._measures(finders, result))

    def _settled(
        self, given: EmittedRowsOfShard, waiting: Waiting, arrived: ArrivedChanges
    ) -> StepResult | None:
        """The step as an attempt before has settled it; None if there was none.

        Which lookups failed then, and whether later rows were found, is not recorded: so all changes
        wait for the next step, which gives what was not given yet.
        """
        rows = given.settled()
        return None if rows is None else StepResult(iter([rows]), all_wait(self.join, waiting, arrived), ())

    def _whole(
        self, given: EmittedRowsOfShard, result: StepResult, waiting: Waiting, arrived: ArrivedChanges
    ) -> StepResult:
        """The step with every kind of change, unless another attempt settles it first."""
        rows = given.settle(result.output)
        if rows is not None:
            return replace(result, output=iter([rows]))
        settled = self._settled(given, waiting, arrived)
        assert settled is not None, "only an attempt that settles the step keeps another one from doing so"
        return settled

    def _parts(self, blobs: Iterable[bytes]) -> ArrivedChanges:
        parts: tuple[list[TaskRows], list[TaskRows]] = [], []
        for blob in blobs:
            rows, about = from_blob(blob)
            side = about.get("side")
            if side not in (0, 1) or rows.schema != change_schema(self.join.sides[side]):
                raise BrokenPayloadError(
                    "lookup join: a shard must get changes of its two sides, got columns "
                    f"{rows.schema.to_string()!r} of side {side!r}; run the micro-batch again"
                )
            parts[side].append(TaskRows(about["task"], about["number"], rows))
        return parts

    def _check(self, result: StepResult) -> None:
        if result.failures and self.join.settings.on_error == "fail":
            raise LookupFailedError(
                f"lookup join: {len(result.failures)} join key(s) could not be looked up; the first: "
                f"{result.failures[0]}; the batch is run again, or set on_error='queue' to let such rows wait"
            ) from result.failures[0]

    def _finder(self, side: int, caches: EpochCaches) -> SideFinder:
        settings = self.join.settings
        lookups = open_lookups(
            (_run(), side),
            self.join.sides[side].source,
            capacity=settings.async_buffer_capacity,
            timeout_s=settings.async_timeout / 1000,
        )
        cache = (caches.left, caches.right)[side] if settings.cache_enabled else None
        return SideFinder(self.join, side, lookups, cache)

    def _measures(self, finders: Sequence[SideFinder], result: StepResult) -> tuple[Measures, ...]:
        counts = [0 if rows is None else rows.num_rows for rows in result.waiting]
        return tuple(
            Measures.of(finder.take_cache_counts(), finder.lookup_counts, waiting)
            for finder, waiting in zip(finders, counts, strict=True)
        )


def _run() -> str:
    """What tells this run of this query from all others in the process, fit for a file's name.

    Each run has a copy of the session, which the tags of its jobs name. The group of the jobs is Spark's id
    of the run, but a ``foreachBatch`` may set another one, for all runs the same or for each micro-batch
    another.
    """
    context = TaskContext.get()
    if context is None:
        return _named([])
    query, group, tags = map(context.getLocalProperty, (QUERY_ID, _JOB_GROUP, _JOB_TAGS))
    session = _OWN_SESSION.search(tags or "")
    return _named([query, group if session is None else session[1]])


def _named(ids: Sequence[str | None]) -> str:
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:32]


def _frame(blob: bytes | None, of_sides: Sequence[Measures]) -> Any:
    import pandas as pd  # a worker of another step has no need of it

    values = [value for of_side in of_sides for value in astuple(of_side)]
    return pd.DataFrame([[blob, *values]], columns=[BLOB_COLUMN, *(column for column, _ in _MEASURES)])


class ShardState(NamedTuple):
    """The columns of the state: a few bytes, unless rows wait.

    Attributes:
        epoch: of the caches that have seen all of the shard's changes.
        label: which join and number of shards the shard belongs to; empty for upserts while no rows wait.
        left, right: waiting rows of each side as Arrow bytes; empty if there are none.
        position: steps that the shard has made, of a join whose result is whole; else 0.
    """

    epoch: int
    label: str = ""
    left: bytes = b""
    right: bytes = b""
    position: int = 0

    @classmethod
    def of(cls, join: LatestJoin, shards: int, epoch: int, waiting: Waiting, position: int = 0) -> ShardState:
        """The state after a step."""
        if waiting == (None, None) and not position:
            return cls(epoch)
        left, right = (b"" if rows is None else to_blob(rows) for rows in waiting)
        return cls(epoch, label_of(join, shards), left, right, position)

    def check_is_of(self, join: LatestJoin, shards: int) -> None:
        """Refuse to go on with a join that the state does not know, or knows as another one."""
        if self.label and self.label != label_of(join, shards):
            what, until = ("wait for a lookup", " until nothing waits any more")
            if self.position:
                what, until = "were given", ""
            raise CheckpointMismatchError(
                f"lookup join: rows that {what} must continue with the join and shards of their checkpoint, "
                f"{self.label}, got {label_of(join, shards)}; restore these{until}, or start with a new "
                "checkpoint"
            )
        if join.is_whole and self.epoch and not self.position:
            raise CheckpointMismatchError(
                "lookup join: changelog = 'all' must be set from the beginning of a checkpoint, this one has "
                "given upserts, which are not recorded; continue with changelog='upsert', or start with a "
                "new checkpoint"
            )

    def waiting(self, join: LatestJoin) -> Waiting:
        """The rows that wait."""
        return _waiting_rows(join, 0, self.left), _waiting_rows(join, 1, self.right)


COLUMNS: Final = "epoch BIGINT, label STRING, left BINARY, right BINARY, position BIGINT"
"""`ShardState` as Spark's schema."""


def label_of(join: LatestJoin, shards: int) -> str:
    """What must be the same for waiting rows to be joined as they would have been, and given ones known."""
    sides = {
        name: {
            "columns": [[column.name, str(column.type)] for column in side.columns],
            "upsert_key": side.upsert_key,
            "order_by": side.order_by,
        }
        for name, side in zip(SIDES, join.sides, strict=True)
    }
    whole = {"changelog": "all"} if join.is_whole else {}
    about = {"kind": join.kind, "on": join.on, "where": str(join.where), "shards": shards}
    return json.dumps({**about, **whole, **sides})


def _waiting_rows(join: LatestJoin, side: int, blob: bytes) -> pa.Table | None:
    if not blob:
        return None
    rows, _ = from_blob(blob)
    schema = change_schema(join.sides[side])
    if rows.schema != schema:
        raise BrokenPayloadError(
            f"lookup join: waiting rows of the {SIDES[side]} side must have the columns "
            f"{schema.to_string()!r}, got {rows.schema.to_string()!r}; restore the checkpoint"
        )
    return rows


_MISSING: Final = "_missing"
"""Part of the images' key where rows may be padded: which side a row has not, as its key is NULL there."""
_NEITHER: Final = -1


@dataclass(frozen=True)
class EmittedRows:
    """Where the shards of a query keep the rows that they have given.

    Each query has a folder of its own below ``folder``, by its id; ``keep`` micro-batches can be run again.
    """

    join: LatestJoin
    folder: str
    shards: int
    keep: int

    def of_shard(self, query: str, shard: int, position: int) -> EmittedRowsOfShard:
        """Those of one shard at a position: the number of steps that it has made."""
        parent, own = os.path.join(self.folder, query), f"{self.shards}-shards"
        others = [] if position or not os.path.isdir(parent) else sorted({*os.listdir(parent)} - {own})
        if others:
            raise CheckpointMismatchError(
                f"lookup join: the rows that were given, in {parent!r}, must continue with the shards of "
                f"their checkpoint, {others[0]}, got shards={self.shards}; restore these, or start with a "
                "new checkpoint"
            )
        images, name = _images(self.join), f"shard-{shard}"
        log = ImageLog.open(os.path.join(parent, own, name), images, name, beginning=0, keep=self.keep)
        return EmittedRowsOfShard(self.join, images, log, position)


@dataclass(frozen=True, eq=False)
class EmittedRowsOfShard:
    """The rows that one shard has given by the steps before ``position``; used for one step."""

    _join: LatestJoin
    _images: TableSchema
    _log: ImageLog
    position: int

    def settled(self) -> pa.Table | None:
        """What the next step gives, if an attempt at it has settled that; columns as ``join.output``."""
        changes = self._log.settled(self.position, self.position + 1)
        return None if changes is None else self._decoded(changes)

    def settle(self, upserts: Iterable[pa.Table]) -> pa.Table | None:
        """Every kind of change that the upserts of the next step come to; None if it has been settled.

        ``+I`` for a new key; ``-U``, with the row that was given, and ``+U``; ``-D`` with that row; nothing
        for a row that equals it, or for a delete of a key that has none. Upserts have each key once.
        """
        rows = pa.concat_tables([self._join.output.empty_table(), *upserts]).combine_chunks()
        compare = [name for name in self._images.names if name not in self._images.primary_key]
        changes = self._log.settle(self.position, self.position + 1, self._encoded(rows), compare=compare)
        return None if changes is None else self._decoded(changes)

    def _encoded(self, rows: pa.Table) -> pa.Table:
        """Rows whose key is nowhere NULL."""
        if not self._join.pads_are_keys:
            return rows
        missing = np.full(rows.num_rows, _NEITHER, np.int8)
        for side, names in enumerate(_keys_by_side(self._join)):
            missing[pc.is_null(rows.column(names[0])).to_numpy()] = side
            for name in names:
                column = rows.column(name)
                at = rows.column_names.index(name)
                rows = rows.set_column(at, name, column.fill_null(_any_value(column.type)))
        return rows.append_column(_MISSING, pa.array(missing))

    def _decoded(self, changes: pa.Table) -> pa.Table:
        if self._join.pads_are_keys:
            missing = changes.column(_MISSING)
            for side, names in enumerate(_keys_by_side(self._join)):
                is_null = pc.equal(missing, side)
                for name in names:
                    column = changes.column(name)
                    nulled = pc.if_else(is_null, pa.scalar(None, column.type), column)
                    changes = changes.set_column(changes.column_names.index(name), name, nulled)
        columns = [changes.column(name) for name in self._join.output.names]
        return pa.Table.from_arrays(columns, schema=self._join.output)


def _images(join: LatestJoin) -> TableSchema:
    if not join.pads_are_keys:
        return TableSchema.of(join.columns, primary_key=join.output_key)
    return TableSchema.of(join.columns.append(pa.field(_MISSING, pa.int8())), (*join.output_key, _MISSING))


def _keys_by_side(join: LatestJoin) -> tuple[list[str], list[str]]:
    """The columns of the key in the names of the result, by side."""
    left = len(join.upsert_key[0])
    return list(join.output_key[:left]), list(join.output_key[left:])


def _any_value(type_: pa.DataType) -> pa.Scalar:
    """Some value of a scalar type: 0, or an empty text."""
    zeros = pa.py_buffer(bytes(16))
    has_offsets = type_ in (pa.string(), pa.binary())
    buffers = [None, zeros, pa.py_buffer(b"")] if has_offsets else [None, zeros]
    return pa.Array.from_buffers(type_, 1, buffers)[0]
