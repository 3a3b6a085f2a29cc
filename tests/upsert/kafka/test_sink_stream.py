"""The sink through Spark: batches, streams, update mode, replays of a micro-batch, and what is refused."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import upsert
from tests.upsert.kafka.written import records_in, table_of, values_by_key
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.client.admin import topics
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.frames import distribution_of, write_changes
from upsert.kafka.sink import declared_for_write
from upsert.kafka.table import KafkaTable

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NewTopic = Callable[..., str]
Options = dict[str, str]
COMPACT = {"cleanup.policy": "compact"}
ONCE = {"sink.delivery-guarantee": "exactly-once", "sink.transactional-id-prefix": "test"}


@pytest.fixture
def to(connection: Connection, new_topic: NewTopic) -> Options:
    """Options of a write into a topic of two partitions, with the columns of the query."""
    return {
        "topic": new_topic(2, **COMPACT),
        "primary-key": "word",
        "key.format": "json",
        "value.format": "json",
        "kafka.bootstrap.servers": connection.bootstrap_servers,
    }


class Clicks:
    """A topic of words, and the stream of them: two partitions, so two tasks."""

    def __init__(self, spark: SparkSession, connection: Connection, topic: str) -> None:
        upsert.register(spark)
        self._connection = connection
        self._topic = topic
        self._spark = spark

    def put(self, *words: str) -> None:
        values = [json.dumps({"word": word, "n": n}).encode() for n, word in enumerate(words)]
        partitions = pa.array([ord(word[0]) % 2 for word in words], pa.int32())
        produce(self._connection, self._topic, [pa.table({"value": values, "partition": partitions})])

    @property
    def stream(self) -> DataFrame:
        given = {
            "columns": "word STRING, n BIGINT",
            "topic": self._topic,
            "properties.bootstrap.servers": self._connection.bootstrap_servers,
            "value.format": "json",
        }
        return self._spark.readStream.format("kafka-changelog").options(**given).load()


@pytest.fixture
def clicks(spark: SparkSession, connection: Connection, new_topic: NewTopic) -> Clicks:
    return Clicks(spark, connection, new_topic(2))


def run(writer: DataStreamWriter, folder: Path) -> None:
    """Write all that there is."""
    writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()


def forget_commit(folder: Path, batch: int) -> None:
    """The checkpoint as it is when the driver dies before it has noted that a micro-batch is done."""
    (folder / "commits" / str(batch)).unlink()
    (folder / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def test_batch_write_reads_back(spark: SparkSession, connection: Connection, to: Options) -> None:
    """Columns, key and metadata of the query; the topic is created."""
    upsert.register(spark)
    to |= {
        "topic": f"{to['topic']}-new",
        "topic.partitions": "3",
        "columns": "k_b BIGINT, v INT, at BIGINT METADATA FROM 'timestamp', k_a STRING",
        "primary-key": "k_a, k_b",
        "key.fields-prefix": "k_",
        "value.fields-include": "EXCEPT_KEY",
    }
    rows = spark.createDataFrame(
        [("x", 1, 7, 1_600_000_000_123, "+I"), ("y", 2, 8, 1_600_000_000_124, "+U"), ("x", 1, 9, None, "-D")],
        "k_a STRING, k_b INT, v INT, at BIGINT, _row_kind STRING",
    )
    rows.coalesce(1).write.format("upsert-kafka").options(**to).mode("append").save()
    keys = [(r["key"], r["timestamp"]) for r in records_in(connection, to["topic"], 3) if r["value"]]
    assert sorted(keys) == [
        (b'{"a":"x","b":1}', 1_600_000_000_123),
        (b'{"a":"y","b":2}', 1_600_000_000_124),
    ]
    assert topics(connection, [to["topic"]])[to["topic"]].partitions == 3
    found = spark.read.format("upsert-kafka").options(**to).option("row-kind", "false").load().collect()
    assert [tuple(row) for row in found] == [(2, 8, 1_600_000_000_124, "y")]


def test_stream_write_appends_and_a_replay_is_skipped(
    connection: Connection, clicks: Clicks, to: Options, tmp_path: Path
) -> None:
    """A raw writeStream: each row a record, its task known by a checksum; other tasks are refused."""
    clicks.put("a", "b", "a", "c")
    writer = clicks.stream.writeStream.format("upsert-kafka")
    run(writer.options(**to | ONCE), tmp_path)
    clicks.put("a", "b")
    forget_commit(tmp_path, 0)
    run(writer.options(**to | ONCE), tmp_path)
    expected = {"a": [0, 2, 0], "b": [1, 1], "c": [3]}
    assert values_by_key(records_in(connection, to["topic"], 6), "word", "n") == expected
    forget_commit(tmp_path, 1)
    other = clicks.stream.coalesce(1).writeStream.format("upsert-kafka").options(**to | ONCE)
    with pytest.raises(StreamingQueryException, match=r"a repeated batch should be the same.*write_changes"):
        run(other, tmp_path)
    records_in(connection, to["topic"], 6)


def counts(clicks: Clicks) -> DataFrame:
    return clicks.stream.groupBy("word").count()


def test_aggregate_in_update_mode_goes_on_after_a_restart(
    connection: Connection, clicks: Clicks, to: Options, tmp_path: Path
) -> None:
    """UK01's aggregate, exactly once: a micro-batch that comes again writes nothing."""
    clicks.put("a", "b", "a")
    run(upsert.write_upsert(counts(clicks), to | ONCE), tmp_path)
    clicks.put("a", "c")
    forget_commit(tmp_path, 0)
    run(upsert.write_upsert(counts(clicks), to | ONCE), tmp_path)
    found = records_in(connection, to["topic"], 4)
    assert values_by_key(found, "word", "count") == {"a": [2, 3], "b": [1], "c": [1]}


