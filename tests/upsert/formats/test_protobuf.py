"""Protobuf messages beside the library's own reading and writing of them."""

import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.upsert.formats.protobuf_messages import (
    as_row,
    descriptor_options,
    file_of,
    fill,
    message_class,
)
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats import binary_columns
from upsert.formats.base import Decoded, FormatContext
from upsert.formats.protobuf.format import FORMAT
from upsert.options import parse

EVERYTHING = """
enum Color RED=0 GREEN=1 BLUE=5
Point
int32 x = 1
optional string label = 2
repeated sint64 more = 3
All
int32 a = 1
int64 b = 2
uint32 c = 3
uint64 d = 4
sint32 e = 5
sint64 f = 6
fixed32 g = 7
fixed64 h = 8
sfixed32 i = 9
sfixed64 j = 10
float k = 11
double l = 12
bool m = 13
string n = 14
bytes o = 15
Color p = 16
Color q = 17
optional int32 r = 18
optional string s = 19
Point t = 20
google.protobuf.Timestamp u = 21
google.protobuf.Timestamp v = 22
google.protobuf.Int64Value w = 23
google.protobuf.StringValue x = 24
repeated int32 ra = 30
unpacked int32 rb = 31
repeated string rc = 32
repeated Point rd = 33
repeated fixed32 re = 34
repeated double rf = 35
repeated Color rg = 36
repeated google.protobuf.Timestamp rh = 37
map string int64 ma = 40
map int32 Point mb = 41
map bool string mc = 42
map sint64 Color md = 43
in choice int32 oa = 2000
in choice string ob = 2001
in choice Point oc = 2002
uint64 not_a_column = 3000
"""
POINT = pa.struct(
    [
        pa.field("label", pa.string()),
        pa.field("x", pa.int32(), nullable=False),
        pa.field("more", pa.list_(pa.field("element", pa.int64(), nullable=False))),
    ]
)
COLUMNS = pa.schema(
    {
        "b": pa.int64(), "a": pa.int32(), "c": pa.int64(), "d": pa.decimal128(20, 0), "e": pa.int32(),
        "f": pa.int64(), "g": pa.int64(), "h": pa.decimal128(20, 0), "i": pa.int32(), "j": pa.int64(),
        "k": pa.float32(), "l": pa.float64(), "m": pa.bool_(), "n": pa.string(), "o": pa.binary(),
        "p": pa.string(), "q": pa.int32(), "r": pa.int32(), "s": pa.string(), "t": POINT,
        "u": types.TIMESTAMP, "v": types.TIMESTAMP_NTZ, "w": pa.int64(),
        "x": pa.struct([pa.field("value", pa.string())]),
        "ra": pa.list_(pa.int32()), "rb": pa.list_(pa.int32()), "rc": pa.list_(pa.string()),
        "rd": pa.list_(POINT), "re": pa.list_(pa.int64()), "rf": pa.list_(pa.float64()),
        "rg": pa.list_(pa.string()), "rh": pa.list_(types.TIMESTAMP),
        "ma": pa.map_(pa.string(), pa.int64()), "mb": pa.map_(pa.int32(), POINT),
        "mc": pa.map_(pa.bool_(), pa.string()), "md": pa.map_(pa.int64(), pa.int32()),
        "oa": pa.int32(), "ob": pa.string(), "oc": POINT,
    }
)  # fmt: skip


def context(tmp_path: Path, file: Any, name: str, fields: pa.Schema, **given: str) -> FormatContext:
    """What a task of a table with this message is made from."""
    chosen = descriptor_options(tmp_path, file, name)
    found = FormatContext(fields, parse("protobuf", FORMAT.options, chosen | given), topic="t")
    FORMAT.check(found)
    return found


def decode(own: FormatContext, messages: list[bytes | None]) -> Decoded:
    found = FORMAT.decoder(own).decode(pa.array(messages, pa.binary()))
    found.rows.validate(full=True)
    assert found.rows.schema == own.fields
    return found


def rows_of(found: Decoded, count: int) -> dict[int, dict[str, Any]]:
    """The rows by the positions of their messages; maps in the order of their keys."""
    positions = range(count) if found.positions is None else found.positions.tolist()
    return {place: _sorted(row) for place, row in zip(positions, found.rows.to_pylist(), strict=True)}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(inner) for name, inner in value.items()}
    if isinstance(value, list):
        found = [_sorted(inner) for inner in value]
        return sorted(found, key=lambda pair: pair[0]) if found and isinstance(found[0], tuple) else found
    return (
        tuple(map(_sorted, value)) if isinstance(value, tuple) else repr(value) if value != value else value
    )


