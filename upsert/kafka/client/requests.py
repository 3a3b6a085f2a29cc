"""Requests to a cluster by the admin client: one a process, tried again while the cluster is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import Any, Final, TypeVar

from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import LOGGER, Connection, admin_library, client_properties, library
from upsert.kafka.client.failures import Reports, codes, is_lasting, made, retried, tell

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""How long one request may take before it is made again."""

BLOCKING_SECONDS: Final = 5.0
"""The same of requests during which nobody can look what their client meets."""

_LISTEN_SECONDS: Final = 0.1
"""How often a request that is waited for looks what its client has met."""

_admins: ClientCache[tuple[Any, Reports]] = ClientCache(4, close=lambda _: None)


def request_seconds(connection: Connection) -> float:
    """How long one request may take."""
    return min(REQUEST_SECONDS, connection.patience_s)


def blocking_seconds(connection: Connection) -> float:
    """How long one request may take that does not give a future."""
    return min(BLOCKING_SECONDS, connection.patience_s)


_FAIL: Final = object()


def answers(
    connection: Connection,
    subject: str,
    ask: Callable[[Any], Mapping[Any, Any]],
    missing: object = _FAIL,
    on_failure: Callable[[Any], None] = lambda _: None,
) -> dict[Any, Any]:
    """The results of a request's futures.

    Args:
        connection: the cluster.
        subject: what is asked, for messages.
        ask: gives the futures of a client's request.
        missing: the result of topics that are not there; without it they are an error.
        on_failure: is called with the ``KafkaError`` of each try that failed, and may raise another error.
    """
    gone = codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC") if missing is not _FAIL else frozenset()

    def read(admin: Any, reports: Reports) -> dict[Any, Any]:
        results = {}
        begun = time.monotonic()
        for key, future in ask(admin).items():
            try:
                while not future.done():
                    wait([future], _LISTEN_SECONDS)
                    _listen(connection, subject, admin, reports, begun)
                results[key] = future.result()
            except library().KafkaException as failure:
                if failure.args[0].code() not in gone:
                    on_failure(failure.args[0])
                    raise
                results[key] = missing
        return results

    return _with_reports(connection, subject, read)


def _listen(connection: Connection, subject: str, admin: Any, reports: Reports, begun: float) -> None:
    """Look what a client has met while a request is under way.

    Raises:
        KafkaException: what it has met does not pass.
    """
    admin.poll(0)
    if (failure := reports.broker_failure) is not None:
        if is_lasting(failure):
            raise library().KafkaException(failure)
        tell(connection, subject, failure, begun)


def with_admin(connection: Connection, subject: str, call: Callable[[Any], T]) -> T:
    """The result of a call with the process's client for this cluster; see ``_with_reports``."""
    return _with_reports(connection, subject, lambda admin, _: call(admin))


def _with_reports(connection: Connection, subject: str, call: Callable[[Any, Reports], T]) -> T:
    """The result of a call with the process's client for this cluster, and what that client has met.

    Another try is made with a new client: after a change of leaders an old one goes on asking with what it
    knew of them.
    """
    reports = Reports()

    def attempt() -> T:
        kept = _admins.take(connection)
        if kept is None:
            own = Reports()
            properties = client_properties(connection, fixed={"error_cb": own.on_error})
            admin = made(connection, subject, lambda: admin_library().AdminClient(properties, logger=LOGGER))
        else:
            admin, own = kept
        admin.poll(0)  # hands the library's log on
        own.broker_failure = None  # of the time before this request
        try:
            result = call(admin, own)
        except library().KafkaException:
            admin.poll(0)
            reports.broker_failure = own.broker_failure
            raise
        _admins.give_back(connection, (admin, own))
        return result

    return retried(connection, subject, attempt, reports)
