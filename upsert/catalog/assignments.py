"""Which values a statement may put into a column: as SQL's INSERT and UPDATE cast them."""

from __future__ import annotations

from typing import Any

from upsert import types
from upsert.errors import CorruptTableError
from upsert.schema import Column


def spark_type(column: Column) -> Any:
    """Spark's type of a column."""
    from pyspark.sql.types import StructType

    field = {"name": "c", "type": types.to_json(column.type), "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["c"].dataType


def is_assignable(given: Any, wanted: Any) -> bool:
    """Whether SQL lets values of one type go into a column of another; numbers that do not fit are errors."""
    from pyspark.sql import types as t

    times = (t.DateType, t.TimestampType, t.TimestampNTZType)
    if isinstance(given, t.NullType):
        return True
    if isinstance(given, t.NumericType) and isinstance(wanted, t.NumericType):
        return True
    if isinstance(given, times) and isinstance(wanted, times):
        return True
    if isinstance(wanted, t.StringType):
        return isinstance(given, t.AtomicType) and not isinstance(given, t.BinaryType)
    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return is_assignable(given.elementType, wanted.elementType) or given.elementType == wanted.elementType
    try:
        return types.sql_name(types.from_json(given.jsonValue())) == types.sql_name(
            types.from_json(wanted.jsonValue())
        )
    except CorruptTableError:  # a type that no table can have
        return False
