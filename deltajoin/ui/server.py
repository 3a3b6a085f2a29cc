"""The local web server of `deltajoin ui`: it only reads, and only answers who asks it by its own name.

A web page of another site can make a browser send requests here, also under a name of its own that it lets
mean 127.0.0.1. So requests are answered only if their ``Host`` is an address, ``localhost`` or a name that
was given: a page of another name gets nothing.

``/metrics`` has the values of the pages in Prometheus' text format; `measures` has the list of them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deltajoin.observe.measures import METRICS, prometheus_name, samples
from deltajoin.observe.observer import Observer, Recent
from deltajoin.observe.overview import Overview, QueryInfo, TableInfo
from deltajoin.ui import pages
from upsert.errors import ConfigurationError, UpsertError

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Collector(Collector):
    """Gives what one overview says, once."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterable[Metric]:
        found = {name: _family(name) for name in METRICS}
        for name, labels, value in samples(self._overview):
            found[name].add_metric(labels, value)
        return found.values()


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    metric = METRICS[name]
    family = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    return family(prometheus_name(name), metric.text, labels=metric.labels)


def metrics_of(overview: Overview) -> bytes:
    """The metrics of a warehouse, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Collector(overview))
    return bytes(generate_latest(registry))


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

_LOG: Final = logging.getLogger(__name__)
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""It has no traceback of a request that is none, as one with an address of 9 000 letters: it gets a 400."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    overview = Recent(lambda: observer.look(time.time_ns() // 1_000_000))
    app.add_routes(
        web.get(path, partial(_answered, overview, observer, answer)) for path, answer in _ANSWERS.items()
    )
    return app


def serve(observer: Observer, host: str, port: int, on_start: Callable[[int], None]) -> None:
    """Answer requests until the process is interrupted; port 0 is a free one, which ``on_start`` is told."""
    asyncio.run(_serve(observer, host, port, on_start))


async def _serve(observer: Observer, host: str, port: int, on_start: Callable[[int], None]) -> None:
    if not host:  # the system would take it for all addresses
        raise ConfigurationError(
            "ui: --host must be an address of this machine, got ''; 0.0.0.0 is all of them"
        )
    runner = web.AppRunner(application(observer, [host]), access_log=None, logger=_LOG)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as cause:  # of a name, also one that cannot be one
            raise ConfigurationError(
                f"ui: {host}:{port} must be a free address of this machine, got "
                f"{getattr(cause, 'strerror', None) or cause}; choose another --port or --host"
            ) from cause
        on_start(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


_Answer = Callable[[Overview, web.Request, Observer], web.Response]


async def _answered(
    overview: Recent[Overview], observer: Observer, answer: _Answer, request: web.Request
) -> web.Response:
    """Look and answer in a thread, for both read files."""
    return await asyncio.to_thread(lambda: answer(overview.now(), request, observer))


class _MissingError(Exception):
    """There is no table, or no query, of the name that was asked for."""


def _table_of(overview: Overview, request: web.Request) -> TableInfo:
    name = request.match_info["name"]
    for one in overview.tables:
        if one.name == name:
            return one
    raise _MissingError(f"there is no table {name!r} in this warehouse; see the list of tables")


def _query_of(overview: Overview, request: web.Request) -> QueryInfo:
    id = request.match_info["id"]
    for one in overview.queries:
        if one.record.id == id:
            return one
    raise _MissingError(f"no query {id!r} has left a record here; see the list of queries")


def _table_page(overview: Overview, request: web.Request, observer: Observer) -> str:
    table = _table_of(overview, request)
    sample = pages.Sample.of(observer.sample(table.name)) if "rows" in request.query else None
    return pages.table_page(overview, table, sample)


def _page(text_of: Callable[[Overview, web.Request, Observer], str]) -> _Answer:
    def answer(overview: Overview, request: web.Request, observer: Observer) -> web.Response:
        status = 200
        try:
            text = text_of(overview, request, observer)
        except _MissingError as missing:
            text, status = pages.missing_page(overview, str(missing)), 404
        return web.Response(text=text, status=status, content_type="text/html")

    return answer


def _values(of: Callable[[Overview, web.Request], Any]) -> _Answer:
    def answer(overview: Overview, request: web.Request, _: Observer) -> web.Response:
        status = 200
        try:
            value = of(overview, request)
        except _MissingError as missing:
            value, status = {"error": str(missing)}, 404
        return web.Response(text=pages.as_json(value), status=status, content_type="application/json")

    return answer


def _metrics(overview: Overview, *_: object) -> web.Response:
    return web.Response(body=metrics_of(overview), headers={"Content-Type": METRICS_TYPE})


_ANSWERS: Final[Mapping[str, _Answer]] = {
    "/": _page(lambda overview, *_: pages.pipelines_page(overview)),
    "/tables": _page(lambda overview, *_: pages.tables_page(overview)),
    "/tables/{name}": _page(_table_page),
    "/queries/{id}": _page(
        lambda overview, request, _: pages.query_page(overview, _query_of(overview, request))
    ),
    "/metrics": _metrics,
    "/api": _values(lambda overview, _: overview),
    "/api/tables": _values(lambda overview, _: overview.tables),
    "/api/tables/{name}": _values(_table_of),
    "/api/queries": _values(lambda overview, _: overview.queries),
    "/api/queries/{id}": _values(_query_of),
}
