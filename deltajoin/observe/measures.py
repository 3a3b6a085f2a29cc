"""The metrics of a warehouse, in one list, and their values in an overview (pure).

Prometheus and OpenTelemetry get the same ones. A metric has OpenTelemetry's name here, without ``deltajoin.``
in front; Prometheus' name follows from it by the rules by which a collector translates it, so one dashboard
fits both. What grows by each micro-batch or commit is a counter. It is read from files too, so a process that
has just begun to look gives the same count as one that has looked for days.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from deltajoin.observe.overview import Lag, Overview, QueryInfo, TableInfo
from upsert.catalog.query_records import MicroBatch

STATES: Final = ("running", "silent", "ended", "failed")
SIDES: Final = ("left", "right")

PHASES: Final = (
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
    "other",
)
"""Spark's phases of a micro-batch, in their order, and the rest of its time."""

_SUFFIXES: Final = {"By": "_bytes", "s": "_seconds"}
_MILLISECONDS: Final = 1_000
_MICROSECONDS: Final = 1_000_000


class Metric(NamedTuple):
    """What a metric says.

    Attributes:
        text: one sentence for people.
        labels: names of its labels, which OpenTelemetry calls attributes.
        unit: by UCUM, as OpenTelemetry wants it: ``s``, ``By``, or what is counted in braces.
        is_counter: whether it only grows; others are gauges.
    """

    text: str
    labels: tuple[str, ...]
    unit: str = ""
    is_counter: bool = False


_TABLE: Final = ("table", "kind")
_VIEW: Final = ("view", "table")
_QUERY: Final = ("query", "query_id")
_INPUT: Final = (*_QUERY, "table")
_SIDE: Final = (*_QUERY, "side")
"""``left`` and ``right`` of latest mode; ``t0``, ``t1`` … are the tables of exact joins, and ``lookup users``
is one of ``lookup_join``."""

METRICS: Final[Mapping[str, Metric]] = {
    "table.readable": Metric("0: it cannot be read.", _TABLE),
    "table.rows": Metric("About how many rows a table has.", _TABLE, "{row}"),
    "table.size": Metric("Size of its data files.", _TABLE, "By"),
    "table.files": Metric("Its data files by level.", (*_TABLE, "level"), "{file}"),
    "table.snapshot": Metric("Its newest snapshot.", _TABLE),
    "table.last_commit.timestamp": Metric("When that was published.", _TABLE, "s"),
    "table.commits": Metric("Commits that changed rows.", _TABLE, "{commit}", is_counter=True),
    "table.conflicts": Metric(
        "Attempts to commit that lost a race and were made again.", _TABLE, "{attempt}", is_counter=True
    ),
    "table.compaction.due.buckets": Metric(
        "Buckets that its policy wants compacted now.", _TABLE, "{bucket}"
    ),
    "table.compaction.due.files": Metric("Files to be merged in these.", _TABLE, "{file}"),
    "table.compaction.due.rows": Metric("Stored rows of these files.", _TABLE, "{row}"),
    "table.compaction.due.size": Metric("Size of these files.", _TABLE, "By"),
    "view.lag.commits": Metric("Commits to a table that a view does not have.", _VIEW, "{commit}"),
    "view.lag.rows": Metric("Rows that these have written.", _VIEW, "{row}"),
    "view.lag": Metric("How long the oldest of these waits.", _VIEW, "s"),
    "query.state": Metric("1 for the state that a query is in.", (*_QUERY, "state")),
    "query.last_heard.timestamp": Metric("When its driver last lived.", _QUERY, "s"),
    "query.lag.commits": Metric("Commits to an input that were not read.", _INPUT, "{commit}"),
    "query.lag.rows": Metric(
        "Rows that these have written; of a topic, records that its last micro-batch left.", _INPUT, "{row}"
    ),
    "query.lag": Metric("How long the oldest of these waits.", _INPUT, "s"),
    "query.batches": Metric("Micro-batches that it has done.", _QUERY, "{batch}", is_counter=True),
    "query.input_rows": Metric("Rows that these have read.", _QUERY, "{row}", is_counter=True),
    "query.duration": Metric("What these have taken.", _QUERY, "s", is_counter=True),
    "query.batch": Metric("Number of its last micro-batch.", _QUERY),
    "query.batch.input_rows": Metric("Rows that it read.", _QUERY, "{row}"),
    "query.batch.output_rows": Metric("Rows that it wrote.", _QUERY, "{row}"),
    "query.batch.duration": Metric(
        "What each phase of it took; their sum is the whole.", (*_QUERY, "phase"), "s"
    ),
    "query.state_store.rows": Metric("Rows in the state of Spark's operators.", _QUERY, "{row}"),
    "query.state_store.size": Metric("Memory that this state takes.", _QUERY, "By"),
    "query.python.peak_memory": Metric(
        "The most that the driver, and a worker that told it, have taken.", (*_QUERY, "process"), "By"
    ),
    "query.lookup.keys": Metric(
        "Keys that its lookups have asked sources, or tables, for.", _SIDE, "{key}", is_counter=True
    ),
    "query.lookup.rows": Metric("Rows that these have given.", _SIDE, "{row}", is_counter=True),
    "query.lookup.requests": Metric(
        "Requests to them, repeated ones too.", _SIDE, "{request}", is_counter=True
    ),
    "query.lookup.retries": Metric("Requests that repeated one.", _SIDE, "{request}", is_counter=True),
    "query.lookup.failed_keys": Metric("Keys that could not be looked up.", _SIDE, "{key}", is_counter=True),
    "query.lookup.duration": Metric("What all requests have taken.", _SIDE, "s", is_counter=True),
    "query.lookup.waiting": Metric("Rows that wait for a lookup to succeed.", _SIDE, "{row}"),
    "query.cache.hits": Metric("Keys that the cache knew.", _SIDE, "{key}", is_counter=True),
    "query.cache.misses": Metric("Keys that it did not know.", _SIDE, "{key}", is_counter=True),
    "query.cache.evictions": Metric("Keys that made room for others.", _SIDE, "{key}", is_counter=True),
    "query.cache.keys": Metric("Keys in the cache.", _SIDE, "{key}"),
    "query.cache.size": Metric("Memory that these take.", _SIDE, "By"),
}
"""All there are, by OpenTelemetry's name without ``deltajoin.``."""

