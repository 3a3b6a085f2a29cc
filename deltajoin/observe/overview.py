"""What there is to see of a warehouse, as values: its tables, the queries over them, their lags.

All of it is read from the files of the tables and from the records that queries leave there; no Spark session
is needed, and nothing is written. A table that cannot be read does not hide the others: it says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa

from upsert.catalog.connectors.definition import VIEW, PlainView, definition_in
from upsert.catalog.context import Context
from upsert.catalog.query_records import QueryRecord, read_all
from upsert.errors import SnapshotExpiredError, TableNotFoundError, UpsertError
from upsert.options import masked_text
from upsert.schema import TableSchema
from upsert.sql.show_create import create_text, masked, plain_view_text, view_text
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.predicate import parse_where
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.splits import Split
from upsert.store.table import Table
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.store.upkeep import compaction
from upsert.store.version import Version
from upsert.views.hidden_tables import hidden_tables
from upsert.views.progress import refreshes_of
from upsert.views.view import CHECKPOINTS, definition_of

Number = TypeVar("Number", int, float)

SHOWN_SNAPSHOTS: Final = 200
SHOWN_FILES: Final = 200
SAMPLE_ROWS: Final = 20


@dataclass(frozen=True)
class Level:
    """The data files of one level of the table's sorted runs."""

    level: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class ColumnInfo:
    """A column as CREATE TABLE declares it."""

    name: str
    type: str
    nullable: bool
    key: str
    comment: str | None


@dataclass(frozen=True)
class SnapshotRow:
    """A published state: ``rows`` are the stored ones of all files, ``changed`` those of this commit."""

    id: int
    kind: str
    time_ms: int
    rows: int
    changed: int
    files: int


@dataclass(frozen=True)
class FileRow:
    """A data file of the newest state."""

    name: str
    level: int
    rows: int
    deletes: int
    bytes: int


@dataclass(frozen=True)
class ConsumerRow:
    """A reader that holds a version of the table."""

    name: str
    version: str
    renewed_ms: int
    until_ms: int


@dataclass(frozen=True)
class Lag:
    """How far a reader of a table is behind its newest commit.

    Attributes:
        table: its name; None if no table of the warehouse has the uuid.
        uuid: of the table.
        version: where the reader is.
        commits: how many commits that changed rows it has not read; None if not known.
        rows: how many rows these have written, a deletion being one too; None if not known.
        seconds: since when the oldest of these waits; 0.0 if there is none; None if not known.
    """

    table: str | None
    uuid: str
    version: str
    commits: int | None
    rows: int | None
    seconds: float | None


@dataclass(frozen=True)
class Due:
    """What the table's compaction policy wants merged now."""

    buckets: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Stage:
    """A hidden table that a materialized view keeps; ``reads`` are uuids of tables and of other stages."""

    name: str
    uuid: str
    rows: int
    reads: tuple[str, ...]


@dataclass(frozen=True)
class ViewInfo:
    """What a materialized view is, beside a table; secrets in its query are masked."""

    query: str
    is_suspended: bool
    lags: tuple[Lag, ...]
    stages: tuple[Stage, ...]
    refreshes: Mapping[str, str]


@dataclass(frozen=True)
class TableInfo:
    """A table, a materialized view, or a table with a connector.

    Attributes:
        name: with its database where that is not ``default``.
        kind: ``table``, ``view``, or the name of the connector.
        uuid: "" where the table cannot be read, for the reason ``error``.
        rows: about how many there are; None where the storage does not say.
        snapshots: the newest ones, oldest first.
        writers: the last transaction of each query that has written it.
        written: rows that queries wrote, by query and transaction, as far as snapshots are kept.
        create: the statement that makes an equal table, secrets masked.
        commits: how many there were that changed rows, of all time.
        conflicts: attempts to commit that lost a race and were made again, of all time.
        due: what awaits compaction.
    """

    name: str
    kind: str
    uuid: str = ""
    error: str | None = None
    rows: int | None = None
    bytes: int = 0
    oldest_snapshot: int = 0
    levels: tuple[Level, ...] = ()
    files: tuple[FileRow, ...] = ()
    columns: tuple[ColumnInfo, ...] = ()
    indexes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    snapshots: tuple[SnapshotRow, ...] = ()
    tags: Mapping[str, int] = field(default_factory=dict)
    consumers: tuple[ConsumerRow, ...] = ()
    writers: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    create: str = ""
    view: ViewInfo | None = None
    commits: int = 0
    conflicts: int = 0
    due: Due = Due()

    @property
    def file_count(self) -> int:
        """How many data files there are."""
        return sum(level.files for level in self.levels)

    @property
    def committed_ms(self) -> int | None:
        """When the newest snapshot was published."""
        return self.snapshots[-1].time_ms if self.snapshots else None


