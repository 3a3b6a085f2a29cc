"""A Kafka table from the options and columns of a Spark query, and its columns as Spark sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql.types import StringType, StructField, StructType

from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.options import with_secret_names
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark.columns import read_columns, spark_schema, stored_type

COLUMNS: Final = "columns"
"""Option of the Spark formats: the columns as in DDL, or a schema's JSON form, which `read_changes` gives."""
PRIMARY_KEY: Final = "primary-key"
"""Option of the Spark formats: names of the key columns, where ``columns`` holds no PRIMARY KEY."""

_NAME: Final = "name"
_NO_COLUMNS: Final = (
    "the columns of the topic must be declared: with option 'columns' = 'word STRING, n BIGINT, …', or with "
    ".schema(…)"
)


def given_options(table: KafkaTable) -> dict[str, str]:
    """Options of the Spark format by which a query declares the table again, to the last detail.

    Those that hold secrets have names by which Spark knows it, and leaves them out of what it prints.
    """
    return with_secret_names(table.given) | columns_option(table)


def columns_option(table: KafkaTable) -> dict[str, str]:
    """The option ``columns`` that declares all columns of the table, and its key."""
    return {COLUMNS: json.dumps(table.schema.to_json() | {_NAME: table.name})}


def declared(connector: str, given: Mapping[str, str], asked: StructType | None = None) -> KafkaTable:
    """The table that the options of a Spark query declare.

    Args:
        connector: ``upsert-kafka`` or ``kafka``.
        given: all options of the query; Spark gives their keys in lower case.
        asked: the columns of the query; looked at where ``columns`` is not given.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong, or nothing declares the columns.
        SchemaError: the columns are none that the connector and its formats can serve.

    >>> given = {"columns": "word STRING, n BIGINT", "primary-key": "word", "topic": "words"}
    >>> given |= {"properties.bootstrap.servers": "localhost:9092", "key.format": "raw", "format": "json"}
    >>> struct_of(declared("upsert-kafka", given)).simpleString()
    'struct<word:string,n:bigint,_row_kind:string>'
    """
    of = SPARK_FORMATS[connector]
    own = {name: text for name, text in given.items() if name.lower() not in (COLUMNS, PRIMARY_KEY)}
    by_name = {name.lower(): text for name, text in given.items()}
    columns, names = by_name.get(COLUMNS), by_name.get(PRIMARY_KEY)
    key = tuple(part.strip() for part in names.replace(";", ",").split(",")) if names else ()
    if columns is not None and columns.lstrip().startswith("{"):
        name, schema = _schema_of_json(columns, of)
        return KafkaTable.called(name, connector, schema, own)
    if columns is not None:
        return KafkaTable.called(of, connector, _schema_of_text(columns, key, of), own)
    if asked is None:
        raise ConfigurationError(f"{of}: {_NO_COLUMNS}")
    table = KafkaTable.called(of, connector, _schema_of_struct(asked, key, of), own)
    _check_kind_column(asked, table)
    return table


def struct_of(table: KafkaTable, *, row_kind: bool = True) -> StructType:
    """The columns of the table for Spark; ``_row_kind`` last where its rows are changes."""
    return spark_schema(table.schema, row_kind=table.is_changelog and row_kind)


def check_asked(asked: StructType, table: KafkaTable) -> None:
    """Refuse a read of columns that the table does not have, or not so."""
    if ROW_KIND_COLUMN in asked.names and not table.is_changelog:
        raise SchemaError(
            f"{table.name}: .schema(…) must not name {ROW_KIND_COLUMN!r}: the format "
            f"{table.value.format_name!r} holds rows, not changes; leave the column out"
        )
    read_columns(asked, table.schema, of=table.name)


def _schema_of_text(text: str, key: tuple[str, ...], of: str) -> TableSchema:
    # the parser's packages are for the few processes that read DDL
    from upsert.sql.columns import parse_columns

    try:
        return parse_columns(text, key)
    except SchemaError as cause:
        raise SchemaError(f"{of}: option 'columns': {cause}") from None


def _schema_of_json(text: str, of: str) -> tuple[str, TableSchema]:
    try:
        value = json.loads(text)
        return str(value.get(_NAME, of)), TableSchema.from_json(value)
    except (ValueError, CorruptTableError) as cause:
        raise ConfigurationError(
            f"{of}: option 'columns' must be columns as in CREATE TABLE, or the JSON form of a schema, got "
            f"{text!r}: {cause}"
        ) from None


def _schema_of_struct(asked: StructType, key: tuple[str, ...], of: str) -> TableSchema:
    columns = tuple(_column(field, of) for field in asked.fields if field.name != ROW_KIND_COLUMN)
    if not columns:
        raise ConfigurationError(f"{of}: {_NO_COLUMNS}")
    return TableSchema(columns, key)


def _column(field: StructField, of: str) -> Column:
    from upsert.sql.columns import metadata_from_comment

    column = Column(field.name, stored_type(field, of), field.nullable)
    comment = field.metadata.get("comment")
    if not isinstance(comment, str):
        return column
    if found := metadata_from_comment(comment):
        name, is_virtual = found
        return replace(column, metadata=name or field.name, virtual=is_virtual)
    return replace(column, comment=comment)


def _check_kind_column(asked: StructType, table: KafkaTable) -> None:
    is_last = bool(asked.fields) and asked.fields[-1].name == ROW_KIND_COLUMN
    if table.is_changelog and not (is_last and isinstance(asked.fields[-1].dataType, StringType)):
        raise SchemaError(
            f"{table.name}: .schema(…) must end with the column {ROW_KIND_COLUMN} STRING, or deletions would "
            f"look like rows; its columns are {', '.join(asked.names)}"
        )
