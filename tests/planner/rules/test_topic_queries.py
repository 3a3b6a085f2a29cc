"""Queries over topics through a real broker, with the planner's rules and without: the rows are equal."""

import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import planner
import upsert
from upsert import Catalog
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Row = dict[str, Any]


@dataclass
class Topic:
    """A topic of JSON records, and what the newest records of its keys say."""

    brokers: str
    name: str
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def new(cls, kafka: LocalKafka, partitions: int, **config: str) -> "Topic":
        topic = cls(kafka.bootstrap_servers, f"planner-{uuid.uuid4().hex[:12]}")
        create_topic(topic.connection, topic.name, partitions, config)
        return topic

    @property
    def connection(self) -> Connection:
        return Connection({"bootstrap.servers": self.brokers})

    @property
    def options(self) -> dict[str, str]:
        return {"topic": self.name, "properties.bootstrap.servers": self.brokers}

    def send(self, records: Sequence[tuple[str, Row | None]]) -> None:
        keys = [json.dumps({"word": word}).encode() for word, _ in records]
        values = [None if row is None else json.dumps(row).encode() for _, row in records]
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        produce(self.connection, self.name, [pa.table(columns)])
        for word, row in records:
            self.rows.pop(word, None)
            if row is not None:
                self.rows[word] = row


def changes_of_words(draw: random.Random, count: int) -> list[tuple[str, Row | None]]:
    """New values, tombstones also of words that are not there, and records sent twice."""
    found: list[tuple[str, Row | None]] = []
    for _ in range(count):
        word = f"w{draw.randrange(12)}"
        row = {"word": word, "n": draw.choice([None, 1, 2]), "d": draw.choice([None, "a", "b"])}
        found += [(word, None if draw.random() < 0.25 else row)] * draw.choice([1, 1, 2])
    return found


def rows_of(catalog: Catalog, table: str) -> list[Row]:
    found: list[Row] = catalog.table(table).snapshot().scan().sort_by("word").to_pylist()
    return found


def expected(words: Mapping[str, Row]) -> list[Row]:
    return [
        {"word": word, "twice": row["n"] and row["n"] * 2, "label": row["d"] or "none"}
        for word, row in sorted(words.items())
        if word > "w1"
    ]


def debezium(draw: random.Random, rows: dict[str, Row], count: int) -> list[bytes]:
    """Changes of a database table that holds these rows, which follow."""
    found = []
    for _ in range(count):
        word = f"w{draw.randrange(12)}"
        before = rows.pop(word, None)
        if before is None or draw.random() < 0.7:
            rows[word] = {"word": word, "n": draw.randrange(9), "d": draw.choice([None, "c"])}
        after = rows.get(word)
        operation = "d" if after is None else "c" if before is None else "u"
        found.append(json.dumps({"before": before, "after": after, "op": operation}).encode())
    return found


def with_options(columns: str, connector: str, options: Mapping[str, str]) -> str:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in {"connector": connector, **options}.items())
    return f"({columns}, PRIMARY KEY (word) NOT ENFORCED) WITH ({listed})"


def run(df: DataFrame, catalog: Catalog, table: str, checkpoints: Path) -> None:
    writer = catalog.write_changes(df, table).option("checkpointLocation", str(checkpoints / table))
    writer.trigger(availableNow=True).start().awaitTermination()


