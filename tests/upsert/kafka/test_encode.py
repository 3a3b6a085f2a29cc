"""Rows to records without a broker: keys, values, tombstones, metadata, and what is refused."""

import json
import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert import types
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.kafka import encode
from upsert.kafka.encode import RecordMaker, Seen, written_schema
from upsert.kafka.table import KafkaTable
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema

BROKERS = {"properties.bootstrap.servers": "localhost:9092", "topic": "t", "value.format": "json"}
USERS = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
AT = datetime(2020, 3, 8, 13, 12, 11, 123456, tzinfo=UTC)


def maker(schema: TableSchema, *names: str, connector: str = "upsert-kafka", **options: str) -> RecordMaker:
    """How a query with these columns (all if none is named) is written; underscores in options are dots."""
    key = {"key.format": "json"} if connector == "upsert-kafka" else {}
    given = (
        BROKERS | key | {name.replace("__", "-").replace("_", "."): text for name, text in options.items()}
    )
    table = KafkaTable.of(connector, schema, given, name="t")
    return pickle.loads(pickle.dumps(RecordMaker(table, written_schema(table, names or schema.names))))


def records(made: RecordMaker, rows: Sequence[Sequence[Any]], task: int = 0) -> list[dict[str, Any]]:
    """Records of rows that begin with their kind, in chunks of two."""
    columns = [*made.schema.arrow, pa.field(ROW_KIND_COLUMN, pa.string())]
    arrays = [
        pa.array([row[(number + 1) % len(columns)] for row in rows], field.type)
        for number, field in enumerate(columns)
    ]
    batches = pa.table(arrays, names=[c.name for c in columns]).to_batches(max_chunksize=2)
    return [record for table in made.records(batches, task) for record in table.to_pylist()]


def texts(found: Sequence[Mapping[str, Any]]) -> list[tuple[str | None, str | None]]:
    return [tuple(None if r[k] is None else r[k].decode() for k in ("key", "value")) for r in found]


changelogs = st.lists(
    st.tuples(
        st.sampled_from(["+I", "-U", "+U", "-D"]),
        st.integers(0, 3),
        st.none() | st.sampled_from(["", "ä", '"']),
    ),
    max_size=20,
)


@given(changelogs)
def test_compacted_records_are_the_table_of_the_changelog(rows: list[tuple[str, int, str | None]]) -> None:
    table: dict[int, str | None] = {}
    for kind, key, name in rows:
        table.pop(key, None)
        table |= {key: name} if kind in ("+I", "+U") else {}
    compacted = {r["key"]: r["value"] for r in records(maker(USERS), rows)}
    left = [json.loads(value) for value in compacted.values() if value is not None]
    assert {row["id"]: row["name"] for row in left} == table


def test_columns_of_key_and_value() -> None:
    """UK03: the key in the order of the PRIMARY KEY and without its prefix, the value without the key."""
    schema = TableSchema(
        (
            Column("k_user_id", pa.int64()),
            Column("name", pa.string()),
            Column("timestamp", types.TIMESTAMP, metadata="timestamp"),
            Column("k_event_id", pa.int64()),
            Column("user_id", pa.int32()),
            Column("payload", pa.string()),
        ),
        ("k_event_id", "k_user_id"),
    )
    made = maker(schema, key_fields__prefix="k_", value_fields__include="EXCEPT_KEY")
    rows = [("+I", 1, "name 1", AT, 100, 41, "payload 1"), ("-D", 2, None, AT, 101, None, None)]
    assert records(made, rows) == [
        {
            "key": b'{"event_id":100,"user_id":1}',
            "value": b'{"name":"name 1","user_id":41,"payload":"payload 1"}',
            "timestamp": 1583673131123,
        },
        {"key": b'{"event_id":101,"user_id":2}', "value": None, "timestamp": 1583673131123},
    ]


def test_before_image_is_written_only_without_its_after_image() -> None:
    """S20: a -U alone is a tombstone."""
    rows = [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "b"), ("-U", 2, "c")]
    assert texts(records(maker(USERS), rows)) == [
        ('{"id":1}', '{"id":1,"name":"a"}'),
        ('{"id":1}', '{"id":1,"name":"b"}'),
        ('{"id":2}', None),
    ]


def test_rows_in_no_order_are_folded_by_the_task_of_their_keys() -> None:
    made = maker(USERS, sink_row__order="none", sink_parallelism="1")
    rows = [("+U", 1, "b"), ("+I", 2, "c"), ("-U", 1, "a"), ("-D", 2, "c"), ("-D", 3, None)]
    assert texts(records(made, rows)) == [('{"id":1}', '{"id":1,"name":"b"}'), ('{"id":3}', None)]
    with pytest.raises(ConfigurationError, match="table 't': the rows of a key must be in the task"):
        records(made, rows, task=1)


