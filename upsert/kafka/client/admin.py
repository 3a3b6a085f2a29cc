"""Topics: which a cluster has, and creating and deleting them.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upsert.errors import TableNotFoundError
from upsert.kafka.client.connection import Connection, admin_library, library
from upsert.kafka.client.failures import unavailable
from upsert.kafka.client.requests import answers, blocking_seconds, request_seconds, with_admin


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the cluster has it.

    Attributes:
        name: its name.
        id: changes when a topic is deleted and created anew; None when the brokers have no ids (before 2.8).
        partitions: how many there are.
    """

    name: str
    id: str | None
    partitions: int


def topics(
    connection: Connection, names: Collection[str] | None = None, pattern: str | None = None
) -> dict[str, TopicInfo]:
    """The topics with one of these names, or whose whole name matches the regular expression.

    Names that the cluster does not have are left out; so are Kafka's own topics, unless named.

    Raises:
        KafkaUnavailableError: the cluster did not answer.

    Example:
        >>> connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
        >>> create_topic(connection, "topics-example", partitions=2)
        >>> topics(connection, pattern="topics-ex.*")["topics-example"].partitions
        2
    """
    if names is None:
        names = _listed(connection, re.compile(pattern or ""))
    described: dict[str, TopicInfo] = {}
    if names:
        subject = f"describing topics {', '.join(map(repr, sorted(names)))}"
        asked = library().TopicCollection(sorted(names))
        futures = lambda admin: admin.describe_topics(asked, request_timeout=request_seconds(connection))  # noqa: E731
        for name, found in answers(connection, subject, futures, missing=None).items():
            if found is not None:
                described[name] = TopicInfo(name, _id(found.topic_id), len(found.partitions))
    return described


def _listed(connection: Connection, pattern: re.Pattern[str]) -> list[str]:
    subject = f"listing topics that match {pattern.pattern!r}"
    listing = lambda admin: admin.list_topics(timeout=blocking_seconds(connection)).topics  # noqa: E731
    found = with_admin(connection, subject, listing)
    return [name for name in found if pattern.fullmatch(name) and not name.startswith("__")]


def _id(uuid: Any) -> str | None:
    return None if uuid is None else str(uuid)


def cleanup_policies(connection: Connection, names: Collection[str]) -> dict[str, frozenset[str]]:
    """The clean-up policies of topics: ``compact``, ``delete`` or both.

    Raises:
        TableNotFoundError: a topic does not exist.
    """
    if not names:
        return {}
    resource_of = admin_library().ConfigResource
    asked = [resource_of(resource_of.Type.TOPIC, name) for name in sorted(names)]
    found = answers(
        connection,
        f"settings of topics {', '.join(map(repr, sorted(names)))}",
        lambda admin: admin.describe_configs(asked, request_timeout=request_seconds(connection)),
    )
    return {
        resource.name: frozenset(entries["cleanup.policy"].value.split(","))
        for resource, entries in found.items()
    }


def create_topic(
    connection: Connection,
    name: str,
    partitions: int,
    config: Mapping[str, str] = {},
    replication_factor: int = -1,
) -> None:
    """Create a topic, and return when it can be written to.

    Args:
        connection: the cluster.
        name: of the new topic.
        partitions: how many.
        config: settings of the topic, such as ``{"cleanup.policy": "compact"}``.
        replication_factor: how many brokers keep each record; -1 is what the brokers do by default.

    Raises:
        TableExistsError: it exists already.
        ConfigurationError: Kafka refuses a setting.
    """
    new = admin_library().NewTopic(name, partitions, replication_factor, config=dict(config))
    subject = f"creating topic {name!r}"
    answers(
        connection,
        subject,
        lambda admin: admin.create_topics([new], request_timeout=request_seconds(connection)),
    )
    _wait(connection, subject, lambda: topics(connection, [name]).get(name, _NONE).partitions == partitions)


_NONE: Final = TopicInfo("", None, 0)


def delete_topic(connection: Connection, name: str) -> None:
    """Delete a topic with all its records, and return when it is gone.

    Raises:
        TableNotFoundError: it does not exist.
    """
    subject = f"deleting topic {name!r}"
    answers(
        connection,
        subject,
        lambda admin: admin.delete_topics([name], request_timeout=request_seconds(connection)),
    )
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
