"""Topics as Spark streams and batches: restarts, replays, aggregates, what is refused, several executors."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import LOCAL_CLUSTER, run_spark_script
from upsert.kafka.client.admin import group_offsets, latest_offsets
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.declaration import given_options
from upsert.kafka.frames import read, read_changes
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.table import KafkaTable
from upsert.registration import register
from upsert.schema import Column, TableSchema

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Row = dict[str, Any]
Rows = list[Row]
COMPACTED = {"cleanup.policy": "compact"}
COLUMNS = "word STRING, n BIGINT, place BIGINT METADATA FROM 'offset' VIRTUAL"


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(partitions=2, **COMPACTED)


def put(connection: Connection, topic: str, rows: list[tuple[str, int | None]]) -> None:
    """One record a row, None for a tombstone; a key stays in one partition."""
    columns = {
        "key": [json.dumps({"word": word}).encode() for word, _ in rows],
        "value": pa.array(
            [None if n is None else json.dumps({"word": w, "n": n}).encode() for w, n in rows], pa.binary()
        ),
        "partition": pa.array([sum(word.encode()) % 2 for word, _ in rows], pa.int32()),
    }
    produce(connection, topic, [pa.table(columns)])


def options(connection: Connection, topic: str, **others: str) -> dict[str, str]:
    own = {
        "topic": topic,
        "kafka.bootstrap.servers": connection.bootstrap_servers,
        "key.format": "json",
        "value.format": "json",
    }
    return own | {name.replace("__", "-").replace("_", "."): value for name, value in others.items()}


def words(connection: Connection, topic: str, **others: str) -> KafkaTable:
    schema = TableSchema(
        (
            Column("word", pa.string()),
            Column("n", pa.int64()),
            Column("place", pa.int64(), metadata="offset"),
        ),
        ("word",),
    )
    return KafkaTable.of(UPSERT, schema, options(connection, topic, **others), name="words")


class Batches:
    """Runs a query to the end of what is there, on one checkpoint, and keeps the rows of each micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.rows: dict[int, Rows] = {}
        self.queries: list[StreamingQuery] = []

    def run(self, df: DataFrame) -> Rows:
        """The new rows; a batch that was there before must come again as it was."""

        def keep(batch: DataFrame, number: int) -> None:
            found = [row.asDict() for row in batch.collect()]
            self.rows[number] = found

        before = set(self.rows)
        writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        self.queries.append(query)
        query.awaitTermination()
        return [row for number in sorted(self.rows) if number not in before for row in self.rows[number]]

    def forget_last_commit(self) -> None:
        """As after a crash between the sink and Spark's own commit: the last batch runs again."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    found = Batches(tmp_path)
    yield found
    for query in found.queries:
        query.stop()


def apply(state: dict[str, Row], changes: Rows) -> None:
    """Apply a full changelog; each change must be one of the state that it meets."""
    for change in changes:
        row = {name: value for name, value in change.items() if name != "_row_kind"}
        if change["_row_kind"] in ("+I", "+U"):
            assert row["word"] not in state
            state[row["word"]] = row
        else:
            assert state.pop(row["word"]) == row


def random_rows(rng: random.Random, count: int) -> list[tuple[str, int | None]]:
    return [(rng.choice("abcdefgh"), rng.choice([None, 1, 2, 3])) for _ in range(count)]


def test_upserts_become_a_full_changelog_through_restarts_and_a_replay(
    spark: SparkSession, connection: Connection, topic: str, tmp_path: Path, batches: Batches
) -> None:
    rng = random.Random(4)
    table = words(connection, topic, state_path=str(tmp_path / "state"), max__rows__per__trigger="12")
    model: dict[str, int] = {}
    for round_ in range(3):
        rows = random_rows(rng, 20)
        put(connection, topic, rows)
        for word, n in rows:
            model.pop(word, None) if n is None else model.update({word: n})
        if round_ == 2:
            batches.forget_last_commit()
        batches.run(read_changes(spark, table))
        state: dict[str, Row] = {}
        for number in sorted(batches.rows):
            apply(state, batches.rows[number])
        assert {word: row["n"] for word, row in state.items()} == model
    assert len(batches.rows) > 5
    assert {row["_row_kind"] for rows in batches.rows.values() for row in rows} == {"+I", "-U", "+U", "-D"}
    progress = batches.queries[-1].lastProgress
    assert progress is not None
    assert json.loads(progress["sources"][0]["endOffset"])["topics"][topic]["partitions"]


def test_upserts_folded_to_the_newest_row_of_a_key(
    spark: SparkSession, connection: Connection, topic: str, batches: Batches
) -> None:
    """As a Spark user writes it, with columns as text; and as one does who gives a schema."""
    register(spark)
    given = options(connection, topic, changelog="upsert", primary__key="word")
    reader = spark.readStream.format("upsert-kafka").options(**given)
    columns = reader.option("columns", COLUMNS).load()
    assert [(f.name, f.nullable) for f in columns.schema] == [
        ("word", False),
        ("n", True),
        ("place", True),
        ("_row_kind", False),
    ]
    put(connection, topic, [("a", 1), ("b", 1), ("a", 2), ("b", None), ("c", None), ("a", 3)])
    found = {row["word"]: (row["n"], row["_row_kind"]) for row in batches.run(columns)}
    assert found == {"a": (3, "+U"), "b": (None, "-D"), "c": (None, "-D")}
    put(connection, topic, [("b", 7)])
    declared = spark.readStream.format("upsert-kafka").options(**given)
    by_schema = declared.schema("word STRING, n BIGINT")
    with pytest.raises(PySparkException, match=r"must end with the column _row_kind STRING"):
        batches.run(by_schema.load())
    text = "word STRING, place INT COMMENT 'METADATA FROM ''offset'' VIRTUAL', n BIGINT, _row_kind STRING"
    rows = batches.run(declared.schema(text.replace("''offset''", "\\'offset\\'")).load())
    assert rows == [{"word": "b", "place": 2, "n": 7, "_row_kind": "+U"}]


def test_rows_that_are_only_added_are_aggregated_by_spark_itself(
    spark: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Two topics in one table; more tasks than partitions; a watermark on the time of the records."""
    table = KafkaTable.of(
        PLAIN,
        TableSchema(
            (
                Column("word", pa.string()),
                Column("n", pa.int64()),
                Column("ts", pa.timestamp("us", "UTC"), metadata="timestamp", virtual=True),
            )
        ),
        {**options(connection, topic, scan_parallelism="5"), "key.fields": "word"},
    )
    put(connection, topic, [(word, n) for n in range(50) for word in "abc"])
    rows = read_changes(spark, table)
    assert rows.columns == ["word", "n", "ts"]
    counts = rows.withWatermark("ts", "1 minute").groupBy("word").agg(F.sum("n").alias("total"))
    name = f"totals_{topic.replace('-', '_')}"
    writer = counts.writeStream.format("memory").queryName(name).outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert {row.word: row.total for row in spark.table(name).collect()} == dict.fromkeys("abc", 1225)
    assert read_changes(spark, table).isStreaming
    assert read(spark, table).rdd.getNumPartitions() == 6


