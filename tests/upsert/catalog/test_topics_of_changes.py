"""Topics of changes as connectors really write them, into tables with their key: a dict is the database."""

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.errors import UpsertError
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.planning import Range
from upsert.kafka.source import CHUNK_ROWS, ReadMode, rows_of
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COLUMNS = "id INT PRIMARY KEY NOT ENFORCED, n INT, name STRING"
Row = dict[str, Any]


class Connector:
    """Writes what Debezium writes about a table of PostgreSQL: deletions have nothing but the key.

    By default PostgreSQL does not tell the row before an update either.
    It repeats its last changes when it starts again, and rows that it has written when a snapshot reads them.
    """

    def __init__(self, kafka: LocalKafka, draw: random.Random, *, has_before: bool) -> None:
        self._has_before = has_before
        self.topic = f"changes-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self.topic, partitions=2)
        self.rows: dict[int, Row] = {}
        self._draw = draw
        self._written: list[tuple[int, str]] = []
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def work(self, count: int) -> None:
        """Some changes of the database, and what becomes of the connector meanwhile."""
        for _ in range(count):
            for id, record in self._change():
                self._write(id, record)
            if self._draw.random() < 0.1:
                self._start_again()
        self._producer.flush()

    def _change(self) -> Iterator[tuple[int, str]]:
        id = self._draw.randrange(6)
        old = self.rows.pop(id, None)
        if old is not None and self._draw.random() < 0.4:
            yield id, record({"id": id, "n": None, "name": None}, None, "d")
            return
        self.rows[id] = {"id": id, "n": self._draw.randrange(3), "name": self._draw.choice(["ä", '{"a": 1}'])}
        before = old if self._has_before else None
        yield id, record(before, self.rows[id], "c" if old is None else "u")
        if self._draw.random() < 0.2:
            yield id, record(None, self.rows[id], "r")

    def _start_again(self) -> None:
        for id, text in self._written[-self._draw.randrange(1, 9) :]:
            self._write(id, text)

    def _write(self, id: int, text: str) -> None:
        self._written.append((id, text))
        self._producer.produce(self.topic, text, key=str(id), partition=id % 2)


def stored(catalog: Catalog, name: str) -> list[Row]:
    """The rows of a table, for which Spark would need a job."""
    return catalog.table(name).snapshot().scan().to_pylist()


def record(before: Row | None, after: Row | None, op: str) -> str:
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 1, "transaction": None})


