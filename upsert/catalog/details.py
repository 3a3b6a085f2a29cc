"""What ``DESCRIBE TABLE EXTENDED`` and ``SHOW PARTITIONS`` tell of a table: FLIP-188's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.catalog.databases import Place
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.store import Table

if TYPE_CHECKING:
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
_SERVERS: Final = "properties.bootstrap.servers"


def details(place: Place, schema: TableSchema, options: Mapping[str, str], table: Table | None) -> pa.Table:
    """One row about a table.

    Args:
        place: its name and folder.
        schema: its columns.
        options: as they were written; of a table with a connector they say where it lies.
        table: the managed table; None for one with a connector, which has NULL for what files have.
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
            "watermark": _watermark(table, schema),
        }
    return _rows([row], _TABLE)


def partition_details(table: Table, chosen: Mapping[str, Any]) -> pa.Table:
    """A row about each partition.

    Args:
        table: the table.
        chosen: values that the partitions must have; none for all partitions.

    Raises:
        ConfigurationError: a name is that of no partition column.
    """
    known = table.schema.partitioned_by
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigurationError(
            f"table {table.name!r}: PARTITION names {unknown[0]!r}; partition columns are "
            f"{', '.join(known) or 'none'}"
        )
    found = [info for info in table.partitions() if _has(table.schema, info, chosen)]
    rows = [
        {
            "partition": info.name,
            "file.path": info.path,
            "change-tracking": info.change_tracking,
            "last-modified": _time(info.last_modified_ms),
            "compacted": info.is_compacted,
            "num-files": info.files,
        }
        for info in found
    ]
    return _rows(rows, {"partition": pa.string(), **_PARTITION})


def _has(schema: TableSchema, info: PartitionInfo, chosen: Mapping[str, Any]) -> bool:
    return all(
        pa.scalar(info.spec[name], schema.type_of(name)) == pa.scalar(value).cast(schema.type_of(name))
        for name, value in chosen.items()
    )


def _together(table: Table) -> dict[str, Any]:
    """What all partitions of a table have in sum."""
    found = table.partitions()
    newest = max((info.last_modified_ms for info in found), default=None)
    return {
        "last-modified": None if newest is None else _time(newest),
        "compacted": all(info.is_compacted for info in found),
        "num-files": sum(info.files for info in found),
    }


def _watermark(table: Table, schema: TableSchema) -> datetime | None:
    """The watermark of the rows that are there: the newest time in them, less the delay."""
    watermark = schema.watermark
    if watermark is None or watermark.column not in schema.names:
        return None
    newest = pc.max(table.snapshot().scan([watermark.column]).column(0).cast(types.TIMESTAMP)).as_py()
    return None if newest is None else newest - timedelta(milliseconds=watermark.delay_ms)


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