def test_a_batch_has_the_rows_that_are_not_deleted(
    spark: SparkSession, connection: Connection, topic: str
) -> None:
    put(connection, topic, [("a", 1), ("b", 1), ("a", 2), ("b", None), ("c", 5)])
    table = words(connection, topic)
    found = read(spark, table)
    assert sorted(map(tuple, found.select("word", "n").collect())) == [("a", 2), ("c", 5)]
    assert found.columns == ["word", "n", "place"]
    register(spark)
    reader = spark.read.format("upsert-kafka").options(**options(connection, topic))
    kinds = reader.option("columns", "word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED").load()
    assert {row["_row_kind"] for row in kinds.collect()} == {"+I"}


def test_a_topic_without_records_is_an_empty_table(
    spark: SparkSession, connection: Connection, topic: str, batches: Batches
) -> None:
    table = words(connection, topic, changelog="upsert")
    assert read(spark, table).collect() == []
    assert batches.run(read_changes(spark, table)) == []
    put(connection, topic, [("a", 1)])
    assert [row["word"] for row in batches.run(read_changes(spark, table))] == ["a"]


def test_what_cannot_be_read_is_refused_in_words_that_reach_the_user(
    spark: SparkSession, connection: Connection, topic: str, batches: Batches
) -> None:
    given = options(connection, topic, columns="word STRING, n BIGINT", primary__key="word")
    register(spark)
    with pytest.raises(PySparkException, match=r"'changelog' = 'all' remembers the newest row .* set it"):
        batches.run(spark.readStream.format("upsert-kafka").options(**given).load())


