"""Spark partitions from a table: a snapshot for a batch read, a step of its changes for a micro-batch.

Offsets of a stream are ``{"columns": ids, "consumer": id, "table": uuid, "version": …}``: small JSON with
sorted names, for Spark compares offsets as text. The version says all that a replay needs, so a micro-batch
is the same however often it runs; an offset of an older release, without the uuids of snapshots or the ids of
columns, is given back as it is. Every call opens the table again: a reader that outlived its table would
serve another's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from upsert import types
from upsert.errors import ConfigurationError, SchemaError, SnapshotExpiredError
from upsert.formats.metadata_columns import MetadataKey
from upsert.log.offset import LOG
from upsert.managed.options import ReadOptions
from upsert.managed.stepping import Offset, SteppingReader
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import TableSchema
from upsert.spark.batches import to_spark
from upsert.spark.columns import read_columns
from upsert.spark.formats import FORMAT
from upsert.spark.reads import SizedReader
from upsert.spark.task import begin_task
from upsert.store.metadata.history import History
from upsert.store.paths import BucketId
from upsert.store.predicate import Filter, Where, parse_where
from upsert.store.read.pinned_columns import PinnedColumns, PinnedWhere, unaltered
from upsert.store.read.row_metadata import (
    BUCKET,
    COMMIT_TIMESTAMP,
    SEQUENCE_COLUMN,
    SEQUENCE_NUMBER,
    SNAPSHOT_ID,
    check_not_compacted,
    offered,
    rows_with_sequence,
)
from upsert.store.read.snapshot import PIECE_BYTES, PinnedTable, Snapshot
from upsert.store.read.splits import Split, tasks
from upsert.store.read.steps import StepSize, step_size
from upsert.store.table import Table
from upsert.store.version import Step, Version, owner_of, step_between


@dataclass(frozen=True)
class Commit:
    """A commit that changed rows: its id, and when it was published in ms, where that is asked; else 0."""

    id: int
    time_ms: int


@dataclass(frozen=True)
class RowMetadata:
    """The METADATA columns of one read of the table ``of``: the key of each, by its name.

    Of a batch ``snapshot-id`` is the state that is read, by the commit that made it; of a stream it is the
    commit of the change, so the stream goes from commit to commit. Compaction's own snapshots are not seen.
    """

    keys: Mapping[str, MetadataKey]
    of: str

    @classmethod
    def asked(cls, given: Mapping[str, str], schema: TableSchema, asked: StructType | None, of: str) -> Self:
        """The columns that the option ``metadata.columns`` names, and the read's schema has."""
        found = offered(given, schema, of)
        return cls({n: k for n, k in found.items() if asked is None or n in asked.names}, of)

    def added_to(self, own: StructType) -> StructType:
        """The table's columns, these ones, then ``_row_kind`` where it is there."""
        fields = [
            {"name": name, "type": types.to_json(key.type), "nullable": True, "metadata": {}}
            for name, key in self.keys.items()
        ]
        mine = StructType.fromJson({"type": "struct", "fields": fields}).fields
        has_kind = own.names[-1:] == [ROW_KIND_COLUMN]
        stored = own.fields[:-1] if has_kind else own.fields
        return StructType([*stored, *mine, *(own.fields[-1:] if has_kind else [])])

    def needs(self, *keys: str) -> bool:
        """Whether a column has one of these keys."""
        return any(key.key in keys for key in self.keys.values())

    def commit(self, history: History, version: int) -> Commit:
        """The commit that made a state; it may have expired with its time, where that is asked for."""
        if not version or not self.needs(COMMIT_TIMESTAMP):
            return Commit(version, 0)
        try:
            return Commit(version, history.info(version).time_ms)
        except SnapshotExpiredError as cause:
            raise SnapshotExpiredError(
                f"{self.of}: metadata {COMMIT_TIMESTAMP!r}: commit {version} must be there to tell its time, "
                "but has expired; leave the column out, or keep more states with 'snapshot.time-retained'"
            ) from cause

    def pieces(
        self,
        snapshot: Snapshot,
        columns: tuple[str, ...],
        where: Where | None,
        splits: Sequence[Split],
        commit: Commit,
    ) -> Iterator[pa.Table]:
        """Rows of some splits of one state, then these columns."""
        if not self.needs(SEQUENCE_NUMBER):
            by_bucket: dict[int, list[Split]] = {}
            for split in splits:
                # one read of all, for each looks at all partitions of the table
                by_bucket.setdefault(split.bucket_id[1] if self.needs(BUCKET) else 0, []).append(split)
            for bucket, own in by_bucket.items():
                for rows in snapshot.pieces(columns, where, splits=own):
                    yield self.with_values(rows, commit, bucket)
            return
        left = snapshot.bucket_filters(parse_where(where, snapshot.layout.schema))
        for bucket_id in (split.bucket_id for split in splits):
            rows = rows_with_sequence(snapshot, bucket_id, left[bucket_id], columns)
            yield self.with_values(rows, commit, bucket_id[1])

    def with_values(self, rows: pa.Table, commit: Commit, bucket: int) -> pa.Table:
        """Rows of one bucket and one commit, with these columns after the others but before ``_row_kind``."""
        sequence = pa.scalar(commit.id, pa.int64())
        if SEQUENCE_COLUMN in rows.column_names:
            sequence = rows.column(SEQUENCE_COLUMN)
            rows = rows.drop_columns([SEQUENCE_COLUMN])
        values = {
            SNAPSHOT_ID: pa.scalar(commit.id, pa.int64()),
            COMMIT_TIMESTAMP: pa.scalar(commit.time_ms * 1000, pa.int64()).cast(types.TIMESTAMP),
            BUCKET: pa.scalar(bucket, pa.int32()),
            SEQUENCE_NUMBER: sequence,
        }
        for name, key in self.keys.items():
            value = values[key.key]
            column = pa.repeat(value, rows.num_rows) if isinstance(value, pa.Scalar) else value
            rows = rows.append_column(name, column)
        return rows

    def check_buckets(self, table: PinnedTable, step: Step, count: int) -> None:
        """Refuse the bucket of changes that are found in ``count`` buckets, where the target has others."""
        if self.needs(BUCKET) and count != table.snapshot(step.target).layout.buckets:
            raise SchemaError(
                f"{self.of}: metadata {BUCKET!r} must be of changes in one number of buckets, but ALTER "
                f"TABLE changed it between the snapshots {step.base} and {step.target}; leave the column "
                "out, or read the changes before and after it apart"
            )

    def until(self, table: PinnedTable, version: Version, until: int | None) -> int | None:
        """How far the next step may go: over one commit where the columns tell which one it is."""
        if not self.needs(SNAPSHOT_ID, COMMIT_TIMESTAMP, SEQUENCE_NUMBER) or not version.base:
            return until
        last = table.snapshot(until).info.data_version
        if not version.is_complete or last <= version.base:
            return until
        if table.has_gap(table.snapshot(version.base), last):
            raise SnapshotExpiredError(
                f"{self.of}: METADATA columns of a change must be those of its commit, but the commits after "
                f"{version.base} have expired; leave the columns out, or begin with 'scan.mode' = 'full'"
            )
        return next(table.data_commits(version.base, last)).id