@pytest.mark.parametrize(
    ("buckets", "has_before", "normalized", "rounds"),
    [
        (4, False, False, 2),
        (1, True, True, 2),
        pytest.param(1, True, False, 2, marks=pytest.mark.long),
        pytest.param(1, False, True, 2, marks=pytest.mark.long),
        pytest.param(16, False, False, 5, marks=pytest.mark.long),
    ],
)
def test_a_table_follows_a_log_that_repeats_itself(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    buckets: int,
    has_before: bool,
    normalized: bool,
    rounds: int,
) -> None:
    """Whatever comes twice, and whichever changes one micro-batch has, the last change of each key holds."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    source = Connector(kafka, random.Random(seed), has_before=has_before)
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        f"CREATE TABLE changes ({COLUMNS}) WITH ('connector' = 'kafka', 'topic' = '{source.topic}', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'format' = 'debezium-json', "
        f"'max-rows-per-trigger' = '60', 'cdc-events-duplicate' = '{normalized}')"
    )
    catalog.sql(f"CREATE TABLE copy ({COLUMNS}) WITH ('bucket' = '{buckets}')")
    for _ in range(rounds):
        source.work(50)
        writer = catalog.write_changes(catalog.read_changes(spark, "changes"), "copy")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        assert {row["id"]: row for row in stored(catalog, "copy")} == source.rows


@pytest.mark.parametrize("normalized", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_join_reads_the_mirror_of_such_a_log(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, normalized: bool
) -> None:
    source = Connector(kafka, random.Random(7), has_before=False)
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        f"CREATE TABLE changes ({COLUMNS}, place INT METADATA FROM 'partition' VIRTUAL, INDEX (n)) WITH ("
        f"'connector' = 'kafka', 'topic' = '{source.topic}', 'format' = 'debezium-json', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'mirror.bucket' = '2', "
        f"'cdc-events-duplicate' = '{normalized}')"
    )
    catalog.sql("CREATE TABLE sizes (n INT PRIMARY KEY NOT ENFORCED, size STRING)")
    catalog.sql("CREATE TABLE sized (id INT PRIMARY KEY NOT ENFORCED, size STRING)")
    names = {n: f"size {n}" for n in range(3)}
    catalog.table("sizes").write(pa.table({"n": pa.array(names, pa.int32()), "size": [*names.values()]}))

    def joined() -> DataFrame:
        changes, sizes = (catalog.read_changes(spark, name) for name in ("changes", "sizes"))
        return changes.join(sizes, "n").select("id", "size")

    (before,) = planner.explain(joined()).joins
    assert "catalog.mirror(spark, 'changes')" in str(before.remedy)
    for _ in range(2):  # the second time both go on where they were
        source.work(40)
        catalog.mirror(spark, "changes", {"availableNow": True}).awaitTermination()
        found = catalog.table("changes").snapshot().scan(["id", "n", "name"]).to_pylist()
        assert {row["id"]: row for row in found} == source.rows
        assert [report.form for report in planner.explain(joined()).joins] == ["fused"]
        writer = catalog.write_changes(joined(), "sized").option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()
        sized = catalog.table("sized").snapshot().scan().to_pylist()
        assert {row["id"]: row["size"] for row in sized} == {
            id: names[row["n"]] for id, row in source.rows.items()
        }
    assert catalog.table("changes").options.bucket == 2
    now = catalog.sql("SELECT id, n FROM changes FOR SYSTEM_TIME AS OF PROCTIME()", spark).df
    assert sorted(map(tuple, now.collect())) == sorted((row["id"], row["n"]) for row in source.rows.values())


Change = tuple[Row | None, Row | None]


def renames(draw: random.Random) -> tuple[list[Change], dict[int, Row]]:
    """Rows before and after changes that also change keys, there and back, and the rows at their end."""
    rows: dict[int, Row] = {}
    changes: list[Change] = []
    for _ in range(200):
        before = rows.pop(draw.randrange(5), None)
        id, n = draw.randrange(5), draw.randrange(2)
        is_deleted = id in rows or (before is not None and draw.random() < 0.2)
        after = None if is_deleted else {"id": id, "n": n, "name": "ä"}
        if before is not None or after is not None:
            changes.append((before, after))
        rows |= {} if after is None else {id: after}
    return changes, rows


def of_maxwell(before: Row | None, after: Row | None) -> str:
    if before is None or after is None:
        return json.dumps({"type": "delete" if after is None else "insert", "data": after or before})
    old = {name: value for name, value in before.items() if after[name] != value}
    return json.dumps({"type": "update", "data": after, "old": old})


def of_canal(before: Row | None, after: Row | None) -> str:
    kind = "INSERT" if before is None else "DELETE" if after is None else "UPDATE"
    old = [before] if kind == "UPDATE" else None
    return json.dumps({"type": kind, "data": [after or before], "old": old})


def of_golden_gate(before: Row | None, after: Row | None) -> str:
    kind = "I" if before is None else "D" if after is None else "U"
    return json.dumps({"op_type": kind, "before": before, "after": after})


@pytest.mark.parametrize(
    ("format_", "record_of"),
    [
        ("maxwell-json", of_maxwell),
        pytest.param("canal-json", of_canal, marks=pytest.mark.long),
        ("ogg-json", of_golden_gate),
    ],
)
def test_a_table_follows_records_that_change_keys(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    format_: str,
    record_of: Callable[[Row | None, Row | None], str],
) -> None:
    """The row of the old key goes in the partition of the new one, in no order with what the old one has."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    changes, rows = renames(random.Random(seed))
    topic = f"renames-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for before, after in changes:
        id = (after or before or {})["id"]
        producer.produce(topic, record_of(before, after), key=str(id), partition=id % 2)
    producer.flush()
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        f"CREATE TABLE changes ({COLUMNS}) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'format' = '{format_}')"
    )
    catalog.sql(f"CREATE TABLE copy ({COLUMNS})")
    writer = catalog.write_changes(catalog.read_changes(spark, "changes"), "copy")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert {row["id"]: row for row in stored(catalog, "copy")} == rows


SEEN = "id INT PRIMARY KEY NOT ENFORCED, seen INT"
VISITS = [(1, 1), (2, 7), (1, 5), (3, 2), (1, 3), (2, None), (3, 2)]
"""Key and value of each record, None for a deletion; the third of key 1 is late."""


def upserts_of_visits() -> list[tuple[str, str | None]]:
    values = (None if n is None else json.dumps({"id": id, "seen": n}) for id, n in VISITS)
    return [(json.dumps({"id": id}), value) for (id, _), value in zip(VISITS, values, strict=True)]


def changes_of_visits() -> list[tuple[str, str | None]]:
    rows: dict[int, Row] = {}
    found: list[tuple[str, str | None]] = []
    for id, n in VISITS:
        before, after = rows.get(id), None if n is None else {"id": id, "seen": n}
        found.append((str(id), record(before, after, "d" if after is None else "u" if before else "c")))
        rows |= {} if after is None else {id: after}
    return found