@pytest.mark.parametrize("syntax", ["proto3", "proto2"])
@pytest.mark.parametrize("defaults", [False, True])
def test_random_messages_are_read_as_the_library_reads_them(
    tmp_path: Path, syntax: str, defaults: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also two messages one after the other, which are merged, cut and changed ones, and any bytes."""
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(binary_columns, "_BATCH_BYTES", rng.choice([20_000, 1 << 22]))
    monkeypatch.setattr(binary_columns, "_LONG", rng.choice([0, 64]))
    file = file_of(EVERYTHING, syntax=syntax)
    own = context(tmp_path, file, "All", COLUMNS, **{"read-default-values": str(defaults).lower()})
    cls = message_class(file, "All")
    texts = [fill(cls(), rng).SerializeToString() for _ in range(300)]
    for place in range(0, 300, 3):
        match rng.randrange(5):
            case 0:
                texts[place] += fill(cls(), rng).SerializeToString()
            case 1:
                texts[place] = texts[place][: rng.randrange(len(texts[place]) + 1)]
            case 2 if texts[place]:
                changed = bytearray(texts[place])
                changed[rng.randrange(len(changed))] = rng.randrange(256)
                texts[place] = bytes(changed)
            case 3:
                texts[place] = rng.randbytes(rng.randrange(8))
            case 4:  # a field that is not known, as a group, and one of another wire type
                texts[place] += bytes.fromhex("a3cd010801a4cd01") + b"\x0a\x01z"
    expected = {}
    apart = set()
    for place, text in enumerate(texts):
        try:
            message = cls.FromString(text)
            if any(40 <= unknown.field_number <= 43 for unknown in UnknownFieldSet(message)):
                # a map's entry with an unknown field: to Python's library it is all unknown, not to Java's
                apart.add(place)
            row = as_row(message, COLUMNS, defaults)
            pa.Table.from_pylist([row], COLUMNS)
        except (DecodeError, ValueError, OverflowError):  # also pa.ArrowInvalid
            continue
        expected[place] = _sorted(row)
    found = decode(own, texts)
    rows = rows_of(found, len(texts))
    assert {*rows, *(bad.position for bad in found.bad)} == {*range(len(texts))}
    for place in (rows.keys() | expected.keys()) - apart:
        assert rows.get(place) == expected.get(place), (place, texts[place].hex())


@pytest.mark.parametrize("syntax", ["proto3", "proto2"])
def test_random_rows_are_written_as_the_library_reads_them(tmp_path: Path, syntax: str) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    file = file_of(EVERYTHING, syntax=syntax)
    own = context(tmp_path, file, "All", COLUMNS)
    cls = message_class(file, "All")
    rows = []
    while len(rows) < 300:
        with suppress(ValueError):
            rows.append(as_row(fill(cls(), rng), COLUMNS))
    for row in rows:
        row["d"], row["h"] = (None if one is None else min(int(one), 2**63) for one in (row["d"], row["h"]))
    table = pa.Table.from_pylist(rows, COLUMNS)
    messages = FORMAT.encoder(own).encode(table)
    again = [_sorted(as_row(cls.FromString(message), COLUMNS)) for message in messages.to_pylist()]
    assert again == [_sorted(row) for row in table.to_pylist()]
    assert FORMAT.decoder(own).decode(messages).rows.equals(table)
    parts = FORMAT.encoder(own).encode(table.slice(7, 20))
    assert parts.to_pylist() == messages.to_pylist()[7:27]


SMALL = """
Order
int64 id = 1
optional string word = 2
repeated string tags = 3
map string string marks = 4
in one int32 a = 5
in one int32 b = 6
"""


def small(tmp_path: Path, *fields: pa.Field, **given: str) -> FormatContext:
    return context(tmp_path, file_of(SMALL), "Order", pa.schema(fields), **given)


def encoded(own: FormatContext, row: dict[str, Any]) -> bytes:
    found: bytes = FORMAT.encoder(own).encode(pa.Table.from_pylist([row], own.fields))[0].as_py()
    return found


TAGS = pa.field("tags", pa.list_(pa.string()))
MARKS = pa.field("marks", pa.map_(pa.string(), pa.string()))


def test_null_in_an_array_or_a_map_is_refused_or_is_the_literal(tmp_path: Path) -> None:
    own = small(tmp_path, TAGS, MARKS)
    with pytest.raises(
        SchemaError, match="an array of Protobuf has no NULL, got one in field 'tags'; set 'write"
    ):
        encoded(own, {"tags": ["a", None], "marks": None})
    with pytest.raises(SchemaError, match="a map of Protobuf has no NULL, got one in field 'Marks'"):
        encoded(own, {"tags": None, "marks": [("k", None)]})
    own = small(tmp_path, TAGS, MARKS, **{"write-null-string-literal": "n/a"})
    row = {"tags": ["a", None], "marks": [("k", None)]}
    assert decode(own, [encoded(own, row)]).rows.to_pylist() == [
        {"tags": ["a", "n/a"], "marks": [("k", "n/a")]}
    ]
    numbers = context(
        tmp_path, file_of("N\nrepeated int32 n = 1"), "N", pa.schema({"n": pa.list_(pa.int32())})
    )
    with pytest.raises(SchemaError, match="got one in field 'n'; filter NULLs out"):
        encoded(numbers, {"n": [1, None]})


def test_rows_with_two_members_of_a_oneof_are_refused(tmp_path: Path) -> None:
    own = small(tmp_path, pa.field("b", pa.int32()), pa.field("a", pa.int32()))
    assert encoded(own, {"b": 0, "a": None}) == b"\x30\x00"
    with pytest.raises(SchemaError, match="a row must have one, got several of 'a' and 'b'"):
        encoded(own, {"b": 1, "a": 2})


def test_numbers_that_the_other_side_cannot_hold_are_bad_or_refused(tmp_path: Path) -> None:
    own = small(tmp_path, pa.field("id", pa.int8()))
    found = decode(own, [b"\x08\x05", b"\x08\x80\x01", b"\x08\x06"])
    assert found.rows.to_pylist() == [{"id": 5}, {"id": 6}]
    assert [(bad.position, bad.reason) for bad in found.bad] == [
        (1, "field 'id' holds a number that is no TINYINT")
    ]
    unsigned = context(tmp_path, file_of("N\nuint32 n = 1"), "N", pa.schema({"n": pa.int64()}))
    assert encoded(unsigned, {"n": 2**32 - 1}) == b"\x08\xff\xff\xff\xff\x0f"
    for number in (-1, 2**32):
        with pytest.raises(SchemaError, match="field 'n' cannot hold a number that is no uint32"):
            encoded(unsigned, {"n": number})


def test_bad_messages_may_be_passed_over(tmp_path: Path) -> None:
    field = pa.field("word", pa.string())
    messages = [b"\x12\x01a", b"\x12\x09", None, b"\x12\x01\xff", b""]
    found = decode(small(tmp_path, field), messages)
    assert found.rows.to_pylist() == [{"word": "a"}, {"word": None}]
    assert [bad.position for bad in found.bad] == [1, 3]
    passing = decode(small(tmp_path, field, **{"ignore-parse-errors": "true"}), messages)
    assert passing.rows.equals(found.rows)
    assert passing.bad == ()


def test_long_values_are_read_without_a_place_for_each_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def placed(begin: Any, length: Any) -> Any:
        raise AssertionError(length)

    monkeypatch.setattr(binary_columns, "places", placed)
    texts = ["x" * 100_000, "", "y" * 70_000]
    own = small(tmp_path, TAGS)
    messages = [b"\x1a" + bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14]) for n in map(len, texts)]
    found = decode(own, [head + text.encode() for head, text in zip(messages, texts, strict=True)])
    assert found.rows["tags"].to_pylist() == [[text] for text in texts]


def test_message_with_very_many_fields_is_read_beside_small_ones(tmp_path: Path) -> None:
    own = small(tmp_path, TAGS)
    many = b"\x1a\x01x" * 100_000
    found = decode(own, [b"\x1a\x01a"] * 200 + [many])
    assert found.rows["tags"].to_pylist() == [["a"]] * 200 + [["x"] * 100_000]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (pa.field("ID", pa.int64()), "message shop.Order has no field 'ID'"),
        (pa.field("id", pa.string()), "'id' is STRING, the message says int64"),
        (pa.field("tags", pa.string()), "'tags' is STRING, the message says repeated string"),
        (pa.field("marks", pa.map_(pa.string(), pa.int32())), "'value' is INT, the message says string"),
    ],
)
def test_columns_that_the_message_does_not_have_are_refused(
    tmp_path: Path, field: pa.Field, reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason):
        small(tmp_path, field)


def test_default_of_the_message_is_read_and_has_to_fit(tmp_path: Path) -> None:
    file = file_of("N\noptional int32 n = 1", syntax="proto2")
    file.message_type[0].field[0].default_value = "300"
    given = {"read-default-values": "true"}
    own = context(tmp_path, file, "N", pa.schema({"n": pa.int16()}), **given)
    assert decode(own, [b"", b"\x08\x07"]).rows.to_pylist() == [{"n": 300}, {"n": 7}]
    with pytest.raises(SchemaError, match="'n' is TINYINT, the message's default is 300"):
        context(tmp_path, file, "N", pa.schema({"n": pa.int8()}), **given)


def test_wider_columns_are_read_and_not_written(tmp_path: Path) -> None:
    own = context(tmp_path, file_of("N\nint32 n = 1"), "N", pa.schema({"n": pa.int64()}))
    assert decode(own, [b"\x08\x07"]).rows.to_pylist() == [{"n": 7}]
    with pytest.raises(SchemaError, match="'n' is BIGINT, the message says int32"):
        FORMAT.encoder(own)


def test_options_name_the_message(tmp_path: Path) -> None:
    fields = pa.schema({"id": pa.int64()})

    def refused(**given: str) -> str:
        with pytest.raises(ConfigurationError) as refusal:
            FORMAT.check(FormatContext(fields, parse("protobuf", FORMAT.options, given)))
        return str(refusal.value)

    path = str(tmp_path / "messages.desc")
    own = small(tmp_path, *fields)
    assert "needs options 'descriptor-file' and 'message-name'" in refused()
    assert "must be given together, got the first alone" in refused(**{"descriptor-file": path})
    wrong = {"descriptor-file": path, "message-name": "Order"}
    assert "there is no message 'Order'; messages are shop.Order" in refused(**wrong)
    assert "No such file" in refused(**wrong | {"descriptor-file": f"{path}.none"})
    assert "there are no Java classes here" in refused(**{"message-class-name": "org.shop.Order"})
    Path(path).write_bytes(b"nothing")
    assert "must hold a FileDescriptorSet, which protoc" in refused(**wrong)
    copy = pickle.loads(pickle.dumps(own))
    assert decode(copy, [b"\x08\x07"]).rows.to_pylist() == [{"id": 7}]


def test_required_field_needs_a_column_and_a_value(tmp_path: Path) -> None:
    file = file_of("N\nrequired int32 n = 1\noptional int32 m = 2", syntax="proto2")
    own = context(tmp_path, file, "N", pa.schema({"m": pa.int32()}))
    with pytest.raises(SchemaError, match=r"field 'n' of shop.N is required, and has no column"):
        FORMAT.encoder(own)
    own = context(tmp_path, file, "N", pa.schema({"n": pa.int32()}))
    with pytest.raises(SchemaError, match=r"field 'n' of shop.N is required, got NULL"):
        encoded(own, {"n": None})


def test_a_null_message_need_not_have_what_it_requires(tmp_path: Path) -> None:
    text = "N\nrequired int32 n = 1\nRow\noptional N one = 1\nrepeated N all = 2"
    part = pa.struct({"n": pa.int32()})
    fields = pa.schema({"one": part, "all": pa.list_(part)})
    own = context(tmp_path, file_of(text, syntax="proto2"), "Row", fields)
    rows = [{"one": None, "all": [{"n": 1}]}, {"one": {"n": 0}, "all": None}, {"one": None, "all": []}]
    messages = FORMAT.encoder(own).encode(pa.Table.from_pylist(rows, own.fields)).to_pylist()
    assert decode(own, messages).rows.to_pylist() == [rows[0], rows[1], {"one": None, "all": None}]
    assert encoded(own, rows[2]) == b""
    with pytest.raises(SchemaError, match=r"field 'n' of shop.N is required, got NULL"):
        encoded(own, {"one": {"n": None}, "all": None})
