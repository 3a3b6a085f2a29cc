"""An overview as metrics in Prometheus' text format: the same values as on the pages (pure).

Every metric is a gauge, for each is a state that was read from files: a server that has just started knows it
too, and a query that starts again is no counter that was reset. Names and units follow Prometheus' rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deltajoin.ui.overview import Overview
from deltajoin.ui.pages import phases_of

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

STATES: Final = ("running", "silent", "ended", "failed")

_TABLE: Final = ("table", "kind")
_QUERY: Final = ("query", "query_id")
_MILLISECONDS: Final = 1000


class _Collector(Collector):
    """Gives what one overview says, once."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics of tables, then those of queries."""
        yield from self._of_tables()
        yield from self._of_queries()

    def _of_tables(self) -> Iterator[GaugeMetricFamily]:
        rows = GaugeMetricFamily("deltajoin_table_rows", "About how many rows a table has.", labels=_TABLE)
        size = GaugeMetricFamily("deltajoin_table_size_bytes", "Size of its data files.", labels=_TABLE)
        files = GaugeMetricFamily(
            "deltajoin_table_files", "Its data files by level; many of level 0 await compaction.",
            labels=(*_TABLE, "level"),
        )  # fmt: skip
        snapshot = GaugeMetricFamily("deltajoin_table_snapshot", "Its newest snapshot.", labels=_TABLE)
        committed = GaugeMetricFamily(
            "deltajoin_table_last_commit_timestamp_seconds", "When that was published.", labels=_TABLE
        )
        readable = GaugeMetricFamily("deltajoin_table_readable", "0: it cannot be read.", labels=_TABLE)
        for table in self._overview.tables:
            of = (table.name, table.kind)
            readable.add_metric(of, float(table.error is None))
            if table.rows is None:
                continue
            rows.add_metric(of, table.rows)
            size.add_metric(of, table.bytes)
            for level in table.levels:
                files.add_metric((*of, str(level.level)), level.files)
            if table.snapshots:
                snapshot.add_metric(of, table.snapshots[-1].id)
                committed.add_metric(of, table.snapshots[-1].time_ms / _MILLISECONDS)
        yield from (readable, rows, size, files, snapshot, committed)

    def _of_queries(self) -> Iterator[GaugeMetricFamily]:
        of_input = (*_QUERY, "table")
        state = GaugeMetricFamily(
            "deltajoin_query_state", "1 for the state that a query is in.", labels=(*_QUERY, "state")
        )
        heard = GaugeMetricFamily(
            "deltajoin_query_last_heard_timestamp_seconds", "When its driver last lived.", labels=_QUERY
        )
        batch = GaugeMetricFamily("deltajoin_query_batch", "Number of its last micro-batch.", labels=_QUERY)
        taken = GaugeMetricFamily("deltajoin_query_batch_input_rows", "Rows that it read.", labels=_QUERY)
        given = GaugeMetricFamily("deltajoin_query_batch_output_rows", "Rows that it wrote.", labels=_QUERY)
        took = GaugeMetricFamily(
            "deltajoin_query_batch_duration_seconds",
            "What each phase of it took; their sum is the whole.",
            labels=(*_QUERY, "phase"),
        )
        commits = GaugeMetricFamily(
            "deltajoin_query_lag_commits", "Commits to an input that were not read.", labels=of_input
        )
        lag = GaugeMetricFamily(
            "deltajoin_query_lag_seconds", "How long the oldest of these waits.", labels=of_input
        )
        for query in self._overview.queries:
            of = (query.name, query.record.id)
            for one in STATES:
                state.add_metric((*of, one), float(query.state == one))
            heard.add_metric(of, query.record.heard_ms / _MILLISECONDS)
            for reads in query.reads:
                input_of = (*of, reads.table or reads.uuid)
                if reads.commits is not None:
                    commits.add_metric(input_of, reads.commits)
                if reads.seconds is not None:
                    lag.add_metric(input_of, reads.seconds)
            if not query.record.batches:
                continue
            last = query.record.batches[-1]
            batch.add_metric(of, last.id)
            taken.add_metric(of, last.rows_in)
            if (rows_out := query.rows_out.get(last.id)) is not None:
                given.add_metric(of, rows_out)
            for phase, milliseconds in phases_of(last).items():
                took.add_metric((*of, phase), milliseconds / _MILLISECONDS)
        yield from (state, heard, batch, taken, given, took, commits, lag)


def text_of(overview: Overview) -> bytes:
    """The metrics of a warehouse, as Prometheus reads them.

    >>> text_of(Overview("w", 0, (), ())).decode().splitlines()[0]
    '# HELP deltajoin_table_readable 0: it cannot be read.'
    """
    registry = CollectorRegistry()
    registry.register(_Collector(overview))
    return bytes(generate_latest(registry))
