"""Statements that show: tables, databases, partitions, definitions and options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.catalog.namespace import TableRef
from upsert.catalog.results import Result, Rows
from upsert.catalog.run.definitions import given_options, managed
from upsert.catalog.run.jobs import active
from upsert.catalog.session import OPTIONS, SessionOptions
from upsert.errors import ConfigurationError
from upsert.schema import Column, ComputedColumn, TableSchema
from upsert.sql import statements as s
from upsert.sql.show_create import create_text, declared_names, masked, view_text
from upsert.store import Table
from upsert.store.metadata.file_entry import newest, source_of, value_of
from upsert.store.rows.partitions import is_within, specified
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.views.definition import ViewDefinition
from upsert.views.view import definition_of, refreshes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context
    from upsert.store.read.statistics import PartitionInfo


_MAP: Final = pa.map_(pa.string(), pa.string())

_PARTITION: Final = {
    "file.path": pa.string(),
    "change-tracking": pa.bool_(),
    "last-modified": types.TIMESTAMP,
    "compacted": pa.bool_(),
    "num-files": pa.int32(),
}

_TABLE: Final = {
    "name": pa.string(),
    "log.system": pa.string(),
    "log.kafka.bootstrap.servers": _MAP,
    "log.retention": pa.string(),
    "file.path": pa.string(),
    "log.kafka.topic": pa.string(),
    "watermark": types.TIMESTAMP,
    "file.format": pa.string(),
    "bucket": pa.int32(),
    **{name: type_ for name, type_ in _PARTITION.items() if name != "file.path"},
}

_ASCENDING: Final = re.compile(
    r"(?i)(?:TO_TIMESTAMP(?:_LTZ|_NTZ)?|TIMESTAMP_(?:MILLIS|MICROS|SECONDS))\(\s*`?\w+`?\s*(?:,\s*\d\s*)?\)"
    r"|CAST\(\s*`?\w+`?\s+AS\s+TIMESTAMP\w*\s*(?:\(\d\))?\s*\)"
)
"""Expressions of one column that are the later the larger its value is."""

_SERVERS: Final = "properties.bootstrap.servers"


def details(
    table_ref: TableRef,
    schema: TableSchema,
    options: Mapping[str, str],
    table: Table | None,
    spark: SparkSession | None,
) -> pa.Table:
    """One row about a table.

    Args:
        table_ref: its name and folder.
        schema: its columns.
        options: as they were written; of a table with a connector they say where it lies.
        table: the managed table; None for one with a connector, which has NULL for what files have.
        spark: the session that evaluates a computed rowtime; without one its watermark is NULL.
    """
    row: dict[str, Any] = {"name": table_ref.qualified}
    if table is None:
        row |= {
            "log.system": options["connector"],
            "log.kafka.topic": options.get("topic"),
            "log.kafka.bootstrap.servers": _servers(options.get(_SERVERS)),
        }
    else:
        row |= {
            **_log(table),
            "file.path": table.path,
            "file.format": table.options.file_form.format,
            "bucket": table.options.bucket,
            **_together(table),
            "change-tracking": table.options.change_tracking,
            "watermark": _watermark(table, schema, spark),
        }
    return _rows([row], _TABLE)


def partition_details(table: Table, chosen: Mapping[str, Any]) -> pa.Table:
    """A row about each partition.

    Args:
        table: the table.
        chosen: values that the partitions must have; none for all partitions.

    Raises:
        ConfigurationError: a name is that of no partition column.
        SchemaError: a value does not fit its column.
    """
    known = table.schema.partitioned_by
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigurationError(
            f"table {table.name!r}: PARTITION names {unknown[0]!r}; partition columns are "
            f"{', '.join(known) or 'none'}"
        )
    rows = [
        {
            "partition": info.name,
            "file.path": info.path,
            "change-tracking": info.change_tracking,
            "last-modified": _time(info.last_modified_ms),
            "compacted": info.is_compacted,
            "num-files": info.files,
        }
        for info in fitting(table, chosen)
    ]
    return _rows(rows, {"partition": pa.string(), **_PARTITION})


def fitting(table: Table, chosen: Mapping[str, Any]) -> list[PartitionInfo]:
    """The partitions that have some values."""
    wanted = specified(table.schema, chosen, f"table {table.name!r}")
    return [info for info in table.partitions() if is_within(info.partition, wanted)]


def _together(table: Table) -> dict[str, Any]:
    """What all partitions of a table have in sum."""
    found = table.partitions()
    newest = max((info.last_modified_ms for info in found), default=None)
    return {
        "last-modified": None if newest is None else _time(newest),
        "compacted": all(info.is_compacted for info in found),
        "num-files": sum(info.files for info in found),
    }


def _watermark(table: Table, schema: TableSchema, spark: SparkSession | None) -> datetime | None:
    """The watermark of the rows so far: the newest time in them, less the delay.

    By the bounds of the files and what commits have kept of them, so that it never goes back. A computed
    rowtime is evaluated for the newest value of its column where it ascends with it, else for all rows.
    """
    watermark = schema.watermark
    if watermark is None:
        return None
    snapshot, source = table.snapshot(), source_of(schema)
    number = newest(schema, snapshot.files.entries, snapshot.info.watermark)
    computed = next((column for column in schema.computed if column.name == watermark.column), None)
    found: datetime | None = None
    if computed is None:
        if source is not None and number is not None:
            found = value_of(source, number).cast(types.TIMESTAMP).as_py()
    elif spark is not None and computed.metadata is None:
        if source is not None and number is not None and _ascends(computed):
            rows = pa.table({source.name: pa.array([value_of(source, number).as_py()], source.type)})
        else:
            rows = snapshot.scan(computed.uses)
        found = _newest_computed(spark, rows, computed)
    return None if found is None else found - timedelta(milliseconds=watermark.delay_ms)


def _ascends(computed: ComputedColumn) -> bool:
    """Whether the expression is a function of one column that grows with it."""
    return _ASCENDING.fullmatch(computed.expression.strip()) is not None


def _newest_computed(spark: SparkSession, rows: pa.Table, computed: ComputedColumn) -> datetime | None:
    from upsert.sql.flink_words import spark_expression

    expression = f"unix_micros(CAST(max({spark_expression(computed.expression)}) AS TIMESTAMP)) AS newest"
    (row,) = spark.createDataFrame(rows).selectExpr(expression).toArrow().to_pylist()
    micros = row["newest"]
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _log(table: Table) -> dict[str, Any]:
    """FLIP-188's columns about a table's log."""
    log = table.options.log
    if not log.is_kafka:
        return {"log.system": log.system}
    return {
        "log.system": log.system,
        "log.kafka.bootstrap.servers": _servers(log.bootstrap_servers),
        "log.retention": None if log.retention_ms is None else f"{log.retention_ms} ms",
        "log.kafka.topic": log.topic,
    }


def _servers(text: str | None) -> list[tuple[str, str]] | None:
    return None if text is None else [("bootstrap.servers", text)]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _rows(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, pa.DataType]) -> pa.Table:
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], type_) for name, type_ in fields.items()}
    )


def show_databases(context: Context, statement: s.ShowDatabases) -> Result:
    """``SHOW DATABASES``: one column, ``database``."""
    databases = context.databases
    if statement.catalog is not None:
        databases, _own = context.catalogs.database(f"{statement.catalog}.default")
    names = [databases.current] if statement.only_current else list(databases.names())
    return Rows("SHOW DATABASES", pa.table({"database": pa.array(names, pa.string())}))


def show_catalogs(context: Context, statement: s.ShowCatalogs) -> Result:
    """``SHOW CATALOGS``: one column, ``catalog``."""
    names = [context.databases.catalog] if statement.only_current else list(context.catalogs.names())
    return Rows("SHOW CATALOGS", pa.table({"catalog": pa.array(names, pa.string())}))


def show_tables(context: Context, statement: s.ShowTables) -> Result:
    """``SHOW TABLES``: one column, ``table``."""
    names = matching(context.tables(statement.database), statement.like)
    return Rows("SHOW TABLES", pa.table({"table": pa.array(names, pa.string())}))


def matching(names: Sequence[str], like: str | None) -> Sequence[str]:
    """The names that a pattern of LIKE matches; all if it is None."""
    if like is None:
        return names
    parts = (".*" if sign == "%" else "." if sign == "_" else re.escape(sign) for sign in like)
    # Arrow's regular expressions take a time that grows with the name, whatever the pattern
    pattern = f"(?s)\\A{''.join(parts)}\\z"
    found = pc.match_substring_regex(pa.array(names, pa.string()), pattern).to_pylist()
    return tuple(name for name, matches in zip(names, found, strict=True) if matches)


def show_create_table(context: Context, statement: s.ShowCreateTable) -> Result:
    """``SHOW CREATE TABLE``: one row with the text, secrets masked."""
    table_ref = context.databases.resolve(statement.name)
    options, schema = given_options(table_ref.existing()), context.schema(statement.name)
    if (view := options.pop(MATERIALIZED_VIEW.key, None)) is not None:
        shown = view_text(table_ref.shown, schema, options, ViewDefinition.from_option(view).query)
    else:
        shown = create_text(table_ref.shown, schema, options)
    return Rows(f"SHOW CREATE TABLE {table_ref.shown}", pa.table({"create table": [shown]}))


def show_partitions(context: Context, statement: s.ShowPartitions) -> Result:
    """``SHOW PARTITIONS``: one row for each, with FLIP-188's columns."""
    table = managed(context, statement.name, "SHOW PARTITIONS")
    if not table.schema.partitioned_by:
        raise ConfigurationError(
            f"table {statement.name!r}: SHOW PARTITIONS needs PARTITIONED BY, which it has not"
        )
    return Rows(f"SHOW PARTITIONS {statement.name}", partition_details(table, statement.partition))


