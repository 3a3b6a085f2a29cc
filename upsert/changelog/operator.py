"""The normalizer as an operator over any stream of rows with a key and an order.

Rows go through three steps. A task of the input packs them: bucket by bucket, as Arrow bytes, so that neither
the JVM nor pandas converts a value. ``applyInPandasWithState`` brings the blobs of a bucket together with
its images: few groups, for one call of Python a key costs a hundred times as much. A last step unpacks.

The images of a bucket are kept in a blob or in a table. A blob is rewritten whole in every batch in which the
bucket has rows, so it is for small states. A table (an ``ImageLog``) is written by its changes. Its position
is the number of batches that the bucket has seen, kept in the group state: after a crash between the table's
commit and Spark's, the batch starts from the same position and finds its images committed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from upsert import types
from upsert.arrays import Positions
from upsert.blobs import BLOB_COLUMN, bucket_ids, gathered, in_order, rows_in, sent, to_blob, to_blobs
from upsert.changelog.image_log import KEEP, ImageLog, NewestImages
from upsert.changelog.normalizer import Expiry, Rules, check_not_null, split_kinds, with_kinds
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark.batches import from_spark, mapped, rows_for_spark
from upsert.spark.columns import stored_type
from upsert.spark.task import query_of_task, task_number
from upsert.store import paths
from upsert.store.rows.conform import conform
from upsert.store.rows.hashing import bucket_of, hash_columns
from upsert.store.rows.layout import Layout

MAX_STATE_BYTES: Final = 32 << 20
"""Images of one bucket that are kept in Spark's state store, which writes all of them in every batch."""


@dataclass(frozen=True)
class NormalizeSpec:
    """The operator's arguments, checked; the schema's primary key is the key.

    Images of a bucket are kept below the folder ``state_path``, so that ``keep`` batches can be run again;
    for None in the state store, up to ``max_state_bytes``.
    """

    schema: TableSchema
    rules: Rules
    buckets: int
    state_path: str | None = None
    max_state_bytes: int = MAX_STATE_BYTES
    keep: int = KEEP

    def __post_init__(self) -> None:
        for name in ("buckets", "max_state_bytes", "keep"):
            number = getattr(self, name)
            if number < 1:
                raise ConfigurationError(f"normalize: {name} must be a positive integer, got {number!r}")
        self.rules.check(self.schema.arrow)

    @property
    def label(self) -> str:
        """What must stay the same as long as a checkpoint is used; kept with the state of each bucket."""
        columns = [[column.name, str(column.type)] for column in self.schema.columns]
        rules = {"key": self.rules.key, "order_by": self.rules.order_by}
        return json.dumps({"buckets": self.buckets, **rules, "columns": columns})


_DROP_EVERY = 64
"""Batches of a bucket after which expired images in its table are looked for."""


class Remembered(NamedTuple):
    """What Spark keeps for a bucket: as the state's columns, none of them NULL.

    ``position`` is 0 as long as the images are in the blob ``images``, which may be empty.
    """

    label: str
    images: bytes
    position: int


def step(
    spec: NormalizeSpec, bucket: int, query: str, remembered: Remembered | None, records: pa.Table
) -> tuple[Iterator[pa.Table], Remembered]:
    """The changes of one bucket in one batch, and what to remember; take all changes.

    Tables of images belong to the query: its id is in its checkpoint, and those of another are never read.
    """
    known = remembered or Remembered(spec.label, b"", 0)
    if known.label != spec.label:
        raise ConfigurationError(
            f"normalize: a query must continue with the arguments of its checkpoint, {known.label}, got "
            f"{spec.label}; restore them, or start with a new checkpoint"
        )
    if spec.state_path is not None:
        return _in_table(spec, spec.state_path, bucket, query, known, records)
    if known.position:
        raise ConfigurationError(
            f"normalize: the images of bucket {bucket} are in tables since an earlier run; give state_path "
            "as it was"
        )
    newest = _images(spec, known.images)
    changes = newest.normalize(*split_kinds(records), spec.rules)
    if spec.rules.expiry is not None:
        newest.drop_expired(spec.rules.expiry)
    kept = newest.changed.drop_columns([ROW_KIND_COLUMN])
    if kept.nbytes > spec.max_state_bytes:
        raise ConfigurationError(
            f"normalize: the images of bucket {bucket} must fit into max_state_bytes={spec.max_state_bytes}, "
            f"got {kept.nbytes} bytes; give state_path='…' and start the query again: it then keeps them in "
            "tables of that folder"
        )
    return iter([changes]), Remembered(known.label, to_blob(kept), 0)


