"""Event-time temporal joins: each row of a stream with the version of a row that was valid at its time.

A row waits until the watermark has passed its time: then all versions up to that time have come, on both
sides, and the newest of them is the one that was valid. Which version that is depends on times alone, not on
the order of arrival, so the result is exact, and a micro-batch that is run again gives the same rows.

Keys are hashed into buckets, and a bucket is one call of Python and one value of Spark's state: the rows that
wait, and the versions that a row to come may need. These are all that are newer than the watermark, and of
each key the last one before; what is older can be asked for by late rows only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType, TimestampType

from deltajoin.core.keys import common_key_type, have_values, key_columns
from deltajoin.enrichment import HOWS, On, pairs_of
from deltajoin.errors import CheckpointMismatchError
from upsert import types
from upsert.arrays import Mask, Positions, one_array
from upsert.blobs import BLOB_COLUMN, gathered, in_order, rows_in, sent, to_blob, to_blobs
from upsert.errors import BrokenPayloadError, ChangelogError, ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.batches import from_spark, mapped, rows_for_spark
from upsert.spark.columns import stored_type
from upsert.spark.task import task_number
from upsert.store.rows.codes import codes_of_keys
from upsert.store.rows.hashing import bucket_of, hash_columns

WATERMARK: Final = "spark.watermarkDelayMs"
"""What Spark attaches to a column that has a watermark."""
BUCKETS: Final = 1024
"""A micro-batch rewrites the state of the buckets that it touches, so there are many; half a millisecond of
Python goes to each, so there are not more. Checkpoints keep the number."""
STATE: Final = "label STRING, waiting BINARY, versions BINARY"
"""The state of a bucket; a plan that has it is one of these joins."""
DELETED: Final = "_is_deleted"
"""Column of the versions: whether the key has no row from then on."""

_OF: Final = "temporal join"
"""What messages about its inputs begin with."""

_FOREVER: Final = 9_214_646_400_000_000
"""The year 2262, in microseconds: a blob is never late, and pandas has no later times."""


@dataclass(frozen=True)
class TemporalJoin:
    """A stream and versions of rows.

    Attributes:
        left: columns of the stream.
        right: columns of the versions, all of which may be NULL.
        on: pairs of columns that must be equal.
        time: the stream's column that says when a row is.
        valid_from: the column that says from when on a version is valid.
        selected: columns of the version that are added.
        how: "inner" or "left".
        has_deletes: whether the changes may take rows away, each at its time.
    """

    left: pa.Schema
    right: pa.Schema
    on: tuple[tuple[str, str], ...]
    time: str
    valid_from: str
    selected: tuple[str, ...]
    how: str
    has_deletes: bool = True

    @property
    def key_types(self) -> list[pa.DataType]:
        """The types in which keys are compared."""
        sides = ((self.left.field(one).type, self.right.field(other).type) for one, other in self.on)
        return [common_key_type(*pair) for pair in sides]

    @property
    def versions(self) -> pa.Schema:
        """Columns of what is remembered of the versions."""
        return self.right.append(pa.field(DELETED, pa.bool_()))

    @property
    def label(self) -> str:
        """What must stay the same as long as a checkpoint is used."""
        columns = {
            side: [[column.name, str(column.type)] for column in schema]
            for side, schema in (("left", self.left), ("right", self.right))
        }
        return json.dumps(
            {
                "buckets": BUCKETS,
                **columns,
                "on": self.on,
                "times": [self.time, self.valid_from],
                "how": self.how,
            }
        )


class Remembered(NamedTuple):
    """Rows that wait, and versions in the order of arrival."""

    waiting: pa.Table
    versions: pa.Table


def step(join: TemporalJoin, rows: Remembered, watermark: int) -> tuple[pa.Table, Remembered]:
    """The result of all rows that the watermark, in microseconds, has passed, and what is left of the rows.

    >>> columns = pa.schema({"k": pa.string(), "t": types.TIMESTAMP})
    >>> join = TemporalJoin(columns, columns, (("k", "k"),), "t", "t", ("t",), "left")
    >>> row = lambda *times: pa.table({"k": ["a"] * len(times), "t": times}, schema=columns)
    >>> versions = row(1, 5).append_column(DELETED, [[False, False]])
    >>> result, left = step(join, Remembered(row(4, 9), versions), 6)
    >>> result.column(2).cast(pa.int64()).to_pylist(), left.waiting.num_rows, left.versions.num_rows
    ([1], 1, 1)
    """
    is_due = ticks(rows.waiting, join.time) <= watermark
    ready, waiting = rows.waiting.filter(pa.array(is_due)), rows.waiting.filter(pa.array(~is_due))
    versions, count = rows.versions, rows.versions.num_rows
    sides = zip(_keys(join, versions, 1), _keys(join, ready, 0), strict=True)
    codes = codes_of_keys([pa.concat_arrays([one, other]) for one, other in sides])
    times = np.concatenate([ticks(versions, join.valid_from), ticks(ready, join.time)])
    # by key and time; of equal times versions come before rows, and the later version comes later
    order = np.lexsort((np.arange(len(codes)), times, codes))
    valid = _valid_versions(order, codes, count)
    valid[~have_values(ready, [name for name, _ in join.on])] = -1
    is_deleted = one_array(versions.column(DELETED)).to_numpy(zero_copy_only=False)
    valid[(valid >= 0) & np.append(is_deleted, False)[valid]] = -1
    result = _joined(join, ready, versions, valid)
    kept = _still_needed(order[order < count], codes, times <= watermark, is_deleted)
    return result, Remembered(waiting.combine_chunks(), versions.take(pa.array(kept)).combine_chunks())


def ticks(rows: pa.Table, column: str) -> Positions:
    """A column of times in microseconds."""
    found: Positions = one_array(rows.column(column)).cast(pa.int64()).to_numpy()
    return found


def _keys(join: TemporalJoin, rows: pa.Table, side: int) -> list[pa.Array]:
    return key_columns(rows, [pair[side] for pair in join.on], join.key_types)


def _valid_versions(order: Positions, codes: Positions, count: int) -> Positions:
    """For each row the version that is valid at its time, -1 for none; rows follow ``count`` versions."""
    is_version = order < count
    last = np.maximum.accumulate(np.where(is_version, np.arange(len(order)), -1))
    before = order[last]  # the last one of all where there is none before
    is_valid = (last >= 0) & (codes[before] == codes[order])
    found = np.full(len(order) - count, -1, np.int64)
    found[order[~is_version] - count] = np.where(is_valid, before, -1)[~is_version]
    return found


def _still_needed(order: Positions, codes: Positions, is_past: Mask, is_deleted: Mask) -> Positions:
    """The versions, in their order of arrival, that rows after the watermark may ask for.

    ``order`` has all versions by key and time.
    """
    past = is_past[order]
    follows_past = np.zeros(len(order), np.bool_)  # whether the key has a later one that is past too
    follows_past[:-1] = (codes[order[:-1]] == codes[order[1:]]) & past[1:]
    is_needed = ~past | ~(follows_past | is_deleted[order])
    return np.sort(order[is_needed])


def _joined(join: TemporalJoin, ready: pa.Table, versions: pa.Table, valid: Positions) -> pa.Table:
    if join.how == "inner":
        has_version = valid >= 0
        ready, valid = ready.filter(pa.array(has_version)), valid[has_version]
    found = versions.select(join.selected).take(pa.array(valid, mask=valid < 0))
    return pa.table([*ready.columns, *found.columns], names=_output_names(join))


def _output_names(join: TemporalJoin) -> list[str]:
    return [f"l{number}" for number in range(len(join.left))] + [
        f"r{number}" for number in range(len(join.selected))
    ]


@dataclass(frozen=True)
class Pack:
    """A task of one side: its rows as blobs, each of one bucket, numbered in the order of arrival."""

    join: TemporalJoin
    side: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blobs with the number of their bucket, and a time at which none is late."""
        parts = map(self._parted, gathered(from_spark(batches)))
        for bucket, blob in sent(parts, BUCKETS, {"side": self.side, "task": task_number()}):
            yield pa.record_batch(
                {
                    "bucket": pa.array([bucket], pa.int32()),
                    BLOB_COLUMN: pa.array([blob], pa.binary()),
                    "at": pa.array([_FOREVER], types.TIMESTAMP),
                }
            )

    def _parted(self, given: pa.Table) -> tuple[pa.Table, Positions]:
        """Rows, and the bucket of each."""
        rows = self._rows(given) if self.side == 0 else self._versions(given)
        time = self.join.time if self.side == 0 else self.join.valid_from
        if rows.column(time).null_count:
            raise SchemaError(
                f"temporal join: column {time!r} says when a row is valid and must not be NULL, got a row "
                "with NULL; filter such rows"
            )
        if rows.num_rows and ticks(rows, time).max() >= _FOREVER:
            raise SchemaError(
                f"temporal join: column {time!r} must be before the year 2262, got a row that is later, "
                "after which all others would be late; filter such rows"
            )
        return rows, bucket_of(hash_columns(_keys(self.join, rows, self.side)), BUCKETS)

    def _rows(self, given: pa.Table) -> pa.Table:
        columns = [given.column(field.name).cast(field.type) for field in self.join.left]
        return pa.Table.from_arrays(columns, schema=self.join.left)

    def _versions(self, given: pa.Table) -> pa.Table:
        """The version that each change begins; one that is replaced ends by that of its successor."""
        kinds = given.column(ROW_KIND_COLUMN)
        begins = given.filter(pc.not_equal(kinds, RowKind.UPDATE_BEFORE.value))
        is_deleted = pc.equal(begins.column(ROW_KIND_COLUMN), RowKind.DELETE.value)
        if not self.join.has_deletes and pc.any(is_deleted).as_py():
            raise ChangelogError(
                f"temporal join: a deletion must have a time of its own, got one whose "
                f"{self.join.valid_from!r} is that of the deleted row; declare a METADATA column as the "
                "table's time"
            )
        columns = [begins.column(field.name).cast(field.type) for field in self.join.right]
        return pa.Table.from_arrays([*columns, is_deleted], schema=self.join.versions)


