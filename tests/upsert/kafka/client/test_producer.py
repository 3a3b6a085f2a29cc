"""Writing at least once: partitions as Java chooses them, order, and failures that are told."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, DeliveryError, KafkaUnavailableError, TableNotFoundError
from upsert.kafka.client import producer
from upsert.kafka.client.admin import create_topic, latest_offsets
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import RECORD_SCHEMA, TopicPartition
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]

# Hashes in the unit tests of Kafka's own Java client.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def records(count: int, start: int = 0) -> pa.Table:
    numbers = [b"%d" % number for number in range(start, start + count)]
    return pa.table({"key": [b"k"] * count, "value": numbers})


def read_all(connection: Connection, topic: str, *wanted: str) -> list[dict[str, object]]:
    """All records of a topic, one partition after the other."""
    rows = []
    partition = 0
    while True:
        place = TopicPartition(topic, partition)
        try:
            end = latest_offsets(connection, [place])[place]
        except TableNotFoundError:
            return rows
        for chunk in read_range(connection, place, 0, end, wanted):
            rows += chunk.to_pylist()
        partition += 1


def test_keys_go_where_java_puts_them(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(7)
    produce(connection, topic, [pa.table({"key": list(MURMUR2), "value": list(MURMUR2)})])
    found = {row["key"]: row["partition"] for row in read_all(connection, topic, "partition")}
    assert found == {key: (hash_ & 0x7FFFFFFF) % 7 for key, hash_ in MURMUR2.items()}


def test_rows_may_choose_topic_and_partition(connection: Connection, new_topic: NewTopic) -> None:
    one, other = new_topic(3), new_topic(3)
    rows = pa.table(
        {
            "key": [b"21", b"21", b"21"],
            "value": [b"a", b"b", b"c"],
            "topic": pa.array([None, other, other], pa.string()),
            "partition": pa.array([2, None, 1], pa.int32()),
        }
    )
    assert produce(connection, one, [rows]) == 3
    by_hash = (MURMUR2[b"21"] & 0x7FFFFFFF) % 3
    assert [(row["value"], row["partition"]) for row in read_all(connection, one, "partition")] == [(b"a", 2)]
    found = {(row["value"], row["partition"]) for row in read_all(connection, other, "partition")}
    assert found == {(b"b", by_hash), (b"c", 1)}


def test_a_full_queue_keeps_the_order(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    small = Connection({**connection.properties, "queue.buffering.max.messages": "10"})
    assert produce(small, topic, [records(3000), records(3000, start=3000)]) == 6000
    assert [row["value"] for row in read_all(connection, topic)] == [b"%d" % n for n in range(6000)]


def test_a_full_queue_keeps_headers_and_times(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    small = Connection({**connection.properties, "queue.buffering.max.messages": "2"})
    rows = records(100).append_column("timestamp", pa.array(range(1, 101), pa.int64()))
    headers = pa.array([[{"key": "h", "value": b"x"}]] * 100, RECORD_SCHEMA.field("headers").type)
    produce(small, topic, [rows.append_column("headers", headers)])
    read = read_all(connection, topic, "timestamp", "headers")
    assert [row["timestamp"] for row in read] == list(range(1, 101))
    assert {str(row["headers"]) for row in read} == {"[{'key': 'h', 'value': b'x'}]"}


def test_a_record_that_is_too_large_is_refused_with_its_place(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic(**{"max.message.bytes": "1000"})
    plain = Connection({**connection.properties, "compression.type": "none"})
    with pytest.raises(DeliveryError, match=rf"writing to {topic}-0: .*MSG_SIZE_TOO_LARGE"):
        produce(plain, topic, [pa.table({"key": [b"k"], "value": [bytes(5000)]})])
    with pytest.raises(DeliveryError, match=r"a client 'properties\.message\.max\.bytes', else 1000000"):
        produce(plain, topic, [pa.table({"key": [b"k"], "value": [bytes(2_000_000)]})])
    assert produce(plain, topic, [records(1)]) == 1


@pytest.mark.parametrize("extra", [{}, {"timestamp": pa.array([1, 1], pa.int64())}])
def test_a_record_that_the_queue_never_has_room_for_is_refused(
    connection: Connection, new_topic: NewTopic, extra: dict[str, pa.Array]
) -> None:
    """The one before it is no reason to wait for room."""
    small = {"queue.buffering.max.kbytes": "1000", "message.max.bytes": "3000000"}
    rows = pa.table({"key": [b"k", b"k"], "value": [b"v", bytes(2_000_000)], **extra})
    with pytest.raises(DeliveryError, match=r"one record is larger than 'queue\.buffering\.max\.kbytes'"):
        produce(Connection({**connection.properties, **small}), new_topic(), [rows])


def test_a_topic_that_is_another_one_for_the_library_is_refused(
    connection: Connection, new_topic: NewTopic
) -> None:
    """A text of C ends with its first zero."""
    topic = new_topic()
    rows = records(1).append_column("topic", pa.array([f"{topic}\0b"]))
    with pytest.raises(ConfigurationError, match="Invalid argument"):
        produce(connection, topic, [rows])
    assert read_all(connection, topic) == []


def test_a_partition_that_is_not_there_is_refused(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    rows = records(1).append_column("partition", pa.array([5], pa.int32()))
    with pytest.raises(TableNotFoundError, match=topic):
        produce(connection, topic, [rows])


def test_a_topic_that_is_not_there_is_refused(connection: Connection) -> None:
    eager = Connection({**connection.properties, "topic.metadata.propagation.max.ms": "100"})
    with pytest.raises(TableNotFoundError, match="writing to nowhere"):
        produce(eager, "nowhere", [records(1)])


def test_columns_that_cannot_be_written_are_refused(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match="found also 'offset'"):
        produce(connection, "t", [records(1).append_column("offset", pa.array([1]))])
    with pytest.raises(ConfigurationError, match="'value' should be binary"):
        produce(connection, "t", [pa.table({"key": [b"k"], "value": [[1]]})])


def test_times_that_the_library_would_change_are_refused(connection: Connection) -> None:
    for time in (0, -1):
        with pytest.raises(ConfigurationError, match=f"found {time} ms"):
            produce(connection, "t", [records(1).append_column("timestamp", pa.array([time]))])


def test_an_error_of_the_caller_passes_through(connection: Connection, new_topic: NewTopic) -> None:
    def broken() -> Iterator[pa.Table]:
        yield records(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        produce(connection, new_topic(), broken())


def test_without_a_guarantee_nobody_waits(connection: Connection, new_topic: NewTopic) -> None:
    nobody = Connection({"bootstrap.servers": "127.0.0.1:1"}, patience_s=0.2)
    assert produce(nobody, "t", [records(5)], "none") == 5
    topic = new_topic()
    assert produce(connection, topic, [records(5)], "none") == 5


def test_what_brokers_told_an_idle_client_is_no_failure_of_the_next_write(
    connection: Connection, new_topic: NewTopic
) -> None:
    """One that starts again may not know its users yet; the client has got through to it since."""
    topic = new_topic()
    produce(connection, topic, [records(1)])
    key = (connection, "at-least-once")
    sender = producer._senders.take(key)
    assert sender is not None
    sender._reports.on_error(library().KafkaError(library().KafkaError._AUTHENTICATION))
    producer._senders.give_back(key, sender)
    assert produce(connection, topic, [records(1)]) == 1


@pytest.mark.long
def test_a_write_outlives_a_broker_that_is_killed_and_comes_back() -> None:
    with LocalKafka(own=True) as broker:
        connection = Connection({"bootstrap.servers": broker.bootstrap_servers})
        create_topic(connection, "t", 1)
        restart = threading.Thread(target=broker.restart)

        def with_a_crash() -> Iterator[pa.Table]:
            yield records(1000)
            broker.kill()
            restart.start()
            yield records(1000, start=1000)

        assert produce(connection, "t", with_a_crash()) == 2000
        restart.join()
        assert [row["value"] for row in read_all(connection, "t")] == [b"%d" % n for n in range(2000)]

        broker.kill()
        hasty = Connection(connection.properties, patience_s=0.5)
        with pytest.raises(KafkaUnavailableError, match=broker.bootstrap_servers):
            produce(hasty, "t", [records(1)])
