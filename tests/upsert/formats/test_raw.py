"""The bytes of a message as one value."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import BadMessage, FormatContext, Side, format_named
from upsert.formats.raw import FORMAT
from upsert.options import parse


def context(type_: pa.DataType, **options: str) -> FormatContext:
    return FormatContext(pa.schema([("v", type_)]), parse("raw", FORMAT.options, options))


def encoded(type_: pa.DataType, values: list[Any], **options: str) -> list[bytes]:
    found: list[bytes] = FORMAT.encoder(context(type_, **options)).encode(column(type_, values)).to_pylist()
    return found


def column(type_: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"v": pa.array(values, type_)})


def decoded(type_: pa.DataType, messages: list[bytes | None], **options: str) -> Any:
    return FORMAT.decoder(context(type_, **options)).decode(pa.array(messages, pa.binary()))


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (pa.string(), "é", b"\xc3\xa9"),
        (pa.string(), "", b""),
        (pa.binary(), b"\x00\xff", b"\x00\xff"),
        (pa.bool_(), True, b"\x01"),
        (pa.bool_(), False, b"\x00"),
        (pa.int8(), -1, b"\xff"),
        (pa.int16(), 258, b"\x01\x02"),
        (pa.int32(), 258, b"\x00\x00\x01\x02"),
        (pa.int64(), -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        (pa.float32(), 1.0, b"\x3f\x80\x00\x00"),
        (pa.float64(), 1.0, b"\x3f\xf0\x00\x00\x00\x00\x00\x00"),
    ],
)
def test_value_has_the_bytes_that_flink_gives_it(type_: pa.DataType, value: Any, message: bytes) -> None:
    assert encoded(type_, [value]) == [message]
    assert decoded(type_, [message]).rows.equals(column(type_, [value]))


def test_options_change_the_order_of_bytes_and_the_charset() -> None:
    assert encoded(pa.int16(), [258], endianness="little-endian") == [b"\x02\x01"]
    assert decoded(pa.int16(), [b"\x02\x01"], endianness="LITTLE-ENDIAN").rows["v"].to_pylist() == [258]
    assert encoded(pa.string(), ["é"], charset="ISO-8859-1") == [b"\xe9"]
    assert decoded(pa.string(), [b"\xe9"], charset="latin1").rows["v"].to_pylist() == ["é"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("charset", "klingon", "option 'charset' must be the name of a charset, like UTF-8, got 'klingon'"),
        ("charset", "base64", "option 'charset' must be the name of a charset"),
        (
            "endianness",
            "middle",
            "option 'endianness' must be one of big-endian, little-endian, got 'middle'",
        ),
    ],
)
def test_wrong_option_is_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse("raw", FORMAT.options, {key: value})


def test_missing_message_gives_no_row_and_is_not_bad() -> None:
    found = decoded(pa.string(), [None, b"a", None, b"b"])
    assert (found.rows["v"].to_pylist(), found.positions.tolist(), found.bad) == (["a", "b"], [1, 3], ())


def test_number_of_another_width_is_bad() -> None:
    found = decoded(pa.int32(), [b"\0\0\0\1", b"\1", None, b"", b"\0\0\0\2"])
    assert (found.rows["v"].to_pylist(), found.positions.tolist()) == ([1, 2], [0, 4])
    assert found.bad == (BadMessage(1, "INT has 4 bytes, got 1"), BadMessage(3, "INT has 4 bytes, got 0"))


def test_bytes_that_are_no_text_are_bad() -> None:
    found = decoded(pa.string(), [b"a", b"\xff", b"b"])
    assert (found.rows["v"].to_pylist(), found.positions.tolist()) == (["a", "b"], [0, 2])
    assert found.bad == (
        BadMessage(1, "no text: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    )
    half = decoded(pa.string(), [b"+2AA-", b"+AOQ-"], charset="UTF-7")
    assert (half.rows["v"].to_pylist(), [bad.position for bad in half.bad]) == (["ä"], [0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": pa.int32(), "b": pa.int32()}, "raw: a value must be one column, got a, b"),
        ({}, "raw: a value must be one column, got none"),
        ({"a": types.TIMESTAMP}, "raw: column 'a' must be STRING, .* got TIMESTAMP"),
        ({"a": pa.list_(pa.int32())}, r"raw: column 'a' must be STRING, .* got ARRAY<INT>"),
    ],
)
def test_other_fields_are_refused(fields: dict[str, pa.DataType], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        FORMAT.check(FormatContext(pa.schema(list(fields.items())), side=Side.VALUE))


def test_value_without_bytes_cannot_be_written() -> None:
    with pytest.raises(SchemaError, match="column 'v' must not be NULL"):
        encoded(pa.string(), ["a", None])
    with pytest.raises(SchemaError, match=r"column 'v' must be ascii text: .*change option"):
        encoded(pa.string(), ["é"], charset="ascii")


VALUES = {
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}


@given(st.data(), st.sampled_from(list(VALUES)), st.sampled_from(["big-endian", "little-endian"]))
def test_what_is_written_is_read_back(data: st.DataObject, type_: pa.DataType, endianness: str) -> None:
    values = data.draw(st.lists(VALUES[type_], max_size=5))
    messages = encoded(type_, values, endianness=endianness)
    found = decoded(type_, [*messages], endianness=endianness)
    assert found.positions is None
    assert repr(found.rows["v"].to_pylist()) == repr(column(type_, values)["v"].to_pylist())


def test_format_is_found_by_its_name() -> None:
    assert format_named("raw", "t") is FORMAT
    assert FORMAT.is_insert_only
    assert FORMAT.metadata == ()
