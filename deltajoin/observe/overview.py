"""What there is to see of a warehouse, as values: its tables, the queries over them, their lags (pure).

`observer.Observer` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from upsert.catalog.query_records import QueryRecord
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.version import Version

Number = TypeVar("Number", int, float)


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
class HiddenTable:
    """One that a materialized view keeps; ``reads`` are uuids of tables and of other hidden tables."""

    name: str
    uuid: str
    rows: int
    reads: tuple[str, ...]


@dataclass(frozen=True)
class ViewInfo:
    """What a materialized view is, beside a table; secrets in its query are masked.

    ``refusal`` is why its refreshes are refused: a table has not what the query reads of it.
    """

    query: str
    is_suspended: bool
    lags: tuple[Lag, ...]
    hidden: tuple[HiddenTable, ...]
    refreshes: Mapping[str, str]
    refusal: str | None = None


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
        sources: its inputs that are neither tables nor topics, as Spark describes them.
        writes: names of the tables that have commits of it, or the view that it keeps.
        rows_out: rows that each of its micro-batches wrote, as far as that is known.
        topics: how many records of each topic that it reads its last micro-batch has left there.
    """

    record: QueryRecord
    state: str
    reads: tuple[Lag, ...] = ()
    sources: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    rows_out: Mapping[int, int] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As people call it."""
        return self.record.name or f"query {self.record.id[:8]}"

    @property
    def rows_behind(self) -> int | None:
        """Unread rows of all inputs together; None if not known of each."""
        return _of_all(sum, [*(lag.rows for lag in self.reads), *self.topics.values()])

    @property
    def seconds_behind(self) -> float | None:
        """Of the input that is furthest behind; None if not known, as of a topic with records left."""
        of_topics = [None if left else 0.0 for left in self.topics.values()]
        return _of_all(max, [*(lag.seconds for lag in self.reads), *of_topics])


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


def shown(version: Version) -> str:
    """A version as people read it."""
    return str(version.base) if version.is_complete else f"{version.base} → {version.target}"
