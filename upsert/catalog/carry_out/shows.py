"""Statements that show: tables, databases, partitions, definitions and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.catalog import namespace_statements as n
from upsert.catalog import statements as s
from upsert.catalog.carry_out.definitions import given_options, managed
from upsert.catalog.carry_out.spark_sessions import active
from upsert.catalog.declared_columns import declared_names
from upsert.catalog.details import details, partition_details
from upsert.catalog.results import Result, Rows
from upsert.catalog.session import OPTIONS, SessionOptions
from upsert.catalog.show_create import create_text, masked
from upsert.errors import ConfigurationError
from upsert.schema import Column, TableSchema
from upsert.store import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context


def show_databases(context: Context, statement: n.ShowDatabases) -> Result:
    """``SHOW DATABASES``: one column, ``database``."""
    databases = context.databases
    if statement.catalog is not None:
        databases, _own = context.catalogs.database(f"{statement.catalog}.default")
    names = [databases.current] if statement.only_current else list(databases.names())
    return Rows("SHOW DATABASES", pa.table({"database": pa.array(names, pa.string())}))


def show_catalogs(context: Context, statement: n.ShowCatalogs) -> Result:
    """``SHOW CATALOGS``: one column, ``catalog``."""
    names = [context.databases.catalog] if statement.only_current else list(context.catalogs.names())
    return Rows("SHOW CATALOGS", pa.table({"catalog": pa.array(names, pa.string())}))


def show_tables(context: Context, statement: n.ShowTables) -> Result:
    """``SHOW TABLES``: one column, ``table``."""
    names = context.tables(statement.database)
    if statement.like is not None:
        parts = (".*" if sign == "%" else "." if sign == "_" else re.escape(sign) for sign in statement.like)
        # Arrow's regular expressions take a time that grows with the name, whatever the pattern
        pattern = f"(?s)\\A{''.join(parts)}\\z"
        found = pc.match_substring_regex(pa.array(names, pa.string()), pattern).to_pylist()
        names = tuple(name for name, matches in zip(names, found, strict=True) if matches)
    return Rows("SHOW TABLES", pa.table({"table": pa.array(names, pa.string())}))


def show_create_table(context: Context, statement: s.ShowCreateTable) -> Result:
    """``SHOW CREATE TABLE``: one row with the text, secrets masked."""
    place = context.databases.place(statement.name)
    options = given_options(place.existing())
    shown = create_text(place.shown, context.schema(statement.name), options)
    return Rows(f"SHOW CREATE TABLE {place.shown}", pa.table({"create table": [shown]}))


def show_partitions(context: Context, statement: s.ShowPartitions) -> Result:
    """``SHOW PARTITIONS``: one row for each, with FLIP-188's columns."""
    table = managed(context, statement.name, "SHOW PARTITIONS")
    if not table.schema.partitioned_by:
        raise ConfigurationError(
            f"table {statement.name!r}: SHOW PARTITIONS needs PARTITIONED BY, which it has not"
        )
    return Rows(f"SHOW PARTITIONS {statement.name}", partition_details(table, statement.partition))


def describe_table(context: Context, statement: s.DescribeTable, spark: SparkSession | None) -> Result:
    """``DESCRIBE``: a row for each column; with EXTENDED FLIP-188's row of the table, or partitions."""
    place = context.databases.place(statement.name)
    what = f"DESCRIBE {place.shown}"
    if statement.partition is not None:
        chosen = managed(context, statement.name, "DESCRIBE … PARTITION")
        return Rows(what, partition_details(chosen, statement.partition))
    schema = context.schema(statement.name)
    if not statement.is_extended:
        return Rows(what, columns_table(schema))
    options = given_options(place.existing())
    table = None if "connector" in options else Table.open(place.existing())
    return Rows(what, details(place, schema, options, table, active(spark)))


def columns_table(schema: TableSchema) -> pa.Table:
    """A row for each column: name, type, whether NULL is possible, keys, what it is else, comment."""
    rows = [_column_row(schema, name) for name in declared_names(schema)]
    fields = ("name", "type", "null", "key", "extras", "watermark", "comment")
    return pa.table({field: pa.array([row.get(field) for row in rows], _type(field)) for field in fields})


def _type(field: str) -> pa.DataType:
    return pa.bool_() if field == "null" else pa.string()


def _extras(schema: TableSchema, column: Column) -> str | None:
    if column.metadata is not None:
        return f"METADATA FROM {column.metadata!r}{' VIRTUAL' if column.virtual else ''}"
    return "PARTITIONED BY" if column.name in schema.partitioned_by else None


def _column_row(schema: TableSchema, name: str) -> dict[str, Any]:
    watermark = schema.watermark
    delay = watermark.delay_ms if watermark is not None and watermark.column == name else None
    shown = None if delay is None else f"{name} - {delay} ms" if delay else name
    computed = next((column for column in schema.computed if column.name == name), None)
    if computed is not None:
        row = {"name": name, "null": True, "watermark": shown, "comment": computed.comment}
        if computed.type is None:
            return {**row, "extras": f"AS {computed.expression}"}
        extras = f"METADATA FROM {computed.metadata!r} VIRTUAL"
        return {**row, "type": types.sql_name(computed.type), "extras": extras}
    column = schema.column(name)
    keys = ["PRI"] if name in schema.primary_key else []
    keys += [index.name for index in schema.indexes if name in index.columns]
    return {
        "name": name,
        "type": types.sql_name(column.type),
        "null": column.nullable,
        "key": ", ".join(keys) or None,
        "extras": _extras(schema, column),
        "watermark": shown,
        "comment": column.comment,
    }


def options_table(options: SessionOptions, key: str | None) -> pa.Table:
    """The options that are set and those that have a default, secrets masked; or one of them."""
    defaults = {option.key: option.default for option in OPTIONS}
    known: dict[str, str | None] = {
        name: None if value in (None, {}) else str(value).lower() for name, value in defaults.items()
    }
    shown: Mapping[str, str | None] = {**known, **masked(dict(options))}
    if key is not None:
        shown = {name: value for name, value in shown.items() if name == key.lower() or name == key}
        if not shown:
            raise ConfigurationError(f"SET: option {key!r} is not set, or unknown; SET lists those that are")
    names = sorted(shown)
    return pa.table(
        {"key": pa.array(names, pa.string()), "value": pa.array([shown[n] for n in names], pa.string())}
    )
