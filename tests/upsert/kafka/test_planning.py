"""What steps read of real topics, without Spark: bounds, starts, discovery, and what is lost."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from upsert.errors import ConfigurationError, RecordsExpiredError, UpsertError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.declaration import struct_of
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.planning import Offset, PartitionProgress, Planner, ranges
from upsert.kafka.source import ReadMode, StreamReader, rows_of
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema

pytestmark = pytest.mark.kafka

NUMBERS = TableSchema.of({"n": pa.int64()})
KEYED = TableSchema.of({"k": pa.string(), "n": pa.int64()}, primary_key=["k"])
NewTopic = Callable[..., str]


def put(
    connection: Connection, topic: str, *numbers: int, partition: int = 0, at_ms: int | None = None
) -> None:
    rows = len(numbers)
    columns = {
        "key": pa.array([b"key"] * rows, pa.binary()),
        "value": [json.dumps({"n": n}).encode() for n in numbers],
        "partition": pa.array([partition] * rows, pa.int32()),
    }
    if at_ms is not None:
        columns["timestamp"] = pa.array([at_ms] * rows, pa.int64())
    produce(connection, topic, [pa.table(columns)])


def _given(connection: Connection, topic: str, options: dict[str, str]) -> dict[str, str]:
    named = {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
    return {"properties.bootstrap.servers": connection.bootstrap_servers, "topic": topic, **named}


def numbers(connection: Connection, topic: str, **options: str) -> KafkaTable:
    given = {"format": "json", **_given(connection, topic, options)}
    return KafkaTable.of(PLAIN, NUMBERS, {name: value for name, value in given.items() if value})


def upserts(connection: Connection, topic: str, **options: str) -> KafkaTable:
    own = {"changelog": "upsert", "format": "json", "key.format": "json"}
    return KafkaTable.of(UPSERT, KEYED, own | _given(connection, topic, options))


def changes(connection: Connection, topic: str, **options: str) -> KafkaTable:
    return KafkaTable.of(PLAIN, KEYED, {"format": "debezium-json", **_given(connection, topic, options)})


def read(table: KafkaTable, start: Offset, end: Offset) -> list[int]:
    tables = [rows for part in ranges(start, end) for rows in rows_of(table, part, ReadMode.ROWS, None)]
    return [n for rows in tables for n in rows.column("n").to_pylist()]


def steps(planner: Planner, limit: int | None = None, start: Offset | None = None) -> list[Offset]:
    """All offsets until nothing new comes."""
    found = [start or Offset()]
    while (after := planner.next(found[-1], limit)) != found[-1]:
        found.append(after)
    return found


def everything(table: KafkaTable, limit: int | None = None) -> list[int]:
    reached = steps(Planner(table), limit)
    return [n for start, end in pairwise(reached) for n in read(table, start, end)]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_limited_steps_read_all_partitions_once(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    put(connection, topic, *range(100))
    put(connection, topic, *range(100, 110), partition=1)
    table = numbers(connection, topic)
    reached = steps(Planner(table), 20)
    assert len(reached) > 5
    parts = [n for start, end in pairwise(reached) for n in read(table, start, end)]
    assert sorted(parts) == list(range(110))
    assert len(read(table, *reached[:2])) in (20, 19, 18)
    assert reached[-1] == Offset.from_json(json.loads(json.dumps(reached[-1].to_json())), "t")


BOUNDS: dict[str, tuple[dict[str, str], list[int]]] = {
    "latest": ({"scan_bounded_mode": "latest-offset"}, [0, 1, 2, 3, 10, 11]),
    "timestamp": (
        {"scan_bounded_mode": "timestamp", "scan_bounded_timestamp__millis": "2000"},
        [0, 1, 10, 11],
    ),
    "specific offsets, the other partition not read": (
        {"scan_bounded_mode": "specific-offsets", "scan_bounded_specific__offsets": "partition:0,offset:3"},
        [0, 1, 2],
    ),
    "start and end": (
        {
            "scan_startup_mode": "specific-offsets",
            "scan_startup_specific__offsets": "partition:0,offset:1",
            "scan_bounded_mode": "specific-offsets",
            "scan_bounded_specific__offsets": "partition:0,offset:2;partition:1,offset:1",
        },
        [1, 10],
    ),
    "filters": (
        {"scan_filter_partitions": "0", "scan_filter_offset__from": "1", "scan_filter_offset__until": "3"},
        [1, 2],
    ),
    "filter of times": (
        {"scan_filter_timestamp__from": "2000", "scan_bounded_mode": "latest-offset"},
        [2, 3],
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounded_reads_end_where_they_were_to_end(
    connection: Connection, new_topic: NewTopic, name: str
) -> None:
    """Also when more is written while they run: the bounds are those of the first step."""
    options, expected = BOUNDS[name]
    topic = new_topic(partitions=2)
    put(connection, topic, 0, 1, at_ms=1_000)
    put(connection, topic, 2, 3, at_ms=2_000)
    put(connection, topic, 10, 11, partition=1, at_ms=1_500)
    table = numbers(connection, topic, **options)
    planner = Planner(table)
    first = planner.next(Offset(), 2)
    put(connection, topic, 98, at_ms=1_000)
    put(connection, topic, 99, partition=1, at_ms=1_000)
    reached = [Offset(), *steps(Planner(table), 2, first)]
    found = [n for start, end in pairwise(reached) for n in read(table, start, end)]
    assert sorted(found) == expected
    is_bounded = "scan_bounded_mode" in options
    assert all(place.is_at_end is is_bounded for place in reached[-1].partitions.values())


def test_query_that_goes_on_without_its_filter_reads_on(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    put(connection, topic, 0, 1, 2)
    filtered, all_of_it = (
        numbers(connection, topic, scan_filter_offset__until="2"),
        numbers(connection, topic),
    )
    first = Planner(filtered).next(Offset(), None)
    assert read(filtered, Offset(), first) == [0, 1]
    assert read(all_of_it, first, Planner(all_of_it).next(first, None)) == [2]


STARTS: dict[str, tuple[dict[str, str], list[int]]] = {
    "earliest": ({"scan_startup_mode": "earliest-offset"}, [0, 1, 2, 3]),
    "latest": ({"scan_startup_mode": "latest-offset"}, [3]),
    "timestamp": (
        {"scan_startup_mode": "timestamp", "scan_startup_timestamp__millis": "2000"},
        [2, 3],
    ),
    "specific offsets": (
        {"scan_startup_mode": "specific-offsets", "scan_startup_specific__offsets": "partition:0,offset:1"},
        [1, 2, 3],
    ),
    "from an offset that is still to come": ({"scan_filter_offset__from": "4"}, []),
}


@pytest.mark.parametrize("name", STARTS)
def test_starts(connection: Connection, new_topic: NewTopic, name: str) -> None:
    options, expected = STARTS[name]
    topic = new_topic()
    put(connection, topic, 0, 1, at_ms=1_000)
    put(connection, topic, 2, at_ms=2_000)
    table = numbers(connection, topic, **options)
    first = Planner(table).next(Offset(), None)
    put(connection, topic, 3, at_ms=3_000)
    reached = [Offset(), *steps(Planner(table), None, first)]
    assert [n for start, end in pairwise(reached) for n in read(table, start, end)] == expected


def test_group_offsets_begin_and_end_a_read(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    put(connection, topic, *range(6))
    group = {"properties_group_id": f"group-of-{topic}"}
    commit(connection, group["properties_group_id"], topic, 2)
    assert everything(numbers(connection, topic, scan_startup_mode="group-offsets", **group)) == [2, 3, 4, 5]
    assert everything(numbers(connection, topic, scan_bounded_mode="group-offsets", **group)) == [0, 1]


def commit(connection: Connection, group: str, topic: str, offset: int) -> None:
    library = pytest.importorskip("confluent_kafka")
    consumer = library.Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[library.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_a_group_without_offsets_says_what_can_be_done(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    put(connection, topic, 0, 1)
    options = {"properties_group_id": "nobody", "scan_startup_mode": "group-offsets"}
    with pytest.raises(ConfigurationError, match="group 'nobody' must have committed an offset of topic"):
        everything(numbers(connection, topic, **options))
    table = numbers(connection, topic, **options, properties_auto_offset_reset="earliest")
    assert everything(table) == [0, 1]


def test_a_start_outside_of_the_partition_is_refused_or_moved(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic()
    put(connection, topic, 0, 1)
    options = {
        "scan_startup_mode": "specific-offsets",
        "scan_startup_specific__offsets": "partition:0,offset:9",
    }
    with pytest.raises(RecordsExpiredError, match="must lie within 0 to 2, got 9"):
        everything(numbers(connection, topic, **options))
    assert everything(numbers(connection, topic, **options, fail__on__data__loss="false")) == []


def test_new_topics_of_a_pattern_are_found_at_the_interval(
    connection: Connection, new_topic: NewTopic
) -> None:
    first = new_topic()
    name = f"{first}-second"
    put(connection, first, 1)
    clock = Clock()
    options = {
        "topic__pattern": f"{first}.*",
        "scan_topic__partition__discovery_interval": "10 s",
    }
    planner = Planner(numbers(connection, "", **options, scan_startup_mode="latest-offset"), now=clock)
    (_, before) = steps(planner)
    admin.create_topic(connection, name, 1)
    put(connection, name, 2)
    assert steps(planner, start=before) == [before]
    clock.now_s = 10.0
    *_, after = steps(planner, start=before)
    assert read(numbers(connection, first), before, after) == [2]
    assert set(after.ids) == {first, name}


def test_a_pattern_may_find_its_first_topic_later(connection: Connection, new_topic: NewTopic) -> None:
    """All of its records are read: the stream began before it, also where it began at the latest offsets."""
    name = f"later-{new_topic()}"
    table = numbers(connection, "", topic__pattern=name, scan_startup_mode="latest-offset")
    (_, before) = steps(Planner(table))
    admin.create_topic(connection, name, 1)
    put(connection, name, 1)
    *_, after = steps(Planner(table), start=before)
    assert read(table, before, after) == [1]


def test_several_topics_are_one_table(connection: Connection, new_topic: NewTopic) -> None:
    one, other = new_topic(), new_topic(partitions=2)
    put(connection, one, 1)
    put(connection, other, 2, partition=1)
    assert sorted(everything(numbers(connection, f"{one};{other}"))) == [1, 2]


def add_partition(connection: Connection, topic: str) -> None:
    library = pytest.importorskip("confluent_kafka.admin")
    client = library.AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    client.create_partitions([library.NewPartitions(topic, 2)])[topic].result()
    deadline = time.monotonic() + 60
    while admin.topics(connection, [topic])[topic].partitions != 2:
        assert time.monotonic() < deadline


def test_new_partitions_are_read_but_of_an_upsert_topic_refused(
    connection: Connection, new_topic: NewTopic
) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    put(connection, topic, 1)
    plain, keyed = numbers(connection, topic), upserts(connection, topic)
    (_, before) = steps(Planner(plain))
    (_, keyed_before) = steps(Planner(keyed))
    add_partition(connection, topic)
    newcomer = Connection({**connection.properties, "client.id": "knows the new partition"})
    put(newcomer, topic, 2, partition=1)
    *_, after = steps(Planner(plain), start=before)
    assert read(plain, before, after) == [2]
    with pytest.raises(ConfigurationError, match="keys move to other partitions"):
        steps(Planner(keyed), start=keyed_before)
    allowed = upserts(connection, topic, allow__new__partitions="true")
    *_, reached = steps(Planner(allowed), start=keyed_before)
    assert reached.partitions[TopicPartition(topic, 1)] == PartitionProgress(0, 1)
    normalized = upserts(connection, topic, allow__new__partitions="true", changelog="all")
    with pytest.raises(ConfigurationError, match="with its key and no other NOT NULL column, as a mirror is"):
        steps(Planner(normalized), start=keyed_before)


def test_a_new_partition_of_changes_waits_for_what_is_in_the_others(
    connection: Connection, new_topic: NewTopic
) -> None:
    """A key that moves has changes in both, and a micro-batch that read both would not know their order."""
    topic = new_topic()
    table = changes(connection, topic)
    put(connection, topic, 1)
    clock = Clock()
    planner = Planner(table, now=clock)
    (_, before) = steps(planner)
    add_partition(connection, topic)
    newcomer = Connection({**connection.properties, "client.id": "knows the new partition"})
    old, new = TopicPartition(topic, 0), TopicPartition(topic, 1)
    put(newcomer, topic, 2, 3, 4)
    clock.now_s = 1000.0
    without = planner.next(before, 1)
    assert without.partitions == {old: PartitionProgress(0, 2)}, "the new one has no record yet"
    put(newcomer, topic, 5, partition=1)
    clock.now_s = 2000.0
    waiting = planner.next(without, 1)
    assert waiting.partitions == {old: PartitionProgress(0, 3)}
    put(newcomer, topic, 6, 7)
    reached = planner.next(waiting, 1)
    assert reached.partitions == {old: PartitionProgress(0, 4)}
    both = planner.next(reached, None)
    assert both.partitions == {old: PartitionProgress(0, 6), new: PartitionProgress(0, 1)}


def test_a_run_up_to_now_reads_a_new_partition_though_the_others_grow_meanwhile(
    connection: Connection, new_topic: NewTopic
) -> None:
    """Each run of availableNow sees the topic as it was when the run began."""
    topic = new_topic()
    table = changes(connection, topic)
    put(connection, topic, 1)
    (_, before) = steps(Planner(table))
    add_partition(connection, topic)
    newcomer = Connection({**connection.properties, "client.id": "knows the new partition"})
    old, new = TopicPartition(topic, 0), TopicPartition(topic, 1)
    early, late = Planner(table), Planner(table)
    ends = early.ends()
    put(newcomer, topic, 2)
    put(newcomer, topic, 3, partition=1)
    # it began before the new partition had a record
    assert early.next(before, None, ends) == before
    ends = late.ends()
    put(newcomer, topic, 4)
    reached = late.next(before, None, ends)
    assert reached.partitions == {old: PartitionProgress(0, 2)}
    both = late.next(reached, None, ends)
    assert both.partitions == {old: PartitionProgress(0, 2), new: PartitionProgress(0, 1)}


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_new_partition_waits_for_transactions_that_were_open_when_it_got_its_first_record(
    connection: Connection, new_topic: NewTopic, is_available_now: bool
) -> None:
    """They may hold older changes of keys that have moved to it, and nobody sees these yet."""
    library = pytest.importorskip("confluent_kafka")
    topic = new_topic()
    table = changes(connection, topic)
    old, new = TopicPartition(topic, 0), TopicPartition(topic, 1)
    put(connection, topic, 1)
    (_, before) = steps(Planner(table))
    own = {"bootstrap.servers": connection.bootstrap_servers, "transactional.id": topic}
    writer = library.Producer(own)
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"2", b"key", partition=0)
    writer.flush()
    add_partition(connection, topic)
    newcomer = Connection({**connection.properties, "client.id": "knows the new partition"})
    put(newcomer, topic, 3, partition=1)

    def run(planner: Planner, start: Offset) -> list[dict[TopicPartition, PartitionProgress]]:
        until = planner.ends() if is_available_now else None
        found = [start]
        while (after := planner.next(found[-1], None, until)) != found[-1]:
            found.append(after)
        reached.append(found[-1])
        return [dict(offset.partitions) for offset in found[1:] if offset.partitions != start.partitions]

    reached: list[Offset] = []
    planner = Planner(table)
    assert run(planner, before) == []
    writer.commit_transaction()
    while admin.latest_offsets(connection, [old])[old] < 3:
        pass  # Kafka shows a transaction a moment after it has confirmed it
    put(newcomer, topic, 4, partition=1)
    without = {old: PartitionProgress(0, 3)}
    another = Planner(table) if is_available_now else planner
    assert run(another, reached[-1]) == [without, without | {new: PartitionProgress(0, 2)}]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_broker_that_has_not_learnt_of_a_partition_is_waited_for(
    connection: Connection, new_topic: NewTopic, loss: str
) -> None:
    """The topic is the same, so it has lost none: with loss accepted all of it was read again."""
    topic = new_topic()
    put(connection, topic, 1)
    table = numbers(connection, topic, fail__on__data__loss=loss)
    (_, before) = steps(Planner(table))
    second = {TopicPartition(topic, 1): PartitionProgress(0, 0)}
    known = replace(before, partitions={**before.partitions, **second})
    looks = count(1)

    def clock() -> float:  # asked at each look at the topics
        if next(looks) == 2:
            add_partition(connection, topic)
            put(connection, topic, 2)
        return 0.0

    after = Planner(table, clock).next(known, None)
    assert read(table, known, after) == [2]


def test_new_partitions_are_refused_where_changes_are_normalized(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The newest row of a key is remembered by partition: where the key goes, it would be inserted again."""
    topic = new_topic()
    put(connection, topic, 1)
    given = {"cdc__events__duplicate": "true", "state_path": str(tmp_path)}
    table = changes(connection, topic, **given)
    first_alone = changes(connection, topic, **given, scan_filter_partitions="0")
    (_, before) = steps(Planner(table))
    add_partition(connection, topic)
    with pytest.raises(ConfigurationError, match=r"copy the topic to a new one$"):
        steps(Planner(table), start=before)
    assert steps(Planner(first_alone), start=before) == [before]