@dataclass(frozen=True)
class JoinBucket:
    """What Spark calls for each bucket that has new rows, or rows that the watermark has passed."""

    join: TemporalJoin

    def __call__(self, _key: tuple[Any, ...], frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
        """Blobs of the result."""
        import pandas as pd  # a worker of another step has no need of it

        watermark = state.getCurrentWatermarkMs()
        # of versions of one time the one that a task has read later must win
        parts = in_order(blob for frame in frames for blob in frame[BLOB_COLUMN])
        rows = self._with(self._remembered(state), parts)
        result, left = step(self.join, rows, watermark * 1000)
        if left.waiting.num_rows or left.versions.num_rows:
            state.update((self.join.label, to_blob(left.waiting), to_blob(left.versions)))
            if left.waiting.num_rows:
                # Spark calls again once the watermark is above this
                earliest = -(-int(ticks(left.waiting, self.join.time).min()) // 1000)
                state.setTimeoutTimestamp(max(earliest - 1, watermark + 1))
        elif state.exists:
            state.remove()
        for blob in to_blobs(result, {}):
            yield pd.DataFrame({BLOB_COLUMN: [blob]})

    def _remembered(self, state: GroupState) -> Remembered:
        if not state.exists:
            return Remembered(self.join.left.empty_table(), self.join.versions.empty_table())
        label, waiting, versions = state.get
        if label != self.join.label:
            raise CheckpointMismatchError(
                f"temporal join: a query must continue with the join of its checkpoint, {label}, got "
                f"{self.join.label}; restore it, or start with a new checkpoint"
            )
        return Remembered(rows_in(waiting, self.join.left), rows_in(versions, self.join.versions))

    def _with(self, known: Remembered, parts: Sequence[tuple[pa.Table, dict[str, Any]]]) -> Remembered:
        found: tuple[list[pa.Table], list[pa.Table]] = [known.waiting], [known.versions]
        for rows, about in parts:
            if about.get("side") not in (0, 1) or rows.schema != found[about["side"]][0].schema:
                raise BrokenPayloadError(
                    "temporal join: a bucket must get rows of its two sides, got columns "
                    f"{rows.schema.to_string()!r} of side {about.get('side')!r}; run the micro-batch again"
                )
            found[about["side"]].append(rows)
        return Remembered(*map(pa.concat_tables, found))


def temporal_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: On,
    time: str,
    valid_from: str,
    how: str = "inner",
    select: Sequence[str] | None = None,
    has_deletes: bool = True,
) -> DataFrame:
    """Each row of a stream with the version of a row that was valid at the row's time (FLIP-132).

    A row is emitted once the watermark of both streams has passed its time, with the version of its key that
    has the newest ``valid_from`` not after it. A later version does not change it. While one of the streams
    brings no newer times, no row is emitted.

    Spark's state has the waiting rows, all versions after the watermark, and the last version before it of
    each key. A row that arrives after the watermark has passed its time finds the versions that the state
    still has, maybe none. For output mode append; Spark allows no other stateful operator in the query.

    >>> rate = spark.readStream.format("rate").load()
    >>> orders = rate.selectExpr("timestamp AS t", "value % 5 AS cur").withWatermark("t", "1 second")
    >>> rates = rate.selectExpr("timestamp AS t", "value % 5 AS cur", "value AS rate", "'+U' AS _row_kind")
    >>> rates = rates.withColumnRenamed("t", "since").withWatermark("since", "1 second")
    >>> temporal_join(orders, rates, on="cur", time="t", valid_from="since").columns
    ['t', 'cur', 'since', 'rate']

    Args:
        left: a stream whose rows are only added.
        right: changes, with ``_row_kind``; each ``+I`` and ``+U`` begins a version of its key, ``-D`` ends it
            at its own time. ``-U`` rows are ignored.
        on: columns that must be equal: a name that both have, or several, or pairs of names. NULL matches
            nothing. They must identify a row of ``right``.
        time: the column of ``left`` with a row's time; with a watermark, not NULL.
        valid_from: the column of ``right`` that says when a version becomes valid; likewise.
        how: "inner", or "left": a row without a version has NULLs.
        select: the columns of ``right`` to add; None for all but those of ``on``.
        has_deletes: whether ``valid_from`` of a ``-D`` says when the row was deleted, as the time of a record
            does. False: it is that of the row, so a deletion is an error.

    Returns:
        The columns of ``left``, then those selected.

    Raises:
        ConfigurationError: one of them is no stream, or has no watermark, or ``how`` is another one.
        SchemaError: a column is unknown or would be there twice, or types do not fit.
        ChangelogError: ``left`` has ``_row_kind``, so its rows may be deleted.
    """
    join = _declared(left, right, pairs_of(on), time, valid_from, select, how)
    join = replace(join, has_deletes=has_deletes)
    at = StructField("at", TimestampType(), True, {WATERMARK: 0})
    packed = StructType([StructField("bucket", IntegerType()), StructField(BLOB_COLUMN, BinaryType()), at])
    both = mapped(left, Pack(join, 0), packed).union(mapped(right, Pack(join, 1), packed))
    own = [StructField(f"l{n}", field.dataType) for n, field in enumerate(left.schema.fields)]
    added = [StructField(f"r{n}", right.schema[name].dataType) for n, name in enumerate(join.selected)]
    joined = both.groupBy("bucket").applyInPandasWithState(
        JoinBucket(join),
        StructType([StructField(BLOB_COLUMN, BinaryType())]),
        STATE,
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )
    return joined.mapInArrow(rows_for_spark, StructType([*own, *added])).toDF(*left.columns, *join.selected)


def _declared(
    left: DataFrame,
    right: DataFrame,
    on: tuple[tuple[str, str], ...],
    time: str,
    valid_from: str,
    select: Sequence[str] | None,
    how: str,
) -> TemporalJoin:
    _check_inputs(left, right, time, valid_from, how)
    schemas = [
        pa.schema(
            [(field.name, stored_type(field, _OF)) for field in side.schema if field.name != ROW_KIND_COLUMN]
        )
        for side in (left, right)
    ]
    for number, schema in enumerate(schemas):
        if missing := [pair[number] for pair in on if pair[number] not in schema.names]:
            raise SchemaError(
                f"{_OF}: on must name columns of both sides, got {missing[0]!r}; columns are "
                f"{', '.join(schema.names)}"
            )
    equated = {other for _, other in on}
    selected = tuple(n for n in schemas[1].names if n not in equated) if select is None else tuple(select)
    join = TemporalJoin(schemas[0], schemas[1], on, time, valid_from, selected, how)
    times = [schemas[0].field(time).type, schemas[1].field(valid_from).type]
    if not on or None in join.key_types or times[0] != times[1]:
        raise SchemaError(
            f"{_OF}: keys and times of both sides must have one scalar type each, got "
            f"{', '.join(f'{one} = {other}' for one, other in (*on, (time, valid_from)))}; cast them"
        )
    names = [*schemas[0].names, *selected]
    if repeated := types.first_repeated(names):
        raise SchemaError(f"{_OF}: the result must have each column once, got {repeated!r} twice; rename it")
    return join


def _check_inputs(left: DataFrame, right: DataFrame, time: str, valid_from: str, how: str) -> None:
    """Refuse what is no stream of rows and one of changes, each with a watermark for its time."""
    if how not in HOWS:
        raise ConfigurationError(f"{_OF}: how must be one of {', '.join(HOWS)}, got {how!r}")
    if ROW_KIND_COLUMN in left.columns:
        raise ChangelogError(
            f"{_OF}: rows of the left side must only be added, got a stream with {ROW_KIND_COLUMN!r}"
        )
    if ROW_KIND_COLUMN not in right.columns:
        raise ChangelogError(f"{_OF}: the right side must be changes, got no column {ROW_KIND_COLUMN!r}")
    for name, side, column in (("left", left, time), ("right", right, valid_from)):
        if not side.isStreaming:
            raise ConfigurationError(f"{_OF}: the {name} side must be a stream, got a batch")
        if column not in side.columns or WATERMARK not in side.schema[column].metadata:
            raise ConfigurationError(
                f"{_OF}: the {name} side must have a watermark for column {column!r}; declare WATERMARK FOR "
                f"{column} AS … in CREATE TABLE, or df.withWatermark({column!r}, '5 seconds')"
            )
