"""Protobuf messages that name their schema in a registry."""

import base64
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from tests.upsert.formats.protobuf_messages import descriptor_options, file_of, message_class
from tests.upsert.formats.real_registry import real_registry
from tests.upsert.formats.registry_double import Double
from tests.upsert.formats.test_avro import INT_RECORD
from upsert import types
from upsert.errors import ConfigurationError, SchemaError, UpsertError
from upsert.formats.base import FormatContext, Side
from upsert.formats.protobuf.confluent import FORMAT
from upsert.formats.schema_registry import RegistryConfig, SchemaRegistry
from upsert.options import Secret, parse
from upsert.types import INTERVAL, VARIANT

USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
METADATA = ("message-name", "schema-id", "schema-version")


def context(
    fields: pa.Schema,
    url: str,
    metadata: tuple[str, ...] = (),
    side: Side = Side.VALUE,
    **options: str,
) -> FormatContext:
    parsed = parse(FORMAT.name, FORMAT.options, {"url": url, **options})
    found = FormatContext(fields, parsed, side, "users", metadata)
    FORMAT.check(found)
    return found


def add(double: Double, subject: str, file: Any, *references: tuple[str, str, int]) -> int:
    text = base64.b64encode(file.SerializeToString()).decode()
    shown = [{"name": name, "subject": of, "version": version} for name, of, version in references]
    return double.add(subject, text, "PROTOBUF", shown)


def header(id: int, indexes: bytes = b"\x00") -> bytes:
    return b"\x00" + id.to_bytes(4, "big") + indexes


def test_rows_are_written_with_a_registered_schema_and_read_back(double: Double) -> None:
    rows = pa.table([pa.array([3, 0]), pa.array(["foo", None])], schema=USERS)
    own = context(USERS, double.url)
    messages = FORMAT.encoder(own).encode(rows)
    assert messages.to_pylist() == [header(1) + b"\x08\x03\x12\x03foo", header(1)]
    assert double.subjects == {"users-value": [1]}
    found = FORMAT.decoder(own).decode(messages)
    assert (found.rows.equals(rows), found.positions, found.bad) == (True, None, ())
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(double.schemas[0]))
    assert [(one.name, one.number, one.proto3_optional) for one in file.message_type[0].field] == [
        ("id", 1, False),
        ("name", 2, True),
    ]


def test_derived_message_holds_what_columns_may_be(double: Double) -> None:
    fields = pa.schema(
        {
            "flag": pa.bool_(), "tiny": pa.int8(), "f": pa.float32(), "d": pa.float64(), "b": pa.binary(),
            "at": types.TIMESTAMP, "local": types.TIMESTAMP_NTZ, "big": pa.decimal128(20, 0),
            "tags": pa.list_(pa.string()), "points": pa.list_(pa.struct([("x", pa.int32())])),
            "by_name": pa.map_(pa.string(), pa.struct([("at", types.TIMESTAMP)])),
            "inner": pa.struct([("more", pa.struct([("n", pa.int64())]))]),
        }
    )  # fmt: skip
    row = {
        "flag": False, "tiny": -5, "f": 1.5, "d": -0.0, "b": b"\xff", "at": 1_600_000_000_000_001,
        "local": -1, "big": 2**64 - 1, "tags": ["", "a"], "points": [{"x": 1}, {"x": None}],
        "by_name": [("a", {"at": 5}), ("b", {"at": None})], "inner": {"more": {"n": 0}},
    }  # fmt: skip
    table = pa.Table.from_pylist([row, dict.fromkeys(row)], fields)
    own = context(fields, double.url)
    found = FORMAT.decoder(own).decode(FORMAT.encoder(own).encode(table))
    assert found.rows.equals(table)
    for type_ in (pa.date32(), pa.decimal128(10, 2), pa.list_(pa.list_(pa.int32())), VARIANT, INTERVAL):
        with pytest.raises(SchemaError, match="column 'c' must be of a type that Protobuf has"):
            context(pa.schema({"c": type_}), double.url)


def test_messages_are_read_with_the_schemas_they_were_written_with(double: Double) -> None:
    """The second one has other numbers, a message within, and is not the first of its file."""
    old = file_of("User\nint32 id = 1")
    new = file_of("Other\nint32 x = 1\nUser\nstring name = 7\nsint64 id = 9", package="v2", name="v2.proto")
    ids = add(double, "users-value", old), add(double, "users-value", new)
    second = message_class(new, "User")(id=-7, name="bob").SerializeToString()
    messages = [header(ids[0]) + b"\x08\x01", header(ids[1], b"\x02\x02") + second, None, header(ids[0])]
    own = context(USERS, double.url, metadata=METADATA)
    found = FORMAT.decoder(own).decode(pa.array(messages))
    assert found.rows.to_pylist() == [
        {"id": 1, "name": None, "message-name": "shop.User", "schema-id": 1, "schema-version": 1},
        {"id": -7, "name": "bob", "message-name": "v2.User", "schema-id": 2, "schema-version": 2},
        {"id": 0, "name": None, "message-name": "shop.User", "schema-id": 1, "schema-version": 1},
    ]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 3]
    assert ("GET", "/schemas/ids/1?format=serialized") in double.requests


