"""Which change a Maxwell message holds, and how a change is written."""

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
from upsert.formats.cdc_json import MAXWELL as FORMAT
from upsert.options import parse

PRODUCTS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("weight", pa.float64())])
N = pa.schema([("n", pa.int64())])

decode = partial(json_changes.decode, FORMAT)


def test_insert_update_of_the_key_delete_and_bootstrap() -> None:
    scooter = {"id": 101, "name": "scooter", "weight": 3.14}
    heavier, renumbered = {**scooter, "weight": None}, {**scooter, "id": 102}
    found = decode(
        PRODUCTS,
        [
            {"type": "bootstrap-start", "data": {}},
            {"type": "bootstrap-insert", "data": scooter},
            {"type": "bootstrap-complete", "data": {}},
            {"type": "insert", "data": scooter, "xid": 7125, "xoffset": 0},
            {"type": "update", "data": heavier, "old": {"weight": 3.14}},
            {"type": "update", "data": scooter, "old": {"weight": None}},
            None,
            {"type": "update", "data": renumbered, "old": {"id": 101}},
            b"",
            {"type": "delete", "data": renumbered, "commit": True},
        ],
    )
    assert changes(found) == [
        ["+I", 101, "scooter", 3.14],
        ["+I", 101, "scooter", 3.14],
        ["-U", 101, "scooter", 3.14],
        ["+U", 101, "scooter", None],
        ["-U", 101, "scooter", None],
        ["+U", 101, "scooter", 3.14],
        ["-U", 101, "scooter", 3.14],
        ["+U", 102, "scooter", 3.14],
        ["-D", 102, "scooter", 3.14],
    ]
    assert found.positions is not None
    assert found.positions.tolist() == [1, 3, 4, 4, 5, 5, 7, 7, 9]
    assert found.bad == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"type": "insert"}, "field 'data' is missing"),
        ({"type": "update", "data": {"n": 1}}, "field 'old' is missing"),
        ({"data": {"n": 1}}, "field 'type' is missing"),
        (
            {"type": "table-drop", "database": "d"},
            (
                "field 'type': 'table-drop' is none of insert, update, delete, bootstrap-insert, "
                "bootstrap-start, bootstrap-complete"
            ),
        ),
        ({"type": "update", "data": {"n": 1}, "old": {"n": "x"}}, "field 'old.n': 'x' is no BIGINT"),
        ([{"type": "insert"}], "an array is no object"),
        (b"{", "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)
def test_messages_that_are_no_change_are_bad(message: object, expected: str) -> None:
    found = decode(N, [message])
    assert changes(found) == []
    assert [bad.reason for bad in found.bad] == [expected]
    ignored = decode(N, [message], ignore_parse_errors="true")
    assert ignored.bad == ()


@pytest.mark.parametrize("name", ["old", "\\u006fld", "o\\u006Cd", "ol\\u0064"])
def test_null_before_is_found_wherever_other_nulls_are(name: str) -> None:
    fields = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    first, last = f'"{name}": {{"n": null}}', '"data": {"n": 1, "m": null}'
    for members in ([first, last], [last, first]):
        message = f'{{"type": "update", {", ".join(members)}, "x": null}}'.encode()
        found = FORMAT.decoder(FormatContext(fields)).decode(pa.array([message]))
        assert found.rows.to_pylist() == [{"n": None, "m": None}, {"n": 1, "m": None}]
    unchanged = b'{"type": "update", "data": {"n": 1, "m": null}, "old": {"m": 2}, "x": null}'
    found = FORMAT.decoder(FormatContext(fields)).decode(pa.array([unchanged]))
    assert found.rows.to_pylist() == [{"n": 1, "m": 2}, {"n": 1, "m": None}]


def test_null_in_a_column_declared_not_null_is_bad_also_in_the_image_before() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False), ("m", pa.int64())])
    data = {"n": 1, "m": 3}
    found = decode(
        fields,
        [
            {"type": "update", "data": data, "old": {"m": 2}},
            {"type": "update", "data": data, "old": {"n": None}},
        ],
    )
    assert changes(found) == [["-U", 1, 2], ["+U", 1, 3]]
    assert found.rows.schema == fields
    assert [bad.reason for bad in found.bad] == ["field 'old.n': is NULL, but declared NOT NULL"]


def test_metadata_is_that_of_the_message_and_times_are_in_seconds() -> None:
    message = {
        "type": "update",
        "data": {"n": 2},
        "old": {"n": 1},
        "database": "shop",
        "table": "orders",
        "ts": 1_596_684_883,
        "primary_key_columns": ["n"],
    }
    keys = ("ingestion-timestamp", "database", "primary-key-columns", "table")
    found = decode(N, [message, {"type": "insert", "data": {"n": 3}}], keys)
    at = datetime(2020, 8, 6, 3, 34, 43, tzinfo=UTC)
    assert changes(found) == [
        ["-U", 1, at, "shop", ["n"], "orders"],
        ["+U", 2, at, "shop", ["n"], "orders"],
        ["+I", 3, None, None, None, None],
    ]
    assert not any(key.is_writable for key in FORMAT.metadata)


@pytest.mark.parametrize("seconds", [2**53, -(2**63)])
def test_time_out_of_range_is_a_bad_message(seconds: int) -> None:
    message = {"type": "insert", "data": {"n": 1}, "ts": seconds}
    found = decode(N, [message], ("ingestion-timestamp",))
    assert [bad.reason for bad in found.bad] == ["field 'ts' is out of range for seconds"]
    assert decode(N, [message]).bad == ()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option 'table.include'"):
        parse("maxwell-json", FORMAT.options, {"table.include": "t"})


def test_positive_kinds_are_written_as_inserts_and_negative_ones_as_deletes() -> None:
    rows = pa.table({"n": [1, 2, 3, 4]})
    messages = FORMAT.encoder(FormatContext(rows.schema)).encode(rows, pa.array(["+I", "-U", "+U", "-D"]))
    assert messages.to_pylist() == [
        b'{"data":{"n":1},"type":"insert"}',
        b'{"data":{"n":2},"type":"delete"}',
        b'{"data":{"n":3},"type":"insert"}',
        b'{"data":{"n":4},"type":"delete"}',
    ]


PAIR = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-9, 9),
        "b": st.none() | st.lists(st.none() | st.sampled_from(["x", "null", ""]), max_size=2),
    },
)
MESSAGES = st.builds(
    lambda kind, data, old: {"type": kind, "data": data, "old": old},
    st.sampled_from(["insert", "update", "update", "delete", "bootstrap-complete"]),
    ROWS,
    ROWS,
)


def expected_changes(message: dict[str, Any]) -> list[list[Any]]:
    """The changes of one message by hand."""
    data, old = message["data"], message["old"]
    now, then = ([row.get("a"), row.get("b")] for row in (data, {**data, **old}))
    kinds = {"insert": [["+I", *now]], "update": [["-U", *then], ["+U", *now]], "delete": [["-D", *now]]}
    return kinds.get(message["type"], [])


@given(st.lists(MESSAGES, max_size=8))
def test_random_messages_give_what_each_of_them_says(messages: list[dict[str, Any]]) -> None:
    found = decode(PAIR, messages)
    assert found.bad == ()
    expected = [(i, row) for i, message in enumerate(messages) for row in expected_changes(message)]
    positions = range(len(messages)) if found.positions is None else found.positions.tolist()
    assert list(zip(positions, changes(found), strict=True)) == expected
    found.rows.validate(full=True)
