"""What becomes of records that cannot be read, on a real broker: stop, count, copy."""

import logging
from collections.abc import Callable

import pyarrow as pa
import pytest

from upsert.errors import SchemaError
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import HEADERS, TopicPartition
from upsert.kafka.options import UPSERT
from upsert.kafka.planning import Range
from upsert.kafka.source import ReadMode, rows_of
from upsert.kafka.table import KafkaTable
from upsert.schema import TableSchema

pytestmark = pytest.mark.kafka

WORDS = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])


@pytest.fixture
def topic(connection: Connection, new_topic: Callable[..., str]) -> str:
    """Two good records; one with a bad value, one with a bad key, one without a key."""
    name = new_topic()
    keys = [b'{"word": "a"}', b'{"word": "b"}', b"{", None, b'{"word": "c"}']
    values = [b'{"n": 1}', b'{"n": "many"}', None, b'{"n": 3}', None]
    headers = pa.array([[], [{"key": "own", "value": b"1"}], [], [], []], HEADERS)
    produce(connection, name, [pa.table({"key": keys, "value": values, "headers": headers})])
    return name


def words(connection: Connection, topic: str, **options: str) -> KafkaTable:
    given = {
        "properties.bootstrap.servers": connection.bootstrap_servers,
        "topic": topic,
        "key.format": "json",
        "value.format": "json",
        "value.fields-include": "EXCEPT_KEY",
        "changelog": "upsert",
    }
    own = {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
    return KafkaTable.of(UPSERT, WORDS, given | own)


def read(table: KafkaTable, topic: str) -> list[dict[str, object]]:
    whole = Range(TopicPartition(topic, 0), None, None, 0, 0, 5)
    return [row for rows in rows_of(table, whole, ReadMode.NEWEST, None) for row in rows.to_pylist()]


GOOD = [
    {"word": "a", "n": 1, "_row_kind": "+U"},
    {"word": "c", "n": None, "_row_kind": "-D"},
]


def test_fail_names_the_place_and_the_reason(connection: Connection, topic: str) -> None:
    with pytest.raises(SchemaError) as error:
        read(words(connection, topic), topic)
    message = str(error.value)
    assert f"topic {topic!r}, partition 0, offset 1: the record cannot be read: value: " in message
    assert "'bad-records' = 'skip'" in message


def test_skip_counts_them_in_the_log(
    connection: Connection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "upsert.kafka"):
        assert read(words(connection, topic, bad__records="skip"), topic) == GOOD
    assert f"{topic}-0: 2 records could not be read and were left out" in caplog.text
    assert f"{topic}-0: 1 records have no key and gave no rows" in caplog.text


def test_dead_letters_are_copied_with_their_reason_and_origin(
    connection: Connection, topic: str, new_topic: Callable[..., str]
) -> None:
    letters = new_topic()
    table = words(connection, topic, bad__records="dead-letter", bad__records_topic=letters)
    assert read(table, topic) == GOOD
    (copies,) = read_range(connection, TopicPartition(letters, 0), 0, 2, {"headers"})
    found = copies.to_pylist()
    assert [(copy["key"], copy["value"]) for copy in found] == [
        (b'{"word": "b"}', b'{"n": "many"}'),
        (b"{", None),
    ]
    headers = [{header["key"]: header["value"] for header in copy["headers"]} for copy in found]
    assert headers[0].pop("own") == b"1"
    reasons = [header.pop("upsert.error.reason").decode().split(":")[0] for header in headers]
    assert reasons == ["value", "key"]
    origin = {"upsert.error.topic": topic.encode(), "upsert.error.partition": b"0"}
    assert headers == [origin | {"upsert.error.offset": offset} for offset in (b"1", b"2")]
