"""Topics and their settings, by the admin client of the process.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from upsert.errors import TableNotFoundError
from upsert.kafka.client.connection import (
    LOGGER,
    ClientCache,
    Connection,
    admin_library,
    client_properties,
    library,
)
from upsert.kafka.client.failures import Reports, codes, is_lasting, made, tell, unavailable, with_client

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""How long one request may take before it is made again."""

BLOCKING_SECONDS: Final = 5.0
"""The same of requests that block: what their client meets is seen only afterwards."""

_LISTEN_SECONDS: Final = 0.1

_admins: ClientCache[tuple[Any, Reports]] = ClientCache(4, close=lambda _: None)


def blocking_seconds(connection: Connection) -> float:
    """How long one request may take that does not give a future."""
    return min(BLOCKING_SECONDS, connection.patience_s)


def answers(
    connection: Connection,
    subject: str,
    ask: Callable[[Any, float], Mapping[Any, Any]],
    *,
    skips_missing: bool = False,
    on_failure: Callable[[Any], None] = lambda _: None,
) -> dict[Any, Any]:
    """The results of a request's futures, without topics that are not there where ``skips_missing``.

    Args:
        connection: the cluster.
        subject: what is asked, for messages.
        ask: gives the futures of a client's request, which may take so many seconds.
        skips_missing: whether a missing topic is left out; else it is an error.
        on_failure: is called with the ``KafkaError`` of each try that failed, and may raise another error.
    """
    gone = codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC") if skips_missing else frozenset()

    def read(admin: Any, reports: Reports) -> dict[Any, Any]:
        results = {}
        begun = time.monotonic()
        seconds = min(REQUEST_SECONDS, connection.patience_s)
        for key, future in ask(admin, seconds).items():
            try:
                while not future.done():
                    wait([future], _LISTEN_SECONDS)
                    _listen(connection, subject, admin, reports, begun)
                results[key] = future.result()
            except library().KafkaException as failure:
                if failure.args[0].code() not in gone:
                    on_failure(failure.args[0])
                    raise
        return results

    return _with_admin(connection, subject, read)


def _listen(connection: Connection, subject: str, admin: Any, reports: Reports, begun: float) -> None:
    admin.poll(0)
    if (failure := reports.broker_failure) is not None:
        if is_lasting(failure):
            raise library().KafkaException(failure)
        tell(connection, subject, failure, begun)


