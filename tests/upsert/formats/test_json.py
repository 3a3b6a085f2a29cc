"""What the format json reads and writes."""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, nested, plain, schemas, tables
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import BadMessage, Decoded, FormatContext
from upsert.formats.json import FORMAT
from upsert.options import parse

N = pa.schema([("n", pa.int64())])
LIKE = "like 2020-12-30 12:13:14.123"


def context(fields: pa.Schema | pa.DataType, given: Mapping[str, str] | None = None) -> FormatContext:
    schema = fields if isinstance(fields, pa.Schema) else pa.schema([("x", fields)])
    return FormatContext(schema, parse("json", FORMAT.options, given or {}))


def decode(fields: pa.Schema | pa.DataType, *messages: bytes | None, **given: str) -> Decoded:
    options = {name.replace("__", ".").replace("_", "-"): value for name, value in given.items()}
    return FORMAT.decoder(context(fields, options)).decode(pa.array(messages, pa.binary()))


def value(type_: pa.DataType, text: str, **given: str) -> Any:
    """What the column x of one message holds."""
    found = decode(type_, b'{"x": %s}' % text.encode(), **given)
    assert not found.bad
    return found.rows["x"].to_pylist()[0]


def reason(type_: pa.DataType | pa.Schema, message: bytes, **given: str) -> str:
    found = decode(type_, message, **given)
    assert found.rows.num_rows == 0
    (bad,) = found.bad
    assert bad.position == 0
    return bad.reason


def encode(rows: pa.Table, **given: str) -> list[bytes]:
    options = {name.replace("__", ".").replace("_", "-"): value for name, value in given.items()}
    return list(FORMAT.encoder(context(rows.schema, options)).encode(rows).to_pylist())


# --- messages and rows


def test_one_object_is_one_row_and_positions_are_left_out() -> None:
    found = decode(N, b'{"n": 1}', b'{"n": 2}')
    assert found == Decoded(found.rows)
    assert found.rows.equals(pa.table({"n": [1, 2]}))


def test_no_message_an_empty_one_and_null_give_no_row_and_are_not_bad() -> None:
    found = decode(N, None, b"", b" \n", b"null", b'{"n": 5}', b"[null]", b"[]")
    assert found.rows.to_pylist() == [{"n": 5}]
    assert found.positions is not None
    assert found.positions.tolist() == [4]
    assert found.bad == ()


def test_top_level_array_gives_several_rows_of_one_message() -> None:
    found = decode(N, b'{"n": 0}', b'[{"n": 1}, null, {"n": 2}]', b'{"n": 3}')
    assert found.rows["n"].to_pylist() == [0, 1, 2, 3]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 1, 2]


def test_one_bad_element_makes_the_whole_message_bad() -> None:
    assert reason(N, b'[{"n": 1}, {"n": "x"}]') == "field 'n': 'x' is no BIGINT"


def test_line_breaks_between_tokens_and_in_strings_are_allowed() -> None:
    found = decode(pa.schema([("a", pa.string())]), b'{\n "a":\n"x"\n}\n', b'{"a": "x\ny\tz"}', b'{"a":"z"}')
    assert found.rows["a"].to_pylist() == ["x", "x\ny\tz", "z"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'{"n": 1}{"n": 2}', "not valid JSON: Extra data at character 8"),
        (b'{"n": 1}null', "not valid JSON: Extra data at character 8"),
        (b'{"n": 1', "not valid JSON: Expecting ',' delimiter at character 7"),
        (b"}", "not valid JSON: Expecting value at character 0"),
        (b'{"n": 1}\x00', "not valid JSON: Extra data at character 8"),
        (b'{"n": NaN}', "not valid JSON: NaN is no number"),
        (b'{"n": 1, "m": Inf}', "not valid JSON: Expecting value at character 14"),
        (b"5", "5 is no object"),
        (b'"x"', "'x' is no object"),
        (b'{"n": "\xff"}', "not valid UTF-8 at byte 7"),
        (b'{"n": {}}', "field 'n': an object is no BIGINT"),
    ],
)
def test_unreadable_messages_are_named_with_the_reason(message: bytes, expected: str) -> None:
    assert reason(N, message) == expected


def test_messages_that_are_whole_only_together_are_both_bad() -> None:
    """A reader of lines would take the first two for one row, and the last for two."""
    found = decode(N, b'{"n": 1,', b'"n": 2}', b'{"n": 3}{"n": 4}')
    assert found.rows.num_rows == 0
    assert [bad.position for bad in found.bad] == [0, 1, 2]