def _images(spec: NormalizeSpec, blob: bytes) -> NewestImages:
    return NewestImages.all(rows_in(blob, spec.rules.image_schema(spec.schema.arrow)), spec.rules.key)


def _in_table(
    spec: NormalizeSpec, state_path: str, bucket: int, query: str, known: Remembered, records: pa.Table
) -> tuple[Iterator[pa.Table], Remembered]:
    name = f"bucket-{bucket}"
    log = ImageLog.open(
        os.path.join(state_path, query, name),
        spec.schema,
        name,
        beginning=0,
        keep=spec.keep,
        order_by=spec.rules.order_by,
        drop_every=_DROP_EVERY,
    )
    position, rules = known.position, spec.rules
    if known.images:
        # until now they were in the state store
        position = 1
        log.take_over(_images(spec, known.images).changed, position)
    changes = log.advance(position, position + 1, records, compare=rules.compare, expiry=rules.expiry)
    return changes, Remembered(known.label, b"", position + 1)


NORMALIZE_MARK: Final = "upsert.normalize"
"""Metadata of the column that the stateful step puts out, by which a reader of Spark's plan knows it."""

_PACKED: Final = f"bucket INT, {BLOB_COLUMN} BINARY"
_STATE: Final = "label STRING, images BINARY, position BIGINT"


def normalize(
    df: DataFrame,
    key: str | Sequence[str],
    order_by: str | Sequence[str],
    *,
    compare: Sequence[str] | None = None,
    ttl: timedelta | None = None,
    time: str | None = None,
    state_path: str | None = None,
    buckets: int | None = None,
    max_state_bytes: int = MAX_STATE_BYTES,
) -> DataFrame:
    """A stream of "the newest row of each key" as a full changelog with ``-U`` (FLIP-149's normalizer).

    The first row of a key is ``+I``, a later one ``-U`` with the row before and ``+U``, a delete ``-D`` with
    all columns of the row before. A delete of an unknown key gives nothing, nor does a row that equals the
    one before, nor a *late* row, whose order is lower than that of the key's newest row. Of rows of equal
    order the one that came later wins. So late and duplicate records of an at-least-once producer do no harm.

    For output mode append; stateless operators and Spark's own aggregates may follow. Spark refuses a second
    ``applyInPandasWithState`` in one query, so there is one ``normalize`` a query. (The format
    ``upsert-kafka`` normalizes by itself, without Spark's state.)

    The state has the newest row of every key and its order. Of a deleted key it has the order, so that no
    late row inserts it again. It is kept for ever, or with ``ttl`` at least that long: in Spark's state store
    up to ``max_state_bytes`` a bucket (a batch rewrites the rows of each bucket that it touches), or with
    ``state_path`` in managed tables, to which a batch writes only the changes. A query that has reached the
    limit continues when it is started again with ``state_path``.

    After a crash a batch is run again from the same state. If its source has lost records in between, as by
    Kafka's compaction, only intermediate rows may be missing.

    Rows in larger pieces are faster: `deltajoin.configure` sets how many rows Spark puts into one.

    >>> events = spark.readStream.format("rate").load().selectExpr("value % 5 AS id", "value", "timestamp")
    >>> normalize(events, key=["id"], order_by="timestamp", buckets=2).columns
    ['id', 'value', 'timestamp', '_row_kind']

    Args:
        df: a stream with columns of types that a table can have. With a column ``_row_kind``, ``-U`` and
            ``-D`` delete their key whatever the other columns, without it every row is a value.
        key: columns that identify a row, not NULL.
        order_by: columns that say which row of a key is newer, not NULL, in deletes too.
        compare: columns that make two rows different; None for all. If, for example, the offset is not among
            them, a record that was sent twice gives nothing.
        ttl: how long a row is remembered, by ``time``. A row that is younger by more than this than the one
            before is ``+I`` again, and nothing is retracted; equal rows give ``-U`` and ``+U``, as in Flink.
        time: for ``ttl``, a column of TIMESTAMP or of BIGINT milliseconds; None: the first TIMESTAMP in
            ``order_by``.
        state_path: a folder on a disk that driver and executors share. Below it each query has its own,
            named by the query's id; delete that together with the checkpoint, never alone.
        buckets: groups of keys, fixed for a checkpoint's life; None: ``spark.sql.shuffle.partitions``, which
            is the number of Spark's state stores.
        max_state_bytes: limit for the rows of one bucket in the state store.

    Returns:
        The same columns, ``_row_kind`` last.

    Raises:
        ConfigurationError: the DataFrame is no stream, or an argument is out of range.
        SchemaError: a column is unknown or has a type that cannot serve.
    """
    if not df.isStreaming:
        raise ConfigurationError(
            "normalize needs a streaming DataFrame, got a batch one; in batch, Table.write keeps the last row"
        )
    conf = df.sparkSession.conf
    if buckets is None:
        buckets = int(str(conf.get("spark.sql.shuffle.partitions")))
    keep = int(str(conf.get("spark.sql.streaming.minBatchesToRetain")))
    identity, order = _names(key), _names(order_by)
    if not order:
        raise ConfigurationError("normalize: order_by must name at least one column, got none")
    schema = table_schema(df.schema, identity)
    columns = [name for name in schema.names if name not in identity]
    expiry = None if ttl is None else _expiry(ttl, time, order, schema)
    rules = Rules(identity, tuple(columns if compare is None else compare), order, expiry)
    folder = None if state_path is None else paths.table_folder(state_path)
    own = [field for field in df.schema.fields if field.name != ROW_KIND_COLUMN]
    output = StructType([*own, StructField(ROW_KIND_COLUMN, StringType(), nullable=False)])
    mark = {NORMALIZE_MARK: {"key": list(identity), "order": list(order)}}
    blobs = StructType([StructField(BLOB_COLUMN, BinaryType(), nullable=True, metadata=mark)])
    spec = NormalizeSpec(schema, rules, buckets, folder, max_state_bytes, keep)
    return (
        mapped(df, Pack(spec), _PACKED)
        .groupBy("bucket")
        .applyInPandasWithState(NormalizeBucket(spec), blobs, _STATE, "append", GroupStateTimeout.NoTimeout)
        .mapInArrow(rows_for_spark, output)
    )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def table_schema(given: StructType, key: Sequence[str]) -> TableSchema:
    """The columns of a DataFrame, without ``_row_kind``, as those of a table."""
    columns = tuple(
        Column(field.name, stored_type(field, "normalize"), field.nullable)
        for field in given.fields
        if field.name != ROW_KIND_COLUMN
    )
    return TableSchema(columns, primary_key=tuple(key))


