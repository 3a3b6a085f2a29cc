"""Arrow batches on their way to Spark and from it.

Spark checks the Arrow schema that a Python source reads to the letter, nullability and time zone included.
The session decides how Spark labels the batches that it hands to Python: instants bear its time zone, and
texts are large ones where ``spark.sql.execution.arrow.useLargeVarTypes`` is set. The values are the same.
Whatever takes batches from Spark takes them through `from_spark`, so that nothing behind it depends on the
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    CalendarIntervalType,
    DataType,
    StructType,
    YearMonthIntervalType,
)

from upsert import types
from upsert.arrays import one_array
from upsert.blobs import BLOB_COLUMN, from_blob, rows_of_blobs, to_blobs
from upsert.errors import SchemaError
from upsert.spark.columns import has_within
from upsert.spark.connect import is_connect
from upsert.spark.formats import active
from upsert.spark.java import class_name
from upsert.spark.settings import copy_of
from upsert.store.files.formats.base import retyped
from upsert.store.rows.conform import cast_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T", pa.Array, pa.ChunkedArray)

BATCH_ROWS: Final = 65_536
"""Rows of an Arrow batch that goes to the JVM: large enough for speed, small beside a task's memory."""


def arrow_schema(asked: StructType) -> pa.Schema:
    """The Arrow schema that Spark demands of every batch of a read."""
    return to_arrow_schema(asked, timezone="UTC")


def to_spark(rows: pa.Table, asked: StructType) -> Iterator[pa.RecordBatch]:
    """The rows as Spark demands them: the columns asked for, exact Arrow types and nullability."""
    schema = arrow_schema(asked)
    columns = [_in_spark(rows.column(name)) for name in schema.names]
    return iter(pa.Table.from_arrays(columns, schema=schema).to_batches(max_chunksize=BATCH_ROWS))


def as_asked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch whose columns are those of ``arrow_schema``, in the types that it says."""
    return pa.RecordBatch.from_arrays([_in_spark(column) for column in batch.columns], schema=schema)


def for_spark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch that a function of ``mapInArrow`` gives, in the types in which Spark takes it.

    >>> times = pa.record_batch({"at": pa.array([1], pa.time32("s"))})
    >>> [batch.schema.types for batch in for_spark([times])]
    [[Time64Type(time64[ns])]]
    """
    for batch in batches:
        wanted = [types.in_spark(type_) for type_ in batch.schema.types]
        if wanted == batch.schema.types:
            yield batch
            continue
        fields = [field.with_type(type_) for field, type_ in zip(batch.schema, wanted, strict=True)]
        yield as_asked(batch, pa.schema(fields, batch.schema.metadata))


MapBatches = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def mapped(df: DataFrame, function: MapBatches, schema: StructType | str) -> DataFrame:
    """What ``mapInArrow`` gives, which finds no column with a dot or a back quote in its name.

    >>> named = spark.sql("SELECT 1 AS `a.b`, 2 AS `c``d`")
    >>> mapped(named, lambda batches: batches, named.schema).collect()
    [Row(a.b=1, c`d=2)]
    """
    names = df.columns
    if any("." in name or "`" in name for name in names):
        df, function = df.toDF(*map(str, range(len(names)))), _Renamed(function, tuple(names))
    return df.mapInArrow(function, schema)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Renamed:
    """Gives a function the columns under their names, in their order."""

    function: MapBatches
    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.function(batch.rename_columns(list(self.names)) for batch in batches)


def rows_for_spark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame's blobs, as a function of ``mapInArrow`` gives them."""
    return for_spark(rows_of_blobs(batches))


def table_for_spark(rows: pa.Table) -> pa.Table:
    """Rows, all in one batch, as ``createDataFrame`` takes them."""
    columns = [_in_spark(column) for column in rows.columns]
    return pa.table(columns, names=rows.column_names).combine_chunks()


_MOST_IN_A_PLAN: Final = "spark.sql.execution.arrow.localRelationThreshold"


def local_rows(spark: SparkSession, rows: pa.Table, schema: StructType) -> Any:
    """Some rows, at least one, as a leaf of a plan has them in the JVM, however many bytes they are.

    A session leaves more than 48 MB of ``createDataFrame``, or what it is told, to tasks.

    >>> from pyspark.sql.types import StructType
    >>> local_rows(spark, pa.table({"id": [1, 2]}), StructType.fromDDL("id BIGINT")).size()
    2
    """

    def leaf(session: SparkSession) -> Any:
        return frame_of_rows(session, rows, schema)._jdf.queryExecution().analyzed()

    found = leaf(spark)
    if class_name(found) != "LocalRelation":
        copy = copy_of(spark, {_MOST_IN_A_PLAN: str((1 << 63) - 1)})
        with active(copy):  # what it makes active in this thread must not stay so
            found = leaf(copy)
    return found.data()