_COUNTED: Final[Mapping[str, tuple[str, int]]] = {
    "query.lookup.keys": ("keys", 1),
    "query.lookup.rows": ("rows", 1),
    "query.lookup.requests": ("requests", 1),
    "query.lookup.retries": ("retries", 1),
    "query.lookup.failed_keys": ("failed_keys", 1),
    "query.lookup.duration": ("lookup_us", _MICROSECONDS),
    "query.cache.hits": ("hits", 1),
    "query.cache.misses": ("misses", 1),
    "query.cache.evictions": ("evictions", 1),
}
"""What a query's totals call a counter of its lookups, and how many of it are one of the metric's unit."""

_LEVELS: Final[Mapping[str, str]] = {
    "query.lookup.waiting": "waiting",
    "query.cache.keys": "cached_keys",
    "query.cache.size": "cached_bytes",
}
"""What a micro-batch calls what is as it was at its end."""


class Sample(NamedTuple):
    """The value of a metric for one set of labels."""

    name: str
    labels: tuple[str, ...]
    value: float


def prometheus_name(name: str) -> str:
    """What Prometheus calls a metric.

    >>> [prometheus_name(name) for name in ("table.size", "query.lag", "table.commits", "query.duration")]
    ['deltajoin_table_size_bytes', 'deltajoin_query_lag_seconds', 'deltajoin_table_commits_total',
     'deltajoin_query_duration_seconds_total']
    """
    metric = METRICS[name]
    total = "_total" if metric.is_counter else ""
    return f"deltajoin_{name.replace('.', '_')}{_SUFFIXES.get(metric.unit, '')}{total}"


def samples(overview: Overview) -> Iterator[Sample]:
    """The values of all metrics; what is not known has none."""
    known = chain(*map(_of_table, overview.tables), *map(_of_query, overview.queries))
    return (Sample(name, labels, value) for name, labels, value in known if value is not None)


def phases_of(batch: MicroBatch) -> dict[str, int]:
    """Milliseconds of each phase of a micro-batch, and what is left of the whole as ``other``.

    >>> phases_of(MicroBatch(1, 0, 0, None, {"addBatch": 70, "triggerExecution": 100}, ()))
    {'addBatch': 70, 'other': 30}
    """
    found = {phase: batch.duration_ms[phase] for phase in PHASES if batch.duration_ms.get(phase)}
    rest = batch.duration_ms.get("triggerExecution", 0) - sum(found.values())
    return {**found, "other": rest} if rest > 0 else found


def levels_of(batches: Sequence[MicroBatch]) -> Mapping[str, int]:
    """What the newest micro-batch that looked something up has observed; {} if there is none."""
    return next((batch.lookups for batch in reversed(batches) if batch.lookups is not None), {})


_OF_TABLE: Final = re.compile(r"(t[0-9]+|lookup .+)_(?:keys|rows)")