@pytest.mark.long
def test_aggregate_at_least_once_converges(
    connection: Connection, clicks: Clicks, to: Options, tmp_path: Path
) -> None:
    """Also where the sink has fewer columns of another width than the query's key."""
    clicks.put("a", "b", "a")
    to |= {"columns": "word STRING, count BIGINT", "sink.parallelism": "3"}
    for _ in range(2):
        run(upsert.write_upsert(counts(clicks), to), tmp_path)
        forget_commit(tmp_path, 0)
    records = records_in(connection, to["topic"], 4)
    assert table_of(records, "word", "count") == Counter("aba")


def test_changes_of_any_order_are_folded_by_key(
    spark: SparkSession, connection: Connection, clicks: Clicks, to: Options, tmp_path: Path
) -> None:
    """`write_changes`: an INT key is hashed as the table's BIGINT; of two values the sequence decides."""
    clicks.put(*"abcabc")
    rows = clicks.stream.selectExpr("ascii(word) AS id", "n", "'+U' AS _row_kind")
    columns = {"columns": "id BIGINT, n BIGINT", "primary-key": "id", "sequence.field": "n"}
    table = declared_for_write("upsert-kafka", to | columns | ONCE, rows.schema)
    run(write_changes(rows, table), tmp_path)
    forget_commit(tmp_path, 0)
    run(write_changes(rows, table), tmp_path)
    assert values_by_key(records_in(connection, to["topic"], 3), "id", "n") == {97: [3], 98: [4], 99: [5]}
    other = declared_for_write("upsert-kafka", to | columns | ONCE | {"sink.parallelism": "3"}, rows.schema)
    forget_commit(tmp_path, 0)
    with pytest.raises(
        StreamingQueryException, match=r"'2 tasks by key' and has 3 now; set 'sink\.parallelism'"
    ):
        run(write_changes(rows, other), tmp_path)


@pytest.mark.long
def test_query_without_rows_writes_nothing(
    connection: Connection, clicks: Clicks, to: Options, tmp_path: Path
) -> None:
    """Whether Spark finds that out while it plans or while it runs."""
    clicks.put("a", "b")
    table = declared_for_write("upsert-kafka", to | ONCE, clicks.stream.schema)
    for number, condition in enumerate(["false", "n < 0"]):
        run(write_changes(clicks.stream.where(condition), table), tmp_path / f"changes-{number}")
        run(upsert.write_upsert(clicks.stream.where(condition), table), tmp_path / f"upserts-{number}")
    records_in(connection, to["topic"], 0)


def append_table(connection: Connection, topic: str, **options: str) -> KafkaTable:
    given = {"topic": topic, "properties.bootstrap.servers": connection.bootstrap_servers, "format": "json"}
    return KafkaTable.of(
        "kafka", upsert.TableSchema.of({"word": pa.string(), "n": pa.int64()}), given | options
    )


def test_append_sink_keeps_rows_and_tasks(
    connection: Connection, clicks: Clicks, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    clicks.put("a", "b", "a")
    run(write_changes(clicks.stream, append_table(connection, topic, **{"sink.parallelism": "1"})), tmp_path)
    found: list[Any] = [json.loads(r["value"]) for r in records_in(connection, topic, 3)]
    assert Counter(row["word"] for row in found) == Counter("aba")
    assert {r["key"] for r in records_in(connection, topic, 3)} == {None}


def test_writes_that_are_refused_before_a_query_starts(
    spark: SparkSession, connection: Connection, clicks: Clicks, to: Options
) -> None:
    batch = spark.createDataFrame([("a", 1)], "word STRING, n BIGINT")
    with pytest.raises(ConfigurationError, match=r"a batch into 'upsert-kafka'; use df\.write"):
        upsert.write_upsert(batch, to)
    distribution = distribution_of(declared_for_write("upsert-kafka", to, batch.schema), batch)
    with pytest.raises(ConfigurationError, match="must be run by their query"):
        distribution.write(batch, 0)
    with pytest.raises(ConfigurationError, match="got a stream into 'kafka'"):
        upsert.write_upsert(clicks.stream, append_table(connection, to["topic"]))
    with pytest.raises(
        ConfigurationError, match=r"got a batch one; use df\.write\.format\('kafka-changelog'\)"
    ):
        write_changes(batch, append_table(connection, to["topic"]))
    with pytest.raises(SchemaError, match=r"the query lacks column\(s\) n"):
        upsert.write_upsert(clicks.stream.drop("n"), to | {"columns": "word STRING, n BIGINT"})
    with pytest.raises(ConfigurationError, match=r"unknown option 'sink\.paralelism'; did you mean"):
        upsert.write_upsert(clicks.stream, to | {"sink.paralelism": "1"})


def test_complete_mode_is_refused(clicks: Clicks, to: Options, tmp_path: Path) -> None:
    clicks.put("a")
    writer = counts(clicks).writeStream.outputMode("complete").format("upsert-kafka").options(**to)
    with pytest.raises(StreamingQueryException, match=r"cannot be overwritten.*upsert\.write_upsert"):
        run(writer, tmp_path)


def test_topic_that_deletes_warns_its_writer(
    connection: Connection, clicks: Clicks, new_topic: NewTopic, to: Options
) -> None:
    with pytest.warns(UserWarning, match=r"should have cleanup\.policy 'compact', and has 'delete'"):
        upsert.write_upsert(clicks.stream, to | {"topic": new_topic(1)})
