"""Which changes a Debezium message holds, and how a change is written."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats import json_changes
from tests.upsert.formats.json_changes import changes
from upsert import types
from upsert.errors import ConfigurationError
from upsert.formats.base import Format, FormatContext
from upsert.formats.debezium.json import FORMAT
from upsert.formats.json import FORMAT as JSON
from upsert.options import parse

PRODUCTS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("weight", pa.float64())])
N = pa.schema([("n", pa.int64())])

decode = partial(json_changes.decode, FORMAT)
reason = partial(json_changes.reason, FORMAT)
SCOOTER = {"id": 111, "name": "scooter", "weight": 5.18}
LIGHTER = {**SCOOTER, "weight": 5.15}
HAMMER = {"id": 112, "name": "hammer", "weight": 1}
CLOUD_EVENT = {
    "id": "name:shop;lsn:29274832;txId:565",
    "source": "/debezium/postgresql/shop",
    "specversion": "1.0",
    "type": "io.debezium.connector.postgresql.DataChangeEvent",
    "iodebeziumop": "c",
    "data": {"schema": {}, "payload": {"before": None, "after": {"n": 1}}},
}
IS_CLOUD_EVENT = (
    "this is a CloudEvent, which no format reads; let the connector write with "
    "org.apache.kafka.connect.json.JsonConverter"
)


def test_create_read_update_and_delete() -> None:
    found = decode(
        PRODUCTS,
        [
            {"before": None, "after": SCOOTER, "op": "c", "ts_ms": 1},
            {"before": None, "after": HAMMER, "op": "r", "ts_ms": 2},
            {"before": SCOOTER, "after": LIGHTER, "op": "u", "ts_ms": 3},
            {"before": LIGHTER, "after": None, "op": "d", "ts_ms": 4},
        ],
    )
    assert changes(found) == [
        ["+I", 111, "scooter", 5.18],
        ["+I", 112, "hammer", 1.0],
        ["-U", 111, "scooter", 5.18],
        ["+U", 111, "scooter", 5.15],
        ["-D", 111, "scooter", 5.15],
    ]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 2, 2, 3]


def test_one_change_for_each_message_leaves_positions_out() -> None:
    found = decode(N, [{"after": {"n": 1}, "op": "c"}, {"before": {"n": 1}, "op": "d"}])
    assert found.positions is None
    assert changes(found) == [["+I", 1], ["-D", 1]]


def test_empty_messages_and_tombstones_give_nothing() -> None:
    found = decode(N, [None, b"", b"null", {"after": {"n": 1}, "op": "c"}, None])
    assert changes(found) == [["+I", 1]]
    assert found.positions is not None
    assert found.positions.tolist() == [3]
    assert found.bad == ()


@pytest.mark.parametrize("op", ["u", "d"])
def test_update_or_delete_without_image_before_names_the_remedy(op: str) -> None:
    why = reason(N, {"before": None, "after": {"n": 1}, "op": op})
    assert why.startswith("field 'before' is NULL in an update or delete")
    assert "REPLICA IDENTITY FULL" in why


def test_update_without_image_before_is_its_new_row_where_no_other_is_needed() -> None:
    """A deletion must have one, for its key at least."""
    records = [
        {"before": None, "after": {"n": 1}, "op": "u"},
        {"before": {"n": 1}, "after": {"n": 2}, "op": "u"},
        {"before": None, "after": None, "op": "u"},
        {"before": None, "after": None, "op": "d"},
    ]
    messages = pa.array([json.dumps(one).encode() for one in records], pa.binary())
    found = FORMAT.decoder(FormatContext(N, needs_before=False)).decode(messages)
    assert changes(found) == [["+U", 1], ["-U", 1], ["+U", 2]]
    assert [message.position for message in found.bad] == [2, 3]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.string(), "__debezium_unavailable_value"),
        (pa.binary(), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        (pa.list_(pa.string()), ["__debezium_unavailable_value"]),
    ],
)
def test_a_long_value_that_an_update_left_as_it_is_is_not_known(type_: pa.DataType, value: Any) -> None:
    """PostgreSQL sends none; the text that stands for it became the value of the row."""
    fields = pa.schema([("n", pa.int64()), ("bio", type_)])
    known = {"n": 1, "bio": [] if pa.types.is_list(type_) else ""}
    records = [
        {"before": None, "after": {"n": 1, "bio": value}, "op": "u"},
        {"before": None, "after": known, "op": "u"},
        {"before": None, "after": {"n": 2, "bio": None}, "op": "u"},
        {"before": {"n": 1, "bio": value}, "after": None, "op": "d"},
    ]
    messages = pa.array([json.dumps(one).encode() for one in records], pa.binary())
    found = FORMAT.decoder(FormatContext(fields, needs_before=False)).decode(messages)
    assert found.kinds.to_pylist() == ["+U", "+U", "-D"]
    (bad,) = found.bad
    assert bad.position == 0
    assert bad.reason.startswith("field 'after.bio' has no value, for the database did not send a long one")
    without = FORMAT.decoder(FormatContext(fields.remove(1), needs_before=False)).decode(messages)
    assert without.bad == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"after": None, "op": "c"}, "field 'after' is NULL in an insert or update"),
        ({"before": {"n": 1}, "after": None, "op": "u"}, "field 'after' is NULL in an insert or update"),
        ({"after": {"n": 1}, "op": "x"}, "field 'op': 'x' is none of c, r, u, d"),
        ({"payload": {}}, "field 'op' is missing; where messages carry their schema, set schema-include"),
        ({"n": 1}, "field 'op' is missing; rows that Debezium has unwrapped are of the format json"),
        (CLOUD_EVENT, f"field 'op' is missing; {IS_CLOUD_EVENT}"),
        ({"after": {"n": "x"}, "op": "c"}, "field 'after.n': 'x' is no BIGINT"),
        ([{"after": {"n": 1}, "op": "c"}], "an array is no object"),
        (b"{", "not valid JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)
def test_messages_that_are_no_change_are_bad(message: object, expected: str) -> None:
    assert reason(N, message) == expected


def test_bad_messages_are_in_order_whoever_found_them() -> None:
    good = {"after": {"n": 1}, "op": "c"}
    found = decode(N, [{"op": "x"}, b"{", good, {"op": "d"}, b"5"])
    assert [bad.position for bad in found.bad] == [0, 1, 3, 4]
    assert changes(found) == [["+I", 1]]


def test_null_in_a_column_declared_not_null_is_bad_only_in_an_image_that_is_there() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    found = decode(fields, [{"before": None, "after": {"n": 1}, "op": "c"}])
    assert changes(found) == [["+I", 1]]
    assert found.rows.schema == fields
    assert reason(fields, {"after": {}, "op": "c"}) == "field 'after.n': is NULL, but declared NOT NULL"


def test_schema_around_the_payload() -> None:
    payload = {"before": None, "after": {"n": 1}, "op": "c"}
    messages = [{"schema": {"type": "struct", "optional": False}, "payload": payload}, {"schema": {}}]
    found = decode(N, messages, ("schema",), schema_include="true")
    assert changes(found) == [["+I", 1, '{"type":"struct","optional":false}']]
    assert [bad.reason for bad in found.bad] == ["field 'payload' is missing; schema-include is set"]
    (bad,) = decode(N, [CLOUD_EVENT], schema_include="true").bad
    assert bad.reason == f"field 'payload' is missing; {IS_CLOUD_EVENT}"


SOURCE = {"ts_ms": 1_500, "db": "shop", "schema": "public", "table": "products", "snapshot": False, "pos": 4}


@pytest.mark.parametrize("properties", [(), ("source.properties",)])
def test_metadata_is_that_of_the_message(properties: tuple[str, ...]) -> None:
    keys = ("source.table", "ingestion-timestamp", "source.timestamp", "source.database", "source.schema")
    message = {"before": {"n": 1}, "after": {"n": 2}, "op": "u", "ts_ms": -1, "source": SOURCE}
    found = decode(N, [message, {"after": {"n": 1}, "op": "c"}], (*keys, *properties))
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    before = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    source = [(name, str(value).lower()) for name, value in SOURCE.items()]
    of_update = ["products", before, at, "shop", "public", *([source] if properties else [])]
    assert changes(found) == [
        ["-U", 1, *of_update],
        ["+U", 2, *of_update],
        ["+I", 1, *[None] * len(of_update)],
    ]
    assert found.rows.schema.names == ["n", *keys, *properties]
    assert [field.type for field in found.rows.schema][1:4] == [pa.string(), types.TIMESTAMP, types.TIMESTAMP]


def test_collection_stands_in_for_the_table() -> None:
    message = {"after": {"n": 1}, "op": "c", "source": {"collection": "orders"}}
    assert changes(decode(N, [message], ("source.table",))) == [["+I", 1, "orders"]]


@pytest.mark.parametrize("millis", [2**62, -(2**63), 2**63 - 1])
def test_time_out_of_range_is_a_bad_message(millis: int) -> None:
    message = {"after": {"n": 1}, "op": "c", "ts_ms": millis}
    found = decode(N, [message], ("ingestion-timestamp",))
    assert [bad.reason for bad in found.bad] == ["field 'ts_ms' is out of range for milliseconds"]
    assert decode(N, [message]).bad == ()


def test_metadata_is_offered_for_values_only() -> None:
    assert [key.key for key in FORMAT.metadata] == [
        "schema",
        "ingestion-timestamp",
        "source.timestamp",
        "source.database",
        "source.schema",
        "source.table",
        "source.properties",
    ]
    assert not any(key.is_writable for key in FORMAT.metadata)


def test_ignored_errors_leave_no_trace() -> None:
    messages = [b"{", {"op": "x"}, {"op": "d"}, {"after": {"n": "x"}, "op": "c"}, {"after": 5, "op": "c"}]
    found = decode(N, messages, ignore_parse_errors="true")
    assert changes(found) == [["+I", None]]
    assert found.bad == ()


def test_times_are_read_in_the_standard_chosen() -> None:
    fields = pa.schema([("t", types.TIMESTAMP)])
    message = {"after": {"t": "2020-01-01T00:00:00Z"}, "op": "c"}
    assert decode(fields, [message], timestamp_format__standard="ISO-8601").bad == ()
    assert decode(fields, [message]).bad == (), "Debezium writes ISO's texts"
    message["after"] = {"t": "2020-01-01 00:00:00Z"}
    assert "is no TIMESTAMP" in reason(fields, message, timestamp_format__standard="ISO-8601")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("schema-include", "maybe"),
        ("ignore-parse-errors", "no"),
        ("timestamp-format.standard", "ISO"),
        ("map-null-key.mode", "IGNORE"),
        ("map-null-key.literal", ""),
        ("encode.decimal-as-plain-number", "1"),
        ("fail-on-missing-field", "true"),
    ],
)
def test_bad_options_are_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        parse("debezium-json", FORMAT.options, {key: text})


def test_positive_kinds_are_written_as_inserts_and_negative_ones_as_deletes() -> None:
    rows = pa.table({"n": [1, 2, 3, 4]})
    messages = FORMAT.encoder(FormatContext(rows.schema)).encode(rows, pa.array(["+I", "-U", "+U", "-D"]))
    assert messages.to_pylist() == [
        b'{"before":null,"after":{"n":1},"op":"c"}',
        b'{"before":{"n":2},"after":null,"op":"d"}',
        b'{"before":null,"after":{"n":3},"op":"c"}',
        b'{"before":{"n":4},"after":null,"op":"d"}',
    ]
    (message,) = FORMAT.encoder(FormatContext(rows.schema)).encode(rows.slice(0, 1)).to_pylist()
    assert json.loads(message)["op"] == "c"


def test_messages_are_not_written_with_a_schema() -> None:
    with pytest.raises(ConfigurationError, match="'schema-include' must be false to write, got true"):
        FORMAT.encoder(FormatContext(N, {"schema-include": True}))


IMAGES = st.none() | st.fixed_dictionaries({}, optional={"n": st.none() | st.integers(-9, 9) | st.just("x")})
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={"before": IMAGES, "after": IMAGES, "op": st.sampled_from(["c", "r", "u", "d", "d", "u", "x"])},
)


def expected_changes(message: dict[str, Any]) -> list[list[Any]] | None:
    """The changes of one envelope by hand; None when it is bad."""
    before, after, op = message.get("before"), message.get("after"), message.get("op")
    if any(image is not None and image.get("n") == "x" for image in (before, after)):
        return None
    needed = {
        "c": [("+I", after)],
        "r": [("+I", after)],
        "u": [("-U", before), ("+U", after)],
        "d": [("-D", before)],
    }
    images = needed.get(op or "")
    if images is None or any(image is None for _, image in images):
        return None
    return [[kind, (image or {}).get("n")] for kind, image in images]


@given(st.lists(ENVELOPES, max_size=12))
def test_random_envelopes_give_what_each_of_them_says(messages: list[dict[str, Any]]) -> None:
    found = decode(N, messages)
    expected = [(i, row) for i, m in enumerate(messages) for row in expected_changes(m) or []]
    positions = range(len(messages)) if found.positions is None else found.positions.tolist()
    assert list(zip(positions, changes(found), strict=True)) == expected
    assert [bad.position for bad in found.bad] == [
        i for i, message in enumerate(messages) if expected_changes(message) is None
    ]


def test_each_message_is_read_by_its_own_schema() -> None:
    """As after an ALTER TABLE: in milliseconds, then in microseconds; and a message in another order."""

    def message(count: int, of: str, *, is_ahead: bool = True) -> dict[str, Any]:
        image = {
            "type": "struct",
            "field": "after",
            "fields": [{"field": "t", "name": f"io.debezium.time.{of}"}],
        }
        parts = {
            "schema": {"type": "struct", "fields": [image]},
            "payload": {"after": {"t": count}, "op": "c"},
        }
        return parts if is_ahead else dict(reversed(parts.items()))

    messages = [
        json.dumps(one, separators=(",", ":")).encode()
        for one in (
            message(1_000, "Timestamp"),
            message(2_000_000, "MicroTimestamp"),
            message(3_000, "Timestamp"),
            message(4_000, "Timestamp", is_ahead=False),
            message(5_000, "Timestamp") | {"payload": None},
        )
    ]
    fields = pa.schema([("t", types.TIMESTAMP)])
    for metadata in ((), ("schema",)):
        found = decode(fields, [None, *messages], metadata, schema_include="true")
        assert found.rows["t"].cast(pa.int64()).to_pylist() == [1e6, 2e6, 3e6, 4e6]
        assert [(bad.position, bad.reason[:27]) for bad in found.bad] == [(5, "field 'payload' is missing;")]


def _of_decimal(**of_field: Any) -> bytes:
    """A message whose schema has this of a column in which 12.34 is."""
    image = {"field": "after", "fields": [{"field": "d"} | of_field]}
    envelope = {"schema": {"fields": [image]}, "payload": {"after": {"d": "BNI="}, "op": "c"}}
    return json.dumps(envelope, separators=(",", ":")).encode()


_DECIMAL = "org.apache.kafka.connect.data.Decimal"
GOOD = _of_decimal(name=_DECIMAL, parameters={"scale": "2"})


@pytest.mark.parametrize(
    "message",
    [
        _of_decimal(name=_DECIMAL),
        _of_decimal(name=_DECIMAL, parameters={"scale": "two"}),
        _of_decimal(name=_DECIMAL, parameters={"scale": float("inf")}),
        _of_decimal(name=_DECIMAL, parameters={"scale": -1_000_005}),
        _of_decimal(name=[_DECIMAL]),
        _of_decimal(type="array"),
        _of_decimal(type="array", items=1),
        b'{"schema":{"fields":' + b"[" * 100_000 + b',"payload":{}}',
        GOOD.replace(b',"payload"', b'},"payload"'),
    ],
)
def test_a_schema_that_is_none_of_kafka_connects_spoils_its_own_message_alone(message: bytes) -> None:
    fields = pa.schema([("d", pa.decimal128(9, 2))])
    found = decode(fields, [message, GOOD], schema_include="true")
    assert found.rows.to_pylist() == [{"d": Decimal("12.34")}]
    assert [bad.position for bad in found.bad] == [0]


@pytest.mark.parametrize(
    "value",
    [
        "",
        '{"scale":' + "[" * 100_000,
        {"scale": 0, "value": None},
        {"scale": 0, "value": 1234},
        {"scale": -1_000_005, "value": "AQ=="},
    ],
)
def test_what_is_no_number_in_base64_is_bad(value: object) -> None:
    fields, given = pa.schema([("d", pa.decimal128(9, 0))]), {"decimal__handling__mode": "precise"}
    message = {"after": {"d": value}, "op": "c"}
    assert "is no decimal in base64" in reason(fields, message, **given)


def test_a_bad_time_is_null_where_it_may_be_and_the_message_is_passed_over_where_not() -> None:
    """Rows that are unwrapped, by the same rules as without the option."""
    time, whole = types.TIMESTAMP_NTZ, pa.field("element", types.TIMESTAMP_NTZ, nullable=False)
    some = pa.field("some", pa.list_(pa.field("element", time)), nullable=False)
    fields = pa.schema([pa.field("t", time, nullable=False), ("u", time), some, ("all", pa.list_(whole))])
    day = "1970-01-01 00:00:01"
    rows = [{"t": "soon", "some": []}, {"t": day, "u": "soon", "some": ["soon"], "all": [day, "soon"]}]
    messages = pa.array([json.dumps(row).encode() for row in rows])
    for modes in ({}, {"time.precision.mode": "adaptive"}):
        given = parse("json", JSON.options, {"ignore-parse-errors": "true", **modes})
        found = JSON.decoder(FormatContext(fields, given)).decode(messages)
        read = {"t": datetime(1970, 1, 1, 0, 0, 1), "u": None, "some": [None], "all": None}
        assert found.rows.to_pylist() == [read]
        assert found.bad == ()


def test_a_number_that_is_no_day_is_told_as_that() -> None:
    message = {"after": {"t": 20201230}, "op": "c"}
    assert reason(pa.schema([("t", pa.date32())]), message).endswith(
        "'20201230' is no DATE within the years 0001 to 9999"
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_texts_of_both_forms_in_a_column(is_first: bool) -> None:
    given = {"1970-01-01T00:00:01Z": 1, "1970-01-01 00:00:02": 2, "1970-01-01T01:00:03+01:00": 3}
    texts = list(given) if is_first else list(reversed(given))
    messages = [{"after": {"t": text}, "op": "c"} for text in [*texts, "soon"]]
    found = decode(pa.schema([("t", types.TIMESTAMP_NTZ)]), messages)
    assert found.rows["t"].cast(pa.int64()).to_pylist() == [given[text] * 10**6 for text in texts]
    assert [bad.position for bad in found.bad] == [3]


@pytest.mark.parametrize("format", [FORMAT, JSON])
def test_decimals_are_not_written_as_numbers_that_would_be_read_as_base64(format: Format) -> None:
    given = parse(format.name, format.options, {"decimal.handling.mode": "precise"})
    format.encoder(FormatContext(N, given))
    with pytest.raises(ConfigurationError, match=r"'decimal\.handling\.mode' must not be precise .* 'd'"):
        format.encoder(FormatContext(pa.schema([("n", pa.int64()), ("d", pa.decimal128(9, 2))]), given))
