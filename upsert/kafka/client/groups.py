"""What consumer groups have committed: offsets, and the text beside each of them.

Asked for with a consumer of the group that never joins it. The admin client could ask too, but takes the
whole process down (librdkafka 2.16) when the group's broker is just starting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import LOGGER, Connection, client_properties, library
from upsert.kafka.client.failures import Reports, made, retried
from upsert.kafka.client.requests import blocking_seconds
from upsert.kafka.records import TopicPartition

_FIXED: Final = {"enable.auto.commit": False, "max.poll.interval.ms": 86_400_000}
_SETTLED: Final = "read_committed"
"""Offsets of a transaction that is still open are waited for."""
_AT_ONCE: Final = "read_uncommitted"
"""They are passed over; what is committed is seen alone also then."""


def group_markers(
    connection: Connection, group: str, partitions: Iterable[TopicPartition], *, settled: bool = True
) -> dict[TopicPartition, tuple[int, str]]:
    """The offsets that a consumer group has committed, each with the text committed beside it.

    Args:
        connection: the cluster.
        group: the consumer group.
        partitions: of which offsets are asked.
        settled: wait for the end of an open transaction with such offsets; otherwise what was committed
            before it is given at once, also for a moment after the transaction has been committed.

    Raises:
        KafkaUnavailableError: the cluster did not answer, or such a transaction stayed open.
    """
    asked = [library().TopicPartition(*partition) for partition in partitions]
    if not asked:
        return {}
    subject = f"offsets of the consumer group {group!r}"
    key = (connection, group, settled)
    reports = Reports()

    def attempt() -> dict[TopicPartition, tuple[int, str]]:
        kept = _consumers.take(key)
        if kept is None:
            own = Reports()
            consumer = group_consumer(connection, group, subject, settled=settled, reports=own)
        else:
            consumer, own = kept
            own.broker_failure = None  # of an earlier request, which has been answered since
        found = {}
        try:
            places = consumer.committed(asked, timeout=blocking_seconds(connection))
        except library().KafkaException:
            consumer.poll(0)  # hands on what the client has met
            reports.broker_failure = own.broker_failure
            raise
        for place in places:
            if place.error is not None:
                raise library().KafkaException(place.error)
            if place.offset >= 0:
                found[TopicPartition(place.topic, place.partition)] = (place.offset, place.metadata or "")
        _consumers.give_back(key, (consumer, own))
        return found

    return retried(connection, subject, attempt, reports)


def group_consumer(
    connection: Connection,
    group: str,
    subject: str,
    *,
    settled: bool = True,
    reports: Reports | None = None,
) -> Any:
    """A consumer that can speak of a group, and does not join it; ``reports`` gets what it meets."""
    isolation = _SETTLED if settled else _AT_ONCE
    fixed: dict[str, Any] = {**_FIXED, "isolation.level": isolation, "group.id": group}
    if reports is not None:
        fixed["error_cb"] = reports.on_error
    properties = client_properties(connection, fixed=fixed)
    return made(connection, subject, lambda: library().Consumer(properties, logger=LOGGER))


_consumers: ClientCache[tuple[Any, Reports]] = ClientCache(16, close=lambda kept: kept[0].close())