def state_named_by(options: ReadOptions, table: Table) -> int:
    """Data version of the snapshot that the scan options name."""
    if options.scan_mode == "from-snapshot":
        return table.snapshot(options.tag or options.snapshot_id).info.data_version
    timestamp_ms = options.timestamp_ms
    if options.scan_mode != "from-timestamp" or timestamp_ms is None:
        return table.snapshot(options.pinned and options.pinned[0]).info.data_version
    return table.published.at_time(timestamp_ms).data_version


STREAM_ONLY: Final = frozenset(
    {"max-rows-per-trigger", "max-memory-per-task", "scan.untracked", "scan.used-columns", "consumer.lease"}
)
"""Options that mean nothing for a batch, beside those that are refused with a remedy of their own."""


@dataclass(frozen=True)
class SnapshotPartition(InputPartition):
    """What a task reads of one snapshot: a part of a large bucket, or some small ones."""

    table: str
    snapshot_id: int
    splits: tuple[Split, ...]
    commit: Commit


@dataclass(frozen=True)
class ChangesPartition(InputPartition):
    """One bucket's changes between two versions."""

    table: str
    start: Version
    end: Version
    bucket: int
    commit: Commit


COLUMNS: Final = "columns"
"""Name in an offset of the ids of the columns that the query uses, by their names."""