def test_deep_nesting_is_a_bad_message_also_in_a_field_that_nobody_reads() -> None:
    deep = b'{"n": 1, "m": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert reason(N, deep) == "nested deeper than 200 levels"
    assert reason(N, b'{"n":' * 300 + b"1" + b"}" * 300) == "nested deeper than 200 levels"
    assert decode(N, b'{"n": 1, "m": "%s"}' % (b"[" * 1000)).rows.to_pylist() == [{"n": 1}]


def test_object_as_deep_as_allowed_becomes_the_text_of_a_string() -> None:
    inner = b'{"a":' * 198 + b"1" + b"}" * 198
    found = decode(
        pa.schema([("x", pa.string())]), b'{"x":' + inner + b"}", b'{"x":' + b"[" * 198 + b"]" * 198 + b"}"
    )
    assert found.rows["x"].to_pylist() == [inner.decode(), "[" * 198 + "]" * 198]


def test_reasons_show_only_the_beginning_of_long_values() -> None:
    assert len(reason(N, b'{"n": "%s"}' % (b"x" * 10_000))) < 120


def test_of_names_given_twice_the_last_counts() -> None:
    assert decode(N, b'{"n": 1, "n": 2}').rows["n"].to_pylist() == [2]
    assert decode(N, b'{"n": "x", "n": 2, "y": 1, "y": 2}').rows["n"].to_pylist() == [2]


def test_unknown_fields_are_passed_over_and_missing_ones_are_null() -> None:
    fields = pa.schema([("n", pa.int64()), ("s", pa.struct([("t", pa.string())]))])
    found = decode(fields, b'{"m": [{"n": 1}], "n": 2}', b'{"s": {"u": 1}}', b'{"n": null}')
    assert found.rows.to_pylist() == [
        {"n": 2, "s": None},
        {"n": None, "s": {"t": None}},
        {"n": None, "s": None},
    ]


def test_null_in_a_column_declared_not_null_is_bad() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    found = decode(fields, b'{"n": 1}', b"{}", b'{"n": null}', b'{"n": 2}')
    assert found.rows.schema == fields
    assert found.rows["n"].to_pylist() == [1, 2]
    why = "field 'n': is NULL, but declared NOT NULL"
    assert found.bad == (BadMessage(1, why), BadMessage(2, why))


def test_row_of_no_fields_is_counted() -> None:
    found = decode(pa.schema([]), b"{}", b'{"a": 1}')
    assert found.rows.num_rows == 2
    assert encode(found.rows) == [b"{}", b"{}"]