class TableLookups(NamedTuple):
    """What joins have looked up in a table: keys, and their rows.

    The table of an exact join has its number of EXPLAIN, that of ``lookup_join`` its name after ``lookup``,
    and a number if an earlier ``lookup_join`` of the stream has the same: ``lookup users 2``.
    """

    table: str
    keys: int
    rows: int


def table_lookups(lookups: Mapping[str, int]) -> list[TableLookups]:
    """The lookups in each table, of what a query's totals or a micro-batch have of lookups.

    >>> table_lookups({"t10_keys": 1, "t2_keys": 3, "t2_rows": 4, "left_keys": 1})
    [TableLookups(table='t2', keys=3, rows=4), TableLookups(table='t10', keys=1, rows=0)]
    """
    tables = {match[1] for name in lookups if (match := _OF_TABLE.fullmatch(name)) is not None}
    return [
        TableLookups(table, lookups.get(f"{table}_keys", 0), lookups.get(f"{table}_rows", 0))
        for table in sorted(tables, key=lambda table: (table.startswith("lookup "), len(table), table))
    ]


def sides_of(lookups: Mapping[str, int]) -> tuple[str, ...]:
    """Both sides of lookups outside of managed tables; () for a query that has none."""
    has_others = not lookups or any(_OF_TABLE.fullmatch(name) is None for name in lookups)
    return SIDES if has_others else ()


_Known = tuple[str, tuple[str, ...], float | None]


def _of_table(table: TableInfo) -> Iterator[_Known]:
    of = (table.name, table.kind)
    yield "table.readable", of, float(table.error is None)
    for lag in () if table.view is None else table.view.lags:
        yield from _lag("view", (table.name, lag.table or lag.uuid), lag)
    if table.rows is None:
        return
    yield "table.rows", of, table.rows
    yield "table.size", of, table.bytes
    for level in table.levels:
        yield "table.files", (*of, str(level.level)), level.files
    if table.snapshots:
        yield "table.snapshot", of, table.snapshots[-1].id
        yield "table.last_commit.timestamp", of, table.snapshots[-1].time_ms / _MILLISECONDS
    yield "table.commits", of, table.commits
    yield "table.conflicts", of, table.conflicts
    yield "table.compaction.due.buckets", of, table.due.buckets
    yield "table.compaction.due.files", of, table.due.files
    yield "table.compaction.due.rows", of, table.due.rows
    yield "table.compaction.due.size", of, table.due.bytes


def _lag(whose: str, labels: tuple[str, ...], lag: Lag) -> Iterator[_Known]:
    yield f"{whose}.lag.commits", labels, lag.commits
    yield f"{whose}.lag.rows", labels, lag.rows
    yield f"{whose}.lag", labels, lag.seconds


def _of_query(query: QueryInfo) -> Iterator[_Known]:
    of, record = (query.name, query.record.id), query.record
    for one in STATES:
        yield "query.state", (*of, one), float(query.state == one)
    yield "query.last_heard.timestamp", of, record.heard_ms / _MILLISECONDS
    for reads in query.reads:
        yield from _lag("query", (*of, reads.table or reads.uuid), reads)
    for topic, left in query.topics.items():
        yield "query.lag.rows", (*of, f"topic {topic}"), left
    yield "query.batches", of, record.totals.batches
    yield "query.input_rows", of, record.totals.rows_in
    yield "query.duration", of, record.totals.duration_ms / _MILLISECONDS
    for last in record.batches[-1:]:
        yield "query.batch", of, last.id
        yield "query.batch.input_rows", of, last.rows_in
        yield "query.batch.output_rows", of, query.rows_out.get(last.id)
        for phase, milliseconds in phases_of(last).items():
            yield "query.batch.duration", (*of, phase), milliseconds / _MILLISECONDS
        yield "query.state_store.rows", of, last.state_rows
        yield "query.state_store.size", of, last.state_bytes
        for process, peak in (("driver", last.driver_peak_bytes), ("worker", last.worker_peak_bytes)):
            yield "query.python.peak_memory", (*of, process), peak or None
    if record.totals.lookups is not None:
        yield from _of_lookups(of, record.totals.lookups, levels_of(record.batches))


def _of_lookups(
    of: tuple[str, ...], totals: Mapping[str, int], levels: Mapping[str, int]
) -> Iterator[_Known]:
    for one in table_lookups(totals):
        yield "query.lookup.keys", (*of, one.table), one.keys
        yield "query.lookup.rows", (*of, one.table), one.rows
    for side in sides_of(totals):
        for name, (key, many) in _COUNTED.items():
            yield name, (*of, side), totals.get(f"{side}_{key}", 0) / many
        for name, key in _LEVELS.items():
            yield name, (*of, side), levels.get(f"{side}_{key}", 0)