def test_many_rows_become_records_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_MOST_ROWS", 3)
    made = maker(USERS, sink_row__order="none", sink_parallelism="1")
    batch = pa.record_batch({"id": range(8), "name": ["x"] * 8, "_row_kind": ["+I"] * 7 + ["-D"]})
    tables = list(made.records([batch], 0))
    assert [table.num_rows for table in tables] == [3, 3, 2]
    assert tables[-1]["value"].to_pylist() == [b'{"id":6,"name":"x"}', None]
    monkeypatch.setattr(encode, "_MOST_BYTES", 1)
    assert len(list(made.records([batch], 0))) == 8


HEADERS = Column("headers", pa.map_(pa.string(), pa.binary()), metadata="headers")
LIST_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
HEADER_LIST = Column("all", LIST_TYPE, metadata="header-list")


def with_metadata(*columns: Column) -> TableSchema:
    return TableSchema((*USERS.columns, *columns), ("id",))


def test_headers_as_a_map() -> None:
    made = maker(with_metadata(HEADERS))
    rows = [("+I", 1, "a", {"k1": b"\xc0\xff", "k2": None}), ("+I", 2, "b", None), ("+I", 3, "c", {})]
    assert [r["headers"] for r in records(made, rows)] == [
        [{"key": "k1", "value": b"\xc0\xff"}, {"key": "k2", "value": None}],
        None,
        [],
    ]


def test_headers_as_a_list_keep_repeated_names_and_lose_those_without() -> None:
    made = maker(with_metadata(HEADER_LIST))
    named, nameless = {"key": "a", "value": b"1"}, {"key": None, "value": b"2"}
    rows = [
        ("+I", 1, "a", [named, nameless, named, None]),
        ("+I", 2, "b", None),
        ("+I", 3, "c", [nameless, {"key": "b", "value": None}]),
    ]
    assert [r["headers"] for r in records(made, rows)] == [
        [named, named],
        None,
        [{"key": "b", "value": None}],
    ]


def test_timestamps_as_numbers_are_milliseconds() -> None:
    made = maker(with_metadata(Column("at", pa.int64(), metadata="timestamp")))
    found = records(made, [("+I", 1, "a", 1583673131123), ("+I", 2, "a", None)])
    assert [r["timestamp"] for r in found] == [1583673131123, None]


def test_metadata_that_a_query_leaves_out_is_not_written() -> None:
    made = maker(with_metadata(HEADERS), "id", "name")
    assert list(records(made, [("+I", 1, "a")])[0]) == ["key", "value"]


def test_virtual_columns_cannot_be_written() -> None:
    schema = with_metadata(Column("offset", pa.int64(), metadata="offset", virtual=True))
    assert maker(schema, "id", "name").schema.names == ("id", "name")
    with pytest.raises(SchemaError, match=r"'offset' is VIRTUAL.*leave it out of the query"):
        maker(schema)


TOPIC = Column("where", pa.string(), metadata="topic")


def test_rows_name_their_topic_where_there_are_several() -> None:
    several = maker(with_metadata(TOPIC), topic="a;b")
    assert [r["topic"] for r in records(several, [("+I", 1, "x", "a"), ("+I", 2, "x", "b")])] == ["a", "b"]
    for topic in ("c", None):
        with pytest.raises(SchemaError, match=rf"one of the table's topics 'a;b', got {topic!r}"):
            records(several, [("+I", 1, "x", topic)])
    with pytest.raises(SchemaError, match="lacks column 'where', which names the topic of each row"):
        maker(with_metadata(TOPIC), "id", "name", topic="a;b")


@pytest.mark.parametrize("options", [{}, {"sink_row__order": "none", "sink_parallelism": "1"}])
def test_row_that_moves_to_another_topic_is_deleted_from_its_own(options: dict[str, str]) -> None:
    """A topic knows nothing of the others: each has a row of the key, or none."""
    made = maker(with_metadata(TOPIC), topic="a;b", **options)
    rows = [("-U", 1, "x", "a"), ("+U", 1, "y", "b"), ("-U", 2, "x", "a"), ("+U", 2, "y", "a")]
    found = {(r["key"], r["topic"]): r["value"] is None for r in records(made, rows)}
    assert found == {(b'{"id":1}', "a"): True, (b'{"id":1}', "b"): False, (b'{"id":2}', "a"): False}


def test_topics_of_a_pattern_must_match_it() -> None:
    given = {name: text for name, text in BROKERS.items() if name != "topic"}
    options = given | {"topic-pattern": "a.*", "key.format": "json"}
    table = KafkaTable.of("upsert-kafka", with_metadata(TOPIC), options)
    made = RecordMaker(table, written_schema(table, table.schema.names))
    assert records(made, [("+I", 1, "x", "a1")])[0]["topic"] == "a1"
    with pytest.raises(SchemaError, match=r"topics 'a\.\*', got 'ba'"):
        records(made, [("+I", 1, "x", "ba")])


