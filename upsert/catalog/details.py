"""What ``DESCRIBE TABLE EXTENDED`` and ``SHOW PARTITIONS`` tell of a table: FLIP-188's columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from upsert import types
from upsert.catalog.databases import Place
from upsert.errors import ConfigurationError
from upsert.schema import ComputedColumn, TableSchema
from upsert.store import Table
from upsert.store.event_time import newest, source_of, value_of
from upsert.store.partitions import is_within, specified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.store.partition_info import PartitionInfo

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
    place: Place,
    schema: TableSchema,
    options: Mapping[str, str],
    table: Table | None,
    spark: SparkSession | None,
) -> pa.Table:
    """One row about a table.

    Args:
        place: its name and folder.
        schema: its columns.
        options: as they were written; of a table with a connector they say where it lies.
        table: the managed table; None for one with a connector, which has NULL for what files have.
        spark: the session that evaluates a computed rowtime; without one its watermark is NULL.
    """
    row: dict[str, Any] = {"name": place.qualified}
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
    """The partitions that have some values.

    Raises:
        SchemaError: a column is no partition column, or a value does not fit it.
    """
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
    """The watermark that the rows so far have brought: the newest time in them, less the delay.

    By the bounds of the files and what commits have kept of them, so that it never goes back. A computed
    rowtime is evaluated for the newest value of its column where it ascends with it, else for all rows.
    """
    watermark = schema.watermark
    if watermark is None:
        return None
    snapshot, source = table.snapshot(), source_of(schema)
    number = newest(schema, snapshot.files.entries, snapshot.info.watermark)
    computed = next((column for column in schema.computed if column.name == watermark.column), None)
    moment: datetime | None = None
    if computed is None:
        if source is not None and number is not None:
            moment = value_of(source, number).cast(types.TIMESTAMP).as_py()
    elif spark is not None and computed.metadata is None:
        if source is not None and number is not None and _ascends(computed):
            rows = pa.table({source.name: pa.array([value_of(source, number).as_py()], source.type)})
        else:
            rows = snapshot.scan(computed.uses)
        moment = _newest_computed(spark, rows, computed)
    return None if moment is None else moment - timedelta(milliseconds=watermark.delay_ms)


def _ascends(computed: ComputedColumn) -> bool:
    """Whether the expression is a function of one column that grows with it."""
    return _ASCENDING.fullmatch(computed.expression.strip()) is not None


def _newest_computed(spark: SparkSession, rows: pa.Table, computed: ComputedColumn) -> datetime | None:
    from upsert.catalog.column_expressions import spark_expression

    expression = f"unix_micros(CAST(max({spark_expression(computed.expression)}) AS TIMESTAMP)) AS newest"
    (row,) = spark.createDataFrame(rows).selectExpr(expression).toArrow().to_pylist()
    micros = row["newest"]
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _log(table: Table) -> dict[str, Any]:
    """What FLIP-188 tells of a table's log."""
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
