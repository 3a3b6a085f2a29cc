"""System tables: what the store knows of a managed table, as tables beside it, ``orders$files`` (pure).

Names and columns are Paimon's where it has them. They are made from metadata when a query asks for them; no
row of the table is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError, TableNotFoundError
from upsert.options import suggestion
from upsert.sql.show_create import masked
from upsert.store import Table
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.statistics import partition_infos
from upsert.store.rows.partitions import partition_name
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.store.upkeep.index_building import identity

_TEXTS: Final = pa.list_(pa.string())
_FIELD: Final = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("type", pa.string()),
        ("nullable", pa.bool_()),
        ("comment", pa.string()),
    ]
)
_OF_TEXTS: Final = pa.map_(pa.string(), pa.string())

PRIMARY_KEY: Final = "PRIMARY KEY"
"""Name of the primary key among the indexes."""

_Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class SystemTable:
    """One kind of system table.

    Attributes:
        columns: names and types.
        rows: what it holds of a table at a state.
        about: what a row is, for the page on SQL.
        has_states: whether another state has other rows, so that FOR SYSTEM_… may ask for it.
    """

    columns: Mapping[str, pa.DataType]
    rows: Callable[[Table, Snapshot], _Rows]
    about: str
    has_states: bool = False


def split(name: str) -> tuple[str, str | None]:
    """A table's name and, behind ``$``, that of its system table.

    >>> split("shop.orders$files"), split("orders")
    (('shop.orders', 'files'), ('orders', None))
    """
    # what is no text is refused where names are resolved
    table, dollar, system = name.partition("$") if isinstance(name, str) else (name, "", "")
    return (table, system) if dollar and table else (name, None)


_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("audit_log", "binlog", "changelog"),
        "read table_changes(t, from [, to]), or the table itself in streaming mode",
    ),
    **dict.fromkeys(("ro", "read_optimized"), "read the table itself"),
    "buckets": "read t$files, which has the bucket of each file",
    "statistics": "read t$files, which has the bounds of each file",
    "history": "read t$snapshots",
}
"""System tables of Paimon and others, and what is read here."""


def known(system: str, of: str) -> SystemTable:
    """The system table of a name; refuses another name and offers those that there are."""
    if (found := SYSTEM_TABLES.get(system.lower())) is None:
        hint = _ELSEWHERE.get(system.lower()) or suggestion(system.lower(), SYSTEM_TABLES, "there are")
        raise TableNotFoundError(f"table {of!r} has no system table {system!r}; {hint}")
    return found


def read(table: Table, system: str, state: int | str | None = None) -> pa.Table:
    """The rows of a system table.

    Args:
        table: what they are about.
        system: the name behind ``$``.
        state: a snapshot's id or a tag; None for the newest.

    Raises:
        TableNotFoundError: there is no such system table.
        ConfigurationError: it has no states, but one is named.
    """
    found = known(system, table.name)
    if state is not None and not found.has_states:
        having = ", ".join(name for name, one in SYSTEM_TABLES.items() if one.has_states)
        raise ConfigurationError(
            f"table '{table.name}${system}': only {having} can be read as of a snapshot or a time, got "
            f"{state!r}; leave it out"
        )
    rows = list(found.rows(table, table.snapshot(state)))
    columns = list(zip(*rows, strict=True)) or [()] * len(found.columns)
    arrays = (pa.array(values, of) for values, of in zip(columns, found.columns.values(), strict=True))
    return pa.table(dict(zip(found.columns, arrays, strict=True)))


def time_of(milliseconds: int) -> datetime:
    """The time of so many milliseconds since 1970.

    >>> str(time_of(1_500))
    '1970-01-01 00:00:01.500000+00:00'
    """
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _snapshots(table: Table, _: Snapshot) -> _Rows:
    for one in table.history():
        base = None if one.base_versions is None else list(one.base_versions.items())
        counts = one.rows, one.delta_rows, one.files
        time_ = time_of(one.time_ms)
        yield one.id, one.definition, one.kind, time_, one.data_version, *counts, one.is_shown, base


def _files(table: Table, state: Snapshot) -> _Rows:
    names = {column.id: column.name for column in state.layout.schema.columns}
    form = table.options.file_form.format
    for one in state.files.entries:
        suffix = os.path.splitext(one.file)[1].removeprefix(".") or form
        yield (
            partition_name(one.partition) or None,
            one.bucket,
            one.file,
            suffix,
            one.definition,
            one.level,
            one.rows,
            one.deletes,
            one.bytes,
            one.sequence,
            time_of(one.written_ms),
            _bounds(one.min, names),
            _bounds(one.max, names),
        )


def _bounds(values: Mapping[int, Any], names: Mapping[int, str]) -> list[tuple[str, str]]:
    """The known bounds of columns that the table still has, as texts."""
    known_ = ((names[id], values[id]) for id in values if id in names)
    return [(name, _text(value)) for name, value in known_ if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partitions(table: Table, state: Snapshot) -> _Rows:
    for one in partition_infos(table.root, table.definition, state.files):
        counts = one.rows, one.bytes, one.files
        changed = time_of(one.last_modified_ms)
        yield one.name or None, *counts, changed, one.is_compacted, one.change_tracking, one.path


def _manifests(_: Table, state: Snapshot) -> _Rows:
    for one in state.info.manifests:
        yield os.path.basename(one.name), one.sequence, one.entries


def _tags(table: Table, _: Snapshot) -> _Rows:
    for tag in table.tags():
        one = tag.snapshot
        yield tag.name, one.id, one.definition, time_of(one.time_ms), one.rows, time_of(tag.created_ms)


def _consumers(table: Table, _: Snapshot) -> _Rows:
    now = int(time.time() * 1000)
    for one in table.consumers():
        until = time_of(one.until_ms)
        version = one.version
        yield one.name, version.base, version.target, time_of(one.renewed_ms), until, one.is_lapsed(now)


def _options(table: Table, _: Snapshot) -> _Rows:
    yield from sorted(_shown(table.definition).items())


def _shown(definition: Definition) -> dict[str, str]:
    """Options as they were given, secrets masked; without the query that makes a view of a table."""
    given = {key: text for key, text in definition.given.items() if key.lower() != MATERIALIZED_VIEW.key}
    return masked(given)


def _indexes(table: Table, state: Snapshot) -> _Rows:
    schema, entries = table.schema, state.files.entries
    if schema.primary_key:
        yield PRIMARY_KEY, list(schema.primary_key), True, len(entries), len(entries)
    for index in schema.indexes:
        wanted = identity(index, schema)
        having = sum(_has(table, entry, wanted) for entry in entries)
        yield index.name, list(index.columns), index.unique, len(entries), having


def _has(table: Table, entry: FileEntry, wanted: tuple[object, ...]) -> bool:
    """Whether a file has an index stored, or is small; of another one a lookup makes it in memory."""
    schema = table.published.definition_at(entry.definition).schema
    return not entry.has_sidecar or any(identity(index, schema) == wanted for index in schema.indexes)


def _log(table: Table, state: Snapshot) -> _Rows:
    log = table.options.log
    if log.is_kafka:
        for partition in range(table.options.bucket):
            yield log.system, log.topic, partition, state.info.log_offsets.get(str(partition))


def _schemas(table: Table, _: Snapshot) -> _Rows:
    for version in range(table.definition.version + 1):
        one = table.published.definition_at(version)
        schema = one.schema
        fields = [
            {"id": c.id, "name": c.name, "type": c.sql_type, "nullable": c.nullable} | {"comment": c.comment}
            for c in schema.columns
        ]
        keys = list(schema.primary_key), list(schema.partitioned_by), [str(one) for one in schema.indexes]
        yield version, fields, *keys, sorted(_shown(one).items()), schema.comment


SYSTEM_TABLES: Final[Mapping[str, SystemTable]] = {
    "snapshots": SystemTable(
        {
            "snapshot_id": pa.int64(),
            "schema_id": pa.int64(),
            "commit_kind": pa.string(),
            "commit_time": types.TIMESTAMP,
            "data_version": pa.int64(),
            "total_record_count": pa.int64(),
            "delta_record_count": pa.int64(),
            "file_count": pa.int64(),
            "change_tracking": pa.bool_(),
            "base_versions": pa.map_(pa.string(), pa.int64()),
        },
        _snapshots,
        "a snapshot that has not expired; `data_version` is the number of the newest commit up to it that "
        "changed rows, records are stored rows including deletions, and `base_versions` are the snapshots "
        "from which a view was computed",
    ),
    "files": SystemTable(
        {
            "partition": pa.string(),
            "bucket": pa.int32(),
            "file_path": pa.string(),
            "file_format": pa.string(),
            "schema_id": pa.int64(),
            "level": pa.int32(),
            "record_count": pa.int64(),
            "delete_record_count": pa.int64(),
            "file_size_in_bytes": pa.int64(),
            "sequence_number": pa.int64(),
            "creation_time": types.TIMESTAMP,
            "min_values": _OF_TEXTS,
            "max_values": _OF_TEXTS,
        },
        _files,
        "a data file of the snapshot, by its path within the table; `sequence_number` is the snapshot that "
        "published its rows; scalar columns have bounds",
        has_states=True,
    ),
    "partitions": SystemTable(
        {
            "partition": pa.string(),
            "record_count": pa.int64(),
            "file_size_in_bytes": pa.int64(),
            "file_count": pa.int64(),
            "last_update_time": types.TIMESTAMP,
            "compacted": pa.bool_(),
            "change_tracking": pa.bool_(),
            "path": pa.string(),
        },
        _partitions,
        "a partition that has files; `partition` is NULL for a table without partitions. Until a partition "
        "is compacted, a key counts once for each file",
        has_states=True,
    ),
    "manifests": SystemTable(
        {"file_name": pa.string(), "snapshot_id": pa.int64(), "entry_count": pa.int64()},
        _manifests,
        "a manifest of the snapshot, and the snapshot that published it",
        has_states=True,
    ),
    "tags": SystemTable(
        {
            "tag_name": pa.string(),
            "snapshot_id": pa.int64(),
            "schema_id": pa.int64(),
            "commit_time": types.TIMESTAMP,
            "record_count": pa.int64(),
            "create_time": types.TIMESTAMP,
        },
        _tags,
        "a tag, and the snapshot that it keeps",
    ),
    "consumers": SystemTable(
        {
            "consumer_id": pa.string(),
            "snapshot_id": pa.int64(),
            "target_snapshot_id": pa.int64(),
            "renew_time": types.TIMESTAMP,
            "lease_end_time": types.TIMESTAMP,
            "lapsed": pa.bool_(),
        },
        _consumers,
        "a reader that holds snapshots: `snapshot_id` is the one up to which it has read changes, "
        "`target_snapshot_id` the one up to which it reads now",
    ),
    "options": SystemTable(
        {"key": pa.string(), "value": pa.string()},
        _options,
        "an option as it was given, secrets masked",
    ),
    "indexes": SystemTable(
        {
            "index_name": pa.string(),
            "columns": _TEXTS,
            "is_unique": pa.bool_(),
            "file_count": pa.int64(),
            "indexed_file_count": pa.int64(),
        },
        _indexes,
        f"an index, `{PRIMARY_KEY}` among them, and how many of the newest snapshot's files have it stored",
    ),
    "log": SystemTable(
        {
            "log_system": pa.string(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "next_offset": pa.int64(),
        },
        _log,
        "a partition of the table's log; `next_offset` is where a reader of the newest snapshot continues, "
        "NULL if that is not known. No row without a log",
    ),
    "schemas": SystemTable(
        {
            "schema_id": pa.int64(),
            "fields": pa.list_(_FIELD),
            "primary_key": _TEXTS,
            "partition_keys": _TEXTS,
            "indexes": _TEXTS,
            "options": _OF_TEXTS,
            "comment": pa.string(),
        },
        _schemas,
        "a version of the definition: its stored columns, keys and options",
    ),
}
"""Every system table, by the name behind ``$``."""
