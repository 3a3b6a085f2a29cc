"""``DESCRIBE``: the columns of a table, and what there is to say of it and of its partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from upsert import types
from upsert.catalog.namespace import TableRef
from upsert.catalog.results import Result, Rows
from upsert.catalog.run.definitions import fitting_partitions, given_options, managed
from upsert.catalog.run.jobs import active
from upsert.catalog.system_tables import known, split, time_of
from upsert.errors import ConfigurationError, TableNotFoundError
from upsert.schema import ComputedColumn, TableSchema
from upsert.sql import statements as s
from upsert.sql.show_create import declared_names
from upsert.store import Table
from upsert.store.metadata.file_entry import newest, source_of, value_of
from upsert.views.progress import lag_behind, refreshes_of
from upsert.views.view import ViewDefinition, definition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context

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

_VIEW: Final = {
    "view.query": pa.string(),
    "view.suspended": pa.bool_(),
    "view.refresh": pa.string(),
    "base-versions": pa.map_(pa.string(), pa.int64()),
    "lag": _MAP,
    "refreshes": _MAP,
}

_COLUMN: Final = {
    **dict.fromkeys(("name", "type", "null", "key", "extras", "watermark", "comment"), pa.string()),
    "null": pa.bool_(),
}

_ASCENDING: Final = re.compile(
    r"(?i)(?:TO_TIMESTAMP(?:_LTZ|_NTZ)?|TIMESTAMP_(?:MILLIS|MICROS|SECONDS))\(\s*`?\w+`?\s*(?:,\s*\d\s*)?\)"
    r"|CAST\(\s*`?\w+`?\s+AS\s+TIMESTAMP\w*\s*(?:\(\d\))?\s*\)"
)
"""Expressions of one column that are the later the larger its value is."""

_SERVERS: Final = "properties.bootstrap.servers"


def describe_table(context: Context, statement: s.DescribeTable, spark: SparkSession | None) -> Result:
    """``DESCRIBE``: a row for each column; with EXTENDED FLIP-188's row of the table, or partitions.

    The row of a materialized view has its query, and the versions that it stands for, beside those.
    """
    name, system = split(statement.name)
    table_ref = context.databases.resolve(name)
    what = f"DESCRIBE {table_ref.shown}"
    if system is not None:
        columns = known(system, managed(context, name, f"DESCRIBE {statement.name}").name).columns
        rows = ({"name": one, "type": types.sql_name(of), "null": True} for one, of in columns.items())
        return Rows.listed(f"{what}${system}", _COLUMN, rows)
    if statement.partition is not None:
        chosen = managed(context, statement.name, "DESCRIBE … PARTITION")
        return partition_details(chosen, statement.partition, what)
    if not statement.is_extended:
        schema = context.schema(statement.name)
        return Rows.listed(what, _COLUMN, (_column_row(schema, name) for name in declared_names(schema)))
    if (plain := context.plain_view(statement.name)) is not None:
        row: dict[str, Any] = {"name": table_ref.qualified, "view.query": plain.text.query}
        return Rows.listed(what, {name: _TABLE.get(name) or _VIEW[name] for name in row}, [row])
    options = given_options(table_ref.existing())
    if "connector" in options:
        return Rows.listed(what, _TABLE, [_connector_row(table_ref.qualified, options)])
    table = Table.open(table_ref.existing())
    row = _table_row(table_ref.qualified, table, active(spark))
    if (view := definition_of(table)) is None:
        return Rows.listed(what, _TABLE, [row])
    return Rows.listed(what, _TABLE | _VIEW, [row | _view_row(context, table_ref, table, view)])


def _connector_row(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "log.system": options["connector"],
        "log.kafka.topic": options.get("topic"),
        "log.kafka.bootstrap.servers": _servers(options.get(_SERVERS)),
    }


def _table_row(name: str, table: Table, spark: SparkSession | None) -> dict[str, Any]:
    partitions = table.partitions()
    newest_ms = max((info.last_modified_ms for info in partitions), default=None)
    return {
        "name": name,
        **_log(table),
        "file.path": table.path,
        "file.format": table.options.file_form.format,
        "bucket": table.options.bucket,
        "last-modified": None if newest_ms is None else time_of(newest_ms),
        "compacted": all(info.is_compacted for info in partitions),
        "num-files": sum(info.files for info in partitions),
        "change-tracking": table.options.change_tracking,
        "watermark": _watermark(table, spark),
    }


def _view_row(context: Context, ref: TableRef, table: Table, view: ViewDefinition) -> dict[str, Any]:
    versions = table.snapshot().info.base_versions or {}
    refreshes = refreshes_of(ref.shown, table, view.tables)
    catalog, _, _ = ref.qualified.partition(".")
    return {
        "view.query": view.query,
        "view.suspended": view.is_suspended,
        "view.refresh": table.options.refresh,
        "base-versions": list(versions.items()),
        "lag": [
            (base, _lag(context, f"{catalog}.{base}", base_uuid, versions.get(base, 0)))
            for base, base_uuid in view.tables.items()
        ],
        "refreshes": [(part, str(one)) for part, one in refreshes.items()],
    }


def _lag(context: Context, table: str, table_uuid: str, known: int) -> str:
    """How far a view is behind a table, in words; also if that was dropped, or made again."""
    try:
        return str(lag_behind(Table.open(context.databases.resolve(table).path, table_uuid), known))
    except TableNotFoundError:
        return "dropped, or made again"


def _column_row(schema: TableSchema, name: str) -> dict[str, Any]:
    watermark = schema.watermark
    delay = watermark.delay_ms if watermark is not None and watermark.column == name else None
    shown = None if delay is None else f"{name} - {delay} ms" if delay else name
    computed = next((column for column in schema.computed if column.name == name), None)
    if computed is not None:
        row: dict[str, Any] = {"name": name, "null": True, "watermark": shown, "comment": computed.comment}
        if computed.type is None:
            return {**row, "extras": f"AS {computed.expression}"}
        row |= {"type": types.sql_name(computed.type)}
        return row | {"extras": f"METADATA FROM {computed.metadata!r} VIRTUAL"}
    column = schema.column(name)
    keys = ["PRI"] if name in schema.primary_key else []
    keys += [index.name for index in schema.indexes if name in index.columns]
    said = ["PARTITIONED BY"] if name in schema.partitioned_by else []
    said += [] if column.default is None else [f"DEFAULT {column.default}"]
    extras = ", ".join((*said, *(str(check) for check in schema.checks if name in check.columns))) or None
    if column.metadata is not None:
        extras = f"METADATA FROM {column.metadata!r}{' VIRTUAL' if column.virtual else ''}"
    return {
        "name": name,
        "type": column.sql_type,
        "null": column.nullable,
        "key": ", ".join(keys) or None,
        "extras": extras,
        "watermark": shown,
        "comment": column.comment,
    }


def partition_details(table: Table, chosen: Mapping[str, Any], what: str) -> Rows:
    """A row about each partition that has the chosen values."""
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
            "last-modified": time_of(info.last_modified_ms),
            "compacted": info.is_compacted,
            "num-files": info.files,
        }
        for info in fitting_partitions(table, chosen)
    ]
    return Rows.listed(what, {"partition": pa.string(), **_PARTITION}, rows)


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


def _watermark(table: Table, spark: SparkSession | None) -> datetime | None:
    """The watermark of the rows so far: the newest time in them, less the delay.

    By the bounds of the files and what commits have kept of them, so that it never goes back. A computed
    rowtime is evaluated for the newest value of its column where it ascends with it, else for all rows.
    Without a session it is not known.
    """
    schema, watermark = table.schema, table.schema.watermark
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
        ascends = _ASCENDING.fullmatch(computed.expression.strip()) is not None
        if source is not None and number is not None and ascends:
            rows = pa.table({source.name: pa.array([value_of(source, number).as_py()], source.type)})
        else:
            rows = snapshot.scan(computed.uses)
        found = _newest_computed(spark, rows, computed)
    return None if found is None else found - timedelta(milliseconds=watermark.delay_ms)


def _newest_computed(spark: SparkSession, rows: pa.Table, computed: ComputedColumn) -> datetime | None:
    from upsert.sql.flink_words import spark_expression

    expression = f"unix_micros(CAST(max({spark_expression(computed.expression)}) AS TIMESTAMP)) AS newest"
    (row,) = spark.createDataFrame(rows).selectExpr(expression).toArrow().to_pylist()
    micros = row["newest"]
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
