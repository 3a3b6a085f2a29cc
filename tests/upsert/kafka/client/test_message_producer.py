"""Columns as messages, beside what ``confluent_kafka`` makes of the same records one by one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.forked_python import forked_program
from tests.helpers import REPOSITORY
from upsert import failpoints
from upsert.errors import DeliveryError, KafkaUnavailableError
from upsert.kafka.client.admin import latest_offsets
from upsert.kafka.client.connection import Connection, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import Sender, produce
from upsert.kafka.client.records import HEADERS, TopicPartition
from upsert.kafka.client.transactions import produce_once

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]
Record = tuple[bytes | None, bytes | None, Any, Any]
PARTITIONS = 5
BY_THE_LIBRARY = {"partitioner": "murmur2_random", "enable.idempotence": True}
"""Without the latter the library writes what it tries again a second time, or behind what came after it."""


@pytest.fixture
def draw() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def some_text(draw: random.Random) -> bytes | None:
    """Also NULL, nothing, and signs of four bytes."""
    number = b"%d" % draw.randrange(10 ** draw.randrange(1, 9))
    return draw.choice([None, b"", "😀".encode(), number, number, number])


def read_by_the_library(connection: Connection, topic: str, count: int) -> dict[int, list[Record]]:
    """Key, value, timestamp and headers of a topic's committed records by partition, in their order."""
    settings = {"group.id": "one-by-one", "enable.auto.commit": False, "isolation.level": "read_committed"}
    client = library().Consumer({**connection.properties, **settings})
    places = client.list_topics(topic, 30).topics[topic].partitions
    client.assign([library().TopicPartition(topic, place, 0) for place in places])
    found: dict[int, list[Record]] = defaultdict(list)
    deadline, left = time.monotonic() + 60, count
    while left:
        assert time.monotonic() < deadline, f"{left} records did not come"
        for each in client.consume(min(left, 10_000), 0.1):
            record = each.key(), each.value(), each.timestamp(), each.headers()
            found[each.partition()].append(record)
            left -= 1
    assert client.consume(1, 0.1) == []
    client.close()
    return found


