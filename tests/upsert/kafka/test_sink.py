"""The writer's two halves, called as Spark calls them, on a real broker."""

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tests.upsert.kafka.written import records_in, values_by_key
from upsert import types
from upsert.errors import ConfigurationError, SchemaError, UpsertError
from upsert.kafka.client.admin import cleanup_policies, topics
from upsert.kafka.client.connection import Connection
from upsert.kafka.sink import BatchWriter, StreamWriter, TaskResult
from upsert.kafka.table import KafkaTable
from upsert.kafka.topics import partitions_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark.columns import spark_schema

pytestmark = pytest.mark.kafka

NewTopic = Callable[..., str]
WORDS = TableSchema.of({"word": pa.string(), "count": pa.int64()}, primary_key=["word"])
COMPACT = {"cleanup.policy": "compact"}


def table_on(
    connection: Connection,
    topic: str,
    schema: TableSchema = WORDS,
    connector: str = "upsert-kafka",
    **options: str,
) -> KafkaTable:
    given = {"topic": topic, "value.format": "json"} | (
        {"key.format": "json"} if connector != "kafka" else {}
    )
    given |= {f"properties.{name}": text for name, text in connection.properties.items()}
    own = {name.replace("__", "-").replace("_", "."): text for name, text in options.items()}
    return KafkaTable.of(connector, schema, given | own, name="t")


def plain(schema: TableSchema, *names: str) -> TableSchema:
    columns = [c for c in schema.columns if not names or c.name in names]
    return TableSchema(tuple(Column(c.name, c.type) for c in columns))


def struct(table: KafkaTable, *names: str) -> StructType:
    """The columns of a query: all of the table, or those named, and ``_row_kind``."""
    return spark_schema(plain(table.schema, *names), row_kind=True)


