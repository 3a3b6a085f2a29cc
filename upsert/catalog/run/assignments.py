"""What a statement may give a column: values of which types, and which one where it gives none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from upsert import types
from upsert.catalog.run.scans import is_case_sensitive
from upsert.errors import CorruptTableError, SchemaError
from upsert.schema import Column, TableSchema
from upsert.spark.columns import check_spark_has, stored_text, type_name
from upsert.sql.flink_words import spark_expression
from upsert.sql.show_create import declared_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def own_names(names: Iterable[str], schema: TableSchema, spark: SparkSession | None) -> tuple[str, ...]:
    """The columns of a table that a statement names, as they are declared; what is none stays as it is.

    Case counts in a session that tells names apart by it, and between columns that differ in nothing else.

    >>> import pyarrow as pa
    >>> own_names(["ID", "nix"], TableSchema.of({"id": pa.int32(), "v": pa.string()}), None)
    ('id', 'nix')
    """
    if spark is not None and is_case_sensitive(spark):
        return tuple(names)
    return tuple(map(types.any_case(declared_names(schema)), names))


def spark_type(column: Column) -> Any:
    """Spark's type of a column.

    Raises:
        SchemaError: this version of Spark has no such type.
    """
    from pyspark.sql.types import StructType

    field = {"name": column.name, "type": column.spark_type, "nullable": True, "metadata": {}}
    found = StructType.fromJson({"type": "struct", "fields": [field]})
    check_spark_has(found)
    return found[column.name].dataType


def _is_assignable(given: Any, wanted: Any) -> bool:
    """Whether SQL lets values of one type go into a column of another; numbers that do not fit are errors."""
    from pyspark.sql import types as t

    times = (t.DateType, t.TimestampType, t.TimestampNTZType)
    if isinstance(given, t.NullType):
        return True
    if isinstance(given, t.NumericType) and isinstance(wanted, t.NumericType):
        return True
    if isinstance(given, times) and isinstance(wanted, times):
        return True
    if any(
        isinstance(given, kind) and isinstance(wanted, kind) for kind in (t.TimeType, t.DayTimeIntervalType)
    ):
        return True
    if isinstance(wanted, t.StringType):
        return isinstance(given, t.AtomicType) and not isinstance(given, t.BinaryType)
    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return _is_assignable(given.elementType, wanted.elementType)
    if isinstance(given, t.MapType) and isinstance(wanted, t.MapType):
        values = _is_assignable(given.valueType, wanted.valueType)
        return values and _is_assignable(given.keyType, wanted.keyType)
    if isinstance(given, t.StructType) and isinstance(wanted, t.StructType):
        return _are_fields_of(given.names, wanted.names) and all(
            _is_assignable(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True)
        )
    try:
        names = {types.sql_name(types.from_json(one.jsonValue())) for one in (given, wanted)}
        return len(names) == 1
    except CorruptTableError:  # a type that no table can have
        return False


def _are_fields_of(given: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a struct's fields are those of another, in order; `struct(1, 'a')` has no names of its own.

    >>> _are_fields_of(["A", "col2"], ["a", "b"]), _are_fields_of(["b", "a"], ["a", "b"])
    (True, False)
    """
    known = [name.lower() for name in wanted]
    unnamed = (f"col{place}" for place in range(1, len(given) + 1))  # as Spark calls them
    names = [name.lower() for name in given]
    return len(names) == len(known) and all(
        name == own or (name == made and made not in known)
        for name, own, made in zip(names, known, unnamed, strict=True)
    )


def assigned_type(column: Column, given: Any, subject: str) -> Any:
    """Spark's type of a column that gets values of a type; refuses what SQL does not let go into it."""
    from pyspark.sql.types import StructType

    wanted = spark_type(column)
    if not _is_assignable(given, wanted):
        name = column.sql_type
        value = f"CAST(… AS {name})"
        if isinstance(given, StructType) and isinstance(wanted, StructType):  # a cast goes by their places
            value = f"named_struct({', '.join(f'{field!r}, …' for field in wanted.names)})"
        raise SchemaError(
            f"{subject}: column {column.name!r} must be {name}, got {type_name(given)}; write {value} in the "
            "query"
        )
    return wanted


