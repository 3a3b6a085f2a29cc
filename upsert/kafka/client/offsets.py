"""Offsets of partitions: the first, the last, those at a time, those that a group has committed.

Every function answers from the cluster at the time of the call, and tries again while the cluster is away,
for as long as the connection has patience.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from upsert.errors import TableNotFoundError
from upsert.kafka.client.admin import existing_topic
from upsert.kafka.client.connection import Connection, admin_library, library
from upsert.kafka.client.failures import codes
from upsert.kafka.client.groups import group_markers
from upsert.kafka.client.requests import answers, request_seconds
from upsert.kafka.records import TopicPartition


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
        futures: Mapping[Any, Any] = admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=request_seconds(connection)
        )
        return futures

    def on_failure(error: Any) -> None:
        if error.code() in codes("_NOENT"):  # no leader, either for now or for ever
            _check_existence(connection, places)

    found = answers(connection, f"offsets of {_named(places)}", ask, on_failure=on_failure)
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


def _named(partitions: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, partitions))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