def _with_admin(connection: Connection, subject: str, call: Callable[[Any, Reports], T]) -> T:
    """The result of a call with the process's client for this cluster, and what that client has met."""

    def make(reports: Reports) -> Any:
        properties = client_properties(connection, fixed={"error_cb": reports.on_error})
        return made(connection, subject, lambda: admin_library().AdminClient(properties, logger=LOGGER))

    return with_client(connection, subject, _admins, connection, make, call)


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the cluster has it; its ``id`` is never used again, and None from brokers before 2.8."""

    name: str
    id: str | None
    partitions: int


def topics(
    connection: Connection, names: Collection[str] | None = None, pattern: str | None = None
) -> dict[str, TopicInfo]:
    """The topics with one of these names, or whose whole name matches the regular expression.

    Names that the cluster does not have are left out; so are Kafka's own topics, unless named.

    Example:
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "topics-example", partitions=2)
        >>> topics(connection, pattern="topics-ex.*")["topics-example"].partitions
        2
    """
    if names is None:
        names = _listed(connection, re.compile(pattern or ""))
    if not names:
        return {}
    asked = library().TopicCollection(sorted(names))
    found = answers(
        connection,
        f"describing topics {', '.join(map(repr, sorted(names)))}",
        lambda admin, seconds: admin.describe_topics(asked, request_timeout=seconds),
        skips_missing=True,
    )
    return {
        name: TopicInfo(name, None if one.topic_id is None else str(one.topic_id), len(one.partitions))
        for name, one in found.items()
    }


def _listed(connection: Connection, pattern: re.Pattern[str]) -> list[str]:
    subject = f"listing topics that match {pattern.pattern!r}"
    timeout_s = blocking_seconds(connection)
    found = _with_admin(connection, subject, lambda admin, _: admin.list_topics(timeout=timeout_s).topics)
    return [name for name in found if pattern.fullmatch(name) and not name.startswith("__")]


def cleanup_policies(connection: Connection, names: Collection[str]) -> dict[str, frozenset[str]]:
    """The clean-up policies of topics: ``compact``, ``delete`` or both."""
    found = _settings(connection, names) if names else {}
    return {name: frozenset(entries["cleanup.policy"].value.split(",")) for name, entries in found.items()}


def create_topic(
    connection: Connection,
    name: str,
    partitions: int,
    config: Mapping[str, str] = {},
    replication_factor: int = -1,
) -> None:
    """Create a topic, and return when it can be written to; -1 replicas: as many as the brokers make."""
    new = admin_library().NewTopic(name, partitions, replication_factor, config=dict(config))
    subject = f"creating topic {name!r}"
    answers(connection, subject, lambda admin, seconds: admin.create_topics([new], request_timeout=seconds))

    def is_there() -> bool:
        found = topics(connection, [name]).get(name)
        return found is not None and found.partitions == partitions

    _wait(connection, subject, is_there)


def delete_topic(connection: Connection, name: str) -> None:
    """Delete a topic with all its records, and return when it is gone."""
    subject = f"deleting topic {name!r}"
    answers(connection, subject, lambda admin, seconds: admin.delete_topics([name], request_timeout=seconds))
    _wait(connection, subject, lambda: name not in topics(connection, [name]))


def _wait(connection: Connection, subject: str, is_done: Callable[[], bool]) -> None:
    """Brokers learn of a change one after the other; wait until the one that answers us has."""
    deadline = time.monotonic() + connection.patience_s
    while not is_done():
        if time.monotonic() > deadline:
            raise unavailable(connection, subject, None)
        time.sleep(0.02)


def existing_topic(connection: Connection, name: str) -> TopicInfo:
    """The topic of this name.

    Raises:
        TableNotFoundError: it does not exist.
    """
    found = topics(connection, [name]).get(name)
    if found is None:
        raise TableNotFoundError(
            f"topic {name!r} should exist at {connection.bootstrap_servers!r}, and does not; "
            "create it, or correct its name"
        )
    return found


def change_settings(connection: Connection, name: str, changed: Mapping[str, str | None]) -> None:
    """Change some settings of a topic, to the brokers' own for None; the others stay.

    The brokers show the new values a moment later.

    Example:
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "settings-example", partitions=1)
        >>> change_settings(connection, "settings-example", {"retention.ms": "60000"})
        >>> while settings(connection, "settings-example")["retention.ms"] != "60000":
        ...     pass  # not every broker knows it yet
    """
    existing_topic(connection, name)  # Kafka says something else of one that is not there
    kafka = admin_library()
    to_do = kafka.AlterConfigOpType
    entries = [
        kafka.ConfigEntry(key, value, incremental_operation=to_do.DELETE if value is None else to_do.SET)
        for key, value in changed.items()
    ]
    asked = [kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, name, incremental_configs=entries)]
    answers(
        connection,
        f"changing the settings of topic {name!r}",
        lambda admin, seconds: admin.incremental_alter_configs(asked, request_timeout=seconds),
    )


def settings(connection: Connection, name: str) -> dict[str, str | None]:
    """All settings of a topic, those of the brokers where it has none of its own."""
    return {key: entry.value for key, entry in _settings(connection, [name])[name].items()}


def _settings(connection: Connection, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
    resource_of = admin_library().ConfigResource
    asked = [resource_of(resource_of.Type.TOPIC, name) for name in sorted(names)]
    found = answers(
        connection,
        f"settings of topics {', '.join(map(repr, sorted(names)))}",
        lambda admin, seconds: admin.describe_configs(asked, request_timeout=seconds),
    )
    return {resource.name: entries for resource, entries in found.items()}