def has_ansi_casts(spark: SparkSession) -> bool:
    """Whether a cast of the session is an error where a number does not fit."""
    return spark.conf.get("spark.sql.ansi.enabled") == "true"


def assigned(value: Any, given: Any, column: Column, subject: str, *, by_cast: bool = False) -> Any:
    """Spark's column of values of a type, as those of a column of a table.

    A number that does not fit is an error that names the column, see `own_error`, also in a session whose
    casts make another number, or NULL, of it: that is what Spark's own tables do. With ``by_cast`` it is what
    the session's cast makes of it.

    Raises:
        SchemaError: SQL does not let such values go into the column.
    """
    wanted = assigned_type(column, given, subject)
    if given == wanted:
        return value
    if by_cast:
        return value.cast(wanted)
    return _fitting(value, given, wanted, f"{subject}: column {column.name!r} must be {column.sql_type}")


def _fitting(value: Any, given: Any, wanted: Any, rule: str) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

    if not _may_not_fit(given, wanted):
        return value.cast(wanted)
    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        inner = given.elementType, wanted.elementType
        return F.transform(value, lambda one: _fitting(one, *inner, rule)).cast(wanted)
    if isinstance(given, t.MapType) and isinstance(wanted, t.MapType):
        keys, values = (given.keyType, wanted.keyType), (given.valueType, wanted.valueType)
        fitting = F.transform_values(value, lambda _, one: _fitting(one, *values, rule))
        return F.transform_keys(fitting, lambda one, _: _fitting(one, *keys, rule)).cast(wanted)
    if isinstance(given, t.StructType) and isinstance(wanted, t.StructType):
        fields = (
            _fitting(value.getField(one.name), one.dataType, other.dataType, rule).alias(other.name)
            for one, other in zip(given, wanted, strict=True)
        )
        return F.when(value.isNotNull(), F.struct(*fields)).cast(wanted)
    found = value.try_cast(wanted)
    refusal = F.raise_error(F.concat(F.lit(f"{rule}, which cannot hold "), value.cast("string")))
    return F.when(value.isNull() | found.isNotNull(), found).otherwise(refusal)


_WHOLE_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def _may_not_fit(given: Any, wanted: Any) -> bool:
    """Whether there are numbers in values of one type that another one has not, however they are rounded."""
    from pyspark.sql import types as t

    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return _may_not_fit(given.elementType, wanted.elementType)
    if isinstance(given, t.MapType) and isinstance(wanted, t.MapType):
        keys_may_not = _may_not_fit(given.keyType, wanted.keyType)
        return keys_may_not or _may_not_fit(given.valueType, wanted.valueType)
    if isinstance(given, t.StructType) and isinstance(wanted, t.StructType):
        pairs = zip(given, wanted, strict=True)
        return any(_may_not_fit(one.dataType, other.dataType) for one, other in pairs)
    if not (isinstance(given, t.NumericType) and isinstance(wanted, t.IntegralType | t.DecimalType)):
        return False
    digits = _WHOLE_DIGITS.get(given.simpleString())
    if isinstance(wanted, t.IntegralType):
        return digits is None or digits > _WHOLE_DIGITS[wanted.simpleString()]
    room = wanted.precision - wanted.scale
    if digits is not None:
        return digits > room
    if not isinstance(given, t.DecimalType):
        return True
    return given.precision - given.scale + (given.scale > wanted.scale) > room  # 9.9 is rounded to 10


def default_text(column: Column) -> str:
    """Spark SQL for the value of a column that a statement gives none."""
    return "NULL" if column.default is None else f"({spark_expression(column.default)})"


def no_value(column: Column, subject: str) -> SchemaError:
    """The refusal of a statement that gives a column none."""
    return SchemaError(f"{subject}: column {column.name!r} is NOT NULL, and the statement gives it no value")


def default_of(column: Column, subject: str) -> Any:
    """The value of a column that a statement gives none, of its type.

    Raises:
        SchemaError: the column needs one, and has no DEFAULT.
    """
    from pyspark.sql import functions as F

    if column.default is None and not column.nullable:
        raise no_value(column, subject)
    return F.expr(stored_text(default_text(column), column)).cast(spark_type(column))