def with_keys(partition: list[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [record[:2] for record in partition if record[0] is not None]


@pytest.mark.parametrize("count", [15_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_records_are_those_that_the_library_writes_one_by_one(
    connection: Connection, new_topic: NewTopic, draw: random.Random, count: int
) -> None:
    """The same bytes in the same partitions, in order; records without a key lie anywhere."""
    keys, values = ([some_text(draw) for _ in range(count)] for _ in range(2))
    ours, theirs = new_topic(PARTITIONS), new_topic(PARTITIONS)
    table = pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})
    cut = draw.randrange(count)
    assert produce(connection, ours, [table.slice(0, cut), table.slice(cut), table.slice(0, 0)]) == count
    client = library().Producer({**connection.properties, **BY_THE_LIBRARY})
    for key, value in zip(keys, values, strict=True):
        client.produce(theirs, value, key)
    client.flush()
    found, expected = (read_by_the_library(connection, topic, count) for topic in (ours, theirs))
    for place in range(PARTITIONS):
        assert with_keys(found[place]) == with_keys(expected[place])
    all_found, all_expected = (
        Counter(record[:2] for each in read.values() for record in each) for read in (found, expected)
    )
    assert all_found == all_expected


def test_topics_partitions_times_and_headers_are_those_of_the_library(
    connection: Connection, new_topic: NewTopic, draw: random.Random
) -> None:
    """A key, or a partition, and a time are given to most records; headers have names that repeat."""
    count = 3000
    topics = [new_topic(PARTITIONS), new_topic(PARTITIONS)]
    partitions = [draw.choice([None, *range(PARTITIONS)]) for _ in range(count)]
    keys = [some_text(draw) or (b"k" if place is None else None) for place in partitions]
    values = [some_text(draw) for _ in range(count)]
    times = [draw.randrange(1, 1_700_000_000_000) for _ in range(count)]
    headers = [
        [(draw.choice(["id", "", "naïve"]), some_text(draw)) for _ in range(draw.randrange(4))] or None
        for _ in range(count)
    ]
    named = [draw.choice([None, *topics]) for _ in range(count)]
    lists = [each and [{"key": name, "value": value} for name, value in each] for each in headers]
    table = pa.table(
        {
            "headers": pa.array(lists, HEADERS),
            "topic": pa.array(named, pa.string()),
            "key": pa.array(keys, pa.binary()),
            "partition": pa.array(partitions, pa.int64()),
            "value": pa.array(values, pa.string()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    first = draw.randrange(100)  # memory that does not begin with the first record
    assert produce(connection, topics[0], [table.slice(first)]) == count - first
    theirs = dict(zip(topics, (new_topic(PARTITIONS), new_topic(PARTITIONS)), strict=True))
    client = library().Producer({**connection.properties, **BY_THE_LIBRARY})
    columns = (named, keys, values, partitions, times, headers)
    for name, key, value, place, time_, pairs in list(zip(*columns, strict=True))[first:]:
        given = {"partition": -1 if place is None else place, "timestamp": time_, "headers": pairs or []}
        client.produce(theirs[name or topics[0]], value, key, **given)
    client.flush()
    for topic, other in theirs.items():
        size = sum((name or topics[0]) == topic for name in named[first:])
        assert read_by_the_library(connection, topic, size) == read_by_the_library(connection, other, size)


def test_records_of_a_megabyte_arrive(
    connection: Connection, new_topic: NewTopic, draw: random.Random
) -> None:
    """More of them than the client's queue has room for."""
    topic = new_topic()
    values = [draw.randbytes(999_000) for _ in range(8)]
    table = pa.table({"key": [b"k"] * 8, "value": pa.array(values, pa.binary())})
    small = Connection({**connection.properties, "queue.buffering.max.kbytes": "4000"})
    assert produce(small, topic, [table]) == 8
    assert [record[1] for record in read_by_the_library(connection, topic, 8)[0]] == values


@pytest.mark.parametrize("extra", [{}, {"timestamp": pa.array([1, 1, 1, 1], pa.int64())}])
def test_a_record_that_the_client_refuses_is_told(
    connection: Connection, new_topic: NewTopic, extra: dict[str, pa.Array]
) -> None:
    topic = new_topic()
    values = [b"a", b"b", bytes(2_000_000), b"c"]
    table = pa.table({"key": pa.array([b"k"] * 4), "value": pa.array(values), **extra})
    with pytest.raises(DeliveryError) as refused:
        produce(connection, topic, [table])
    assert str(refused.value) == (
        f"writing to {topic}: Kafka at {connection.bootstrap_servers!r} said: Unable to produce message: "
        "Broker: Message size too large (MSG_SIZE_TOO_LARGE); a topic allows max.message.bytes a record, a "
        "client 'properties.message.max.bytes', else 1000000"
    )


def test_records_that_nobody_takes_are_told_once_and_given_up(new_topic: NewTopic) -> None:
    """Each of them has a report, and the client is ended though not all are asked for."""
    away = Connection({"bootstrap.servers": "127.0.0.1:1"}, patience_s=0.5)
    table = pa.table({"key": pa.array([b"k"] * 60_000), "value": pa.array([b"v"] * 60_000)})
    with pytest.raises(KafkaUnavailableError, match=r"did not; last: .*Connection refused"):
        produce(away, "t", [table])


CHILD = """
import sys
import pyarrow as pa
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.transactions import produce_once

address, topic = sys.argv[1:]
numbers = pa.array([b"%d" % number for number in range(30_000)])
table = pa.table({"key": numbers, "value": numbers})
produce_once(
    Connection({"bootstrap.servers": address}), topic, [table, table], transactional_id=topic, batch=0,
    fingerprint="1 task",
)
"""


def test_a_process_that_is_killed_within_a_transaction_leaves_nothing(
    connection: Connection, new_topic: NewTopic
) -> None:
    """It has handed one table over, part of which is in Kafka."""
    topic = new_topic(PARTITIONS)
    environment = {failpoints.ENVIRONMENT_VARIABLE: "transaction.after-send:1"}
    command = forked_program("-c", CHILD, connection.bootstrap_servers, topic)
    child = subprocess.run(command, env={**os.environ, **environment}, timeout=120)
    assert child.returncode == -signal.SIGKILL
    numbers = [b"%d" % number for number in range(1000)]
    table = pa.table({"key": numbers, "value": numbers})
    produce_once(connection, topic, [table], transactional_id=topic, batch=0, fingerprint="1 task")
    found = read_by_the_library(connection, topic, 1000)
    assert sorted(record[1] for each in found.values() for record in each) == sorted(numbers)


def test_a_transaction_is_aborted_whatever_was_handed_over(
    connection: Connection, new_topic: NewTopic
) -> None:
    """Its records are given up; the reports of that are taken while the client waits for them."""
    topic = new_topic()
    slow = {"linger.ms": "300000", "batch.num.messages": "1000000"}
    lingering = Connection({**connection.properties, **slow}, patience_s=600)
    sender = Sender(lingering, "writing", {"transactional.id": topic, "transaction.timeout.ms": 600_000})
    sender.client.init_transactions(30)
    numbers = [b"%d" % number for number in range(10_000)]
    sender.client.begin_transaction()
    sender.send(topic, pa.table({"key": numbers, "value": numbers}))
    assert sender.client.waiting
    sender.client.abort_transaction(30)
    assert not sender.client.waiting
    sender.discard()
    # not one record: only the end of the transaction, if the client had told Kafka of the partition by then
    uncommitted = Connection({**connection.properties, "isolation.level": "read_uncommitted"})
    place = TopicPartition(topic, 0)
    assert not list(read_range(uncommitted, place, 0, latest_offsets(uncommitted, [place])[place]))


ENDLESS_CHILD = """
import sys
import pyarrow as pa
from upsert.kafka.client.admin import latest_offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.client.transactions import produce_once

address, topic = sys.argv[1:]
connection, place = Connection({"bootstrap.servers": address, "debug": "msg"}), TopicPartition(topic, 0)
numbers = pa.array([b"%d" % number for number in range(30_000)])
table = pa.table({"key": numbers, "value": numbers})
print("begins", flush=True)
batch = 0
while True:
    produce(connection, topic, [table])
    produce_once(connection, topic, [table], transactional_id=topic, batch=batch, fingerprint="")
    for _ in read_range(connection, place, 0, latest_offsets(connection, [place])[place]):
        pass
    batch += 1
"""


@pytest.mark.long
def test_a_process_that_is_interrupted_at_any_moment_ends(
    connection: Connection, new_topic: NewTopic, draw: random.Random
) -> None:
    """Whatever its clients are at: Ctrl-C is neither lost nor does an end of theirs wait for ever."""
    for _ in range(12):
        command = [sys.executable, "-c", ENDLESS_CHILD, connection.bootstrap_servers, new_topic()]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as child:
            assert child.stdout.readline() == "begins\n"
            time.sleep(draw.uniform(0, 1.5))
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=300)
        assert child.returncode == -signal.SIGINT, said
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert "ignored" not in said
