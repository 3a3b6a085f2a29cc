"""How far a table's rows have come in event time, from the bounds of its files (pure).

A commit keeps the newest value that the column of WATERMARK has ever had, so what a deletion or a compaction
takes away does not set it back. Of a rowtime that is computed of one column this is that column's value.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa

from upsert.schema import Column, TableSchema
from upsert.store.file_entry import FileEntry

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def source_of(schema: TableSchema) -> Column | None:
    """The stored column that the watermark goes by; None if it goes by none, by several, or by texts."""
    if schema.watermark is None:
        return None
    names: tuple[str, ...] = (schema.watermark.column,)
    for column in schema.computed:
        if column.name == schema.watermark.column:
            names = column.uses
    if len(names) != 1 or names[0] not in schema.names:
        return None
    found = schema.column(names[0])
    is_number = pa.types.is_integer(found.type) or pa.types.is_temporal(found.type)
    return found if is_number else None


def newest(schema: TableSchema, files: Iterable[FileEntry], known: int | None = None) -> int | None:
    """The newest value of that column in some files and of what is known; times as microseconds since 1970.

    None if there is none. Values that are stored are enough, the present ones or not.
    """
    source = source_of(schema)
    if source is None:
        return known
    found = (_number(entry.max.get(source.id)) for entry in files)
    return max((value for value in (known, *found) if value is not None), default=None)


def value_of(column: Column, number: int) -> pa.Scalar:
    """The value of a column that stands for a number of ``newest``."""
    if pa.types.is_date(column.type):
        return pa.scalar(number // 86_400_000_000, pa.int32()).cast(column.type)
    return pa.scalar(number, pa.int64()).cast(column.type)


def _number(value: object) -> int | None:
    match value:
        case bool() | None:
            return None
        case int():
            return value
        case datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            elapsed = moment - _EPOCH
            return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
        case date():
            return (value - _EPOCH.date()).days * 86_400_000_000
    return None
