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

_FIXED: Final = {
    "enable.auto.commit": False,
    "isolation.level": "read_committed",  # offsets of a transaction that is still open are waited for
    "max.poll.interval.ms": 86_400_000,
}


def group_markers(
    connection: Connection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, str]]:
    """The offsets that a consumer group has committed, each with the text committed beside it.

    Raises:
        KafkaUnavailableError: the cluster did not answer, or a transaction with such offsets stayed open.
    """
    asked = [library().TopicPartition(*partition) for partition in partitions]
    if not asked:
        return {}
    subject = f"offsets of the consumer group {group!r}"
    key = (connection, group)

    def attempt() -> dict[TopicPartition, tuple[int, str]]:
        consumer = _consumers.take(key) or group_consumer(connection, group, subject)
        found = {}
        for place in consumer.committed(asked, timeout=request_seconds(connection)):
            if place.error is not None:
                raise library().KafkaException(place.error)
            if place.offset >= 0:
                found[TopicPartition(place.topic, place.partition)] = (place.offset, place.metadata or "")
        _consumers.give_back(key, consumer)
        return found

    return retried(connection, subject, attempt)


def group_consumer(connection: Connection, group: str, subject: str) -> Any:
    """A consumer that can speak of a group, and does not join it."""
    properties = client_properties(connection, fixed={**_FIXED, "group.id": group})
    return made(connection, subject, lambda: library().Consumer(properties, logger=LOGGER))


_consumers: ClientCache[Any] = ClientCache(8, close=lambda consumer: consumer.close())
