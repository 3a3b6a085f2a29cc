"""Topics as a user without this project would fill and read them, to check the project from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """An ordinary topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def produce_json(bootstrap: str, topic: str, values: Iterable[tuple[int, Any]]) -> None:
    """Send JSON values to the partitions named, in order, and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": "true"})
    failures: list[Any] = []
    for partition, value in values:
        producer.produce(
            topic,
            json.dumps(value).encode(),
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []


def records_of(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of every committed record of a topic, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    open_partitions = set(partitions)
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None, "the broker does not answer"
        if message.error():
            open_partitions.discard(message.partition())
        else:
            yield message.key() or b"", message.value()
    consumer.close()
