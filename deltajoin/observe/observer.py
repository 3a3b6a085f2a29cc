"""A warehouse looked at, again and again: an overview of its tables and of the queries over them.

All of it is read from the files of the tables and from the records that queries leave there; no Spark session
is needed, and nothing is written. A table that cannot be read does not hide the others: it says why.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import pyarrow as pa

from deltajoin.observe.overview import (
    ColumnInfo,
    ConsumerRow,
    Due,
    FileRow,
    HiddenTable,
    Lag,
    Level,
    Overview,
    QueryInfo,
    SnapshotRow,
    TableInfo,
    ViewInfo,
    lag_of,
    shown,
    written_by_query,
)
from upsert.catalog.connectors.definition import VIEW, PlainView, definition_in
from upsert.catalog.context import Context
from upsert.catalog.query_records import QueryRecord, read_all
from upsert.errors import (
    DatabaseNotFoundError,
    SchemaError,
    SnapshotExpiredError,
    TableNotFoundError,
    UpsertError,
)
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
from upsert.views.view import CHECKPOINTS, ViewDefinition, definition_of

T = TypeVar("T")

LOOK_EVERY_S: Final = 1.0
"""Who asks again within so short a time gets the same: many windows and instruments cost one look."""

SHOWN_SNAPSHOTS: Final = 200
SHOWN_FILES: Final = 200
SAMPLE_ROWS: Final = 20


class Recent(Generic[T]):
    """What a look gives, in whichever thread: looked at again at most once a second.

    >>> looks = iter([1, 2])
    >>> recent = Recent(lambda: next(looks))
    >>> recent.now(), recent.now()
    (1, 1)
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._seen: tuple[T, float] | None = None

    def now(self) -> T:
        """What was seen within the last second, or is seen now."""
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen[1] >= LOOK_EVERY_S:
                self._seen = self._look(), time.monotonic()
            return self._seen[0]


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
        missing = () if self._is_there else (f"{self.warehouse!r} is no folder; name the warehouse with -w",)
        return Overview(self.warehouse, now_ms, tables, queries, (*missing, *records.unreadable))

    @property
    def _is_there(self) -> bool:
        """Whether the folder exists; of one in an object store that is not known without a table."""
        return "://" in self.warehouse or os.path.isdir(self.warehouse)

    def look_at(self, record: QueryRecord) -> QueryInfo:
        """One query among the tables as they are now, whether or not it was recorded here."""
        infos, opened = self._tables()
        return _query(record, infos, opened, record.heard_ms)

    def _tables(self) -> tuple[list[TableInfo], dict[str, _Opened]]:
        """All tables, and by uuid those that have snapshots."""
        databases = self._context.databases
        names = [
            name if database == databases.current else f"{database}.{name}"
            for database, name in databases.all_tables()
        ]
        infos, opened = list[TableInfo](), dict[str, _Opened]()
        for name in names:
            try:
                found = self._table(name)
            except (TableNotFoundError, DatabaseNotFoundError):
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
            hidden = _hidden(found.table)
        except UpsertError as error:  # a refresh replaces hidden tables while this looks at them
            return replace(info, error=str(error))
        refusal = _refusal(info.name, view, found, opened)
        query = masked_text(view.query)
        return replace(info, view=ViewInfo(query, view.is_suspended, lags, hidden, refreshes, refusal))


def _refusal(name: str, view: ViewDefinition, own: _Opened, opened: Mapping[str, _Opened]) -> str | None:
    """Why the refreshes of a view are refused; None if they are not. A table that is gone has no lag."""
    try:
        for base in view.bases:
            if (table := opened.get(base.uuid)) is not None:
                view.check(base, table.table.schema, name, own.table.schema.names)
    except SchemaError as refusal:
        return str(refusal)
    return None


def _shown_options(given: Mapping[str, str]) -> dict[str, str]:
    """Options without secrets: neither those of such a name, nor passwords within an address."""
    return {key: masked_text(value) for key, value in masked(given).items()}


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


def _hidden(view: Table) -> tuple[HiddenTable, ...]:
    return tuple(
        HiddenTable(name, one.uuid, one.head.info.rows, tuple(sorted(one.head.info.base_versions or ())))
        for name, one in sorted(hidden_tables(view.path).items())
    )


def _query(
    record: QueryRecord, tables: Iterable[TableInfo], opened: Mapping[str, _Opened], now_ms: int
) -> QueryInfo:
    inputs = record.batches[-1].inputs if record.batches else ()
    reads = {uuid: at for one in inputs for uuid, at in one.versions.items()}
    topics = Counter[str]()
    for one in inputs:
        topics.update(one.topics or {})
    kept_view = _view_of(record.checkpoint)
    written = [info for info in tables if record.id in info.writers or (kept_view and info.uuid == kept_view)]
    rows_out = {batch.id: batch.rows_out for batch in record.batches if batch.rows_out is not None}
    for info in written:
        rows_out |= info.written.get(record.id, {})
    return QueryInfo(
        record,
        record.shown_state(now_ms),
        tuple(_lag(uuid, at, opened, now_ms) for uuid, at in reads.items()),
        tuple(one.name for one in inputs if not one.versions and one.topics is None),
        tuple(info.name for info in written),
        rows_out,
        topics,
    )


def _view_of(checkpoint: str | None) -> str | None:
    """The uuid of the view that a query with this checkpoint keeps; None for other queries."""
    parent, _, name = (checkpoint or "").rstrip("/").rpartition("/")
    return name if parent.rpartition("/")[2] == CHECKPOINTS else None