def _ids_of_used(columns: PinnedColumns, where: PinnedWhere, used: Sequence[str] | None) -> Mapping[str, int]:
    """The ids of the columns that a query uses of those that it reads, and that its filter names."""
    filtered = () if where.where is None else parse_where(where.where, where.schema).columns
    found = {column.name: column.id for column in columns.columns if used is None or column.name in used}
    return {**found, **{name: where.schema.column(name).id for name in filtered}}


def _wanted(
    table: Table, options: ReadOptions, asked: StructType
) -> tuple[RowMetadata, PinnedColumns, PinnedWhere]:
    """The METADATA columns, the stored ones and the rows of a read; refuses what does not fit the table."""
    of = f"table {table.name!r}"
    metadata = RowMetadata.asked(options.metadata, table.schema, asked, of)
    own = StructType([field for field in asked.fields if field.name not in metadata.keys])
    names = read_columns(own, table.schema, of=table.name)
    where = PinnedWhere(options.where_of(table.schema), table.schema, of)
    return metadata, PinnedColumns.named(table.schema, names, of), where


class SnapshotReader(SizedReader):
    """Reads one snapshot, chosen when the query is planned; tasks share its rows.

    It has no ``pushFilters``: Spark would read other rows where a DataFrame is used twice, see
    docs/decisions/0047.
    """

    def __init__(self, options: ReadOptions, asked: StructType) -> None:
        """Check what is asked of the table, and that no option is one of streams."""
        if options.consumer_id is not None:
            raise ConfigurationError(
                f"{FORMAT}: option 'consumer-id' must go with a stream, got {options.consumer_id!r} for a "
                "batch, which is read once; leave it out, or tag the snapshot and name it in 'scan.tag-name'"
            )
        if (option := options.of_log) is not None:
            raise ConfigurationError(
                f"{FORMAT}: option {option!r} must go with a stream, a batch reads the files; leave it out"
            )
        if only := sorted(options.asked & STREAM_ONLY):
            raise ConfigurationError(
                f"{FORMAT}: option {only[0]!r} must go with a stream, a batch reads one state; leave it out"
            )
        self._options = options
        self._asked = asked
        self._metadata, self._columns, self._where = _wanted(Table.open(options.path), options, asked)

    def partitions(self) -> list[SnapshotPartition]:
        """The splits of the snapshot that the scan options name, where the filter may be true."""
        return self._partitions()[0]

    def planned(self) -> tuple[list[SnapshotPartition], StepSize | None]:
        """The same, and what their buckets have, or the keys of a filter; not of a table that counts rows."""
        parts, snapshot, wanted, named = self._partitions()
        if snapshot.layout.is_counted:
            return parts, None
        return parts, _stored_size(snapshot, wanted) if named is None else named

    def _partitions(
        self,
    ) -> tuple[list[SnapshotPartition], Snapshot, Collection[BucketId], StepSize | None]:
        """The partitions, of which snapshot they are, of which of its buckets, and of what keys at most."""
        table = Table.open(self._options.path, self._options.pinned and self._options.pinned[1])
        chosen = state_named_by(self._options, table)
        snapshot = table.snapshot(chosen)
        where = parse_where(self._where.now(table.schema), table.schema)
        wanted = snapshot.bucket_filters(where)
        shares = tasks(snapshot.files, wanted)
        needs_order = self._metadata.needs(SEQUENCE_NUMBER)
        if needs_order:
            check_not_compacted(snapshot, wanted)
        named = _named_size(snapshot, wanted, where)
        if needs_order or (named is not None and named.bytes <= PIECE_BYTES):
            # these are told, and so few keys are looked up, a whole bucket at a time
            shares = [[Split(one.bucket_id) for one in share] for share in shares if not share[0].low]
        commit = self._metadata.commit(table.published, chosen)
        # a source without partitions would be read by Spark as one of no name
        parts = [SnapshotPartition(table.uuid, chosen, tuple(share), commit) for share in shares or [[]]]
        return parts, snapshot, wanted, named

    def read(self, partition: SnapshotPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of the splits, every one of kind ``+I``."""
        begin_task()
        snapshot = Table.open(self._options.path, partition.table).snapshot(partition.snapshot_id)
        now = snapshot.layout.schema
        names, where = self._columns.names_in(now), self._where.now(now)
        for piece in self._metadata.pieces(snapshot, names, where, partition.splits, partition.commit):
            rows = self._columns.restored(piece, now)
            if ROW_KIND_COLUMN in self._asked.names:
                kinds = pa.repeat(pa.scalar(RowKind.INSERT.value), rows.num_rows)
                rows = rows.append_column(ROW_KIND_COLUMN, kinds)
            yield from to_spark(rows, self._asked)


def read_size(given: Mapping[str, str]) -> StepSize:
    """What a batch read of these options has at most; equal rows of a table without a key count once."""
    options = ReadOptions.parse(given)
    table = Table.open(options.path, options.pinned and options.pinned[1])
    snapshot = table.snapshot(state_named_by(options, table))
    return size_of(snapshot, parse_where(options.where_of(table.schema), table.schema))


def size_of(snapshot: Snapshot, where: Filter) -> StepSize:
    """What a read of the rows of which a filter is true has at most; see `read_size`."""
    wanted = snapshot.bucket_filters(where)
    return _named_size(snapshot, wanted, where) or _stored_size(snapshot, wanted)


def _stored_size(snapshot: Snapshot, wanted: Collection[BucketId]) -> StepSize:
    """What some buckets have."""
    files = snapshot.files.within(wanted).entries
    return StepSize(sum(one.rows for one in files), sum(one.size for one in files))


def _named_size(snapshot: Snapshot, wanted: Collection[BucketId], where: Filter) -> StepSize | None:
    """How many rows at most have the keys that a filter names, and about what they take.

    None if it names none, or if a key may have many rows: buckets are read by as many tasks then as without.
    """
    found = snapshot.named_keys(where)
    if found is None or not found.index.is_unique:
        return None
    stored, keys = _stored_size(snapshot, wanted), found.values.num_rows
    return StepSize(keys, stored.bytes * keys // stored.rows) if keys < stored.rows else None


class ChangesReader(SteppingReader[Table]):
    """Reads a table's changes step by step; the first step of ``scan.mode = full`` is a snapshot."""

    def __init__(self, options: ReadOptions, asked: StructType) -> None:
        """Check what is asked of the table; ``_row_kind`` must be in it: deletions would look like rows."""
        super().__init__(options.consumer_id, options.lease_ms, options.task_memory)
        self._options = options
        self._asked = asked
        table = Table.open(options.path)
        self._table = table.uuid
        self._metadata, self._columns, self._where = _wanted(table, options, asked)
        if options.pinned is not None:
            raise ConfigurationError(
                f"{FORMAT}: option 'scan.pinned' is for a batch, a stream has no such state; leave it out"
            )
        if unknown := [name for name in options.used or () if name not in asked.names]:
            raise ConfigurationError(
                f"{FORMAT}: option 'scan.used-columns' must name columns that the stream reads, got "
                f"{unknown[0]!r}; columns are {', '.join(asked.names)}"
            )
        self._ids = _ids_of_used(self._columns, self._where, options.used)
        if ROW_KIND_COLUMN not in asked.names:
            raise ConfigurationError(
                f"{FORMAT}: a stream of changes must have the column {ROW_KIND_COLUMN!r}, or deletions would "
                "look like rows; leave out 'row-kind' = 'false', or name the column in .schema(…)"
            )

    def initialOffset(self) -> Offset:  # noqa: N802
        """The beginning; not yet a version where the scan mode depends on the clock.

        Spark asks again when it plans or replays the first micro-batch, so the answer may not change. Only
        the first ``latestOffset`` looks which snapshot is meant, and Spark logs that before it reads.
        """
        table = Table.open(self._options.path)
        return _offset(table, Version.EMPTY if self._options.scan_mode == "full" else None)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max-rows-per-trigger``."""
        return ReadMaxRows(self._options.max_rows)

    def opened(self) -> Table:
        """The table."""
        return Table.open(self._options.path)

    def tables_of(self, opened: Table) -> list[Table]:
        """It alone."""
        return [opened]

    def versions_of(self, opened: Table, offset: Offset) -> tuple[Version | None]:
        """Its version, see `version_of`; refuses an offset that was written with other columns.

        Raises:
            ConfigurationError: it is that of an aggregate, whose groups are in the sink.
        """
        if "aggregate" in offset:
            raise _of_another(offset, opened)
        found = version_of(offset, opened)
        self.check_columns(offset, opened)
        return (found,)

    def check_columns(self, offset: Offset, opened: Table) -> None:
        """Refuse to continue where another column has the name of one that the query used.

        What it has made of the old column, such as a sum, is in its sink or its state, and no change of the
        new column takes it back.

        Raises:
            SchemaError: there is such a column.
        """
        then = offset.get(COLUMNS)
        if not isinstance(then, dict):
            return  # the beginning, or an offset of an earlier release
        for name, id in self._ids.items():
            known = then.get(name, id)
            if known == id or known in self._ids.values():
                continue
            called = next((column.name for column in opened.schema.columns if column.id == known), None)
            was = "was dropped" if called is None else f"is called {called!r} now"
            remedy = "" if called is None else f"use {called!r}, or "
            raise SchemaError(
                f"table {opened.name!r}: column {name!r} must be the one that the checkpoint knows, which "
                f"{was}, got another one of this name; {remedy}begin with a new checkpoint and an empty "
                "sink; a query that does not use it says so with 'scan.used-columns'"
            )

    def offset_at(self, opened: Table, versions: tuple[Version, ...], consumer: str | None = None) -> Offset:
        """The offset of its version."""
        return {**self.columns_in_offset, **_offset(opened, versions[0], self._holding.in_offset(consumer))}

    @property
    def columns_in_offset(self) -> Offset:
        """What tells a restart which columns the query uses."""
        return {COLUMNS: dict(self._ids)}

    def ends(
        self, opened: Table, versions: tuple[Version | None, ...], max_rows: int | None
    ) -> tuple[Version, ...]:
        """The end of the next step; an empty first one says in the checkpoint where the stream began."""
        (version,) = versions
        if version is None:
            chosen = state_named_by(self._options, opened)
            return (Version.complete(min(chosen, *(self._until or [chosen]))),)
        (until,) = self._until or self.versions_seen(opened)
        end = unaltered(
            opened,
            lambda schema: opened.advance(
                version,
                max_rows=max_rows,
                max_bytes_of_bucket=self.readable_bytes,
                until=self._metadata.until(opened.pinned(), version, until),
                where=self._where.now(schema),
                skip_untracked=self._options.skips_untracked,
            ),
        )
        return (end,)

    def partitions(self, start: Offset, end: Offset) -> list[ChangesPartition]:
        """One for each bucket that the step reaches."""
        table = self.opened_lately()
        self.keep(table, start, end)
        first, last = version_of(start, table), version_of(end, table)
        if first is None or last is None or first == last:
            return []
        step = step_between(first, last)
        commit = self._metadata.commit(table.published, last.target)
        count = table.pinned().buckets_between(step.base, step.target)
        self._metadata.check_buckets(table.pinned(), step, count)
        buckets = (b for b in range(count) if step.hashes_of(b) is not None)
        return [ChangesPartition(table.uuid, first, last, bucket, commit) for bucket in buckets]

    def read(self, partition: ChangesPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The bucket's consolidated changes, one per key, ``-U`` just before ``+U``."""
        begin_task()
        table = Table.open(self._options.path, partition.table)
        if table.uuid != self._table:  # which was replaced before the query began: by columns of other ids
            yield from ChangesReader(self._options, self._asked).read(partition)
            return
        for start, end in self._parts(table, partition):
            changes = partial(self._changes, table, partition, start, end)
            yield from to_spark(self._columns.read(table, changes), self._asked)

    def _changes(
        self, table: Table, partition: ChangesPartition, start: Version, end: Version, names: tuple[str, ...]
    ) -> pa.Table:
        rows = table.changes_between(
            start,
            end,
            columns=names,
            buckets=[partition.bucket],
            where=self._where.now(table.schema),
            skip_untracked=self._options.skips_untracked,
        )
        return self._metadata.with_values(rows, partition.commit, partition.bucket)

    def _parts(self, table: Table, partition: ChangesPartition) -> Iterator[tuple[Version, Version]]:
        """The ranges of keys of a bucket that fit into a task's memory; a micro-batch is one of them.

        A step of a batch is what lies between two states, however much that is.
        """
        step, bucket = step_between(partition.start, partition.end), partition.bucket
        hashes = step.hashes_of(bucket)
        assert hashes is not None  # there is no partition of another bucket
        stop = (bucket + 1, 0) if step.high is None else min(step.high, (bucket + 1, 0))
        reached, end = (Version(step.base, step.target, at) for at in ((bucket, hashes[0]), stop))
        most = self.readable_bytes
        if self._options.skips_untracked or step_size(table.pinned(), reached, end).bytes <= most:
            yield partition.start, partition.end
            return
        while reached != end:
            start = reached
            where = self._where.now(table.schema)
            reached = table.advance(start, max_bytes_of_bucket=most, where=where)
            if reached.cursor is None or reached.cursor > stop:
                reached = end
            yield start, reached


def version_of(offset: Mapping[str, Any], table: Table) -> Version | None:
    """The version in an offset; None at the beginning of a stream that does not read the first load.

    Raises:
        ConfigurationError: the offset is no offset of this format, or one of another table.
    """
    if not {"table", "version"} <= offset.keys():
        raise _of_another(offset, table)
    if LOG in offset:
        way = "leave out 'scan.source' = 'files', or " if table.options.log.is_kafka else "the log is off: "
        raise ConfigurationError(
            f"{FORMAT}: the checkpoint belongs to a stream that reads the log of table {table.name!r}, this "
            f"one reads its files; {way}choose another checkpoint, which reads a snapshot first"
        )
    if offset["table"] != table.uuid:
        raise ConfigurationError(
            f"{FORMAT}: the checkpoint belongs to the table with uuid {offset['table']!r}, {table.path!r} is "
            f"the table with uuid {table.uuid!r}; choose another checkpoint, or the path of its own table"
        )
    return None if offset["version"] is None else Version.from_json(offset["version"])


def _of_another(offset: Mapping[str, Any], table: Table) -> ConfigurationError:
    return ConfigurationError(
        f"{FORMAT}: the checkpoint belongs to {owner_of(offset)}, this is a stream of the rows of table "
        f"{table.name!r}; choose another checkpoint and an empty sink, or restore the query of this one"
    )


def _offset(table: Table, version: Version | None, owner: Mapping[str, str] = {}) -> Offset:
    return {**owner, "table": table.uuid, "version": None if version is None else version.to_json()}
