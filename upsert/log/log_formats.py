"""What the formats of a log's keys and values are told (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from upsert import options
from upsert.errors import ConfigurationError
from upsert.formats.base import Format, FormatContext, Side, format_named
from upsert.schema import TableSchema

if TYPE_CHECKING:
    from upsert.log.log_options import LogOptions


def check_formats(owner: str, log: LogOptions, schema: TableSchema) -> None:
    """Refuse formats that cannot write a table's changes.

    Raises:
        ConfigurationError: a format is unknown, or not of the kind that is needed.
        SchemaError: a column has no form in it.
    """
    value = format_named(log.format, f"{owner}: option 'log.format'")
    if value.is_insert_only:
        raise ConfigurationError(
            f"{owner}: option 'log.format' must be a format of changes, got {log.format!r}, which cannot say "
            "that a row is gone; set 'debezium-json' or 'canal-json'"
        )
    key = format_named(log.key_format, f"{owner}: option 'log.key.format'")
    if not key.is_insert_only:
        raise ConfigurationError(
            f"{owner}: option 'log.key.format' must be a format of rows, got {log.key_format!r}; set 'json'"
        )
    value.check(value_context(schema, log, value))
    if schema.primary_key:
        key.check(key_context(schema, log, key))


def key_context(schema: TableSchema, log: LogOptions, format: Format) -> FormatContext:
    """What the format of keys is told of a table with a primary key."""
    return _context(schema, schema.primary_key, log, format, Side.KEY)


def value_context(schema: TableSchema, log: LogOptions, format: Format) -> FormatContext:
    """What the format of values is told of a table."""
    names = tuple(column.name for column in schema.physical)
    return _context(schema, names, log, format, Side.VALUE)


def _context(
    schema: TableSchema, names: tuple[str, ...], log: LogOptions, format: Format, side: Side
) -> FormatContext:
    columns = [schema.column(name) for name in names]
    fields = pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])
    values = options.parse(f"log.{side}.{format.name}", format.options, {})
    return FormatContext(fields, values, side, log.topic)
