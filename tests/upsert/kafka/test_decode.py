"""Records to rows: against a loop over records, and the corners one by one."""

import json
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert import types
from upsert.changelog.image_log import ImageLog
from upsert.formats.base import FORMATS, Decoded, Decoder, Format
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.raw import FORMAT as RAW
from upsert.kafka.client.records import RECORD_SCHEMA
from upsert.kafka.declaration import struct_of
from upsert.kafka.decode import DecodedRecords, RecordDecoder
from upsert.kafka.encode import RecordEncoder, written_schema
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.table import KafkaTable
from upsert.schema import Column, TableSchema
from upsert.spark.batches import arrow_schema, to_spark

WHERE = {"properties.bootstrap.servers": "localhost:9092", "topic": "t"}
JSON = {**WHERE, "key.format": "json", "value.format": "json"}
WORDS = TableSchema.of({"word": pa.string(), "n": pa.int64()}, primary_key=["word"])


def record(key: object = None, value: object = None, offset: int = 0, **other: Any) -> dict[str, Any]:
    """A raw record; a key or value that is neither bytes nor None becomes JSON."""
    key, value = (
        part if part is None or isinstance(part, bytes) else json.dumps(part).encode()
        for part in (key, value)
    )
    defaults = {
        "topic": "t",
        "partition": 0,
        "timestamp": 1_000,
        "timestamp-type": "CreateTime",
        "leader-epoch": 0,
        "headers": [],
    }
    return defaults | {"key": key, "value": value, "offset": offset} | other


def raw(*records: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(records), RECORD_SCHEMA)


def decode(table: KafkaTable, *records: dict[str, Any]) -> DecodedRecords:
    return RecordDecoder(table, "t").decode(raw(*records))


def rows(table: KafkaTable, *records: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = decode(table, *records)
    assert found.bad == ()
    return [tuple(row.values()) for row in found.rows.to_pylist()]


def words(connector: str = UPSERT, schema: TableSchema = WORDS, **options: str) -> KafkaTable:
    given = {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
    return KafkaTable.of(connector, schema, JSON | given)


def test_a_value_is_an_update_and_no_value_a_deletion() -> None:
    assert rows(words(), record({"word": "a"}, {"word": "a", "n": 1}), record({"word": "a"})) == [
        ("a", 1, "+U"),
        ("a", None, "-D"),
    ]


def test_null_in_json_is_no_value_either() -> None:
    # Kafka Connect writes it for a row that ExtractNewRecordState has unwrapped and that was deleted.
    assert rows(words(), record({"word": "a"}, b"null"), record({"word": "b"})) == [
        ("a", None, "-D"),
        ("b", None, "-D"),
    ]
    assert rows(words(PLAIN, key_fields="word"), record({"word": "a"}, b"null")) == []


def test_a_record_without_a_key_gives_no_row_and_is_counted() -> None:
    found = decode(words(), record(None, {"word": "a", "n": 1}), record(None, None), record({"word": "b"}))
    assert found.rows.to_pylist() == [{"word": "b", "n": None, "_row_kind": "-D"}]
    assert (found.without_key, found.bad) == (2, ())


def test_value_fields_win_over_key_fields() -> None:
    assert rows(words(), record({"word": "key"}, {"word": "value", "n": 1})) == [("value", 1, "+U")]


def test_columns_of_the_key_come_from_it_where_the_value_leaves_them_out() -> None:
    table = words(value_fields__include="EXCEPT_KEY")
    assert rows(table, record({"word": "key"}, {"word": "value", "n": 1})) == [("key", 1, "+U")]


def test_several_rows_in_key_and_value_are_paired_each_with_each() -> None:
    table = words(PLAIN, value_fields__include="EXCEPT_KEY", key_fields="word")
    found = rows(
        table,
        record([{"word": "a"}, {"word": "b"}], [{"n": 1}, {"n": 2}]),
        record({"word": "c"}, {"n": 3}),
        record([], {"n": 4}),
    )
    assert found == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 3)]


