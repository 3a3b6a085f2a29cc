"""The local web server of `deltajoin ui`: it only reads, and only answers who asks it by its own name.

A web page of another site can make a browser send requests here, also under a name of its own that it lets
mean 127.0.0.1. So requests are answered only if their ``Host`` is an address, ``localhost`` or a name that
was given: a page of another name gets nothing.

``/metrics`` has the values of the pages in Prometheus' text format. Every metric is a gauge, for each is a
state that was read from files: a server that has just started knows it too, and a query that starts again is
no counter that was reset. Names and units follow Prometheus' rules.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from ipaddress import ip_address
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deltajoin.ui import pages
from deltajoin.ui.overview import Observer, Overview, QueryInfo, TableInfo
from deltajoin.ui.pages import phases_of
from upsert.errors import ConfigurationError, UpsertError

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

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


def metrics_of(overview: Overview) -> bytes:
    """The metrics of a warehouse, as Prometheus reads them.

    >>> metrics_of(Overview("w", 0, (), ())).decode().splitlines()[0]
    '# HELP deltajoin_table_readable 0: it cannot be read.'
    """
    registry = CollectorRegistry()
    registry.register(_Collector(overview))
    return bytes(generate_latest(registry))


_LOOK_EVERY_S: Final = 1.0
"""Requests within so short a time see the same overview: many windows cost no more than one."""

_HASH: Final = base64.b64encode(hashlib.sha256(pages.SCRIPT.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Observed:
    """The newest overview, looked at again at most once a second."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._lock = threading.Lock()
        self._seen: Overview | None = None
        self._at = 0.0

    async def now(self) -> Overview:
        """The overview."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Overview:
        with self._lock:
            if self._seen is None or time.monotonic() - self._at > _LOOK_EVERY_S:
                self._seen = self.observer.look(time.time_ns() // 1_000_000)
                self._at = time.monotonic()
            return self._seen


_OBSERVED: Final = web.AppKey("observed", _Observed)


def is_own_name(host: str, names: Collection[str] = ()) -> bool:
    """Whether a request's ``Host`` is an address, ``localhost`` or one of some names.

    >>> [is_own_name(host) for host in ("127.0.0.1:8642", "[::1]:80", "localhost", "evil.example:8642", "")]
    [True, True, True, False, False]
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost" or name.lower() in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def application(observer: Observer, names: Collection[str] = ()) -> web.Application:
    """The pages; the values that they show as JSON below ``/api``, and as metrics for Prometheus.

    The server may be asked by ``names``, beside addresses and ``localhost``.
    """
    known = frozenset(map(str.lower, names))

    @web.middleware
    async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not is_own_name(request.headers.get("Host", ""), known):
            text = "this server answers to its address, localhost and the name of --host only\n"
            return web.Response(status=421, text=text, headers=_HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        except (UpsertError, OSError) as error:
            response = web.Response(status=503, text=f"{error}\n")
        response.headers.update(_HEADERS)
        return response

    app = web.Application(middlewares=[guarded])
    app[_OBSERVED] = _Observed(observer)
    app.add_routes(
        [
            web.get("/", _pipelines),
            web.get("/tables", _tables),
            web.get("/tables/{name}", _table),
            web.get("/queries/{id}", _query),
            web.get("/metrics", _metrics),
            web.get("/api", _api),
            web.get("/api/tables", _api_tables),
            web.get("/api/tables/{name}", _api_table),
            web.get("/api/queries", _api_queries),
            web.get("/api/queries/{id}", _api_query),
        ]
    )
    return app


def serve(observer: Observer, host: str, port: int, on_start: Callable[[int], None]) -> None:
    """Answer requests until the process is interrupted; port 0 is a free one, which ``on_start`` is told."""
    asyncio.run(_serve(observer, host, port, on_start))


async def _serve(observer: Observer, host: str, port: int, on_start: Callable[[int], None]) -> None:
    runner = web.AppRunner(application(observer, [host]), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as cause:
            raise ConfigurationError(
                f"ui: {host}:{port} must be a free address of this machine, got {cause.strerror or cause}; "
                "choose another --port or --host"
            ) from cause
        on_start(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(text=pages.as_json(value), status=status, content_type="application/json")


async def _overview(request: web.Request) -> Overview:
    return await request.app[_OBSERVED].now()


def _table_of(overview: Overview, request: web.Request) -> TableInfo | None:
    return next((one for one in overview.tables if one.name == request.match_info["name"]), None)


def _query_of(overview: Overview, request: web.Request) -> QueryInfo | None:
    return next((one for one in overview.queries if one.record.id == request.match_info["id"]), None)


def _no_table(request: web.Request) -> str:
    return f"there is no table {request.match_info['name']!r} in this warehouse; see the list of tables"


def _no_query(request: web.Request) -> str:
    return f"no query {request.match_info['id']!r} has left a record here; see the list of queries"


async def _pipelines(request: web.Request) -> web.Response:
    return _html(pages.pipelines_page(await _overview(request)))


async def _tables(request: web.Request) -> web.Response:
    return _html(pages.tables_page(await _overview(request)))


async def _table(request: web.Request) -> web.Response:
    overview = await _overview(request)
    if (table := _table_of(overview, request)) is None:
        return _html(pages.missing_page(overview, _no_table(request)), 404)
    sample = None
    if "rows" in request.query:
        rows = await asyncio.to_thread(request.app[_OBSERVED].observer.sample, table.name)
        sample = pages.Sample.of(rows)
    return _html(pages.table_page(overview, table, sample))


async def _query(request: web.Request) -> web.Response:
    overview = await _overview(request)
    if (query := _query_of(overview, request)) is None:
        return _html(pages.missing_page(overview, _no_query(request)), 404)
    return _html(pages.query_page(overview, query))


async def _metrics(request: web.Request) -> web.Response:
    body = metrics_of(await _overview(request))
    return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})


async def _api(request: web.Request) -> web.Response:
    return _json(await _overview(request))


async def _api_tables(request: web.Request) -> web.Response:
    return _json((await _overview(request)).tables)


async def _api_table(request: web.Request) -> web.Response:
    table = _table_of(await _overview(request), request)
    return _json({"error": _no_table(request)}, 404) if table is None else _json(table)


async def _api_queries(request: web.Request) -> web.Response:
    return _json((await _overview(request)).queries)


async def _api_query(request: web.Request) -> web.Response:
    query = _query_of(await _overview(request), request)
    return _json({"error": _no_query(request)}, 404) if query is None else _json(query)