# --- values


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.int32(), '"1"', 1),
        (pa.int32(), '" +1 "', 1),
        (pa.int64(), "1.0", 1),
        (pa.int64(), "1e3", 1000),
        (pa.int8(), "-128", -128),
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.float64(), "1", 1.0),
        (pa.float64(), '"1.5e1"', 15.0),
        (pa.float64(), '"-Infinity"', float("-inf")),
        (pa.float64(), "1e-400", 0.0),
        (pa.float32(), "0.1", 0.10000000149011612),
        (
            pa.decimal128(38, 0),
            "12345678901234567890123456789012345678",
            Decimal("12345678901234567890123456789012345678"),
        ),
        (pa.decimal128(38, 18), "0.100000000000000001", Decimal("0.100000000000000001")),
        (pa.decimal128(5, 2), "1.005", Decimal("1.01")),
        (pa.decimal128(5, 2), '"-1.005"', Decimal("-1.01")),
        (pa.decimal128(5, 2), "1e-1000000000", Decimal("0.00")),
        (pa.string(), "1.50", "1.50"),
        (pa.string(), "true", "true"),
        (pa.string(), '{"a": [1, null, "\\u00e9"]}', '{"a":[1,null,"é"]}'),
        (pa.string(), '"\\u0000\\ud83d\\ude00"', "\x00😀"),
        (pa.bool_(), '" TRUE "', True),
        (pa.binary(), '"3q2+7w=="', b"\xde\xad\xbe\xef"),
        (pa.date32(), '"2020-02-29"', date(2020, 2, 29)),
        (types.TIMESTAMP, '"2020-12-30 12:13:14.123Z"', datetime(2020, 12, 30, 12, 13, 14, 123_000, UTC)),
        (types.TIMESTAMP_NTZ, '"2020-12-30 12:13:14.123456789"', datetime(2020, 12, 30, 12, 13, 14, 123_456)),
        (pa.list_(pa.int32()), '[1, null, "3"]', [1, None, 3]),
        (pa.map_(pa.string(), pa.int32()), '{"a": 1, "b": null, "a": 2}', [("a", 2), ("b", None)]),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), '{"b": "x"}', {"a": None, "b": "x"}),
    ],
)
def test_values_are_converted_as_flink_does(type_: pa.DataType, text: str, expected: object) -> None:
    assert value(type_, text) == expected


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.int32(), "2147483648", "2147483648 is no INT"),
        (pa.int64(), "1.5", "1.5 is no BIGINT"),
        (pa.int64(), "1e999999999", "1e999999999 is no BIGINT"),
        (pa.int64(), "true", "true is no BIGINT"),
        (pa.int64(), '"0x10"', "'0x10' is no BIGINT"),
        (pa.int64(), '"1_0"', "'1_0' is no BIGINT"),
        (pa.float64(), "1e400", "1e400 is no DOUBLE"),
        (pa.float32(), "1e39", "1e39 is no FLOAT"),
        (pa.float64(), '"inf"', "'inf' is no DOUBLE"),
        (pa.decimal128(3, 2), "10", "10 is no DECIMAL(3,2)"),
        (pa.decimal128(3, 2), '"NaN"', "'NaN' is no DECIMAL(3,2)"),
        (pa.string(), '"\\ud800"', "text holds half of a surrogate pair"),
        (pa.bool_(), "1", "1 is no BOOLEAN"),
        (pa.bool_(), '"yes"', "'yes' is no BOOLEAN"),
        (pa.binary(), '"3q2+7w"', "'3q2+7w' is no BINARY"),
        (pa.date32(), '"2021-02-29"', "'2021-02-29' is no DATE like 2020-12-30"),
        (pa.date32(), "18000", "18000 is no DATE"),
        (
            types.TIMESTAMP,
            '"2020-12-30 12:13:14"',
            f"'2020-12-30 12:13:14' is no TIMESTAMP {LIKE}Z",
        ),
        (
            types.TIMESTAMP_NTZ,
            '"2020-12-30T12:13:14"',
            f"'2020-12-30T12:13:14' is no TIMESTAMP_NTZ {LIKE}",
        ),
        (
            types.TIMESTAMP_NTZ,
            '"2020-12-30 24:00:00"',
            f"'2020-12-30 24:00:00' is no TIMESTAMP_NTZ {LIKE}",
        ),
        (pa.list_(pa.int32()), "{}", "an object is no ARRAY"),
        (pa.map_(pa.string(), pa.int32()), "[]", "an array is no MAP"),
    ],
)
def test_values_of_no_type_are_bad(type_: pa.DataType, text: str, expected: str) -> None:
    assert reason(type_, b'{"x": %s}' % text.encode()) == f"field 'x': {expected}"


def test_reason_names_the_inner_field() -> None:
    type_ = pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.int32()))]))
    assert reason(type_, b'{"x": [{}, {"a": {"k": "z"}}]}') == "field 'x.1.a.k': 'z' is no INT"


# --- options


def test_fail_on_missing_field() -> None:
    fields = pa.schema([("n", pa.int64()), ("s", pa.struct([("t", pa.string())]))])
    assert reason(fields, b'{"n": 1}', fail_on_missing_field="true") == "field 's': is missing"
    assert reason(fields, b'{"n": 1, "s": {}}', fail_on_missing_field="true") == "field 's.t': is missing"
    found = decode(
        fields, b'{"n": null, "s": null}', b'{"n": 1, "s": {"t": "x"}}', fail_on_missing_field="true"
    )
    assert found.rows.to_pylist() == [{"n": None, "s": None}, {"n": 1, "s": {"t": "x"}}]


def test_ignored_errors_are_null_and_unreadable_messages_leave_no_trace() -> None:
    fields = pa.schema([("n", pa.int64()), ("a", pa.list_(pa.int32()))])
    found = decode(
        fields,
        b'{"n": "x", "a": [1, "y"]}',
        b"{",
        b"\xff",
        b"5",
        b'[3, {"n": 1, "a": 2}]',
        ignore_parse_errors="true",
    )
    assert found.rows.to_pylist() == [{"n": None, "a": [1, None]}, {"n": 1, "a": None}]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 4]
    assert found.bad == ()


def test_missing_fields_cannot_fail_where_errors_are_ignored() -> None:
    both = {"fail-on-missing-field": "true", "ignore-parse-errors": "true"}
    with pytest.raises(ConfigurationError, match="must not both be true"):
        FORMAT.check(context(N, both))
    FORMAT.check(context(N, {"fail-on-missing-field": "true"}))


