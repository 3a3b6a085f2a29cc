"""The local web server of `deltajoin ui`: it only reads, and only answers who asks it by its own name.

A web page of another site can make a browser send requests here, also under a name of its own that it lets
mean 127.0.0.1. So requests are answered only if their ``Host`` is an address, ``localhost`` or a name that
was given: a page of another name gets nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import Any, Final

from aiohttp import web

from deltajoin.ui import metrics, pages
from deltajoin.ui.overview import Observer, Overview, QueryInfo, TableInfo
from upsert.errors import ConfigurationError, UpsertError

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

    Args:
        observer: looks at the warehouse.
        names: by which the server may be asked, beside addresses and ``localhost``.
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
    """Answer requests until the process is interrupted.

    Args:
        observer: looks at the warehouse.
        host: the address or name of this machine to listen at.
        port: 0 for a free one.
        on_start: is told the port.

    Raises:
        ConfigurationError: the port is taken, or the host is no address of this machine.
    """
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
    body = metrics.text_of(await _overview(request))
    return web.Response(body=body, headers={"Content-Type": metrics.CONTENT_TYPE})


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