def test_a_topic_that_was_created_again_is_noticed(
    connection: Connection, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    put(connection, topic, 1, 2)
    table = numbers(connection, topic)
    tolerant = numbers(connection, topic, fail__on__data__loss="false")
    running, going_on = Planner(table), Planner(tolerant)
    (_, before) = steps(running)
    assert steps(going_on, start=before) == [before]
    admin.delete_topic(connection, topic)
    admin.create_topic(connection, topic, 1)
    put(connection, topic, 3, 4, 5)
    for planner in (running, Planner(table)):
        with pytest.raises(RecordsExpiredError, match="deleted and created again: the checkpoint belongs to"):
            steps(planner, start=before)
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        *_, after = steps(going_on, start=before)
    assert "deleted and created again" in caplog.text
    assert read(tolerant, before, after) == [3, 4, 5]


@pytest.mark.parametrize("is_created_again", [True, False])
def test_a_step_that_is_replayed_reads_no_other_topic(
    connection: Connection, new_topic: NewTopic, is_created_again: bool
) -> None:
    """A query is stopped within a micro-batch, and the topic is replaced before the query starts again."""
    topic, other = new_topic(), new_topic()
    put(connection, topic, 1, 2)
    put(connection, other, 9)
    tables = [
        numbers(connection, f"{topic};{other}", fail__on__data__loss=text) for text in ("true", "false")
    ]
    strict, tolerant = (StreamReader(table, struct_of(table)) for table in tables)
    begin = strict.initialOffset()
    end = strict.latestOffset(begin, ReadAllAvailable())
    assert sorted(part.part.partition.topic for part in strict.partitions(begin, end)) == sorted(
        [topic, other]
    )
    admin.delete_topic(connection, topic)
    if is_created_again:
        admin.create_topic(connection, topic, 1)
        put(connection, topic, 3, 4, 5)
    (again,) = tolerant.partitions(begin, end)
    assert again.part.partition.topic == other
    again_strict = StreamReader(tables[0], struct_of(tables[0]))
    with pytest.raises(RecordsExpiredError, match=f"topic '{topic}'"):
        again_strict.partitions(begin, end)


def test_a_topic_of_a_pattern_may_go_away_where_loss_is_accepted(
    connection: Connection, new_topic: NewTopic
) -> None:
    first = new_topic()
    admin.create_topic(connection, f"{first}-b", 1)
    options = {"topic__pattern": f"{first}.*"}
    strict = Planner(numbers(connection, "", **options))
    tolerant = Planner(numbers(connection, "", **options, fail__on__data__loss="false"))
    (_, before) = steps(strict)
    assert steps(tolerant, start=before) == [before]
    admin.delete_topic(connection, f"{first}-b")
    put(connection, first, 1)
    with pytest.raises(RecordsExpiredError, match="is no longer there"):
        steps(strict, start=before)
    *_, after = steps(tolerant, start=before)
    assert set(after.ids) == {first}
    assert read(numbers(connection, first), before, after) == [1]


def test_missing_topics_are_named(connection: Connection, new_topic: NewTopic) -> None:
    there = new_topic()
    with pytest.raises(ConfigurationError, match="topic 'no-such-topic' must exist"):
        steps(Planner(numbers(connection, f"{there};no-such-topic")))
    with pytest.raises(ConfigurationError, match=r"'bad-records.topic' must name an existing topic"):
        steps(Planner(numbers(connection, there, bad__records="dead-letter", bad__records_topic="no-such")))


def delete_records(connection: Connection, topic: str, before: int) -> None:
    library = pytest.importorskip("confluent_kafka")
    client = pytest.importorskip("confluent_kafka.admin").AdminClient(
        {"bootstrap.servers": connection.bootstrap_servers}
    )
    place = library.TopicPartition(topic, 0, before)
    for future in client.delete_records([place]).values():
        future.result()


def test_records_that_are_gone_stop_the_query_or_are_passed_over(
    connection: Connection, new_topic: NewTopic
) -> None:
    """Noticed when a step is planned, and in the task when retention came between planning and reading."""
    topic = new_topic()
    put(connection, topic, *range(10))
    strict = numbers(connection, topic)
    tolerant = numbers(connection, topic, fail__on__data__loss="false")
    first = Planner(strict).next(Offset(), 2)
    planned = Planner(strict).next(first, 6)
    delete_records(connection, topic, 5)
    with pytest.raises(RecordsExpiredError, match="offsets 2 to 4 were deleted before they were read"):
        Planner(strict).next(first, None)
    with pytest.raises(RecordsExpiredError):
        read(strict, first, planned)
    assert read(tolerant, first, planned) == [5, 6, 7]
    *_, last = steps(Planner(tolerant), start=first)
    assert read(tolerant, first, last) == [5, 6, 7, 8, 9]


def test_a_partition_that_was_shortened_is_noticed(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic()
    put(connection, topic, *range(3))
    (_, read_up_to) = steps(Planner(numbers(connection, topic)))
    beyond = read_up_to.moved({TopicPartition(topic, 0): 8})
    with pytest.raises(RecordsExpiredError, match="ends at offset 3, and has been read up to 8"):
        steps(Planner(numbers(connection, topic)), start=beyond)
    assert steps(Planner(numbers(connection, topic, fail__on__data__loss="false")), start=beyond) == [beyond]


def test_aborted_transactions_and_markers_do_not_stall_a_step(
    connection: Connection, new_topic: NewTopic
) -> None:
    library = pytest.importorskip("confluent_kafka")
    topic = new_topic()
    writer = library.Producer(
        {"bootstrap.servers": connection.bootstrap_servers, "transactional.id": f"tx-{topic}"}
    )
    writer.init_transactions()
    for number, is_kept in enumerate([True, False, False, True, False]):
        writer.begin_transaction()
        writer.produce(topic, value=json.dumps({"n": number}).encode())
        writer.flush()
        (writer.commit_transaction if is_kept else writer.abort_transaction)()
    for limit in (1, 3, None):
        assert everything(numbers(connection, topic), limit) == [0, 3]


@pytest.mark.parametrize(("table", "right"), [(upserts, "compact"), (changes, "delete")])
def test_topics_that_forget_keys_or_changes_are_warned_of(
    connection: Connection,
    new_topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
    table: Callable[..., KafkaTable],
    right: str,
) -> None:
    for policy in ("compact", "delete"):
        topic = new_topic(**{"cleanup.policy": policy})
        with caplog.at_level(logging.WARNING, "upsert.kafka"):
            steps(Planner(table(connection, topic)))
        assert (f"{topic!r} should have cleanup.policy {right!r}" in caplog.text) is (policy != right)


def test_who_may_not_see_settings_of_a_topic_may_read_it(
    connection: Connection,
    new_topic: NewTopic,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise ConfigurationError("TOPIC_AUTHORIZATION_FAILED")

    monkeypatch.setattr(admin, "cleanup_policies", refused)
    topic = new_topic()
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        steps(Planner(upserts(connection, topic)))
    assert "could not be found out: TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_changes_that_come_more_than_once_are_normalized(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    """`cdc-events-duplicate`: a producer repeats a change, and an update moves a row to another key."""
    topic = new_topic()
    one, two = {"k": "a", "n": 1}, {"k": "a", "n": 2}
    moved = {"k": "b", "n": 2}
    made = [(None, one, "c"), (one, two, "u"), (one, two, "u"), (two, moved, "u"), (moved, None, "d")]
    values = [json.dumps({"before": b, "after": a, "op": op}).encode() for b, a, op in made]
    produce(connection, topic, [pa.table({"key": pa.nulls(5, pa.binary()), "value": values})])
    table = changes(connection, topic, cdc__events__duplicate="true", state_path=str(tmp_path))
    (part,) = ranges(Offset(), Planner(table).next(Offset(), None))
    found = [row for rows in rows_of(table, part, ReadMode.CHANGES, "q") for row in rows.to_pylist()]
    by_key = [[(r["_row_kind"], r["n"]) for r in found if r["k"] == key] for key in "ab"]
    assert by_key == [[("+I", 1), ("-U", 1), ("+U", 2), ("-D", 2)], [("+I", 2), ("-D", 2)]]


def test_images_expire_by_the_time_of_records(
    connection: Connection, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    for n, at_ms in ((1, 1_000), (2, 2_000), (3, 60_000)):
        put(connection, topic, n, at_ms=at_ms)
    given = {
        "properties.bootstrap.servers": connection.bootstrap_servers,
        "topic": topic,
        "key.format": "raw",
        "format": "json",
        "value.fields-include": "EXCEPT_KEY",
        "state.path": str(tmp_path),
        "state.ttl": "10 s",
    }
    table = KafkaTable.of(UPSERT, KEYED, given)
    (part,) = ranges(Offset(), Planner(table).next(Offset(), None))
    found = [row for rows in rows_of(table, part, ReadMode.CHANGES, "q") for row in rows.to_pylist()]
    assert [tuple(row.values()) for row in found] == [
        ("key", 1, "+I"),
        ("key", 1, "-U"),
        ("key", 2, "+U"),
        ("key", 3, "+I"),
    ]


def test_secrets_are_in_no_error_and_no_text(connection: Connection) -> None:
    secret: dict[str, Any] = {"properties_sasl_password": "hunter2", "properties_sasl_mechanism": "NONSENSE"}
    table = numbers(connection, "t", **secret)
    with pytest.raises(UpsertError) as error:
        Planner(table).next(Offset(), None)
    assert "hunter2" not in f"{error.value!r} {error.value.__cause__!r} {error.value.__context__!r} {table!r}"
