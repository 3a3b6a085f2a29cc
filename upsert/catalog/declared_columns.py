"""Computed columns and watermarks of a table, put on DataFrames that read it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from upsert.managed.options import METADATA_COLUMNS
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def declared_names(schema: TableSchema) -> list[str]:
    """All columns that a read gives, in the order of CREATE TABLE.

    >>> from upsert.catalog.parser import parse
    >>> declared_names(parse("CREATE TABLE t (a INT, b AS a + 1, c STRING)").schema)
    ['a', 'b', 'c']
    """
    names = list(schema.names)
    for column in sorted(schema.computed, key=lambda one: one.place):
        names.insert(column.place, column.name)
    return names


def metadata_options(schema: TableSchema, only: Collection[str] | None = None) -> dict[str, str]:
    """The option with which the format adds a managed table's METADATA columns; empty if there are none.

    Args:
        schema: the table's.
        only: the columns that are wanted, of which the watermark's is always one; None: all.
    """
    watermark = None if schema.watermark is None else schema.watermark.column
    keys = {
        column.name: column.metadata
        for column in schema.computed
        if column.metadata is not None and (only is None or column.name in only or column.name == watermark)
    }
    return {METADATA_COLUMNS: json.dumps(keys)} if keys else {}


def with_declared(df: DataFrame, schema: TableSchema, only: Collection[str] | None = None) -> DataFrame:
    """A DataFrame that reads a table, with its computed columns, and its watermark if it is a stream.

    Args:
        df: the table's columns or some of them, and ``_row_kind`` where there are changes.
        schema: the table's.
        only: the computed columns to add, of which the watermark's is always one; None: all.
    """
    if not schema.computed and schema.watermark is None:
        return df
    watermark = schema.watermark if df.isStreaming else None
    wanted = {column.name for column in schema.computed if only is None or column.name in only}
    if watermark is not None and watermark.column not in df.columns:
        wanted.add(watermark.column)
    if wanted:
        df = df.selectExpr(*_expressions(df, schema, wanted))
    if watermark is None:
        return df
    return df.withWatermark(watermark.column, f"{watermark.delay_ms} milliseconds")


def _expressions(df: DataFrame, schema: TableSchema, wanted: Collection[str]) -> list[str]:
    # the parser is for the few tables that have such columns
    from upsert.catalog.column_expressions import spark_expression

    computed = {column.name: column for column in schema.computed if column.name in wanted}
    there = set(df.columns)
    found = [
        f"({spark_expression(computed[name].expression)}) AS {_quoted(name)}"
        if name in computed
        else _quoted(name)
        for name in declared_names(schema)
        if name in computed or name in there
    ]
    return [*found, ROW_KIND_COLUMN] if ROW_KIND_COLUMN in there else found


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