def describe_table(context: Context, statement: s.DescribeTable, spark: SparkSession | None) -> Result:
    """``DESCRIBE``: a row for each column; with EXTENDED FLIP-188's row of the table, or partitions.

    The row of a materialized view has its query, and the versions that it stands for, beside those.
    """
    table_ref = context.databases.resolve(statement.name)
    what = f"DESCRIBE {table_ref.shown}"
    if statement.partition is not None:
        chosen = managed(context, statement.name, "DESCRIBE … PARTITION")
        return Rows(what, partition_details(chosen, statement.partition))
    schema = context.schema(statement.name)
    if not statement.is_extended:
        return Rows(what, columns_table(schema))
    options = given_options(table_ref.existing())
    table = None if "connector" in options else Table.open(table_ref.existing())
    row = details(table_ref, schema, options, table, active(spark))
    if table is not None and (view := definition_of(table)) is not None:
        versions = table.snapshot().info.base_versions or {}
        refreshes = [(name, str(one)) for name, one in refreshes_of(table_ref.shown, table).items()]
        for name, value, type_ in (
            ("view.query", view.query, pa.string()),
            ("view.suspended", view.is_suspended, pa.bool_()),
            ("view.refresh", table.options.refresh, pa.string()),
            ("base-versions", list(versions.items()), pa.map_(pa.string(), pa.int64())),
            ("refreshes", refreshes, pa.map_(pa.string(), pa.string())),
        ):
            row = row.append_column(name, pa.array([value], type_))
    return Rows(what, row)


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
