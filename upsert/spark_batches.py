"""The Arrow batches that Spark hands to Python, in the types that tables have (pure).

The session decides how Spark labels them: instants bear its time zone, and texts are large ones where
``spark.sql.execution.arrow.useLargeVarTypes`` is set. The values are the same. Whatever takes batches from
Spark takes them through here, so that nothing behind it depends on the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError
from upsert.store.rows import cast_to


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
        columns = [_as(column, type_) for column, type_ in zip(batch.columns, wanted, strict=True)]
        fields = [field.with_type(type_) for field, type_ in zip(given, wanted, strict=True)]
        yield pa.record_batch(columns, schema=pa.schema(fields, given.metadata))


def _stored(type_: pa.DataType) -> pa.DataType:
    try:
        return types.canonical(type_, "a column")
    except SchemaError:
        return type_


def _as(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    return cast_to(pa.chunked_array([column]), type_).combine_chunks()