@pytest.mark.parametrize(
    ("standard", "instant", "local"),
    [
        ("SQL", "2020-12-30 12:13:14.5Z", "2020-12-30 12:13:14.5"),
        ("ISO-8601", "2020-12-30T12:13:14.5Z", "2020-12-30T12:13:14.5"),
        ("ISO-8601-WITH-OFFSET", "2020-12-30T12:13:14.5+00:00", "2020-12-30T12:13:14.5+00:00"),
    ],
)
def test_times_are_written_and_read_in_the_standard_chosen(standard: str, instant: str, local: str) -> None:
    at = datetime(2020, 12, 30, 12, 13, 14, 500_000)
    rows = pa.table(
        {"i": pa.array([at.replace(tzinfo=UTC)], types.TIMESTAMP), "l": pa.array([at], types.TIMESTAMP_NTZ)}
    )
    (message,) = encode(rows, timestamp_format__standard=standard)
    assert json.loads(message) == {"i": instant, "l": local}
    assert decode(rows.schema, message, timestamp_format__standard=standard).rows.equals(rows)


def test_offset_is_part_of_the_time() -> None:
    given = {"timestamp_format__standard": "iso-8601-with-offset"}
    assert value(types.TIMESTAMP, '"2020-01-01T00:30+05:30"', **given) == datetime(
        2019, 12, 31, 19, tzinfo=UTC
    )
    assert value(types.TIMESTAMP_NTZ, '"2020-01-01T00:30:00-01:00"', **given) == datetime(2020, 1, 1, 1, 30)


def test_options_for_null_keys_of_maps_are_known_though_no_map_has_one() -> None:
    given = {"map-null-key.mode": "LITERAL", "map-null-key.literal": "none"}
    FORMAT.check(context(pa.map_(pa.string(), pa.int64()), given))
    with pytest.raises(pa.ArrowInvalid, match="key"):
        pa.array([[("a", 1), (None, 2)]], pa.map_(pa.string(), pa.int64()))


def test_small_decimals_are_scientific_unless_plain_ones_are_asked_for() -> None:
    rows = pa.table(
        {"d": pa.array([Decimal("1E-8"), Decimal(0), None, Decimal("1.5")], pa.decimal128(18, 10))}
    )
    assert encode(rows) == [b'{"d":1.00E-8}', b'{"d":0}', b'{"d":null}', b'{"d":1.5000000000}']
    plain_ones = encode(rows, encode__decimal_as_plain_number="true")
    assert plain_ones == [b'{"d":0.0000000100}', b'{"d":0}', b'{"d":null}', b'{"d":1.5000000000}']