def test_insert_only_topics_have_no_kinds_and_no_deletions() -> None:
    assert rows(
        words(PLAIN, key_fields="word"), record({"word": "a"}, {"word": "a", "n": 1}), record({"word": "a"})
    ) == [("a", 1)]


def test_a_record_that_cannot_be_read_is_named_and_gives_nothing() -> None:
    found = decode(
        words(),
        record({"word": "a"}, {"word": "a", "n": 1}),
        record({"word": "b"}, b"{"),
        record(b"[", {"word": "c", "n": 1}),
        record({"word": "d"}, {"word": "d", "n": "many"}),
        record({"word": "e"}),
    )
    assert [row["word"] for row in found.rows.to_pylist()] == ["a", "e"]
    assert [bad.position for bad in found.bad] == [1, 2, 3]
    assert [bad.reason.split(":")[0] for bad in found.bad] == ["value", "key", "value"]


def test_not_null_columns_are_checked_but_in_deletions() -> None:
    schema = TableSchema((Column("word", pa.string()), Column("n", pa.int64(), nullable=False)), ("word",))
    found = decode(
        words(schema=schema), record({"word": "a"}, {"word": "a", "n": None}), record({"word": "b"})
    )
    assert [row["word"] for row in found.rows.to_pylist()] == ["b"]
    assert "NOT NULL" in found.bad[0].reason


def test_a_column_that_differs_between_key_and_value_is_found_where_asked_for() -> None:
    table = words(fields_verify__integrity="true")
    found = decode(
        table,
        record({"word": "a"}, {"word": "a", "n": 1}),
        record({"word": "b"}, {"word": "x", "n": 1}),
        record({"word": "c"}),
    )
    assert [row["word"] for row in found.rows.to_pylist()] == ["a", "c"]
    (bad,) = found.bad
    assert bad.reason == "column 'word' must be the same in key and value, got 'b' and 'x'"