def _expiry(ttl: timedelta, time: str | None, order_by: Sequence[str], schema: TableSchema) -> Expiry:
    if time is None:
        time = next((name for name in order_by if schema.type_of(name) == types.TIMESTAMP), None)
    if time is None:
        raise ConfigurationError(
            "normalize: ttl needs a TIMESTAMP in order_by, or the argument time='column', got order_by="
            f"{list(order_by)!r}"
        )
    return Expiry(time, ttl // timedelta(milliseconds=1))


@dataclass(frozen=True)
class Pack:
    """A task of the input: its rows as blobs, each of one bucket, numbered in the order of their arrival."""

    spec: NormalizeSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blobs with the number of their bucket."""
        ids, layout = bucket_ids(self.spec.buckets), Layout.of(self.spec.schema)

        def conformed(given: pa.Table) -> tuple[pa.Table, Positions]:
            rows, weights = conform(layout, given, "normalize")
            check_not_null(rows, self.spec.rules.order_by, "order_by")
            if weights is not None:
                rows = with_kinds(rows, weights > 0)
            key = [rows.column(name) for name in self.spec.rules.key]
            return rows, bucket_of(hash_columns(key), self.spec.buckets)

        parts = map(conformed, gathered(from_spark(batches)))
        for bucket, blob in sent(parts, self.spec.buckets, {"task": task_number()}):
            yield pa.record_batch({"bucket": ids[[bucket]], BLOB_COLUMN: pa.array([blob], pa.binary())})


@dataclass(frozen=True)
class NormalizeBucket:
    """What Spark calls for each bucket that has rows in a batch."""

    spec: NormalizeSpec

    def __call__(self, key: tuple[Any, ...], frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
        """Blobs of changes."""
        import pandas as pd  # a worker of another step has no need of it

        # the order of rows of equal order must be the same when a batch is run again
        parts = in_order(blob for frame in frames for blob in frame[BLOB_COLUMN])
        records = pa.concat_tables([rows for rows, _ in parts])
        remembered = Remembered(*state.get) if state.exists else None
        query = query_of_task("normalize")
        changes, known = step(self.spec, int(key[0]), query, remembered, records)
        blobs = [blob for table in changes for blob in to_blobs(table, {})]
        state.update(tuple(known))
        for blob in blobs:
            yield pd.DataFrame({BLOB_COLUMN: [blob]})
