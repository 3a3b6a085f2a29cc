"""Topics and offsets: what a cluster has, and creating and deleting topics.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from upsert.errors import TableNotFoundError
from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import LOGGER, Connection, admin_library, client_properties, library
from upsert.kafka.client.failures import codes, made, retried, unavailable
from upsert.kafka.client.groups import group_markers
from upsert.kafka.records import TopicPartition

T = TypeVar("T")

REQUEST_SECONDS: Final = 10.0
"""How long one request may take before it is made again."""

_admins: ClientCache[Any] = ClientCache(4, close=lambda _: None)


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
    with_admin = lambda admin: admin.list_topics(timeout=request_seconds(connection)).topics  # noqa: E731
    found = _with_admin(connection, subject, with_admin)
    return [name for name in found if pattern.fullmatch(name) and not name.startswith("__")]


def _id(uuid: Any) -> str | None:
    return None if uuid is None else str(uuid)


def earliest_offsets(
    connection: Connection, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The first offset of each partition that Kafka still has.

    Raises:
        TableNotFoundError: a topic or partition does not exist.
    """
    return _offsets(connection, partitions, lambda spec: spec.earliest())


def latest_offsets(connection: Connection, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition that a reader of this connection can see.

    With ``read_committed``, the default, that is the start of the oldest transaction still open.

    Raises:
        TableNotFoundError: a topic or partition does not exist.
    """
    return _offsets(connection, partitions, lambda spec: spec.latest())


def offsets_for_time(
    connection: Connection, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first offset of each partition whose record is not older; the latest one where all are older.

    Raises:
        TableNotFoundError: a topic or partition does not exist.
    """
    asked = list(partitions)
    found = _offsets(connection, asked, lambda spec: spec.for_timestamp(timestamp_ms))
    if older := [partition for partition in asked if found[partition] < 0]:
        found.update(latest_offsets(connection, older))
    return found


def _offsets(
    connection: Connection, partitions: Iterable[TopicPartition], spec: Callable[[Any], Any]
) -> dict[TopicPartition, int]:
    specs = admin_library().OffsetSpec
    asked = {library().TopicPartition(*partition): spec(specs) for partition in partitions}
    if not asked:
        return {}
    isolation = getattr(library().IsolationLevel, connection.isolation_level.upper())
    places = [TopicPartition(key.topic, key.partition) for key in asked]

    def ask(admin: Any) -> Mapping[Any, Any]:
        try:
            futures: Mapping[Any, Any] = admin.list_offsets(
                asked, isolation_level=isolation, request_timeout=request_seconds(connection)
            )
            for future in futures.values():
                future.result()
        except library().KafkaException as failure:
            if failure.args[0].code() in codes("_NOENT"):  # no leader, either for now or for ever
                _check_existence(connection, places)
            raise
        return futures

    found = answers(connection, f"offsets of {_named(places)}", ask)
    return {TopicPartition(key.topic, key.partition): result.offset for key, result in found.items()}


def _check_existence(connection: Connection, partitions: Iterable[TopicPartition]) -> None:
    for place in partitions:
        count = existing_topic(connection, place.topic).partitions
        if place.partition >= count:
            raise TableNotFoundError(
                f"partition {place} should exist at {connection.bootstrap_servers!r}, and {place.topic!r} "
                f"has only {count}; correct the partition"
            )


def group_offsets(
    connection: Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets that a consumer group has committed; partitions without one are left out."""
    return {place: offset for place, (offset, _) in group_markers(connection, group, partitions).items()}


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

    return _with_admin(connection, subject, read)


def _with_admin(connection: Connection, subject: str, call: Callable[[Any], T]) -> T:
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


def _named(partitions: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, partitions))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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