METADATA = {
    "topic": (pa.string(), "topic", "t"),
    "partition": (pa.int32(), "partition", 0),
    "as a number of 64 bits": (pa.int64(), "partition", 0),
    "leader": (pa.int32(), "leader-epoch", 0),
    "offset": (pa.int64(), "offset", 3),
    "time": (types.TIMESTAMP, "timestamp", 1_583_673_131_123_000),
    "time in ms": (pa.int64(), "timestamp", 1_583_673_131_123),
    "local time": (types.TIMESTAMP_NTZ, "timestamp", 1_583_673_131_123_000),
    "kind of time": (pa.string(), "timestamp-type", "CreateTime"),
    "headers": (pa.map_(pa.string(), pa.binary()), "headers", [("k", None), ("j", b"2")]),
    "all headers": (
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        "header-list",
        [{"key": "k", "value": b"1"}, {"key": "j", "value": b"2"}, {"key": "k", "value": None}],
    ),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_of_a_record(name: str) -> None:
    type_, key, expected = METADATA[name]
    options = {k: v for k, v in JSON.items() if k != "key.format"}
    schema = TableSchema((Column("n", pa.int64()), Column("m", type_, metadata=key, virtual=True)))
    table = KafkaTable.of(PLAIN, schema, options)
    headers = [{"key": "k", "value": b"1"}, {"key": "j", "value": b"2"}, {"key": "k", "value": None}]
    decoder = RecordDecoder(table, "t")
    assert decoder.wanted == {"key", "value", "offset"} | {"headers" if "header" in key else key}
    records = raw(record(None, {"n": 1}, 3, timestamp=1_583_673_131_123, headers=headers))
    found = decoder.decode(records).rows.column("m")
    assert found.type == table.schema.type_of("m")
    values = found.cast(pa.int64()) if pa.types.is_timestamp(type_) else found
    got = values[0].as_py()
    assert (sorted(got) if key == "headers" else got) == (sorted(expected) if key == "headers" else expected)


def test_no_headers_are_an_empty_map() -> None:
    options = {k: v for k, v in JSON.items() if k != "key.format"}
    column = Column("h", pa.map_(pa.string(), pa.binary()), metadata="headers")
    table = KafkaTable.of(PLAIN, TableSchema((Column("n", pa.int64()), column)), options)
    assert rows(
        table, record(None, {"n": 1}), record(None, {"n": 2}, headers=[{"key": "a", "value": b""}])
    ) == [
        (1, []),
        (2, [("a", b"")]),
    ]


def test_metadata_that_does_not_fit_its_column_makes_a_record_bad() -> None:
    """A producer may write any number as the time; a TIMESTAMP ends in the year 294247."""
    options = {k: v for k, v in JSON.items() if k != "key.format"}
    column = Column("ts", types.TIMESTAMP, metadata="timestamp", virtual=True)
    table = KafkaTable.of(PLAIN, TableSchema((Column("n", pa.int64()), column)), options)
    found = decode(table, record(None, {"n": 1}, timestamp=2**62), record(None, {"n": 2}))
    assert [row["n"] for row in found.rows.to_pylist()] == [2]
    assert found.bad[0].position == 0
    assert "metadata 'timestamp'" in found.bad[0].reason


def numbered() -> Format:
    """`raw`, and how long each message is, as metadata of the format."""
    return replace(
        RAW,
        name="numbered",
        metadata=(MetadataKey("length", pa.int32()),),
        decoder=lambda context: Lengths(RAW.decoder(context)),
    )


class Lengths:
    def __init__(self, inner: Decoder) -> None:
        self._inner = inner

    def decode(self, messages: pa.Array) -> Decoded:
        found = self._inner.decode(messages)
        lengths = pc.binary_length(messages.filter(messages.is_valid()))
        return replace(found, rows=found.rows.append_column("length", lengths))


def test_metadata_of_a_format_is_cast_and_what_does_not_fit_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("numbered")
    module.FORMAT = numbered()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numbered", module)
    monkeypatch.setitem(FORMATS, "numbered", "numbered:FORMAT")  # type: ignore[arg-type]
    columns = (Column("v", pa.string()), Column("n", pa.int8(), metadata="numbered.length", virtual=True))
    table = KafkaTable.of(PLAIN, TableSchema(columns), WHERE | {"format": "numbered"})
    found = decode(
        table, record(None, b"a"), record(None, None), record(None, b"a" * 200), record(None, b"bb")
    )
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == [("a", 1), ("bb", 2)]
    assert [bad.position for bad in found.bad] == [2]


def test_tombstones_have_the_metadata_of_their_record() -> None:
    column = Column("at", pa.int64(), metadata="offset", virtual=True)
    schema = TableSchema((*WORDS.columns, column), ("word",))
    assert rows(words(schema=schema), record({"word": "a"}, None, 7)) == [("a", None, 7, "-D")]


NAMES = st.sampled_from(["a", "b", "c"])
KEYS = st.none() | st.just(b"{") | st.lists(NAMES, max_size=3) | NAMES
VALUES = st.none() | st.just(b"nonsense") | st.tuples(NAMES, st.none() | st.integers(0, 9))


@given(st.lists(st.tuples(KEYS, VALUES), max_size=12), st.booleans(), st.booleans())
def test_any_records_against_a_loop(drawn: list[tuple[Any, Any]], is_upsert: bool, all_fields: bool) -> None:
    """What Flink's deserializer does record by record, with bad ones named."""
    options = {} if all_fields else {"value_fields__include": "EXCEPT_KEY"}
    table = words(UPSERT, **options) if is_upsert else words(PLAIN, key_fields="word", **options)
    records, expected, bad, without_key = [], [], [], 0
    for position, (key, value) in enumerate(drawn):
        keys = [key] if isinstance(key, str) else key
        message = value if value is None or isinstance(value, bytes) else {"word": value[0], "n": value[1]}
        encoded = keys if keys is None or isinstance(keys, bytes) else [{"word": name} for name in keys]
        records.append(record(encoded, message, position))
        if key == b"{" or isinstance(value, bytes):
            bad.append(position)
        elif key is None:
            without_key += 1
        elif value is not None:
            kinds = ["+U"] if is_upsert else []
            expected += [(value[0] if all_fields else name, value[1], *kinds) for name in keys]
        elif is_upsert:
            expected += [(name, None, "-D") for name in keys]
    found = decode(table, *records)
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == expected
    assert [record.position for record in found.bad] == bad
    assert found.without_key == without_key


def written(table: KafkaTable, given: pa.Table) -> pa.Table:
    """The records that the sink makes of rows, as a topic of one partition gives them back."""
    schema = written_schema(table, given.column_names)
    records = RecordEncoder(table, schema).encode(given)
    return raw(
        *(
            record(
                row.get("key"),
                row["value"],
                offset,
                timestamp=row["timestamp"],
                headers=row.get("headers") or [],
            )
            for offset, row in enumerate(records.to_pylist())
        )
    )


def test_key_prefix_key_order_and_times_come_back_as_they_were_written() -> None:
    """UK03: `user_id` is BIGINT in the key and INT in the value; the key is in the order of PRIMARY KEY."""
    schema = TableSchema(
        (
            Column("k_user_id", pa.int64()),
            Column("name", pa.string()),
            Column("timestamp", types.TIMESTAMP_NTZ, metadata="timestamp"),
            Column("k_event_id", pa.int64()),
            Column("user_id", pa.int32()),
            Column("payload", pa.string()),
        ),
        ("k_event_id", "k_user_id"),
    )
    options = {"key.fields-prefix": "k_", "value.fields-include": "EXCEPT_KEY"}
    table = KafkaTable.of(UPSERT, schema, JSON | options)
    times = [datetime(2020, 3, day, 13, 12, 11, 123_000) for day in (8, 9, 10, 11)]
    rows_in = pa.table(
        {
            "k_user_id": [1, 2, 3, 2],
            "name": ["name 1", "name 2", "name 3", "name 2"],
            "timestamp": pa.array(times, types.TIMESTAMP_NTZ),
            "k_event_id": [100, 101, 102, 101],
            "user_id": pa.array([41, 42, 43, 42], pa.int32()),
            "payload": ["payload 1", "payload 2", "payload 3", "payload"],
        }
    )
    records = written(table, rows_in)
    assert json.loads(records["key"][0].as_py()) == {"event_id": 100, "user_id": 1}
    found = RecordDecoder(table, "t").decode(records).rows
    assert found.drop_columns("_row_kind").to_pylist() == rows_in.to_pylist()
    changes = normalize_all(found, table)
    assert [(row["_row_kind"], row["payload"], row["timestamp"]) for row in changes] == [
        ("+I", "payload 1", times[0]),
        ("+I", "payload 2", times[1]),
        ("+I", "payload 3", times[2]),
        ("-U", "payload 2", times[1]),
        ("+U", "payload", times[3]),
    ]


def normalize_all(rows_in: pa.Table, table: KafkaTable) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        plain = TableSchema.of(rows_in.schema, table.primary_key)
        log = ImageLog.open(f"{folder}/log", plain, "t-0", beginning=0)
        found = log.advance(0, rows_in.num_rows, rows_in, compare=plain.names)
        return [row for changes in found for row in changes.to_pylist()]


def test_metadata_columns_in_any_position_are_written_and_read() -> None:
    """MD01: headers that are NULL are written as none and read as an empty map."""
    schema = TableSchema(
        (
            Column("physical_1", pa.string()),
            Column("physical_2", pa.int32()),
            Column("timestamp-type", pa.string(), metadata="timestamp-type", virtual=True),
            Column("timestamp", types.TIMESTAMP_NTZ, metadata="timestamp"),
            Column("leader-epoch", pa.int32(), metadata="leader-epoch", virtual=True),
            Column("headers", pa.map_(pa.string(), pa.binary()), metadata="headers"),
            Column("partition", pa.int32(), metadata="partition", virtual=True),
            Column("topic", pa.string(), metadata="topic", virtual=True),
            Column("physical_3", pa.bool_()),
        )
    )
    table = KafkaTable.of(PLAIN, schema, WHERE | {"format": "json"})
    times = [datetime(2020, 3, day, 13, 12, 11, 123_000) for day in (8, 9)]
    headers = [("k1", b"\xc0\xff\xee"), ("k2", b"\xba\xbe\x01")]
    rows_in = pa.table(
        {
            "physical_1": ["data 1", "data 2"],
            "physical_2": pa.array([1, 2], pa.int32()),
            "timestamp": pa.array(times, types.TIMESTAMP_NTZ),
            "headers": pa.array([headers, None], pa.map_(pa.string(), pa.binary())),
            "physical_3": [True, False],
        }
    )
    records = written(table, rows_in)
    assert records["timestamp"].to_pylist() == [1_583_673_131_123, 1_583_759_531_123]
    found = RecordDecoder(table, "t").decode(records).rows.to_pylist()
    assert [tuple(row.values()) for row in found] == [
        ("data 1", 1, "CreateTime", times[0], 0, headers, 0, "t", True),
        ("data 2", 2, "CreateTime", times[1], 0, [], 0, "t", False),
    ]
    assert "_row_kind" not in found[0]


def test_changes_of_a_cdc_format_keep_their_kinds_and_metadata() -> None:
    columns = (
        Column("id", pa.int64()),
        Column("name", pa.string()),
        Column("origin", pa.string(), metadata="debezium-json.source.table", virtual=True),
        Column("place", pa.int64(), metadata="offset", virtual=True),
    )
    table = KafkaTable.of(PLAIN, TableSchema(columns), WHERE | {"format": "debezium-json"})
    source = {"source": {"table": "users"}}
    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    found = rows(
        table,
        record(None, {"before": None, "after": old, "op": "c", **source}, 5),
        record(None, {"before": old, "after": new, "op": "u", **source}, 6),
        record(None, {"before": new, "after": None, "op": "d", **source}, 7),
        record(None, None, 8),
    )
    assert found == [
        (1, "a", "users", 5, "+I"),
        (1, "a", "users", 6, "-U"),
        (1, "b", "users", 6, "+U"),
        (1, "b", "users", 7, "-D"),
    ]
    bad = decode(table, record(None, {"before": None, "after": new, "op": "u"}, 9))
    assert (bad.rows.num_rows, len(bad.bad)) == (0, 1)


def test_batches_for_spark_have_exactly_the_types_that_it_demands() -> None:
    """Maps and lists of headers included, whose inner fields Arrow names in several ways."""
    keys = ("topic", "partition", "headers", "header-list", "leader-epoch", "offset", "timestamp")
    offered = KafkaTable.of(PLAIN, WORDS, JSON | {"key.fields": "word"}).offered_metadata
    columns = [Column(f"m_{key}", offered[key].type, metadata=key, virtual=True) for key in keys]
    table = words(schema=TableSchema((*WORDS.columns, *columns), ("word",)))
    headers = [{"key": "k", "value": b"1"}]
    found = decode(
        table, record({"word": "a"}, {"word": "a", "n": 1}, headers=headers), record({"word": "b"})
    )
    asked = struct_of(table)
    (batch,) = to_spark(found.rows, asked)
    assert batch.schema.equals(arrow_schema(asked))
    assert batch.schema.names == [*table.schema.names, "_row_kind"]
    assert batch.num_rows == 2