class Followers:
    """Queries that go on: each is started when it is first asked for, and is stopped with the test."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.queries: dict[str, StreamingQuery] = {}

    def bring_up_to_date(self, df: DataFrame, catalog: Catalog, table: str) -> None:
        if table not in self.queries:
            checkpoint = str(self.checkpoints / table)
            self.queries[table] = (
                catalog.write_changes(df, table).option("checkpointLocation", checkpoint).start()
            )
        self.queries[table].processAllAvailable()


@pytest.fixture
def followers(tmp_path: Path) -> Iterator[Followers]:
    found = Followers(tmp_path)
    yield found
    for query in found.queries.values():
        query.stop()


def test_sink_has_the_same_rows_with_a_normalizer_and_without(
    spark: SparkSession, kafka: LocalKafka, followers: Followers, tmp_path: Path
) -> None:
    """Records of a careless producer first, then those that a query makes of changes in a database."""
    draw = random.Random(7)
    words = Topic.new(kafka, partitions=2, **{"cleanup.policy": "compact"})
    changes = Topic.new(kafka, partitions=1)
    folder = tmp_path / "tables"
    without, normalized = (
        Catalog(folder, optimize=planner.optimize),
        Catalog(folder, optimize=lambda df: planner.optimize(df)),
    )
    columns = "word STRING, n BIGINT, d STRING"
    formats = {"key.format": "json", "value.format": "json", "max-rows-per-trigger": "50"}
    without.sql(f"CREATE TABLE words {with_options(columns, 'upsert-kafka', words.options | formats)}")
    cdc = changes.options | {"format": "debezium-json"}
    without.sql(f"CREATE TABLE changes {with_options(columns, 'kafka', cdc)}")
    for table in ("direct", "normalized"):
        without.sql(
            f"CREATE TABLE {table} (word STRING PRIMARY KEY NOT ENFORCED, twice BIGINT, label STRING)"
        )

    def copy_and_compare() -> None:
        for table, catalog in (("direct", without), ("normalized", normalized)):
            read = catalog.read_changes(spark, "words").filter("word > 'w1'")
            result = read.selectExpr("n * 2 AS twice", "coalesce(d, 'none') AS label", "word")
            followers.bring_up_to_date(result, catalog, table)
            assert rows_of(catalog, table) == expected(words.rows), table

    words.send(changes_of_words(draw, 60))
    copy_and_compare()
    values = pa.array(debezium(draw, words.rows, 60), pa.binary())
    no_keys = pa.array([None] * len(values), pa.binary())
    # the database has the rows that the topic has: its changes may be applied to them
    produce(changes.connection, changes.name, [pa.table({"key": no_keys, "value": values})])
    run(without.read_changes(spark, "changes"), without, "words", tmp_path)
    copy_and_compare()
    (state,) = (folder / "words" / "state").iterdir()
    assert state.name == query_id(tmp_path / "normalized"), "the other query must have nothing to remember"


@pytest.mark.long
def test_upserts_are_made_whole_where_a_filter_or_the_users_normalizer_needs_that(
    spark: SparkSession, kafka: LocalKafka, followers: Followers, tmp_path: Path
) -> None:
    """Rows enter and leave the filter with an update: without `-U` the sink would keep the ones that left."""
    draw = random.Random(11)
    words = Topic.new(kafka, partitions=2, **{"cleanup.policy": "compact"})
    catalog = Catalog(tmp_path / "tables", optimize=planner.optimize)
    columns = "word STRING, n BIGINT, d STRING, at BIGINT METADATA FROM 'offset' VIRTUAL"
    formats = {"key.format": "json", "value.format": "json", "max-rows-per-trigger": "50"}
    catalog.sql(f"CREATE TABLE words {with_options(columns, 'upsert-kafka', words.options | formats)}")
    for table in ("made_whole", "normalized"):
        catalog.sql(f"CREATE TABLE {table} (word STRING PRIMARY KEY NOT ENFORCED, n BIGINT, d STRING)")

    for _ in range(2):
        words.send(changes_of_words(draw, 60))
        upserts = catalog.read_changes(spark, "words", changelog="upsert")
        twice = upsert.normalize(catalog.read_changes(spark, "words"), key=["word"], order_by="at")
        for table, changes in (("made_whole", upserts), ("normalized", twice)):
            chosen = changes.filter("n > 1").select("word", "n", "d", "_row_kind")
            followers.bring_up_to_date(chosen, catalog, table)
            wanted = [row for _, row in sorted(words.rows.items()) if row["n"] == 2]
            assert rows_of(catalog, table) == wanted, table


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])


def read_once(df: DataFrame, checkpoint: Path) -> tuple[list[tuple[Any, ...]], int]:
    """All rows of a stream of what is there, and how many records it took to find them."""
    found: list[tuple[Any, ...]] = []
    writer = df.writeStream.foreachBatch(lambda batch, _: found.extend(map(tuple, batch.collect())))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(found), sum(progress.numInputRows for progress in query.recentProgress)


def test_narrowed_read_gives_the_rows_that_the_filter_keeps(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    """Times that do not grow: the first record of the time asked for comes late, an older one after it."""
    topic = Topic.new(kafka, partitions=3, **{"retention.ms": "-1"})
    count = 90
    times = [1_000 + (i * 37) % 50 if i < 40 else 2_000 + (i * 53) % 1_500 for i in range(count)]
    values = [json.dumps({"user": i}).encode() for i in range(count)]
    records = pa.table(
        {
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([i % 3 for i in range(count)], pa.int32()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    produce(topic.connection, topic.name, [records])
    upsert.register(spark)
    metadata = (
        "part SMALLINT METADATA FROM 'partition' VIRTUAL, place BIGINT METADATA FROM 'offset' VIRTUAL, "
        "at TIMESTAMP METADATA FROM 'timestamp' VIRTUAL"
    )
    reader = spark.readStream.format("kafka-changelog").options(**topic.options, format="json")
    df = (
        reader.option("columns", f"user BIGINT, {metadata}")
        .load()
        .selectExpr("user", "part AS p", "place", "at")
        .filter("p IN (0, 2) AND place BETWEEN 3 AND 24 AND at >= '1970-01-01 00:00:02.5' AND user % 2 = 0")
    )
    narrowed = planner.optimize(df)
    assert narrowed is not df
    rows, all_records = read_once(df, tmp_path / "as it is")
    same_rows, fewer_records = read_once(narrowed, tmp_path / "narrowed")
    assert same_rows == rows
    assert [row[0] for row in rows] == [
        i for i in range(0, count, 2) if i % 3 != 1 and 3 <= i // 3 <= 24 and times[i] >= 2_500
    ]
    assert (all_records, len(rows) > 3) == (count, True)
    assert fewer_records <= 2 * 22
