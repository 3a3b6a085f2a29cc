"""Requests to a cluster by the admin client: one a process, tried again while the cluster is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import LOGGER, Connection, admin_library, client_properties, library
from upsert.kafka.client.failures import codes, made, retried

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""How long one request may take before it is made again."""

_admins: ClientCache[Any] = ClientCache(4, close=lambda _: None)


def request_seconds(connection: Connection) -> float:
    """How long one request may take."""
    return min(REQUEST_SECONDS, connection.patience_s)


_FAIL: Final = object()


def answers(
    connection: Connection, subject: str, ask: Callable[[Any], Mapping[Any, Any]], missing: object = _FAIL
) -> dict[Any, Any]:
    """The results of a request's futures; topics that are not there give ``missing``, if that is given."""
    gone = codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC") if missing is not _FAIL else frozenset()

    def read(admin: Any) -> dict[Any, Any]:
        results = {}
        for key, future in ask(admin).items():
            try:
                results[key] = future.result()
            except library().KafkaException as failure:
                if failure.args[0].code() not in gone:
                    raise
                results[key] = missing
        return results

    return with_admin(connection, subject, read)


def with_admin(connection: Connection, subject: str, call: Callable[[Any], T]) -> T:
    """The result of a call with the process's client for this cluster.

    Another try is made with a new client: after a change of leaders an old one goes on asking with what it
    knew of them.
    """

    def attempt() -> T:
        admin = _admins.take(connection)
        if admin is None:
            properties = client_properties(connection)
            admin = made(connection, subject, lambda: admin_library().AdminClient(properties, logger=LOGGER))
        admin.poll(0)  # hands the library's log on
        result = call(admin)
        _admins.give_back(connection, admin)
        return result

    return retried(connection, subject, attempt)
