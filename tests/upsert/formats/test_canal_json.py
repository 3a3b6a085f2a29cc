"""Which changes a Canal message holds, and how a change is written."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats import json_changes
from tests.upsert.formats.json_changes import changes
from upsert.errors import ConfigurationError
from upsert.formats.base import FormatContext
from upsert.formats.cdc_json import CANAL as FORMAT
from upsert.options import parse

PRODUCTS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("weight", pa.float64())])
N = pa.schema([("n", pa.int64())])

decode = partial(json_changes.decode, FORMAT)
reason = partial(json_changes.reason, FORMAT)


def test_insert_update_and_delete_of_several_rows() -> None:
    found = decode(
        PRODUCTS,
        [
            {
                "type": "INSERT",
                "data": [
                    {"id": "101", "name": "scooter", "weight": "3.14"},
                    {"id": "102", "name": None, "weight": None},
                ],
                "old": None,
            },
            {
                "type": "UPDATE",
                "data": [
                    {"id": "101", "name": "scooter", "weight": "5.17"},
                    {"id": "102", "name": "car", "weight": "8.1"},
                ],
                "old": [{"weight": "3.14"}, {"name": None, "weight": "8.0"}],
            },
            {"type": "CREATE", "isDdl": True, "data": None, "sql": "CREATE TABLE ..."},
            {"type": "DELETE", "data": [{"id": "102", "name": "car", "weight": "8.1"}]},
        ],
    )
    assert changes(found) == [
        ["+I", 101, "scooter", 3.14],
        ["+I", 102, None, None],
        ["-U", 101, "scooter", 3.14],
        ["+U", 101, "scooter", 5.17],
        ["-U", 102, None, 8.0],
        ["+U", 102, "car", 8.1],
        ["-D", 102, "car", 8.1],
    ]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 0, 1, 1, 1, 1, 3]
    assert found.bad == ()


def test_column_that_old_does_not_name_is_unchanged_and_one_named_as_null_was_null() -> None:
    fields = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    data = [{"a": "1", "b": "2"}]
    messages = [
        {"type": "UPDATE", "data": data, "old": [old]} for old in ({"a": "0"}, {"a": None}, {"b": None}, {})
    ]
    before = [row[1:] for row in changes(decode(fields, messages)) if row[0] == "-U"]
    assert before == [[0, 2], [None, 2], [1, None], [1, 2]]


def test_empty_messages_and_empty_data_give_nothing() -> None:
    found = decode(
        N, [None, b"", b"null", {"type": "DELETE", "data": []}, {"type": "INSERT", "data": [{"n": 1}]}]
    )
    assert changes(found) == [["+I", 1]]
    assert found.positions is not None
    assert found.positions.tolist() == [4]
    assert found.bad == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"data": [{"n": "1"}]}, "field 'type' is missing"),
        ({"type": "TRUNCATE"}, "field 'type': 'TRUNCATE' is none of INSERT, UPDATE, DELETE, CREATE"),
        ({"type": "INSERT"}, "field 'data' is missing"),
        ({"type": "UPDATE", "data": [{}]}, "field 'old' is missing"),
        ({"type": "UPDATE", "data": [{}], "old": []}, "fields 'data' and 'old' differ in length"),
        ({"type": "INSERT", "data": [{}, None]}, "field 'data' has a NULL among its rows"),
        ({"type": "UPDATE", "data": [{}], "old": [None]}, "field 'old' has a NULL among its rows"),
        ({"type": "INSERT", "data": [{"n": "x"}]}, "field 'data.0.n': 'x' is no BIGINT"),
        ([{"type": "INSERT", "data": []}], "an array is no object"),
    ],
)
def test_messages_that_are_no_change_are_bad(message: object, expected: str) -> None:
    assert reason(N, message) == expected


def test_null_in_a_column_declared_not_null_is_bad_also_in_the_image_before() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False), ("m", pa.int64())])
    data = [{"n": "1", "m": "3"}]
    found = decode(fields, [{"type": "UPDATE", "data": data, "old": [{"m": "2"}]}])
    assert changes(found) == [["-U", 1, 2], ["+U", 1, 3]]
    assert found.rows.schema == fields
    why = reason(fields, {"type": "UPDATE", "data": data, "old": [{"n": None}]})
    assert why == "field 'old.n': is NULL, but declared NOT NULL"
    assert (
        reason(fields, {"type": "INSERT", "data": [{}]}) == "field 'data.0.n': is NULL, but declared NOT NULL"
    )


def of_table(database: object, table: object, n: object) -> dict[str, Any]:
    return {"type": "INSERT", "data": [{"n": n}], "database": database, "table": table}


def test_only_the_databases_and_tables_asked_for_are_read() -> None:
    messages = [
        of_table("shop", "orders", 1),
        of_table("shop", "orders_2", 2),
        of_table("myshop", "orders", 3),
        of_table("shop2", "orders", "not even a number"),
        of_table("shop", "orders", 5),
    ]
    found = decode(N, messages, database__include="shop", table__include="orders(_[0-9]+)?")
    assert changes(found) == [["+I", 1], ["+I", 2], ["+I", 5]]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 4]
    assert found.bad == ()
    assert [row[1] for row in changes(decode(N, messages, table__include="orders_."))] == [2]


def test_message_that_does_not_name_its_table_is_bad_where_tables_are_chosen() -> None:
    messages = [of_table("shop", None, 1), b"{", of_table("shop", "t", "x")]
    found = decode(N, messages, table__include="t")
    assert [(bad.position, bad.reason) for bad in found.bad] == [
        (0, "field 'table' is missing, which table.include is about"),
        (1, "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
        (2, "field 'data.0.n': 'x' is no BIGINT"),
    ]
    assert decode(N, messages, table__include="t", ignore_parse_errors="true").bad == ()


@pytest.mark.parametrize("text", ["(", r"\p{L}+", r"\Qa\E", "[a-z&&[^b]]", "(?<name>a)"])
def test_patterns_that_python_lacks_or_may_read_otherwise_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'table.include' must be a regular expression that Python has"
    ):
        parse("canal-json", FORMAT.options, {"table.include": text})


def test_letters_and_digits_of_a_pattern_are_those_of_java() -> None:
    assert changes(decode(N, [of_table("d", "ü٣", 1)], table__include=r"\w\d")) == []
    assert changes(decode(N, [of_table("d", "u3", 1)], table__include=r"\w\d")) == [["+I", 1]]


def test_metadata_is_that_of_the_message() -> None:
    message = {
        **of_table("shop", "orders", "1"),
        "sqlType": {"n": -5},
        "pkNames": ["n"],
        "ts": 1_589_374_013_680,
        "es": 1_589_374_013_000,
    }
    keys = ("event-timestamp", "database", "table", "sql-type", "pk-names", "ingestion-timestamp")
    found = decode(N, [message, {"type": "INSERT", "data": [{"n": 2}, {"n": 3}]}], keys)
    at = datetime(2020, 5, 13, 12, 46, 53, tzinfo=UTC)
    assert changes(found) == [
        ["+I", 1, at, "shop", "orders", [("n", -5)], ["n"], at.replace(microsecond=680_000)],
        ["+I", 2, *[None] * 6],
        ["+I", 3, *[None] * 6],
    ]
    offered = {key.key: key.type for key in FORMAT.metadata}
    assert {field.name: field.type for field in found.rows.schema} == {"n": pa.int64(), **offered}


def test_time_out_of_range_is_a_bad_message() -> None:
    found = decode(N, [{**of_table("d", "t", 1), "ts": -(2**62)}], ("ingestion-timestamp",))
    assert [bad.reason for bad in found.bad] == ["field 'ts' is out of range for milliseconds"]


def test_ignored_errors_are_null_and_unreadable_messages_leave_no_trace() -> None:
    messages = [
        b"{",
        {"type": "x"},
        {"type": "UPDATE", "data": [{"n": "1"}], "old": [{"n": "bad"}]},
        {"type": "UPDATE", "data": [{"n": "1"}], "old": [{}]},
    ]
    found = decode(N, messages, ignore_parse_errors="true")
    assert changes(found) == [["-U", None], ["+U", 1], ["-U", 1], ["+U", 1]]
    assert found.bad == ()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ignore-parse-errors", "no"),
        ("timestamp-format.standard", "ISO"),
        ("map-null-key.mode", "IGNORE"),
        ("map-null-key.literal", ""),
        ("encode.decimal-as-plain-number", "1"),
        ("database.include", "["),
        ("schema-include", "true"),
    ],
)
def test_bad_options_are_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        parse("canal-json", FORMAT.options, {key: text})


def test_positive_kinds_are_written_as_inserts_and_negative_ones_as_deletes() -> None:
    rows = pa.table({"n": [1, 2, 3, 4]})
    messages = FORMAT.encoder(FormatContext(rows.schema)).encode(rows, pa.array(["+I", "-U", "+U", "-D"]))
    assert messages.to_pylist() == [
        b'{"data":[{"n":1}],"type":"INSERT"}',
        b'{"data":[{"n":2}],"type":"DELETE"}',
        b'{"data":[{"n":3}],"type":"INSERT"}',
        b'{"data":[{"n":4}],"type":"DELETE"}',
    ]
    assert FORMAT.encoder(FormatContext(N)).encode(rows.slice(0, 1)).to_pylist() == messages.to_pylist()[:1]


PAIR = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-9, 9).map(str),
        "b": st.none() | st.lists(st.none() | st.sampled_from(["x", "null", ""]), max_size=2),
    },
)
UPDATES = st.lists(st.tuples(ROWS, ROWS), max_size=3).map(
    lambda pairs: {"type": "UPDATE", "data": [new for new, _ in pairs], "old": [old for _, old in pairs]}
)
OTHERS = st.builds(
    lambda kind, rows: {"type": kind, "data": rows},
    st.sampled_from(["INSERT", "DELETE", "CREATE"]),
    st.lists(ROWS, max_size=3),
)


def expected_changes(message: dict[str, Any]) -> list[list[Any]]:
    """The changes of one message by hand."""

    def image(row: dict[str, Any]) -> list[Any]:
        return [None if row.get("a") is None else int(row["a"]), row.get("b")]

    match message["type"]:
        case "INSERT":
            return [["+I", *image(row)] for row in message["data"]]
        case "DELETE":
            return [["-D", *image(row)] for row in message["data"]]
        case "UPDATE":
            pairs = zip(message["data"], message["old"], strict=True)
            return [
                row for new, old in pairs for row in (["-U", *image({**new, **old})], ["+U", *image(new)])
            ]
    return []


@given(st.lists(UPDATES | OTHERS, max_size=8))
def test_random_messages_give_what_each_of_them_says(messages: list[dict[str, Any]]) -> None:
    found = decode(PAIR, messages)
    assert found.bad == ()
    expected = [(i, row) for i, message in enumerate(messages) for row in expected_changes(message)]
    positions = range(len(messages)) if found.positions is None else found.positions.tolist()
    assert list(zip(positions, changes(found), strict=True)) == expected
    found.rows.validate(full=True)
