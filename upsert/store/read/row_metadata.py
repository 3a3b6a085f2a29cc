"""What a managed table knows of its rows beside their columns: keys of METADATA columns.

Follows FLIP-107 for the tables of FLIP-188. The values are not stored with the rows: every read computes
them, see `upsert.managed.reader`. All of them are read-only. A row's sequence number is the commit
that last wrote it, as far as the files tell it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError
from upsert.formats.metadata_columns import MetadataKey, resolve
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, ComputedColumn, TableSchema
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.paths import BucketId
from upsert.store.predicate import Filter
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.layout import KIND_COLUMN
from upsert.store.rows.merge import SortedRows, merge_runs, present

SNAPSHOT_ID: Final = "snapshot-id"
COMMIT_TIMESTAMP: Final = "commit-timestamp"
BUCKET: Final = "bucket"
SEQUENCE_NUMBER: Final = "sequence-number"

KEYS: Final = {
    key.key: key
    for key in (
        MetadataKey(SNAPSHOT_ID, pa.int64()),
        MetadataKey(COMMIT_TIMESTAMP, types.TIMESTAMP),
        MetadataKey(BUCKET, pa.int32()),
        MetadataKey(SEQUENCE_NUMBER, pa.int64()),
    )
}
"""Every key, with the type of its values."""

ALIASES: Final = {key.replace("-", "_"): key for key in KEYS}
"""The keys as names of columns that need no quotes."""

_EPOCH: Final = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"


def metadata_option(value: str) -> dict[str, str]:
    """Names of columns and the keys that they hold, of the option ``metadata.columns``.

    >>> metadata_option("snapshot-id, bucket"), metadata_option('{"version": "snapshot-id"}')
    ({'snapshot-id': 'snapshot-id', 'bucket': 'bucket'}, {'version': 'snapshot-id'})
    """
    found: Any = {key: key for part in value.split(",") if (key := part.strip())}
    if value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict) or not found or not all(isinstance(key, str) for key in found.values()):
        raise ValueError('keys separated by commas, or a JSON object: {"version": "snapshot-id"}')
    return found


def offered(given: Mapping[str, str], schema: TableSchema, of: str) -> dict[str, MetadataKey]:
    """The keys that a read asks for, by the names of their columns; refuses those that it cannot have."""
    asked = [Column(name, pa.string(), metadata=key) for name, key in given.items()]
    for column in asked:
        if column.name in (*schema.names, ROW_KIND_COLUMN):
            raise SchemaError(
                f"{of}: metadata {column.metadata!r} must have a name of its own, got {column.name!r}, which "
                "is a column; give it one, as in 'metadata.columns' = '{\"version\": \"snapshot-id\"}'"
            )
        _check_known(column.metadata, schema, of)
    found = resolve(asked, KEYS, ALIASES, of=of, writing=False)
    return {one.column.name: one.key for one in found}


def with_metadata_aside(schema: TableSchema, of: str) -> TableSchema:
    """A schema whose METADATA columns are among those that a read adds; all others are stored.

    >>> column = Column("version", pa.int64(), metadata="snapshot-id", virtual=True)
    >>> found = with_metadata_aside(TableSchema((Column("id", pa.int64()), column)), "table 't'")
    >>> found.names, found.computed[0].metadata
    (('id',), 'snapshot-id')
    """
    if not schema.metadata:
        return schema
    found = {one.column.name: one for one in resolve(schema.columns, KEYS, ALIASES, of=of, writing=False)}
    for computed in schema.computed:
        if used := found.keys() & set(computed.uses):
            raise SchemaError(
                f"{of}: column {computed.name!r} must be computed from stored columns, got the METADATA "
                f"column {sorted(used)[0]!r}; compute it in the query"
            )
    taken = {computed.place for computed in schema.computed}
    free = (place for place in range(len(schema.columns) + len(taken)) if place not in taken)
    added = []
    for column, place in zip(schema.columns, free, strict=True):
        if column.metadata is not None:
            key = found[column.name].key
            _check_known(key.key, schema, f"{of}: column {column.name!r}")
            # a read computes it from a column of its own name that has the key's values
            expression = _cast_expression(types.quoted(column.name), key.type, column.type)
            added.append(
                ComputedColumn(column.name, expression, (), place, column.comment, key.key, column.type)
            )
    both = sorted([*schema.computed, *added], key=lambda one: one.place)
    return replace(schema, columns=schema.physical, computed=tuple(both))


def _cast_expression(value: str, source: pa.DataType, target: pa.DataType) -> str:
    """Spark SQL for the cast that `metadata_columns.cast` makes: whole numbers and times are milliseconds."""
    if source == target:
        return value
    if source == types.TIMESTAMP:
        if target == pa.int64():
            return f"unix_millis({value})"
        # without a zone means UTC, whatever the session's zone is
        return f"CAST(timestampadd(MICROSECOND, unix_micros({value}), {_EPOCH}) AS {types.sql_name(target)})"
    if target in (types.TIMESTAMP, types.TIMESTAMP_NTZ):
        at = f"timestamp_millis({value})"
        return at if target == types.TIMESTAMP else _cast_expression(at, types.TIMESTAMP, target)
    return f"CAST({value} AS {types.sql_name(target)})"


def _check_known(key: str | None, schema: TableSchema, of: str) -> None:
    if key == SEQUENCE_NUMBER and not schema.primary_key:
        raise SchemaError(
            f"{of}: the metadata {SEQUENCE_NUMBER!r} needs a PRIMARY KEY: without it equal rows are counted, "
            f"whichever commits they came with; take {SNAPSHOT_ID!r}, or leave it out"
        )


SEQUENCE_COLUMN: Final = KIND_COLUMN
"""Holds the id of the commit."""


def rows_with_sequence(
    snapshot: Snapshot, bucket_id: BucketId, where: Filter, columns: tuple[str, ...]
) -> pa.Table:
    """Rows of one bucket of which a filter is true, and in ``SEQUENCE_COLUMN`` who last wrote each.

    A file that a commit has added holds rows of this commit alone. One that a compaction has written holds
    those of several, and nothing says which is whose.
    """
    files = snapshot.files.groups[bucket_id]
    needed = list(dict.fromkeys([*columns, *snapshot.layout.key, *where.columns]))
    runs = [_with_commit(snapshot, entry, needed) for run in reversed(files) for entry in run]
    rows = where.apply(present(snapshot.layout, merge_runs(snapshot.layout, runs)))
    return rows.select([*columns, SEQUENCE_COLUMN])


def check_not_compacted(snapshot: Snapshot, buckets: Iterable[BucketId]) -> None:
    """Refuse buckets with a compacted file, which holds rows of several commits, by a ``SchemaError``."""
    files = snapshot.files.groups
    for entry in (entry for bucket_id in buckets for run in files[bucket_id] for entry in run):
        if entry.level:
            raise SchemaError(
                f"metadata {SEQUENCE_NUMBER!r}: the commit that last wrote a row is known until its file is "
                f"compacted, which {entry.file!r} was; leave the column out, read the table's changes, or "
                "create it with 'write-only' = 'true'"
            )


def _with_commit(snapshot: Snapshot, entry: FileEntry, columns: list[str]) -> SortedRows:
    file = snapshot.open(entry)
    rows = pa.Table.from_batches([file.select(columns)])
    commit = pa.repeat(pa.scalar(entry.sequence, pa.int64()), rows.num_rows)
    return SortedRows(rows.append_column(SEQUENCE_COLUMN, commit), file.kinds)