UPSERTS = {"connector": "upsert-kafka", "key.format": "json", "value.format": "json"}
CHANGES = {"connector": "kafka", "format": "debezium-json"}


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 3, len(VISITS)])
@pytest.mark.parametrize(
    ("options", "records"),
    [(UPSERTS, upserts_of_visits()), (CHANGES, changes_of_visits())],
    ids=["upserts", "changes"],
)
def test_a_table_with_a_sequence_keeps_the_newest_whichever_records_come_together(
    spark: SparkSession,
    kafka: LocalKafka,
    tmp_path: Path,
    options: dict[str, str],
    records: list[tuple[str, str | None]],
    step: int,
) -> None:
    """A late update leaves the row as it is, and a deletion deletes it, in one micro-batch or in several."""
    topic = f"visits-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, config={"cleanup.policy": "compact"} if options is UPSERTS else {})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key=key)
    producer.flush()
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    given = {**options, "topic": topic, "properties.bootstrap.servers": kafka.bootstrap_servers}
    given["max-rows-per-trigger"] = str(step)
    clause = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    catalog.sql(f"CREATE TABLE visits ({SEEN}) WITH ({clause})")
    catalog.sql(f"CREATE TABLE newest ({SEEN}) WITH ('sequence.field' = 'seen')")
    writer = catalog.write_changes(catalog.read_changes(spark, "visits"), "newest")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert sorted(tuple(row.values()) for row in stored(catalog, "newest")) == [(1, 5), (3, 2)]


def test_records_without_a_key_are_all_looked_at_for_they_lie_in_any_partition(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """A row comes in one partition and goes in another one, within a micro-batch."""
    topic = f"unkeyed-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        f"CREATE TABLE changes ({COLUMNS}) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'format' = 'debezium-json')"
    )
    catalog.sql(f"CREATE TABLE copy ({COLUMNS})")
    old, new = ({"id": 1, "n": n, "name": "x"} for n in (1, 2))

    def write(*changes: tuple[Row | None, Row | None, int]) -> list[int]:
        for before, after, partition in changes:
            text = record(before, after, "d" if after is None else "c")
            producer.produce(topic, text, partition=partition)
        producer.flush()
        writer = catalog.write_changes(catalog.read_changes(spark, "changes"), "copy")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        return [row["n"] for row in stored(catalog, "copy")]

    assert write((None, old, 0)) == [1]
    assert write((old, None, 0), (None, new, 1), (new, None, 0)) == []


@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.long), 1000])
def test_a_row_that_moves_to_an_added_partition_stays(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, step: int
) -> None:
    """Inserted and deleted in the old partition, then inserted alike in the new one, between two runs."""
    topic = f"grown-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        f"CREATE TABLE changes ({COLUMNS}) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'format' = 'debezium-json', "
        f"'max-rows-per-trigger' = '{step}')"
    )
    catalog.sql(f"CREATE TABLE copy ({COLUMNS})")
    rows = [{"id": id, "n": id, "name": "x"} for id in range(4)]

    def follow() -> list[int]:
        writer = catalog.write_changes(catalog.read_changes(spark, "changes"), "copy")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        return sorted(row["id"] for row in stored(catalog, "copy"))

    producer.produce(topic, record(None, rows[0], "c"), key="0")
    producer.flush()
    assert follow() == [0]
    for row in rows[1:]:
        producer.produce(topic, record(None, row, "c"), key=str(row["id"]))
        producer.produce(topic, record(row, None, "d"), key=str(row["id"]))
    producer.flush()
    add_partition(kafka, topic)
    newcomer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for row in rows[1:]:
        newcomer.produce(topic, record(None, row, "c"), key=str(row["id"]), partition=1)
    newcomer.flush()
    assert follow() == [0, 1, 2, 3]