@pytest.mark.parametrize("kind", ["+I", "-D"])
def test_null_in_the_key_is_refused_whatever_the_row_does(kind: str) -> None:
    with pytest.raises(
        SchemaError, match="table 't': PRIMARY KEY column 'id' must not be NULL, got NULL in row 1"
    ):
        records(maker(USERS), [(kind, 1, "a"), (kind, None, "b")])


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ChangelogError, match=r"must be one of .* got 'X'"):
        records(maker(USERS), [("X", 1, "a")])


def test_append_sink_takes_only_inserts() -> None:
    """A 'kafka' table with a format of rows; its key is made of key.fields, also with NULL."""
    made = maker(USERS, connector="kafka", key_format="json", key_fields="name")
    assert texts(records(made, [("+I", 1, "a"), ("+I", 1, None)])) == [
        ('{"name":"a"}', '{"id":1,"name":"a"}'),
        ('{"name":null}', '{"id":1,"name":null}'),
    ]
    for kind in ("-U", "+U", "-D"):
        with pytest.raises(ChangelogError, match=rf"it takes only inserts, got '\{kind}'"):
            records(made, [("+I", 1, "a"), (kind, 1, "a")])


def test_records_without_key_and_with_partition() -> None:
    schema = TableSchema((*USERS.columns, Column("p", pa.int32(), metadata="partition")))
    made = maker(schema, connector="kafka")
    assert records(made, [("+I", 1, "a", 3), ("+I", 2, "b", None)]) == [
        {"value": b'{"id":1,"name":"a"}', "partition": 3},
        {"value": b'{"id":2,"name":"b"}', "partition": None},
    ]
    with pytest.raises(SchemaError, match="'partition' must be 0 or more, or NULL, got -1"):
        records(made, [("+I", 1, "a", -1)])


def test_format_of_changes_gets_all_kinds() -> None:
    """FL01's source: `-U` and `+U` are records of their own."""
    made = maker(USERS, connector="kafka", value_format="debezium-json")
    found = records(made, [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "b"), ("-D", 1, "b")])
    assert [json.loads(r["value"])["op"] for r in found] == ["c", "d", "c", "d"]


UNFIT: dict[str, tuple[dict[str, str], str]] = {
    "no topic for the marker": (
        {
            "sink_delivery__guarantee": "exactly-once",
            "sink_transactional__id__prefix": "p",
            "topic__pattern": "a",
        },
        "'exactly-once' needs the option 'topic'",
    ),
    "a sequence without an order": (
        {"sequence_field": "tags"},
        "must name a column of a scalar type, got 'tags'",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_options_that_do_not_fit_each_other(name: str) -> None:
    options, message = UNFIT[name]
    own = {key.replace("__", "-").replace("_", "."): text for key, text in options.items()}
    given = {key: text for key, text in BROKERS.items() if key != "topic" or "topic-pattern" not in own}
    schema = with_metadata(Column("tags", pa.list_(pa.string())))
    with pytest.raises((ConfigurationError, SchemaError), match=message):
        KafkaTable.of("upsert-kafka", schema, given | {"key.format": "json"} | own)


def test_checksum_knows_rows_but_not_their_order() -> None:
    rows = pa.table({"id": [1, 2, 2], "tags": [["a"], None, []]})
    kinds = pa.array(["+I", "-U", "+U"])

    def seen(order: Sequence[int], by: int) -> str:
        total = Seen()
        for start in range(0, len(order), by):
            some = pa.array(order[start : start + by])
            total.add(encode.KindedRows(rows.take(some), kinds.take(some)))
        return str(total)

    assert seen([0, 1, 2], 3) == seen([2, 0, 1], 1)
    assert len({seen([0, 1, 2], 3), seen([0, 1, 1], 3), seen([0, 1], 2), seen([0, 2, 2], 3)}) == 4
    assert seen([0, 1, 2], 3).startswith("3 rows, checksum ")


def test_nothing_written_gives_no_records() -> None:
    empty = pa.RecordBatch.from_pylist([], USERS.arrow)
    assert list(maker(USERS).records([empty], 0)) == []
    assert list(maker(USERS, sink_row__order="none", sink_parallelism="2").records([], 0)) == []


def test_buffered_rows_become_one_record_a_key() -> None:
    """UK06 through the whole path: the last row of a key in a window."""
    made = maker(USERS, **{"sink_buffer-flush_max-rows": "2", "sink_buffer-flush_interval": "100 s"})
    rows = [("+I", 1, "1"), ("+I", 2, "2"), ("+I", 3, "3"), ("+U", 3, "4"), ("-D", 1, "1")]
    assert [v for _, v in texts(records(made, rows))] == [
        '{"id":1,"name":"1"}',
        '{"id":2,"name":"2"}',
        '{"id":3,"name":"4"}',
        None,
    ]