@dataclass(frozen=True)
class QueryInfo:
    """A streaming query.

    Attributes:
        record: what its driver has left.
        state: that of the record, or ``silent``: it should run, and its driver was not heard of for a minute.
        reads: where it is in each table that it reads.
        sources: its other inputs, as Spark describes them.
        writes: names of the tables that have commits of it, or the view that it keeps.
        rows_out: rows that each of its micro-batches wrote, as far as that is known.
    """

    record: QueryRecord
    state: str
    reads: tuple[Lag, ...] = ()
    sources: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    rows_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As people call it."""
        return self.record.name or f"query {self.record.id[:8]}"

    @property
    def commits_behind(self) -> int | None:
        """Unread commits of all inputs together; None if not known of each."""
        return _of_all(sum, [lag.commits for lag in self.reads])

    @property
    def rows_behind(self) -> int | None:
        """Unread rows of all inputs together; None if not known of each."""
        return _of_all(sum, [lag.rows for lag in self.reads])

    @property
    def seconds_behind(self) -> float | None:
        """Of the input that is furthest behind; None if not known of each."""
        return _of_all(max, [lag.seconds for lag in self.reads])


def _of_all(put_together: Callable[[list[Number]], Number], found: Sequence[Number | None]) -> Number | None:
    """One number for some; None if there are none, or one of them is not known."""
    known = [one for one in found if one is not None]
    return put_together(known) if known and len(known) == len(found) else None


@dataclass(frozen=True)
class Overview:
    """A warehouse at one moment; the query that was last heard of is the first."""

    warehouse: str
    now_ms: int
    tables: tuple[TableInfo, ...]
    queries: tuple[QueryInfo, ...]
    problems: tuple[str, ...] = ()


def lag_of(uuid: str, name: str | None, at: Version, history: Sequence[SnapshotInfo], now_ms: int) -> Lag:
    """How far a reader is behind, by the newest snapshots of the table, oldest first."""
    if name is None:
        return Lag(None, uuid, shown(at), None, None, None)
    unread = [info for info in history if info.changes_rows and info.id > at.base]
    if not unread:
        return Lag(name, uuid, shown(at), 0, 0, 0.0)
    # the count of all commits up to each is in the snapshots, however few of these are left
    before = next((info.states for info in reversed(history) if info.id <= at.base), None)
    if before is None and at.base == 0:
        before = 0
    is_first = before is not None and unread[0].states == before + 1
    commits = None if before is None else unread[-1].states - before
    waits = max(0.0, (now_ms - unread[0].time_ms) / 1000) if is_first else None
    rows = sum(info.delta_rows for info in unread) if is_first else None
    return Lag(name, uuid, shown(at), commits, rows, waits)


def written_by_query(history: Sequence[SnapshotInfo]) -> dict[str, dict[int, int]]:
    """Rows that each transaction of each writer stored, of consecutive snapshots."""
    found: dict[str, dict[int, int]] = {}
    before: Mapping[str, int] = history[0].writers if history and history[0].id > 1 else {}
    for info in history:
        for writer, transaction in info.writers.items():
            if before.get(writer) != transaction:
                found.setdefault(writer, {})[transaction] = info.delta_rows
        before = info.writers
    return found


@dataclass(frozen=True)
class _Opened:
    """A managed table with what was read of it."""

    info: TableInfo
    table: Table
    history: tuple[SnapshotInfo, ...]


class Observer:
    """Looks at a warehouse again and again; remembers only what cannot have changed."""

    def __init__(self, warehouse: str | os.PathLike[str]) -> None:
        self._context = Context(warehouse, None, "main")
        self._counts: dict[str, tuple[str | None, int]] = {}

    @property
    def warehouse(self) -> str:
        """Its folder."""
        return self._context.warehouse

    def look(self, now_ms: int) -> Overview:
        """The warehouse now; a `StorageError` where the storage did not answer, or refused."""
        infos, opened = self._tables()
        tables = tuple(self._with_view(info, opened, now_ms) for info in infos)
        records = read_all(self.warehouse)
        queries = tuple(_query(record, tables, opened, now_ms) for record in records.queries)
        return Overview(self.warehouse, now_ms, tables, queries, records.unreadable)

    def look_at(self, record: QueryRecord) -> QueryInfo:
        """One query among the tables as they are now, whether or not it was recorded here."""
        infos, opened = self._tables()
        return _query(record, infos, opened, record.heard_ms)

    def _tables(self) -> tuple[list[TableInfo], dict[str, _Opened]]:
        """All tables, and by uuid those that have snapshots."""
        databases = self._context.databases
        names = [
            name if database == databases.current else f"{database}.{name}"
            for database in databases.names()
            for name in self._context.tables(database)
        ]
        infos, opened = list[TableInfo](), dict[str, _Opened]()
        for name in names:
            try:
                found = self._table(name)
            except TableNotFoundError:
                continue  # it was dropped since
            except (UpsertError, ValueError) as error:
                infos.append(TableInfo(name, "table", error=str(error)))
                continue
            infos.append(found.info if isinstance(found, _Opened) else found)
            if isinstance(found, _Opened):
                opened[found.table.uuid] = found
        return infos, opened

    def sample(self, name: str) -> pa.Table:
        """Some rows of a managed table: the first ones of its first buckets. Other names are refused."""
        snapshot = self._context.table(name).snapshot()
        columns, found = snapshot.layout.schema.names, []
        left = SAMPLE_ROWS
        for bucket, where in snapshot.bucket_filters(parse_where(None, snapshot.layout.schema)).items():
            for rows in snapshot.stored_rows(Split(bucket), where, columns):
                found.append(rows.select(columns).slice(0, left))
                left -= found[-1].num_rows
                if left <= 0:
                    return pa.concat_tables(found)
        return pa.concat_tables(found) if found else snapshot.scan().slice(0, 0)

    def _table(self, name: str) -> _Opened | TableInfo:
        path = self._context.databases.resolve(name).existing()
        definition = definition_in(path)
        if definition is None:
            return self._opened(name, Table.open(path))
        if (view := PlainView.of(definition, self._context.databases.catalog, path)) is not None:
            text = plain_view_text(name, view.schema, masked_text(view.text.query), is_temporary=False)
            return TableInfo(name, VIEW, definition.uuid, columns=_columns(view.schema), create=text)
        options = _shown_options({"connector": definition.connector, **definition.options})
        info = TableInfo(
            name,
            definition.connector,
            definition.uuid,
            columns=_columns(definition.schema),
            options=options,
            create=create_text(name, definition.schema, options),
        )
        connected = self._context.connected(name)
        try:
            mirror = None if connected is None else connected.mirror_table()
        except UpsertError:
            return info  # it has none, or none yet
        if mirror is None:
            return info
        kept = self._opened(name, mirror)
        return replace(
            kept, info=replace(kept.info, kind=info.kind, options=info.options, create=info.create)
        )

    def _opened(self, name: str, table: Table) -> _Opened:
        snapshot = table.snapshot()
        history = _recent(table, snapshot.info)
        entries = snapshot.files.entries
        levels = _levels(entries)
        schema, given = table.schema, dict(table.definition.given)
        view = given.pop(MATERIALIZED_VIEW.key, None)
        given = _shown_options(given)
        of_view = definition_of(table) if view is not None else None
        info = TableInfo(
            name,
            "table" if of_view is None else "view",
            table.uuid,
            rows=self._rows(table, snapshot),
            bytes=sum(level.bytes for level in levels),
            oldest_snapshot=snapshot.info.oldest,
            levels=levels,
            files=_largest(entries),
            columns=_columns(schema),
            indexes=tuple(
                f"{'UNIQUE ' if index.unique else ''}{index.name} ({', '.join(index.columns)})"
                for index in schema.indexes
            ),
            options=given,
            snapshots=tuple(map(_snapshot_row, history)),
            tags={tag.name: tag.snapshot.id for tag in table.tags()},
            consumers=tuple(
                ConsumerRow(one.name, shown(one.version), one.renewed_ms, one.until_ms)
                for one in table.consumers()
            ),
            writers=dict(snapshot.info.writers),
            written=written_by_query(history),
            create=(
                create_text(name, schema, given)
                if of_view is None
                else view_text(name, schema, given, masked_text(of_view.query))
            ),
            commits=snapshot.info.states,
            conflicts=snapshot.info.conflicts,
            due=_due(snapshot, table),
        )
        return _Opened(info, table, history)

    def _rows(self, table: Table, snapshot: Snapshot) -> int:
        known = self._counts.get(table.uuid)
        if known is None or known[0] != snapshot.info.uuid:
            known = self._counts[table.uuid] = (snapshot.info.uuid, round(snapshot.row_count))
        return known[1]

    def _with_view(self, info: TableInfo, opened: Mapping[str, _Opened], now_ms: int) -> TableInfo:
        found = opened.get(info.uuid)
        if info.kind != "view" or found is None or (view := definition_of(found.table)) is None:
            return info
        at = found.history[-1].base_versions if found.history else None
        uuids = {base.table: base.uuid for base in view.bases}
        lags = tuple(
            _lag(uuids[base], Version.complete(version), opened, now_ms)
            for base, version in (at or {}).items()
            if base in uuids
        )
        try:
            refreshes = {
                name: str(one) for name, one in refreshes_of(info.name, found.table, view.tables).items()
            }
            stages = _stages(found.table)
        except UpsertError as error:  # a refresh replaces hidden tables while this looks at them
            return replace(info, error=str(error))
        query = masked_text(view.query)
        return replace(info, view=ViewInfo(query, view.is_suspended, lags, stages, refreshes))


def _shown_options(given: Mapping[str, str]) -> dict[str, str]:
    """Options without secrets: neither those of such a name, nor passwords within an address."""
    return {key: masked_text(value) for key, value in masked(given).items()}


def shown(version: Version) -> str:
    """A version as people read it."""
    return str(version.base) if version.is_complete else f"{version.base} → {version.target}"


def _levels(entries: Iterable[FileEntry]) -> tuple[Level, ...]:
    by_level: dict[int, list[FileEntry]] = {}
    for entry in entries:
        by_level.setdefault(entry.level, []).append(entry)
    return tuple(
        Level(level, len(of), sum(one.rows for one in of), sum(one.bytes for one in of))
        for level, of in sorted(by_level.items())
    )


def _largest(entries: Iterable[FileEntry]) -> tuple[FileRow, ...]:
    largest = sorted(entries, key=lambda entry: (-entry.bytes, entry.file))[:SHOWN_FILES]
    return tuple(FileRow(one.file, one.level, one.rows, one.deletes, one.bytes) for one in largest)


def _snapshot_row(info: SnapshotInfo) -> SnapshotRow:
    changed = info.delta_rows if info.changes_rows else 0
    return SnapshotRow(info.id, info.kind, info.time_ms, info.rows, changed, info.files)


def _due(snapshot: Snapshot, table: Table) -> Due:
    jobs = compaction.due(snapshot.files, table.options)
    files = [entry for job in jobs for entry in job.inputs]
    return Due(len(jobs), len(files), sum(one.rows for one in files), sum(one.bytes for one in files))


def _recent(table: Table, head: SnapshotInfo) -> tuple[SnapshotInfo, ...]:
    """The newest snapshots, oldest first."""
    found: list[SnapshotInfo] = []
    for id in range(head.id, max(head.oldest, head.id - SHOWN_SNAPSHOTS, 1) - 1, -1):
        try:
            found.append(table.published.info(id, head))
        except SnapshotExpiredError:
            break  # it has expired since, and so have all before it
    return tuple(reversed(found))


def _columns(schema: TableSchema) -> tuple[ColumnInfo, ...]:
    found = []
    for column in schema.columns:
        keys = ["PRIMARY KEY"] if column.name in schema.primary_key else []
        keys += ["PARTITIONED BY"] if column.name in schema.partitioned_by else []
        keys += [index.name for index in schema.indexes if column.name in index.columns]
        found.append(
            ColumnInfo(column.name, column.sql_type, column.nullable, ", ".join(keys), column.comment)
        )
    return tuple(found)


def _lag(uuid: str, at: Version, opened: Mapping[str, _Opened], now_ms: int) -> Lag:
    found = opened.get(uuid)
    if found is None:
        return lag_of(uuid, None, at, (), now_ms)
    return lag_of(uuid, found.info.name, at, found.history, now_ms)


def _stages(view: Table) -> tuple[Stage, ...]:
    return tuple(
        Stage(name, one.uuid, one.head.info.rows, tuple(sorted(one.head.info.base_versions or ())))
        for name, one in sorted(hidden_tables(view.path).items())
    )


def _query(
    record: QueryRecord, tables: Iterable[TableInfo], opened: Mapping[str, _Opened], now_ms: int
) -> QueryInfo:
    inputs = record.batches[-1].inputs if record.batches else ()
    reads = {uuid: at for one in inputs for uuid, at in one.versions.items()}
    kept_view = _view_of(record.checkpoint)
    written = [info for info in tables if record.id in info.writers or (kept_view and info.uuid == kept_view)]
    rows_out = {batch.id: batch.rows_out for batch in record.batches if batch.rows_out is not None}
    for info in written:
        rows_out |= info.written.get(record.id, {})
    return QueryInfo(
        record,
        record.shown_state(now_ms),
        tuple(_lag(uuid, at, opened, now_ms) for uuid, at in reads.items()),
        tuple(one.name for one in inputs if not one.versions),
        tuple(info.name for info in written),
        rows_out,
    )


def _view_of(checkpoint: str | None) -> str | None:
    """The uuid of the view that a query with this checkpoint keeps; None for other queries."""
    parent, _, name = (checkpoint or "").rstrip("/").rpartition("/")
    return name if parent.rpartition("/")[2] == CHECKPOINTS else None
