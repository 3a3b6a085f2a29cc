"""Messages as columns, beside the objects that ``confluent_kafka`` makes of them."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError
from upsert.kafka.client import consumer, librdkafka, message_consumer
from upsert.kafka.client.connection import Connection, client_properties, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.message_consumer import texts
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


def some_values(count: int, size: int) -> pa.Table:
    texts = [b"%03d" % number + bytes(size) for number in range(count)]
    return pa.table({"key": pa.array([None] * count, pa.binary()), "value": pa.array(texts)})


@pytest.mark.kafka
def test_messages_that_are_large_in_memory_come_in_tables_of_bounded_size(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few MB of a topic can be gigabytes in memory, which librdkafka has at once."""
    monkeypatch.setattr(message_consumer, "_BYTES_AT_ONCE", 5000)
    monkeypatch.setattr(consumer, "MAX_BYTES", 5000)
    topic = new_topic()
    written = some_values(100, 400)
    produce(connection, topic, [written])
    place = TopicPartition(topic, 0)
    chunks = list(read_range(connection, place, 0, 70))
    assert max(chunk.nbytes for chunk in chunks) < 12_000
    chunks += read_range(connection, place, 70, 90)
    chunks += read_range(connection, place, 90, 100, {"leader-epoch"})  # which reads them again
    again = list(read_range(connection, place, 0, 3))
    found = [value for chunk in chunks for value in chunk.column("value").to_pylist()]
    assert found == written.column("value").to_pylist()
    assert pa.concat_tables(again).column("value").to_pylist() == found[:3]


@pytest.mark.kafka
def test_a_reader_that_is_interrupted_as_messages_come_can_be_closed(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka ends a client when all of its messages are free."""
    topic = new_topic()
    produce(connection, topic, [some_values(100, 10)])
    calls = librdkafka.functions()
    consume, ended = calls["consume_batch_queue"], threading.Event()

    def interrupted(*given: Any) -> int:
        if count := consume(*given):
            raise KeyboardInterrupt  # as Python does when it comes back to the thread that Ctrl-C is for
        return int(count)

    def read() -> None:
        try:
            list(read_range(connection, TopicPartition(topic, 0), 0, 100))
        except KeyboardInterrupt:
            ended.set()

    monkeypatch.setitem(calls, "consume_batch_queue", interrupted)
    threading.Thread(target=read, daemon=True).start()
    assert ended.wait(120)


def test_a_reader_without_a_group_is_refused() -> None:
    """The client library would make a client that ends the process when it reads."""
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "group.id": ""})
    with pytest.raises(ConfigurationError, match=r"group\.id must not be empty"):
        list(read_range(connection, TopicPartition("t", 0), 0, 1))