def imports(tmp_path: Path) -> tuple[Any, Any, dict[str, str]]:
    """A file that imports another one and one of Google's, and the options that name its message."""
    point = file_of("Point\nint32 x = 1", package="geo", name="geo/point.proto")
    place = file_of("Place\ngeo.Point at = 1\ngoogle.protobuf.Timestamp since = 2", name="place.proto")
    place.dependency.append("geo/point.proto")
    options = descriptor_options(tmp_path, place, "Place")
    both = descriptor_pb2.FileDescriptorSet(file=[place, point])  # in an order that protoc does not write
    Path(options["descriptor-file"]).write_bytes(both.SerializeToString())
    return point, place, options


PLACES = pa.schema({"at": pa.struct([("x", pa.int32())]), "since": types.TIMESTAMP})


def test_files_that_a_schema_imports_are_registered_and_read(tmp_path: Path, double: Double) -> None:
    _, _, options = imports(tmp_path)
    rows = pa.Table.from_pylist([{"at": {"x": 3}, "since": 1}], PLACES)
    messages = FORMAT.encoder(context(PLACES, double.url, **options)).encode(rows)
    assert double.subjects == {"geo/point.proto": [1], "users-value": [2]}
    (references,) = double.references.values()
    assert references == [{"name": "geo/point.proto", "subject": "geo/point.proto", "version": 1}]
    for given in ({}, options):
        found = FORMAT.decoder(context(PLACES, double.url, **given)).decode(messages)
        assert found.rows.equals(rows), given


def test_message_that_names_none_is_bad_and_the_others_are_read(tmp_path: Path, double: Double) -> None:
    good = add(double, "users-value", file_of("User\nint64 id = 1\nOther\nstring id = 1"))
    avro = double.add("users-value", INT_RECORD)
    text = double.add("users-value", 'syntax = "proto3"; message User {}', "PROTOBUF")
    whole = header(good) + b"\x08\x01"
    messages = [
        whole, b"", b"\x01" + whole[1:], header(99), header(avro), header(text), header(good, b""),
        header(good, b"\x02\x04"), header(good, b"\x02\x02"), header(good, b"\x02\x80"),
        header(good) + b"\x08", header(good, b"\x02\x00") + b"\x08\x05",
    ]  # fmt: skip
    own = context(USERS, double.url)
    found = FORMAT.decoder(own).decode(pa.array(messages))
    assert found.rows["id"].to_pylist() == [1, 5]
    reasons = {bad.position: bad.reason for bad in found.bad}
    assert [*reasons] == [*range(1, 11)]
    assert reasons[3] == "schema 99 is not in the registry"
    assert reasons[4] == "schema 2 must be a Protobuf schema, got 'AVRO'"
    assert "set 'descriptor-file' and 'message-name'" in reasons[5]
    assert (
        reasons[6] == reasons[9] == "a message must say after the schema's id which one of the schema it is"
    )
    assert reasons[7] == "the schema has no message at [2]"
    assert reasons[8] == "schema 1 does not fit the columns: 'id' is BIGINT, the message says string"
    assert reasons[10].startswith("no message shop.User: ")
    passing = FORMAT.decoder(context(USERS, double.url, **{"ignore-parse-errors": "true"}))
    assert passing.decode(pa.array(messages)).bad == ()


def test_given_message_is_read_without_the_registry(tmp_path: Path, double: Double) -> None:
    file = file_of("Other\nint32 x = 1\nUser\nint64 id = 1\nstring name = 2")
    own = context(USERS, double.url, **descriptor_options(tmp_path, file, "User"))
    messages = [header(7, b"\x02\x02") + b"\x08\x01", header(7) + b"\x08\x02"]
    found = FORMAT.decoder(own).decode(pa.array(messages))
    assert found.rows.to_pylist() == [{"id": 1, "name": ""}]
    assert found.bad[0].reason == "the message is that at [0] of its schema, and shop.User is that at [1]"
    assert double.requests == []


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be given together"):
        context(USERS, "http://registry:8081", **{"message-name": "shop.User"})
    with pytest.raises(ConfigurationError, match="option 'url' must be http: or https: addresses"):
        context(USERS, "registry")


@pytest.mark.long
def test_a_real_registry_gives_and_takes_descriptors(tmp_path: Path) -> None:
    _, _, options = imports(tmp_path)
    rows = pa.Table.from_pylist([{"at": {"x": 3}, "since": 1}], PLACES)
    with real_registry() as url:
        messages = FORMAT.encoder(context(PLACES, url, **options)).encode(rows)
        assert FORMAT.decoder(context(PLACES, url, **options)).decode(messages).rows.equals(rows)
        assert FORMAT.decoder(context(PLACES, url)).decode(messages).rows.equals(rows)


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        (lambda count: [{"name": f"{count}.proto", "subject": f"s{count}", "version": 1}], "refers to"),
        (lambda _: 7, "references"),
        (lambda _: "no list", "references"),
    ],
)
def test_references_of_a_registry_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, references: Callable[[int], Any], reason: str
) -> None:
    """Each of the first kind refers to another one."""
    registry, calls = SchemaRegistry(RegistryConfig((Secret("http://localhost"),))), itertools.count()

    def reply(path: str) -> Any:
        return {"schema": "", "schemaType": "PROTOBUF", "references": references(next(calls))}

    monkeypatch.setattr(registry, "_call", reply)
    with pytest.raises(UpsertError, match=reason):
        registry.files(1)
