"""Messages as columns, beside the objects that ``confluent_kafka`` makes of them."""

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from upsert.kafka.client.connection import Connection, client_properties, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.librdkafka import texts
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import HEADERS, RECORD_SCHEMA, TopicPartition

NewTopic = Callable[..., str]


def test_texts_are_those_at_their_addresses() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    memory = np.frombuffer(draw.randbytes(200_000), np.uint8)
    for _ in range(50):
        count = draw.choice([0, 1, 2, 30])
        near = draw.random() < 0.5
        at = sorted(draw.randrange(5000 if near else 199_000) for _ in range(count))
        if draw.random() < 0.3:
            draw.shuffle(at)
        lengths = [draw.choice([0, 1, 7, 900]) for _ in at]
        is_missing = [draw.random() < 0.2 for _ in at]
        places = zip(at, lengths, is_missing, strict=True)
        expected = [
            None if missing else memory[begin : begin + length].tobytes() for begin, length, missing in places
        ]
        addresses = np.where(is_missing, 0, np.array(at, np.int64) + memory.ctypes.data)
        assert texts(addresses, np.array(lengths, np.int64)).to_pylist() == expected


def some_bytes(draw: random.Random) -> bytes | None:
    return draw.choice([None, b"", draw.randbytes(draw.choice([1, 20, 300, 9000]))])


@pytest.mark.kafka
def test_records_are_those_that_the_library_gives_one_by_one(
    connection: Connection, new_topic: NewTopic
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    draw = random.Random(seed)
    topic = new_topic()
    for codec in ("none", "lz4", "gzip", "snappy", "zstd"):
        own = Connection({**connection.properties, "compression.type": codec})
        for rows in (1, 40):
            headers = [[{"key": draw.choice("ab"), "value": some_bytes(draw)}] * draw.randrange(3)] * rows
            columns = {
                "key": pa.array([some_bytes(draw) for _ in range(rows)], pa.binary()),
                "value": pa.array([some_bytes(draw) for _ in range(rows)], pa.binary()),
                "timestamp": pa.array([draw.randrange(1, 2**40) for _ in range(rows)], pa.int64()),
                "headers": pa.array(headers, HEADERS),
            }
            produce(own, topic, [pa.table(columns)])
    chunks = read_range(connection, TopicPartition(topic, 0), 0, 205, RECORD_SCHEMA.names, max_rows=50)
    found = pa.concat_tables(chunks)
    fixed = {"group.id": "one-by-one", "enable.auto.commit": False}
    client = library().Consumer(client_properties(connection, fixed=fixed))
    client.assign([library().TopicPartition(topic, 0, 0)])
    messages = [client.poll(30) for _ in range(205)]
    client.close()
    assert found.column("key").to_pylist() == [message.key() for message in messages]
    assert found.column("value").to_pylist() == [message.value() for message in messages]
    assert found.column("offset").to_pylist() == [message.offset() for message in messages]
    assert found.column("timestamp").to_pylist() == [message.timestamp()[1] for message in messages]
    assert found.column("leader-epoch").to_pylist() == [message.leader_epoch() for message in messages]
    pairs = [[tuple(one.values()) for one in each] for each in found.column("headers").to_pylist()]
    assert pairs == [message.headers() or [] for message in messages]