def add_partition(kafka: LocalKafka, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    client.create_partitions([NewPartitions(topic, 2)])[topic].result()
    deadline = time.monotonic() + 60
    while len(client.list_topics(topic).topics[topic].partitions) != 2:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("format_", ["maxwell-json", "canal-json", "ogg-json"])
def test_metadata_that_each_record_has_of_its_own_is_refused_where_rows_must_cancel(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    place = f"{COLUMNS}, place BIGINT METADATA FROM 'offset' VIRTUAL"
    catalog.sql(
        f"CREATE TABLE changes ({place}) WITH ('connector' = 'kafka', 'topic' = 'changes', "
        f"'properties.bootstrap.servers' = 'localhost:1', 'format' = '{format_}')"
    )
    catalog.sql(f"CREATE TABLE copy ({COLUMNS}, place BIGINT)")
    with pytest.raises(UpsertError, match="cannot be written by key with place"):
        catalog.write_changes(catalog.read_changes(spark, "changes"), "copy")


def test_records_with_and_without_a_key_are_all_looked_at(kafka: LocalKafka) -> None:
    """Also where the first without a key comes when others have been folded."""
    topic = f"mixed-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    row = {"id": 1, "n": 1}
    changes = [record(None, row, "c"), record(row, None, "d")]
    count = CHUNK_ROWS // 2 + 1
    for number in range(count):
        for change in changes:
            producer.produce(topic, change, key=None if number == count - 1 else "1")
        producer.poll(0)
    producer.flush()
    given = {"topic": topic, "properties.bootstrap.servers": kafka.bootstrap_servers}
    table = KafkaTable.of(
        "kafka",
        TableSchema.of({"id": pa.int32(), "n": pa.int32()}, primary_key=["id"]),
        given | {"format": "debezium-json"},
    )
    part = Range(TopicPartition(topic, 0), None, None, 0, 0, 2 * count)
    found = list(rows_of(table, part, ReadMode.NET, None))
    assert sum(rows.num_rows for rows in found) == 2 * count
    keyed = replace(part, end=CHUNK_ROWS)
    assert [rows.to_pylist() for rows in rows_of(table, keyed, ReadMode.NET, None)] == [
        [{**row, "_row_kind": "-D"}]
    ]


TABLES_THAT_COMBINE = {
    "sum": (
        {"merge-engine": "aggregation", "fields.seen.aggregate-function": "sum"},
        [(1, 3), (2, 0), (3, 2)],
    ),
    "max": (
        {"merge-engine": "aggregation", "fields.seen.aggregate-function": "max", "ignore-delete": "true"},
        [(1, 5), (2, 7), (3, 2)],
    ),
    "first": ({"merge-engine": "first-row", "ignore-delete": "true"}, [(1, 1), (2, 7), (3, 2)]),
}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        pytest.param(name, step, marks=[pytest.mark.long] if step == 1 or (name, step) == ("max", 3) else [])
        for name in TABLES_THAT_COMBINE
        for step in (1, 3, len(VISITS))
    ],
)
def test_a_table_combines_all_records_of_an_upsert_topic_whichever_come_together(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, name: str, step: int
) -> None:
    """It gets each change: a sum is that of the newest rows, a maximum that of all."""
    table, expected = TABLES_THAT_COMBINE[name]
    topic = f"visits-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value in upserts_of_visits():
        producer.produce(topic, value, key=key)
    producer.flush()
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    given = {**UPSERTS, "topic": topic, "properties.bootstrap.servers": kafka.bootstrap_servers}
    given["max-rows-per-trigger"] = str(step)
    for table_name, options in (("visits", given), ("combined", table)):
        clause = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        catalog.sql(f"CREATE TABLE {table_name} ({SEEN}) WITH ({clause})")
    writer = catalog.write_changes(catalog.read_changes(spark, "visits"), "combined")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert sorted(tuple(row.values()) for row in stored(catalog, "combined")) == expected


def test_a_topic_of_changes_declared_again_with_a_wider_type_is_read_on(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """As where the database has widened a column: no query remembers rows of the topic."""
    topic = f"changes-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    where = f"'topic' = '{topic}', 'properties.bootstrap.servers' = '{kafka.bootstrap_servers}'"

    def declare(type_: str) -> None:
        catalog.sql(
            f"CREATE TABLE changes (id INT PRIMARY KEY NOT ENFORCED, price {type_}) "
            f"WITH ('connector' = 'kafka', 'format' = 'debezium-json', {where})"
        )

    def write(id: int, price: str) -> None:
        producer.produce(topic, record(None, {"id": id, "price": price}, "c"), key=str(id))
        producer.flush()

    def follow() -> None:
        writer = catalog.write_changes(catalog.read_changes(spark, "changes"), "sink")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    declare("DECIMAL(4, 2)")
    catalog.sql("CREATE TABLE sink (id INT PRIMARY KEY NOT ENFORCED, price DECIMAL(4, 2))")
    write(1, "1.50")
    follow()
    write(2, "1234.50")
    with pytest.raises(Exception, match=r"is no DECIMAL\(4,2\)"):
        follow()

    catalog.sql("DROP TABLE changes")
    declare("DECIMAL(8, 2)")
    catalog.sql("ALTER TABLE sink ALTER COLUMN price TYPE DECIMAL(8, 2)")
    catalog.sql("DELETE FROM sink WHERE id = 1")  # who reads the topic from its beginning adds it again
    follow()
    assert catalog.table("sink").snapshot().scan().to_pylist() == [{"id": 2, "price": Decimal("1234.50")}]
