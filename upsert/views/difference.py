"""What makes one state of a view of another: changes, as a DataFrame (batch), or as Arrow for few rows.

Values are compared by what is stored: NaN equals NaN, and -0.0 is another value than 0.0. Maps are equal
whatever the order of their entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from upsert.errors import ChangelogError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.batches import arrow_of
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.conform import conform
from upsert.store.rows.keys import order_by
from upsert.store.rows.layout import Layout
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SAME_KEY: Final = "two rows of one key"

_OLD: Final = "_old"
_NEW: Final = "_new"
_COUNT: Final = "_count"
_ROW: Final = "_row"
_SIGN: Final = ":sign"


def difference(old: DataFrame, new: DataFrame, key: Sequence[str]) -> DataFrame:
    """The changes that make the rows ``new`` of the rows ``old``, in the same columns.

    With a key that tells rows apart they are ``+I``, ``+U`` and ``-D``; of a multiset of rows, whose key is
    (), ``+I`` and ``-D``, as often as a row comes or goes. Running it raises Spark's error
    ``USER_RAISED_EXCEPTION`` with the text `SAME_KEY` where two new rows have one key.
    """
    return _by_key(old, new, key) if key else _by_count(old, new)


def signed_rows(layout: Layout, old: pa.Table, new: pa.Table, owner: str) -> pa.Table:
    """All old rows as they go, and all new ones as they come, for a commit that lets equal ones cancel.

    Raises:
        ChangelogError: two new rows have one key; the text has `SAME_KEY`.
    """
    stored, _ = conform(layout, new, owner)
    key = [stored.column(name) for name in layout.schema.primary_key]
    if key and stored.num_rows and not order_by(key).is_first.all():
        raise ChangelogError(f"{owner}: {SAME_KEY}")
    names = layout.schema.names
    return pa.concat_tables(
        pa.table(
            [*(rows.column(name) for name in names), pa.array([kind.value] * rows.num_rows, pa.string())],
            names=[*names, ROW_KIND_COLUMN],
        )
        for rows, kind in ((old, RowKind.DELETE), (stored, RowKind.INSERT))
    )


def check_keys(head: Snapshot, changes: pa.Table, owner: str) -> None:
    """Refuse, with `SAME_KEY`, changes after which two rows of the view's table would have one key."""
    key = list(head.layout.schema.primary_key)
    rows, signs = conform(head.layout, changes, owner)
    assert signs is not None
    signed = rows.select(key).append_column(_SIGN, pa.array(signs))
    counted = signed.group_by(key).aggregate([(_SIGN, "sum")])
    count = counted.column(f"{_SIGN}_sum")
    more = counted.filter(pc.greater(count, 0)).select(key)
    is_repeated = pc.any(pc.greater(count, 1)).as_py()
    if is_repeated or (more.num_rows and head.lookup(key, more, select=key).num_rows):
        raise ChangelogError(f"{owner}: {SAME_KEY}")


def _by_key(old: DataFrame, new: DataFrame, key: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    before, after = (
        rows.select(
            F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias(side),
            *(F.col(quoted(name)).alias(f"{side}_{number}") for number, name in enumerate(key)),
        )
        for rows, side in ((old, _OLD), (new, _NEW))
    )
    keys = [f"{_NEW}_{number}" for number in range(len(key))]
    after = after.groupBy(*keys).agg(F.first(_NEW).alias(_NEW), F.count("*").alias(_COUNT))
    same_key = [F.col(f"{_OLD}_{number}").eqNullSafe(F.col(f"{_NEW}_{number}")) for number in range(len(key))]
    both = before.join(after, same_key, "full_outer")
    kind = (
        F.when(F.col(_COUNT) > 1, F.raise_error(F.lit(SAME_KEY)))
        .when(F.col(_OLD).isNull(), "+I")
        .when(F.col(_NEW).isNull(), "-D")
        .when(~_compared(F.col(_OLD), old.schema).eqNullSafe(_compared(F.col(_NEW), old.schema)), "+U")
    )
    changed = both.select(F.coalesce(_NEW, _OLD).alias(_ROW), kind.alias(ROW_KIND_COLUMN))
    return _rows(changed.where(F.col(ROW_KIND_COLUMN).isNotNull()), old.columns)


def _by_count(old: DataFrame, new: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    signed = [
        rows.select(
            F.struct(*(F.col(quoted(name)) for name in rows.columns)).alias(_ROW), F.lit(sign).alias(_COUNT)
        )
        for rows, sign in ((old, -1), (new, 1))
    ]
    rows = signed[0].unionAll(signed[1])
    counted = rows.groupBy(_compared(F.col(_ROW), old.schema).alias(_NEW)).agg(
        F.first(_ROW).alias(_ROW), F.sum(_COUNT).alias(_COUNT)
    )
    kind = F.when(F.col(_COUNT) > 0, "+I").otherwise("-D").alias(ROW_KIND_COLUMN)
    changed = counted.where(F.col(_COUNT) != 0)
    repeated = changed.select(_ROW, kind, F.explode(F.array_repeat(F.lit(0), F.abs(_COUNT).cast("int"))))
    return _rows(repeated, old.columns)


def _rows(changed: DataFrame, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    own = [F.col(_ROW).getField(name).alias(name) for name in columns]
    return changed.select(*own, ROW_KIND_COLUMN)


def _compared(value: Column, type_: t.DataType) -> Column:
    """A value that Spark's own comparison tells from all others that are stored differently."""
    from pyspark.sql import functions as F

    match type_:
        case t.DoubleType() | t.FloatType():
            return value.cast("string")  # the shortest text that gives the number again, with its sign
        case t.StructType():
            inner = [_compared(value.getField(field.name), field.dataType) for field in type_.fields]
            return F.when(value.isNotNull(), F.struct(*inner))
        case t.ArrayType():
            return F.transform(value, lambda one: _compared(one, type_.elementType))
        case t.MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda one: F.struct(
                    _compared(one.getField("key"), type_.keyType),
                    _compared(one.getField("value"), type_.valueType),
                ),
            )
            return F.array_sort(entries)
    return value


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
