"""What consumer groups have committed: offsets, and the text beside each of them.

Asked for with a consumer of the group that never joins it. The admin client could ask too, but takes the
whole process down (librdkafka 2.16) when the group's broker is just starting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from upsert.kafka.client.client_cache import ClientCache
from upsert.kafka.client.connection import LOGGER, Connection, client_properties, library
from upsert.kafka.client.failures import made, retried
from upsert.kafka.client.requests import request_seconds
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

    def attempt() -> dict[TopicPartition, tuple[int, str]]:
        consumer = _consumers.take(key) or group_consumer(connection, group, subject, settled=settled)
        found = {}
        for place in consumer.committed(asked, timeout=request_seconds(connection)):
            if place.error is not None:
                raise library().KafkaException(place.error)
            if place.offset >= 0:
                found[TopicPartition(place.topic, place.partition)] = (place.offset, place.metadata or "")
        _consumers.give_back(key, consumer)
        return found

    return retried(connection, subject, attempt)


def group_consumer(connection: Connection, group: str, subject: str, *, settled: bool = True) -> Any:
    """A consumer that can speak of a group, and does not join it."""
    isolation = _SETTLED if settled else _AT_ONCE
    fixed = {**_FIXED, "isolation.level": isolation, "group.id": group}
    properties = client_properties(connection, fixed=fixed)
    return made(connection, subject, lambda: library().Consumer(properties, logger=LOGGER))


_consumers: ClientCache[Any] = ClientCache(16, close=lambda consumer: consumer.close())