def frame_of_rows(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Rows in the types in which Spark takes them, as a DataFrame in whose plan they are if they are few."""
    # Spark drops all that follows a record batch without rows, and fails for a column without any batch
    given = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    return spark.createDataFrame(given, schema)


def _in_spark(column: T) -> T:
    """Values of a column in the type in which Spark takes them."""
    if (wanted := types.in_spark(column.type)) == column.type:
        return column
    if isinstance(column, pa.Array):
        return one_array(_in_spark(pa.chunked_array([column])))
    cast = cast_to(column, types.with_stored_variants(wanted))
    return pa.chunked_array([retyped(chunk, wanted) for chunk in cast.chunks], wanted)


def from_spark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch with its columns in the types in which a table would store them.

    A column of a type that no table has, such as an interval, stays as it is.

    >>> berlin = pa.array([0], pa.timestamp("us", tz="Europe/Berlin"))
    >>> [batch.schema.types for batch in from_spark([pa.record_batch({"at": berlin})])]
    [[TimestampType(timestamp[us, tz=UTC])]]
    """
    given: pa.Schema | None = None
    wanted: list[pa.DataType] = []
    for batch in batches:
        if batch.schema != given:
            given = batch.schema
            wanted = [_stored(type_) for type_ in given.types]
        if wanted == given.types:
            yield batch
            continue
        columns = [
            column if column.type == type_ else cast_to(pa.chunked_array([column]), type_).combine_chunks()
            for column, type_ in zip(batch.columns, wanted, strict=True)
        ]
        fields = [field.with_type(type_) for field, type_ in zip(given, wanted, strict=True)]
        yield pa.record_batch(columns, schema=pa.schema(fields, given.metadata))


def collected(rows: pa.Table) -> pa.Table:
    """Rows as ``DataFrame.toArrow`` gives them, in the types in which a table would store them."""
    fields = [field.with_type(_stored(field.type)) for field in rows.schema]
    schema = pa.schema(fields, rows.schema.metadata)
    return pa.Table.from_batches(from_spark(rows.to_batches()), schema)


def read_up_to(
    batches: Iterable[object], most_rows: int, most_bytes: int, empty: pa.Schema
) -> pa.Table | None:
    """What a reader of ours gives, with the columns ``empty`` if it is nothing; None for more than so much.

    It is read no further than to the batch with which it becomes too much.

    >>> batches = [pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [3]})]
    >>> read_up_to(batches, 3, 1000, pa.schema([])).num_rows, read_up_to(batches, 2, 1000, pa.schema([]))
    (3, None)
    """
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)  # our readers give Arrow
        found.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > most_rows or size > most_bytes:
            return None
    return pa.Table.from_batches(found, found[0].schema if found else empty)


def arrow_of(df: DataFrame) -> pa.Table:
    """What ``DataFrame.toArrow`` gives; that of PySpark 4.3 fails where a VARIANT is NULL."""
    if not any(has_variant(field.dataType) for field in df.schema.fields) or is_connect(df):
        return df.toArrow()
    collected_as: Any = df
    batches = collected_as._collect_as_arrow(empty_list_if_zero_records=False)
    found = pa.Table.from_batches(batches)
    wanted = to_arrow_schema(df.schema, timezone="UTC")
    columns = [
        column if types.has_variant(types.with_stored_variants(column.type)) else column.cast(field.type)
        for column, field in zip(found.columns, wanted, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def nullable_as(rows: pa.Table, schema: StructType) -> pa.Table:
    """Rows whose columns may be NULL where Spark says so, as those that it gives.

    >>> schema = spark.sql("SELECT 1 AS id, CAST(NULL AS INT) AS n").schema
    >>> nullable_as(pa.table({"id": [1], "n": [2]}), schema).schema
    id: int64 not null
    n: int64
    """
    both = zip(rows.schema, schema.fields, strict=True)
    fields = [own.with_nullable(field.nullable) for own, field in both]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def with_texts(df: DataFrame) -> DataFrame:
    """A DataFrame with Spark's texts in columns whose values PySpark gives in no form: intervals of months.

    >>> with_texts(spark.sql("SELECT 1 AS n, make_ym_interval(1, 2) AS n")).toArrow().column(1).to_pylist()
    ["INTERVAL '1-2' YEAR TO MONTH"]
    """
    has_no_form = [has_within(field.dataType, _is_of_months) for field in df.schema.fields]
    if not any(has_no_form):
        return df
    names = df.columns
    alone = df.toDF(*map(str, range(len(names))))
    columns = [alone[str(number)] for number in range(len(names))]
    casts = zip(columns, has_no_form, strict=True)
    return alone.select(*(column.cast("string") if cast else column for column, cast in casts)).toDF(*names)


def _is_of_months(type_: DataType) -> bool:
    return isinstance(type_, YearMonthIntervalType | CalendarIntervalType)


def parts_of(df: DataFrame) -> Iterator[pa.Table]:
    """What ``arrow_of`` gives, in its order, a part at a time, for more rows than this process may hold.

    Values are those that Arrow has, where rows of PySpark have those of Python, and times of the machine's
    zone.

    >>> (part,) = parts_of(spark.sql("SELECT DATE'9999-12-31' + 1 AS at, 1 AS at"))
    >>> part.column_names, part.column(0).cast("int32").to_pylist()
    (['at', 'at'], [2932897])
    """
    names = df.columns
    alone = df.toDF(*map(str, range(len(names))))  # two of one name have none for what Python gets
    blobs = alone.mapInArrow(_as_blobs, f"{BLOB_COLUMN} BINARY")
    for row in blobs.toLocalIterator(prefetchPartitions=True):
        yield from_blob(bytes(row[0]))[0].rename_columns(names)


def _as_blobs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in from_spark(batches):
        for blob in to_blobs(pa.Table.from_batches([batch]), {}):
            yield pa.record_batch({BLOB_COLUMN: pa.array([blob], pa.binary())})


def has_variant(type_: DataType) -> bool:
    """Whether values of a type are, or have, a VARIANT."""
    return "variant" in type_.simpleString()


def _stored(type_: pa.DataType) -> pa.DataType:
    try:
        return types.canonical(type_, "a column")
    except SchemaError:
        return type_
