"""Statements that need no Spark: a SELECT of one table, an INSERT of it or a list, many an UPDATE and DELETE.

Where there is a session, the result of a SELECT is a DataFrame, and only the rows that are asked of it are
found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.catalog.run.without_spark.columns import UnknownColumnError
from upsert.catalog.run.without_spark.given import Given
from upsert.catalog.run.without_spark.literals import default_tree, listed_rows, literals
from upsert.catalog.run.without_spark.select import (
    PlainSelect,
    plain_select,
    plain_update,
)
from upsert.catalog.run.without_spark.settings import MOST_BYTES, Settings
from upsert.catalog.system_tables import split
from upsert.conditions.expressions import Condition, Const, Field, Ref
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, TableSchema
from upsert.store.rows.computed import InArrow, Input, NotInArrowError, Projected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.sql import statements as s
    from upsert.sql.query import QueryText


def selected(context: Context, spark: SparkSession | None, statement: s.Select) -> pa.Table | None:
    """The rows of a query, as ``DataFrame.toArrow`` would give them; None where Spark is needed."""
    given = None if context.options.is_streaming else Given.of(context, spark, statement.query)
    return None if given is None else _shown(given, spark, statement.query)


def selected_later(
    context: Context, spark: SparkSession | None, statement: s.Select
) -> Callable[[], pa.Table | None]:
    """What gives the rows as `selected` does, those of the states that the tables have now.

    Those of a system table Spark has, once the DataFrame is made.
    """
    query = statement.query
    is_sparks = context.options.is_streaming or any(split(one.name)[1] for one in query.references)
    if is_sparks or (given := Given.of(context, spark, query)) is None:
        return lambda: None
    return partial(_shown, given, spark, query)


def _shown(given: Given, spark: SparkSession | None, query: QueryText) -> pa.Table | None:
    rows = _found(given, spark, query, given.settings.most_read)
    return None if rows is None else _as_spark(rows)


def listed(
    context: Context,
    spark: SparkSession | None,
    query: QueryText,
    columns: Sequence[Column],
    schema: TableSchema,
) -> pa.Table | None:
    """The rows of a list, with all columns that a table has; None where Spark is needed.

    ``columns`` are those that the list gives, in its order. A session may be there, which counts then.
    """
    settings = Settings.of(context, spark, query.text)
    if settings is None or (values := listed_rows(query, columns, settings.zone)) is None:
        return None
    given = {column.name: pa.array(own, column.type) for column, own in zip(columns, values, strict=True)}
    return _with_defaults(given, schema, query.subject, settings, len(query.tree.expressions))


def copied(
    context: Context,
    spark: SparkSession | None,
    query: QueryText,
    columns: Sequence[Column],
    schema: TableSchema,
) -> pa.Table | None:
    """As `listed`, the rows of a SELECT whose columns have the types of these; None where Spark is needed."""
    if (given := Given.of(context, spark, query)) is None:
        return None
    rows = _found(given, spark, query, MOST_BYTES)
    if rows is None or rows.num_columns != len(columns):
        return None
    if not all(_is_stored_as_it_is(own, column) for own, column in zip(rows, columns, strict=True)):
        return None
    named = {column.name: own.cast(column.type) for own, column in zip(rows, columns, strict=True)}
    return _with_defaults(named, schema, query.subject, given.settings, rows.num_rows)


def _is_stored_as_it_is(values: pa.ChunkedArray, column: Column) -> bool:
    """Whether a column gets values as they are: any other ones are converted, or refused, by Spark."""
    has_type = types.is_scalar(column.type) and types.in_spark(values.type) == types.in_spark(column.type)
    is_coarser = pa.types.is_time32(column.type) and values.type != column.type  # Spark cuts a time
    fits = column.length is None and (column.nullable or not values.null_count)
    return has_type and fits and not is_coarser


def _with_defaults(
    given: Mapping[str, pa.Array], schema: TableSchema, subject: str, settings: Settings, count: int
) -> pa.Table | None:
    """Rows with all columns that a table has; None where only Spark reads a DEFAULT."""
    found = dict(given)
    for column in schema.columns:
        if column.name not in found:
            default = default_tree(column, subject)
            value = None if default is None else literals([default], column, settings.zone)
            if value is None:
                return None
            found[column.name] = pa.array(value * count, column.type)
    return pa.table({column.name: found[column.name] for column in schema.columns})


def updated(
    context: Context, spark: SparkSession | None, statement: s.Update, schema: TableSchema, snapshot: int
) -> pa.Table | None:
    """What an UPDATE makes of the rows of a snapshot that it finds; None where Spark is needed.

    In a table without a key the rows of before are among them, as deletions.
    """
    given = Given.of(context, spark, statement.rows, snapshot)
    if given is None:
        return None
    return _unless_variable(spark, lambda: _updated(given, statement, schema))


def deleted(context: Context, spark: SparkSession | None, query: QueryText, snapshot: int) -> pa.Table | None:
    """The rows of a snapshot that a DELETE finds, as deletions; None where Spark is needed."""
    if (given := Given.of(context, spark, query, snapshot)) is None:
        return None
    rows = _found(given, spark, query, MOST_BYTES)
    return None if rows is None else _with_kinds({RowKind.DELETE: rows})


def _found(given: Given, spark: SparkSession | None, query: QueryText, most_bytes: int) -> pa.Table | None:
    """The rows of a query, of so many bytes at most; None where Spark is needed."""

    def rows() -> pa.Table | None:
        plain = plain_select(query, given.names)
        return None if plain is None else given.rows(plain, most_bytes)

    return _unless_variable(spark, rows)


def _unless_variable(spark: SparkSession | None, found: Callable[[], pa.Table | None]) -> pa.Table | None:
    """What is found; None where a name is no column, and a session may have a variable that is called so."""
    try:
        return found()
    except UnknownColumnError:
        if spark is None:
            raise
        return None


def _updated(given: Given, statement: s.Update, schema: TableSchema) -> pa.Table | None:
    query = statement.rows
    if (read := plain_update(query, given.names)) is None:
        return None
    plain, nodes = read
    values = dict[str, Condition]()
    for name, node in zip(statement.columns, nodes, strict=True):
        own = None if name in statement.defaults else node
        if (value := _value(query, plain, given, schema.column(name), own)) is None:
            return None
        values[name] = value
    found = given.rows(plain, MOST_BYTES)
    return None if found is None else _with_values(found, values, schema)


def _with_values(rows: pa.Table, values: Mapping[str, Condition], schema: TableSchema) -> pa.Table | None:
    """Rows with the values that some columns get; None where Spark says what overflows."""
    names = rows.column_names
    outputs = tuple((name, values.get(name, Field(Ref(0, name)))) for name in names)
    given = Input(0, tuple((field.name, field.name, field.type) for field in rows.schema))
    try:
        new = InArrow(Projected(given, outputs), (*names,), rows.schema).rows([rows])
    except NotInArrowError:
        return None
    return new if schema.primary_key else _with_kinds({RowKind.DELETE: rows, RowKind.INSERT: new})


def _value(
    query: QueryText, plain: PlainSelect, given: Given, column: Column, node: exp.Expr | None
) -> Condition | None:
    """What a column gets of each row, its DEFAULT for None; None where Spark would convert it."""
    if node is None and (node := default_tree(column, query.subject)) is None:
        return None
    if (values := literals([node.unnest()], column, given.settings.zone)) is not None:
        return Const(values[0], column.type)
    return given.value(plain, node, column.type)


def _with_kinds(rows: Mapping[RowKind, pa.Table]) -> pa.Table:
    kinds = pa.chunked_array([pa.repeat(kind.value, one.num_rows) for kind, one in rows.items()], pa.string())
    return pa.concat_tables(rows.values()).append_column(ROW_KIND_COLUMN, kinds)


def _as_spark(rows: pa.Table) -> pa.Table:
    """Rows in the types of ``DataFrame.toArrow``."""

    def in_spark(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type_):
            return types.TIMESTAMP_NTZ if type_.tz is None else types.TIMESTAMP
        return types.in_spark(type_) if types.is_scalar(type_) else types.with_inner(type_, in_spark)

    wanted = [in_spark(type_) for type_ in rows.schema.types]
    columns = [
        column if column.type == type_ else column.cast(type_)
        for column, type_ in zip(rows.columns, wanted, strict=True)
    ]
    return pa.table(columns, names=rows.column_names)
