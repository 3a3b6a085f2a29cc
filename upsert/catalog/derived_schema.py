"""The schema of the table that a query's rows fit: what CREATE TABLE AS SELECT leaves out (FLIP-218)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.types import StructField, StructType

from upsert import types
from upsert.errors import CorruptTableError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, Index, TableSchema
from upsert.stream_keys import UpsertKey


def derived_schema(
    name: str,
    rows: StructType,
    *,
    primary_key: Sequence[str] = (),
    partitioned_by: Sequence[str] = (),
    indexes: Iterable[Index] = (),
    comment: str | None = None,
) -> TableSchema:
    """The schema of a table for rows of a DataFrame: its columns but ``_row_kind``, comments included.

    A column is NOT NULL where Spark knows that. Without ``primary_key`` an aggregate over changes, whose rows
    replace each other by its groups, gives the key; any other query gives a table without one.

    Args:
        name: of the table, for messages.
        rows: the DataFrame's schema.
        primary_key: the columns of the key.
        partitioned_by: the partition columns.
        indexes: the secondary indexes.
        comment: of the table.

    Raises:
        SchemaError: two columns have one name, a column has a type that no table can have, or keys and
            indexes do not fit the columns.

    >>> schema = derived_schema("t", StructType().add("id", "long").add("n", "integer"), primary_key=["id"])
    >>> schema.names, schema.primary_key
    (('id', 'n'), ('id',))
    """
    columns = tuple(_column(name, field) for field in rows.fields if field.name != ROW_KIND_COLUMN)
    key = tuple(primary_key) or _group_key(rows)
    try:
        return TableSchema(columns, key, tuple(indexes), tuple(partitioned_by), comment)
    except SchemaError as cause:
        raise SchemaError(f"table {name!r}: {cause}") from None


def _column(table: str, field: StructField) -> Column:
    try:
        type_ = types.from_json(field.dataType.jsonValue())
    except CorruptTableError:
        raise SchemaError(
            f"table {table!r}: column {field.name!r} must be of a type that a table can have, got "
            f"{field.dataType.simpleString().upper()}; cast it in the query"
        ) from None
    return Column(field.name, type_, field.nullable, field.metadata.get("comment"))


def _group_key(rows: StructType) -> tuple[str, ...]:
    """The columns by which rows of an aggregate replace each other; empty if there are none."""
    key = UpsertKey.of_schema(rows.jsonValue())
    if key is None or not all(key.keys):
        return ()
    return tuple(names[0] for names in key.keys) or key.constants[:1]