def rows_of(schema: TableSchema, rows: Sequence[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Rows that begin with their kind, in chunks of three."""
    fields = [pa.field(ROW_KIND_COLUMN, pa.string()), *schema.arrow]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return iter(pa.table(arrays, names=[f.name for f in fields]).to_batches(max_chunksize=3))


def write(table: KafkaTable, rows: Sequence[Sequence[Any]], *names: str) -> TaskResult:
    """One task writes rows, and the driver commits them."""
    writer = pickle.loads(pickle.dumps(StreamWriter(table, struct(table, *names), overwrite=False)))
    message = pickle.loads(pickle.dumps(writer.write(rows_of(plain(table.schema, *names), rows))))
    StreamWriter(table, struct(table, *names), overwrite=False).commit([message], 0)
    return message


def test_word_counts_become_a_record_each(connection: Connection, new_topic: NewTopic) -> None:
    """UK01."""
    topic = new_topic(4, **COMPACT)
    counts = [
        ("good", 1),
        ("good", 2),
        ("study", 1),
        ("day", 1),
        ("day", 2),
        ("up", 1),
        ("good", 3),
        ("boy", 1),
    ]
    rows = [("+I" if n == 1 else "+U", word, n) for word, n in counts]
    assert write(table_on(connection, topic), rows) == TaskResult(8)
    assert values_by_key(records_in(connection, topic, 8), "word", "count") == {
        "good": [1, 2, 3],
        "study": [1],
        "day": [1, 2],
        "up": [1],
        "boy": [1],
    }


def test_changes_of_a_debezium_topic_become_upserts(connection: Connection, new_topic: NewTopic) -> None:
    """FL01: a deletion is a tombstone, a -U before its +U nothing."""
    topic = new_topic(2, **COMPACT)
    users = TableSchema.of(
        {"user_id": pa.int64(), "user_name": pa.string(), "region": pa.string()}, primary_key=["user_id"]
    )
    rows = [
        ("+I", 100, "Bob", "Beijing"),
        ("+I", 101, "Alice", "Shanghai"),
        ("+I", 102, "Greg", "Berlin"),
        ("+I", 103, "Richard", "Berlin"),
        ("-U", 101, "Alice", "Shanghai"),
        ("+U", 101, "Alice", "Hangzhou"),
        ("-D", 103, "Richard", "Berlin"),
    ]
    write(table_on(connection, topic, users), rows)
    assert values_by_key(records_in(connection, topic, 6), "user_id", "region") == {
        100: ["Beijing"],
        101: ["Shanghai", "Hangzhou"],
        102: ["Berlin"],
        103: ["Berlin", None],
    }


def test_metadata_is_written(connection: Connection, new_topic: NewTopic) -> None:
    """MD01: timestamp and headers; the VIRTUAL columns are no part of the query."""
    topic = new_topic()
    columns = (
        Column("physical_1", pa.string()),
        Column("physical_2", pa.int32()),
        Column("timestamp-type", pa.string(), metadata="timestamp-type", virtual=True),
        Column("timestamp", types.TIMESTAMP, metadata="timestamp"),
        Column("leader-epoch", pa.int32(), metadata="leader-epoch", virtual=True),
        Column("headers", pa.map_(pa.string(), pa.binary()), metadata="headers"),
        Column("partition", pa.int32(), metadata="partition", virtual=True),
        Column("topic", pa.string(), metadata="topic", virtual=True),
        Column("physical_3", pa.bool_()),
    )
    table = table_on(connection, topic, TableSchema(columns), "kafka")
    times = [datetime(2020, 3, day, 13, 12, 11, 123_000, tzinfo=UTC) for day in (8, 9)]
    rows = [
        ("+I", "data 1", 1, times[0], {"k1": b"\xc0\xff\xee", "k2": b"\xba\xbe\x01"}, True),
        ("+I", "data 2", 2, times[1], None, False),
    ]
    write(table, rows, "physical_1", "physical_2", "timestamp", "headers", "physical_3")
    found = records_in(connection, topic, 2)
    assert [json.loads(r["value"])["physical_1"] for r in found] == ["data 1", "data 2"]
    assert [r["timestamp"] for r in found] == [1583673131123, 1583759531123]
    assert {r["timestamp-type"] for r in found} == {"CreateTime"}
    assert [[(h["key"], h["value"]) for h in r["headers"]] for r in found] == [
        [("k1", b"\xc0\xff\xee"), ("k2", b"\xba\xbe\x01")],
        [],
    ]


MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys and what Java's clients hash them to, from Kafka's own tests."""


def test_keys_lie_where_java_puts_them(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(7, **COMPACT)
    write(table_on(connection, topic, key_format="raw"), [("+I", key, 1) for key in MURMUR2])
    found = {r["key"].decode(): r["partition"] for r in records_in(connection, topic, len(MURMUR2))}
    assert found == {key: (hash_ & 0x7FFFFFFF) % 7 for key, hash_ in MURMUR2.items()}


def test_rows_choose_their_partition(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    schema = TableSchema((Column("n", pa.int64()), Column("p", pa.int32(), metadata="partition")))
    write(table_on(connection, topic, schema, "kafka"), [("+I", n, n % 3) for n in range(9)])
    assert all(json.loads(r["value"])["n"] % 3 == r["partition"] for r in records_in(connection, topic, 9))


def test_rows_choose_their_topic(connection: Connection, new_topic: NewTopic) -> None:
    one, other = new_topic(1, **COMPACT), new_topic(1, **COMPACT)
    schema = TableSchema((*WORDS.columns, Column("where", pa.string(), metadata="topic")), ("word",))
    table = table_on(connection, f"{one};{other}", schema)
    write(table, [("+I", "a", 1, one), ("+I", "b", 2, other), ("-D", "c", None, other)])
    assert values_by_key(records_in(connection, one, 1), "word", "count") == {"a": [1]}
    assert values_by_key(records_in(connection, other, 2), "word", "count") == {"b": [2], "c": [None]}


def test_buffer_writes_the_last_row_of_a_key(connection: Connection, new_topic: NewTopic) -> None:
    """UK06."""
    topic = new_topic(1, **COMPACT)
    buffer = {"sink_buffer-flush_max-rows": "2", "sink_buffer-flush_interval": "100000 ms"}
    rows = [("+I", "1", 1), ("+I", "2", 2), ("+I", "3", 3), ("+I", "3", 4)]
    assert write(table_on(connection, topic, **buffer), rows) == TaskResult(3)
    expected = {"1": [1], "2": [2], "3": [4]}
    assert values_by_key(records_in(connection, topic, 3), "word", "count") == expected


def test_every_guarantee_but_exactly_once_writes_a_replay_again(
    connection: Connection, new_topic: NewTopic
) -> None:
    for guarantee in ("none", "at-least-once"):
        topic = new_topic(1, **COMPACT)
        table = table_on(connection, topic, sink_delivery__guarantee=guarantee)
        for _ in range(2):
            assert write(table, [("+I", "a", 1)]) == TaskResult(1)
        assert values_by_key(records_in(connection, topic, 2), "word", "count") == {"a": [1, 1]}


def test_missing_topic_is_refused_before_anything_is_written(connection: Connection) -> None:
    table = table_on(connection, "no-such-topic")
    with pytest.raises(
        ConfigurationError, match=r"table 't': topic 'no-such-topic' must exist.*'topic\.partitions'"
    ):
        StreamWriter(table, struct(table), overwrite=False)


def test_missing_topic_is_created_when_asked(connection: Connection, new_topic: NewTopic) -> None:
    name = f"{new_topic()}-created"
    table = table_on(connection, name, topic_partitions="3", topic_replication__factor="1")
    write(table, [("+I", "a", 1)])
    assert topics(connection, [name])[name].partitions == 3
    assert cleanup_policies(connection, [name])[name] == {"compact"}
    other = f"{name}-2"
    partitions_of(table_on(connection, other, connector="kafka", topic_partitions="2"))
    assert cleanup_policies(connection, [other])[other] == {"delete"}


def test_pattern_must_match_a_topic(connection: Connection, new_topic: NewTopic) -> None:
    schema = TableSchema((*WORDS.columns, Column("where", pa.string(), metadata="topic")), ("word",))
    topic = new_topic(2)
    table = table_on(connection, "x", schema)
    given = {name: text for name, text in table.given.items() if name != "topic"}
    found = KafkaTable.of("upsert-kafka", schema, given | {"topic-pattern": f"{topic[:-1]}."}, name="t")
    assert partitions_of(found) == {topic: 2}
    none = KafkaTable.of("upsert-kafka", schema, given | {"topic-pattern": "no-such-.*"}, name="t")
    with pytest.raises(ConfigurationError, match="'topic-pattern' must match a topic to write to"):
        partitions_of(none)


def test_topic_that_loses_old_records_gets_a_warning(
    connection: Connection, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per process, though Spark makes a writer for each micro-batch."""
    deleting, compacted = new_topic(1), new_topic(1, **COMPACT)
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        for topic in (deleting, compacted, deleting):
            table = table_on(connection, topic)
            StreamWriter(table, struct(table), overwrite=False)
    found = [r.getMessage() for r in caplog.records if "cleanup.policy" in r.getMessage()]
    assert [message.split(";")[0].split(":")[1] for message in found] == [
        f" topic {deleting!r} should have cleanup.policy 'compact', and has 'delete'"
    ]


def test_changes_without_a_key_in_several_partitions_get_a_warning(
    connection: Connection, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in any order then, which does not matter to rows that are only added."""
    keyed = {"key_format": "json", "key_fields": "word"}
    schema = TableSchema((*WORDS.columns, Column("place", pa.int32(), metadata="partition")), ("word",))
    changes = partial(table_on, connection, connector="kafka", value_format="debezium-json")
    scattered = changes(new_topic(2))
    for table in (
        changes(new_topic(1)),
        changes(new_topic(2), **keyed),
        changes(new_topic(2), schema),
        table_on(connection, new_topic(2), connector="kafka"),
    ):
        StreamWriter(table, struct(table), overwrite=False)
    assert caplog.messages == []
    StreamWriter(scattered, struct(scattered), overwrite=False)
    (said,) = caplog.messages
    assert "should have one partition, or the table a key, and it has 2 and the table none" in said


REFUSED: dict[str, tuple[dict[str, str], type[UpsertError], str]] = {
    "tasks without their distribution": ({"sink_parallelism": "2"}, ConfigurationError, "write_changes"),
    "an order that nobody made": ({"sink_row__order": "none"}, ConfigurationError, "write_changes"),
    "a sequence that is not written": (
        {"sequence_field": "place"},
        ConfigurationError,
        "'sequence.field' must name",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_fit_a_write(connection: Connection, new_topic: NewTopic, name: str) -> None:
    options, kind, message = REFUSED[name]
    place = Column("place", pa.int64(), metadata="offset", virtual=True)
    table = table_on(connection, new_topic(), TableSchema((*WORDS.columns, place), ("word",)), **options)
    with pytest.raises(kind, match=message):
        StreamWriter(table, struct(table, "word", "count"), overwrite=False)


@pytest.mark.parametrize("option", ["schema-include", "decimal.handling.mode"])
def test_options_by_which_a_format_is_only_read(
    connection: Connection, new_topic: NewTopic, option: str
) -> None:
    schema = TableSchema.of({"price": pa.decimal128(9, 2)})
    given = {f"value.debezium-json.{option}": "true" if option == "schema-include" else "precise"}
    table = table_on(connection, new_topic(), schema, "kafka", value_format="debezium-json", **given)
    with pytest.raises(ConfigurationError, match=f"option '{option}' must"):
        StreamWriter(table, struct(table), overwrite=False)


def test_query_with_other_columns_is_refused(connection: Connection, new_topic: NewTopic) -> None:
    table = table_on(connection, new_topic(**COMPACT))
    with pytest.raises(SchemaError, match=r"table 't': the query lacks column\(s\) count"):
        StreamWriter(table, struct(table, "word"), overwrite=False)


def test_topic_is_not_overwritten(connection: Connection, new_topic: NewTopic) -> None:
    table = table_on(connection, new_topic())
    with pytest.raises(ConfigurationError, match=r"cannot be overwritten.*upsert\.write_upsert"):
        BatchWriter(table, struct(table), overwrite=True)


def test_batch_write_is_never_exactly_once(connection: Connection, new_topic: NewTopic) -> None:
    once = {"sink_delivery__guarantee": "exactly-once", "sink_transactional__id__prefix": "p"}
    table = table_on(connection, new_topic(), **once)
    with pytest.raises(ConfigurationError, match=r"'exactly-once' is for streams.*got a batch write"):
        BatchWriter(table, struct(table), overwrite=False)
    writer = StreamWriter(table, struct(table), overwrite=False)
    with pytest.raises(ConfigurationError, match="whose micro-batches have numbers"):
        writer.write(rows_of(table.schema, [("+I", "a", 1)]))


def test_driver_misses_no_task(connection: Connection, new_topic: NewTopic) -> None:
    topic = new_topic(**COMPACT)
    table = table_on(connection, topic, sink_row__order="none", sink_parallelism="2")
    writer = StreamWriter(table, struct(table), overwrite=False)
    done: list[WriterCommitMessage | None] = [TaskResult(1), TaskResult(0)]
    writer.commit(done, 0)
    writer.commit([TaskResult(0)], 0)
    with pytest.raises(ConfigurationError, match=r"'sink\.parallelism' says 2 tasks, got 1"):
        writer.commit(done[:1], 0)
    with pytest.raises(ConfigurationError, match="every task must say what it wrote"):
        writer.commit([TaskResult(1), None], 0)
    writer.abort(done, 0)
    batch_writer = BatchWriter(table, struct(table), overwrite=False)
    batch_writer.commit(done)
    batch_writer.abort(done)