def test_secrets_are_not_in_the_plan(
    spark: SparkSession, connection: Connection, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = words(connection, topic, changelog="upsert", properties_ssl_key_pem="hunter2")
    register(spark)
    stream = spark.readStream.format("upsert-kafka").options(**given_options(table)).load()
    stream.explain(extended=True)
    printed = capsys.readouterr().out
    assert "upsert-kafka" in printed
    assert "hunter2" not in printed


def test_one_query_may_read_a_topic_twice(
    spark: SparkSession, connection: Connection, topic: str, tmp_path: Path, batches: Batches
) -> None:
    """Each of the two streams remembers its own images, though query and folder are the same."""
    table = words(connection, topic, state_path=str(tmp_path / "state"))
    put(connection, topic, [("a", 1), ("a", 2)])
    slow = read_changes(spark, table, max_rows_per_trigger=1)
    rows = batches.run(
        read_changes(spark, table).withColumn("by", F.lit(1)).union(slow.withColumn("by", F.lit(2)))
    )
    expected = [(1, "+I"), (1, "-U"), (2, "+U")]
    for stream in (1, 2):
        assert [(row["n"], row["_row_kind"]) for row in rows if row["by"] == stream] == expected


def test_deleting_topics_are_warned_of_where_the_user_sees_it(
    spark: SparkSession, connection: Connection, new_topic: Callable[..., str]
) -> None:
    with pytest.warns(UserWarning, match="should have cleanup.policy 'compact', and has 'delete'"):
        read_changes(spark, words(connection, new_topic(), changelog="upsert"))


@pytest.mark.long
def test_several_executors_share_a_topic(connection: Connection, topic: str, tmp_path: Path) -> None:
    """Two executor processes take turns at the images of a partition, batch by batch."""
    script = Path(__file__).with_name("changelog_script.py")
    put(connection, topic, [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", None), ("a", 3), ("c", 1)])
    arguments = (connection.bootstrap_servers, topic, tmp_path)
    output = run_spark_script(script, *arguments, master=LOCAL_CLUSTER)
    (line,) = [line for line in output.splitlines() if line.startswith("rows: ")]
    rows = json.loads(line.removeprefix("rows: "))
    by_key = {word: [(kind, n) for w, n, kind in rows if w == word] for word in "abc"}
    assert by_key == {
        "a": [("+I", 1), ("-U", 1), ("+U", 2), ("-U", 2), ("+U", 3)],
        "b": [("+I", 1), ("-D", 1)],
        "c": [("+I", 1)],
    }


def test_stream_commits_what_it_has_processed_to_its_group_and_another_starts_there(
    spark: SparkSession, connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Also its last micro-batch, for which Spark never calls `commit`; a checkpoint outweighs the group."""
    group = f"group-of-{topic}"

    def run(checkpoint: str, **others: str) -> list[int]:
        given = options(connection, topic, properties_group_id=group, max__rows__per__trigger="2", **others)
        schema = TableSchema((Column("word", pa.string()), Column("n", pa.int64())))
        table = KafkaTable.of(PLAIN, schema, {**given, "key.fields": "word"})
        seen: list[int] = []

        def keep(batch: DataFrame, number: int) -> None:
            seen.extend(row.n for row in batch.collect())

        writer = read_changes(spark, table).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(seen)

    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    # a broker that meets its first group makes a topic first, for longer than a commit is waited for
    assert group_offsets(connection, group, places) == {}
    put(connection, topic, [(word, n) for n in range(3) for word in "ab"])
    assert run("one") == [0, 0, 1, 1, 2, 2]
    assert group_offsets(connection, group, places) == dict.fromkeys(places, 3)
    put(connection, topic, [("a", 3)])
    assert run("another", scan_startup_mode="group-offsets") == [3]
    assert group_offsets(connection, group, places) == latest_offsets(connection, places)
    put(connection, topic, [("b", 4)])
    assert run("one") == [3, 4]
