"""Ranges of offsets, whatever gaps they have."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from upsert.errors import KafkaUnavailableError, RecordsExpiredError, TableNotFoundError
from upsert.kafka.client import consumer
from upsert.kafka.client.admin import create_topic, delete_topic, latest_offsets
from upsert.kafka.client.connection import Connection, client_properties, library
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import RECORD_SCHEMA, TopicPartition, record_schema
from upsert.kafka.client.transactions import produce_once
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka
NewTopic = Callable[..., str]


def values(*items: bytes | None) -> pa.Table:
    return pa.table(
        {"key": pa.array([b"k"] * len(items), pa.binary()), "value": pa.array(items, pa.binary())}
    )


def numbered(start: int, end: int) -> pa.Table:
    return values(*(b"%d" % number for number in range(start, end)))


def read_values(connection: Connection, topic: str, start: int, end: int) -> list[bytes | None]:
    chunks = read_range(connection, TopicPartition(topic, 0), start, end)
    return [value for chunk in chunks for value in chunk["value"].to_pylist()]


def end_of(connection: Connection, topic: str) -> int:
    place = TopicPartition(topic, 0)
    return latest_offsets(connection, [place])[place]


def wait_for_end(connection: Connection, topic: str, end: int) -> int:
    """Kafka shows a transaction a moment after it has confirmed it."""
    deadline = time.monotonic() + 60
    while (found := end_of(connection, topic)) < end:
        assert time.monotonic() < deadline
    assert found == end
    return end


def abort(connection: Connection, topic: str, count: int) -> None:
    """Write records in a transaction that is given up."""
    properties = client_properties(connection, fixed={"transactional.id": f"aborts-{topic}"})
    producer = library().Producer(properties)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"aborted", b"k")
    producer.flush()
    producer.abort_transaction(30)


def commit(connection: Connection, topic: str, batch: int, rows: pa.Table) -> None:
    produce_once(connection, topic, [rows], transactional_id=topic, batch=batch, fingerprint="")


def test_every_part_of_a_record_comes_back(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    written = pa.table(
        {
            "key": pa.array([b"k", None, b"", b"\x00\xff"], pa.binary()),
            "value": pa.array([b"v", None, b"", b"\xfe"], pa.binary()),
            "timestamp": pa.array([1, 1_600_000_000_123, 2, 3], pa.int64()),
            "headers": pa.array(
                [
                    [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}],
                    None,
                    [],
                    [{"key": "", "value": b"x"}],
                ],
                RECORD_SCHEMA.field("headers").type,
            ),
        }
    )
    produce(connection, topic, [written])
    [read] = read_range(connection, TopicPartition(topic, 0), 0, 4, RECORD_SCHEMA.names)
    assert read.schema == RECORD_SCHEMA
    for name in ("key", "value", "timestamp"):
        assert read[name].to_pylist() == written[name].to_pylist()
    assert read["headers"].to_pylist() == [headers or [] for headers in written["headers"].to_pylist()]
    assert set(read["topic"].to_pylist()) == {topic}
    assert read["partition"].to_pylist() == [0] * 4
    assert read["offset"].to_pylist() == [0, 1, 2, 3]
    assert set(read["timestamp-type"].to_pylist()) == {"CreateTime"}
    assert set(read["leader-epoch"].to_pylist()) == {0}


def test_only_wanted_columns_come(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    produce(connection, topic, [values(b"v")])
    [read] = read_range(connection, TopicPartition(topic, 0), 0, 1, {"timestamp-type", "headers"})
    assert read.schema == record_schema({"timestamp-type", "headers"})
    assert read.to_pylist() == [
        {"key": b"k", "value": b"v", "offset": 0, "timestamp-type": "LogAppendTime", "headers": []}
    ]


def test_a_range_is_cut_into_tables_of_bounded_size(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 2500)])
    chunks = list(read_range(connection, TopicPartition(topic, 0), 100, 2400, max_rows=1000))
    assert [chunk.num_rows for chunk in chunks] == [1000, 1000, 300]
    assert [offset for chunk in chunks for offset in chunk["offset"].to_pylist()] == list(range(100, 2400))


def test_large_records_fill_a_table_by_their_bytes(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(consumer, "_AT_ONCE", 1)
    topic = new_topic()
    produce(connection, topic, [values(*[bytes(400_000)] * 7)])
    chunks = list(read_range(connection, TopicPartition(topic, 0), 0, 7))
    assert [chunk.num_rows for chunk in chunks] == [3, 3, 1]


def test_ranges_follow_each_other_in_one_client(
    connection: Connection, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 100)])
    places: list[int] = []
    go_to = consumer.PartitionReader._go_to
    monkeypatch.setattr(
        consumer.PartitionReader,
        "_go_to",
        lambda self, *where: (places.append(id(self._client)), go_to(self, *where))[1],
    )
    read = [read_values(connection, topic, start, start + 10) for start in (0, 10, 20, 50, 50, 0)]
    assert [chunk[0] for chunk in read] == [b"0", b"10", b"20", b"50", b"50", b"0"]
    assert len(set(places)) == 1


@pytest.mark.parametrize(("idle_s", "is_ahead"), [(0.05, False), (60, True)])
def test_what_is_idle_fetches_nothing_ahead(
    connection: Connection,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    idle_s: float,
    is_ahead: bool,
) -> None:
    monkeypatch.setattr(consumer, "_IDLE_SECONDS", idle_s)
    rests: list[float] = []
    rest = consumer.PartitionReader.rest
    monkeypatch.setattr(
        consumer.PartitionReader, "rest", lambda self: (rest(self), rests.append(time.monotonic()))
    )
    topic = new_topic()
    produce(connection, topic, [numbered(0, 10)])
    for start in (0, 3, 7):  # a reader that is used in between is watched on
        began = time.monotonic()
        assert len(read_values(connection, topic, start, 10)) == 10 - start
    deadline = time.monotonic() + (0.3 if is_ahead else 60)
    while not any(at > began for at in rests) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert any(at > began for at in rests) is not is_ahead
    time.sleep(0.3)  # the last request may still be answered
    produce(connection, topic, [numbered(10, 300)])
    key = connection, TopicPartition(topic, 0), None
    reader = consumer._readers.take(key)
    assert reader is not None
    deadline = time.monotonic() + (60 if is_ahead else 0.3)
    while reader._client.waiting < 290 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (reader._client.waiting >= 290) is is_ahead
    consumer._readers.give_back(key, reader)
    assert read_values(connection, topic, 10, 300) == [b"%d" % number for number in range(10, 300)]


def test_a_reader_that_is_left_early_goes_on_where_it_was_left(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 100)])
    chunks = read_range(connection, TopicPartition(topic, 0), 0, 100, max_rows=30)
    assert next(chunks)["offset"].to_pylist()[-1] == 29
    assert isinstance(chunks, Iterator)
    chunks.close()  # type: ignore[attr-defined]
    assert read_values(connection, topic, 30, 33) == [b"30", b"31", b"32"]
    assert read_values(connection, topic, 10, 12) == [b"10", b"11"]


def test_what_was_read_ahead_without_a_column_is_read_again(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for batch in range(2):
        commit(connection, topic, batch, numbered(batch, batch + 1))
    end = wait_for_end(connection, topic, 4)
    place = TopicPartition(topic, 0)
    # the end of a transaction takes an offset: this read meets what lies behind its own end
    assert [chunk.num_rows for chunk in read_range(connection, place, 0, 2)] == [1]
    [later] = read_range(connection, place, 2, end, {"leader-epoch"})
    assert later.select(["value", "leader-epoch"]).to_pylist() == [{"value": b"1", "leader-epoch": 0}]


def test_a_range_may_end_on_the_end_of_a_transaction(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    for batch in range(3):
        commit(connection, topic, batch, numbered(2 * batch, 2 * batch + 2))
    wait_for_end(connection, topic, 9)
    assert read_values(connection, topic, 0, 3) == [b"0", b"1"]
    assert read_values(connection, topic, 2, 3) == []
    assert read_values(connection, topic, 3, 9) == [b"2", b"3", b"4", b"5"]
    assert read_values(connection, topic, 8, 9) == []


def test_aborted_transactions_are_neither_seen_nor_waited_for(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    abort(connection, topic, 50)
    commit(connection, topic, 0, values(b"seen"))
    abort(connection, topic, 50)
    end = wait_for_end(connection, topic, 104)
    assert read_values(connection, topic, 0, end) == [b"seen"]
    assert read_values(connection, topic, 0, 20) == []
    assert read_values(connection, topic, 60, end) == []
    commit(connection, topic, 1, values(b"later"))
    assert read_values(connection, topic, end, wait_for_end(connection, topic, end + 2)) == [b"later"]


def test_uncommitted_records_can_be_asked_for(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    abort(connection, topic, 2)
    curious = Connection({**connection.properties, "isolation.level": "read_uncommitted"})
    assert read_values(curious, topic, 0, 2) == [b"aborted"] * 2


def test_compaction_leaves_gaps_that_are_skipped(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(
        **{"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    )
    produce(connection, topic, [numbered(0, 100)])
    deadline = time.monotonic() + 60
    while len(read_values(connection, topic, 0, 100)) > 1:
        # A segment is closed by the first record that comes after its time.
        produce(connection, topic, [values(b"last")])
        assert time.monotonic() < deadline
    end = end_of(connection, topic)
    assert read_values(connection, topic, 0, end)[-1] == b"last"
    assert read_values(connection, topic, 10, 50) == []


def test_a_range_that_kafka_has_deleted_is_an_error(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 10)])
    with pytest.raises(RecordsExpiredError, match=f"reading {topic}-0 from offset 20"):
        read_values(connection, topic, 20, 30)


def test_a_topic_that_was_made_anew_is_an_error(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 10)])
    assert len(read_values(connection, topic, 0, 5)) == 5
    delete_topic(connection, topic)
    create_topic(connection, topic, 1)
    hasty = Connection(connection.properties, patience_s=1)

    def read_answered() -> None:
        while True:
            with suppress(KafkaUnavailableError):  # a slow broker may not say in time where it ends
                read_values(hasty, topic, 5, 10)
                return

    with pytest.raises(RecordsExpiredError):
        read_answered()
    produce(connection, topic, [numbered(0, 6)])
    with pytest.raises(RecordsExpiredError, match="should reach 10"):
        read_answered()


def test_what_was_fetched_ahead_is_not_of_the_topic_that_was_made_anew(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(connection, topic, [numbered(0, 10)])
    assert len(list(read_range(connection, TopicPartition(topic, 0), 0, 5, topic_id="first"))) == 1
    delete_topic(connection, topic)
    create_topic(connection, topic, 1)
    produce(connection, topic, [numbered(100, 110)])
    [chunk] = read_range(connection, TopicPartition(topic, 0), 5, 10, topic_id="second")
    assert chunk["value"].to_pylist() == [b"105", b"106", b"107", b"108", b"109"]


def test_a_missing_topic_is_an_error(connection: Connection) -> None:
    eager = Connection({**connection.properties, "topic.metadata.propagation.max.ms": "200"}, 30)
    with pytest.raises(TableNotFoundError, match="reading nowhere-0"):
        read_values(eager, "nowhere", 0, 1)


def test_an_empty_range_asks_nobody() -> None:
    nobody = Connection({"bootstrap.servers": "127.0.0.1:1"})
    assert list(read_range(nobody, TopicPartition("t", 0), 5, 5)) == []


@pytest.mark.long
def test_a_read_outlives_a_broker_that_is_killed_and_comes_back() -> None:
    with LocalKafka(own=True) as broker:
        small = {"max.partition.fetch.bytes": "1000"}
        connection = Connection({"bootstrap.servers": broker.bootstrap_servers, **small})
        create_topic(connection, "t", 1)
        for start in range(0, 20_000, 1000):  # a batch each, so that a fetch gets few of them
            produce(connection, "t", [numbered(start, start + 1000)])
        chunks = read_range(connection, TopicPartition("t", 0), 0, 20_000, max_rows=500)
        read = next(chunks)["value"].to_pylist()
        broker.kill()
        restart = threading.Thread(target=broker.restart)
        restart.start()
        read += [value for chunk in chunks for value in chunk["value"].to_pylist()]
        restart.join()
        assert read == [b"%d" % number for number in range(20_000)]

        broker.kill()
        hasty = Connection(connection.properties, patience_s=0.5)
        with pytest.raises(KafkaUnavailableError, match=broker.bootstrap_servers):
            list(read_range(hasty, TopicPartition("t", 0), 0, 1))
