"""What a user would write without this project: loops over confluent-kafka, one process, one thread.

They are the measure of `bench.kafka`. Each prints records per second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

FETCHING = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": "5",
    "queued.min.messages": "1000000",
    "fetch.wait.max.ms": "10",
}
SENDING = {
    "enable.idempotence": "true",
    "linger.ms": "20",
    "batch.size": "1000000",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "2000000",
}


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A compacted topic."""
    wanted = NewTopic(topic, partitions, config={"cleanup.policy": "compact"})
    admin = AdminClient(
        {"bootstrap.servers": bootstrap}
    )  # a client nobody holds would take its promises along
    admin.create_topics([wanted])[topic].result()


def consume(bootstrap: str, topic: str, partitions: int, records: int, settings: dict[str, str]) -> float:
    """Records a second of a loop that takes key, value and offset of every record of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "loop", **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    seen = 0
    started = time.perf_counter()
    while seen < records:
        messages = consumer.consume(10_000, 0.2)
        columns = ([m.key() for m in messages], [m.value() for m in messages], [m.offset() for m in messages])
        seen += len(columns[0])
    elapsed = time.perf_counter() - started
    consumer.close()
    return records / elapsed


def produce(
    bootstrap: str, topic: str, keys: Sequence[bytes], values: Sequence[bytes], settings: dict[str, str]
) -> float:
    """Records a second of a loop that sends records made before, and waits for the last one."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    started = time.perf_counter()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return len(keys) / (time.perf_counter() - started)
