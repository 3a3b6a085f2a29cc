"""Rows of a query in the driver, of which no more come there than fit into a number of bytes."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from upsert.spark.batches import arrow_of
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BYTES: Final = "\0bytes"
_PLACE: Final = "\0place"
"""Names that no column of a table has."""


def collected_up_to(rows: DataFrame, most_bytes: int) -> pa.Table | None:
    """All rows of a query with a LIMIT; None if its texts and other values of no fixed width are larger.

    How wide rows are is not known before they are there: what Spark gives stops at the row with which they
    become too large. Rows of a fixed width are bounded by the LIMIT alone.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    found = (_bytes_of(F.col(quoted(field.name)), field.dataType) for field in rows.schema.fields)
    sizes = [size for size in found if size is not None]
    if not sizes:
        return arrow_of(rows)
    # the LIMIT has left one partition, and to say so keeps Spark from warning of a window of all rows
    measured = rows.select("*", reduce(add, sizes).alias(_BYTES), F.spark_partition_id().alias(_PLACE))
    before = Window.partitionBy(_PLACE).rowsBetween(Window.unboundedPreceding, -1)
    said = measured.withColumn(_PLACE, F.coalesce(F.sum(_BYTES).over(before), F.lit(0)))
    some = arrow_of(said.where(F.col(_PLACE) <= most_bytes).drop(_PLACE))
    total = pc.sum(some.column(_BYTES)).as_py() or 0
    return None if total > most_bytes else some.drop_columns([_BYTES])


def _bytes_of(value: Column, type_: t.DataType) -> Column | None:
    """About how many bytes a value takes; None if all of its type take as many."""
    from pyspark.sql import functions as F

    match type_:
        case t.StringType() | t.BinaryType():
            size = F.octet_length(value).cast("bigint")
        case t.StructType():
            fields = (_bytes_of(value.getField(one.name), one.dataType) for one in type_.fields)
            sizes = [one for one in fields if one is not None]
            if not sizes:
                return None
            size = reduce(add, sizes)
        case t.ArrayType():
            size = _bytes_of_all(value, type_.elementType)
        case t.MapType():
            keys, values = F.map_keys(value), F.map_values(value)
            size = _bytes_of_all(keys, type_.keyType) + _bytes_of_all(values, type_.valueType)
        case _:
            return None
    return F.coalesce(size, F.lit(0))


_FIXED: Final = 8
"""So many bytes, or a few times as many, a value in an array takes beside its texts."""


def _bytes_of_all(values: Column, type_: t.DataType) -> Column:
    from pyspark.sql import functions as F

    count = F.when(values.isNotNull(), F.size(values)).cast("bigint") * _FIXED
    if isinstance(type_, t.AtomicType) and not isinstance(type_, t.StringType | t.BinaryType):
        return count

    def summed(total: Column, one: Column) -> Column:
        size = _bytes_of(one, type_)
        return total if size is None else total + size

    return F.aggregate(values, F.lit(0).cast("bigint"), summed) + count