def test_null_fields_are_left_out_when_asked_for() -> None:
    type_ = pa.struct([("a", pa.int32()), ("b", pa.string())])
    rows = pa.table({"n": [1, None], "s": pa.array([(None, "x"), None], type_), "w": pa.nulls(2, pa.int8())})
    assert encode(rows, encode__ignore_null_fields="true") == [b'{"n":1,"s":{"b":"x"}}', b"{}"]
    assert encode(rows)[1] == b'{"n":null,"s":null,"w":null}'


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("fail-on-missing-field", "yes", "true or false"),
        ("ignore-parse-errors", "1", "true or false"),
        ("timestamp-format.standard", "RFC-3339", "one of sql, iso-8601, iso-8601-with-offset"),
        ("map-null-key.mode", "SKIP", "one of fail, drop, literal"),
        ("map-null-key.literal", "", "a non-empty text"),
        ("encode.decimal-as-plain-number", "on", "true or false"),
        ("encode.ignore-null-fields", "", "true or false"),
    ],
)
def test_bad_options_are_refused(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{key}' must be {expected}"):
        context(N, {key: text})


def test_maps_need_keys_of_strings_and_other_types_pass() -> None:
    with pytest.raises(
        SchemaError, match="column 'x': a MAP in JSON must have a key of type STRING, got INT"
    ):
        FORMAT.check(context(pa.list_(pa.map_(pa.int32(), pa.string()))))
    others = [type_ for type_ in types.SCALARS.values() if type_ != types.INTERVAL]
    FORMAT.check(context(pa.schema([(f"c{i}", type_) for i, type_ in enumerate(others)])))


def test_there_is_no_metadata() -> None:
    assert FORMAT.metadata == ()
    assert FORMAT.is_insert_only


# --- what is written


def test_texts_are_escaped_and_numbers_beyond_finite_are_strings() -> None:
    numbers = [float("nan"), float("-inf"), None]
    rows = pa.table({'a"b': ['say "hi"\\', "a\n\x01\x7fé😀", None], "d": numbers})
    assert encode(rows) == [
        b'{"a\\"b":"say \\"hi\\"\\\\","d":"NaN"}',
        '{"a\\"b":"a\\n\\u0001\x7fé😀","d":"-Infinity"}'.encode(),
        b'{"a\\"b":null,"d":null}',
    ]


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_floating_numbers_are_written_as_java_writes_them(type_: pa.DataType) -> None:
    """`Double.toString` is what Jackson, so Flink, writes; in a key the bytes decide the partition."""
    expected = {
        0.0: "0.0",
        1.0: "1.0",
        -12.0: "-12.0",
        0.5: "0.5",
        0.001: "0.001",
        0.00025: "2.5E-4",
        9999999.0: "9999999.0",
        1e7: "1.0E7",
        -12345678.0: "-1.2345678E7",
        1.5e-7: "1.5E-7",
        1e16: "1.0E16",
        1e30: "1.0E30",
    }
    numbers = [-0.0, *expected, None, float("nan"), float("inf")]
    column = pa.array(numbers, type_)
    texts = ["-0.0", *expected.values(), "null", '"NaN"', '"Infinity"']
    assert encode(pa.table({"x": column})) == [b'{"x":%s}' % text.encode() for text in texts]
    nested = pa.array([{"y": [number]} for number in numbers], pa.struct({"y": pa.list_(type_)}))
    assert encode(pa.table({"x": nested})) == [b'{"x":{"y":[%s]}}' % text.encode() for text in texts]
    sliced = pa.table({"x": column}).slice(1, 4)
    assert encode(sliced) == [b'{"x":%s}' % text.encode() for text in texts[1:5]]


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (pa.float64(), {5e-324: "4.9E-324", -1e-323: "-9.9E-324", 1.5e-323: "1.5E-323", 5e-323: "4.9E-323"}),
        (pa.float32(), {1e-45: "1.4E-45", -3e-45: "-2.8E-45", 7e-45: "7.0E-45", 1e-44: "9.8E-45"}),
    ],
)
def test_smallest_numbers_have_two_digits(type_: pa.DataType, expected: dict[float, str]) -> None:
    """Java 19 and later write so; Arrow writes `5e-324`."""
    column = pa.array([*expected, 1e-20], type_)
    assert encode(pa.table({"x": column})) == [
        b'{"x":%s}' % text.encode() for text in (*expected.values(), "1.0E-20")
    ]


@given(st.lists(st.one_of(st.floats(), st.integers(-(2**53), 2**53).map(float)), max_size=20))
def test_floating_numbers_read_back_as_they_were(numbers: list[float]) -> None:
    written = encode(pa.table({"x": pa.array(numbers, pa.float64())}))
    read = [json.loads(text)["x"] for text in written]
    assert list(map(repr, map(float, read))) == list(map(repr, numbers))


def test_year_that_has_no_four_digits_is_refused() -> None:
    with pytest.raises(SchemaError, match="column 'd': a DATE must be within the years 0001 to 9999"):
        encode(pa.table({"d": pa.array([2**30], pa.int32()).cast(pa.date32())}))


@given(
    tables(schemas(nested(SCALARS))),
    st.fixed_dictionaries(
        {
            "timestamp-format.standard": st.sampled_from(["SQL", "ISO-8601", "ISO-8601-WITH-OFFSET"]),
            "encode.ignore-null-fields": st.sampled_from(["true", "false"]),
            "encode.decimal-as-plain-number": st.sampled_from(["true", "false"]),
        }
    ),
)
def test_what_is_written_is_read_back(rows: pa.Table, options: dict[str, str]) -> None:
    messages = FORMAT.encoder(context(rows.schema, options)).encode(rows)
    found = FORMAT.decoder(context(rows.schema, options)).decode(messages)
    assert found.bad == ()
    assert found.rows.schema == rows.schema
    found.rows.validate(full=True)
    assert plain(found.rows) == plain(rows)
    assert all(isinstance(json.loads(message), dict) for message in messages.to_pylist())


@given(tables(schemas(nested(SCALARS))), st.integers(0, 3))
def test_slices_of_columns_are_written_like_the_rows_themselves(rows: pa.Table, start: int) -> None:
    encoder = FORMAT.encoder(context(rows.schema))
    assert encoder.encode(rows.slice(start)).to_pylist() == encoder.encode(rows).to_pylist()[start:]
