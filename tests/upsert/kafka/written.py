"""What a topic holds, for tests of the sink."""

import json
import time
from typing import Any

from upsert.kafka.client.admin import latest_offsets, topics
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.records import TopicPartition

WANTED = frozenset({"timestamp", "timestamp-type", "headers", "partition"})
Record = dict[str, Any]


def records_in(connection: Connection, topic: str, count: int) -> list[Record]:
    """All committed records, partition by partition; there must be exactly so many.

    Kafka shows a transaction a moment after it has confirmed it, so the right number is waited for.
    """
    deadline = time.monotonic() + 60
    while len(found := _all_records(connection, topic)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(found) == count, [(r["key"], r["value"]) for r in found]
    return found


def _all_records(connection: Connection, topic: str) -> list[Record]:
    number = topics(connection, [topic])[topic].partitions
    ends = latest_offsets(connection, [TopicPartition(topic, partition) for partition in range(number)])
    return [
        record
        for place, end in sorted(ends.items())
        for chunk in read_range(connection, place, 0, end, WANTED)
        for record in chunk.to_pylist()
    ]


def values_by_key(records: list[Record], key: str, value: str) -> dict[Any, list[Any]]:
    """Of each key its values in order, None for tombstones; both are fields of JSON objects."""
    found: dict[Any, list[Any]] = {}
    for record in records:
        values = found.setdefault(json.loads(record["key"])[key], [])
        values.append(None if record["value"] is None else json.loads(record["value"])[value])
    return found


def table_of(records: list[Record], key: str, value: str) -> dict[Any, Any]:
    """What a compacted topic means: of each key the last value, unless it is deleted."""
    lasts = {key: values[-1] for key, values in values_by_key(records, key, value).items()}
    return {key: value for key, value in lasts.items() if value is not None}
