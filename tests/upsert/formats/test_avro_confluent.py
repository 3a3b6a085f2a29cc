"""Avro messages that name their schema in a registry."""

import io
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.registry_double import Double
from tests.upsert.formats.test_avro import INT_RECORD, USERS, datum, one, record
from upsert import types
from upsert.errors import ConfigurationError, KafkaUnavailableError, SchemaError
from upsert.formats.avro_confluent import FORMAT, AvroConfluentDecoder, AvroConfluentEncoder
from upsert.formats.avro_schema import derived
from upsert.formats.base import BadMessage, FormatContext, Side, format_named
from upsert.formats.schema_registry import AVRO, RegistryConfig, SchemaRegistry
from upsert.options import Secret
from upsert.options import parse as parse_options

URL = "http://registry.invalid:8081"


def context(
    fields: pa.Schema,
    url: str = URL,
    metadata: tuple[str, ...] = (),
    side: Side = Side.VALUE,
    topic: str | None = "users",
    **options: str,
) -> FormatContext:
    parsed = parse_options("avro-confluent", FORMAT.options, {"url": url, **options})
    found = FormatContext(fields, parsed, side, topic, metadata)
    FORMAT.check(found)
    return found


def message(id: int, schema: str, value: Any) -> bytes:
    return b"\x00" + id.to_bytes(4, "big") + datum(schema, value)


def test_rows_are_written_with_a_registered_schema_and_read_back(double: Double) -> None:
    rows = pa.table([pa.array([3, -1]), pa.array(["foo", None])], schema=USERS)
    own = context(USERS, double.url)
    messages = FORMAT.encoder(own).encode(rows)
    assert messages.to_pylist() == [b"\x00\x00\x00\x00\x01\x06\x02\x06foo", b"\x00\x00\x00\x00\x01\x01\x00"]
    assert (double.schemas, double.subjects) == ([derived(USERS)], {"users-value": [1]})
    found = FORMAT.decoder(own).decode(messages)
    assert (found.rows.equals(rows), found.positions, found.bad) == (True, None, ())


@pytest.mark.parametrize(
    ("side", "topic", "options", "subject"),
    [
        (Side.KEY, "users", {}, "users-key"),
        (Side.VALUE, "users", {}, "users-value"),
        (Side.VALUE, "users", {"subject": "mine"}, "mine"),
        (Side.VALUE, None, {"schema-registry.subject": "mine"}, "mine"),
    ],
)
def test_subject_is_that_of_the_topic_unless_it_is_given(
    double: Double, side: Side, topic: str | None, options: dict[str, str], subject: str
) -> None:
    own = context(USERS, double.url, side=side, topic=topic, **options)
    FORMAT.encoder(own).encode(pa.table([[1], ["a"]], schema=USERS))
    assert list(double.subjects) == [subject]


def test_registry_is_not_asked_before_there_is_a_row(double: Double) -> None:
    own = context(USERS, double.url)
    assert FORMAT.encoder(own).encode(USERS.empty_table()).to_pylist() == []
    assert FORMAT.decoder(own).decode(pa.array([None], pa.binary())).rows.num_rows == 0
    assert double.requests == []


def test_messages_are_read_with_the_schemas_they_were_written_with(double: Double) -> None:
    """The producer changed its schema in between: a field became nullable and wider, another one came."""
    old = record(("id", "int"))
    new = record(("name", ["null", "string"]), ("extra", "double"), ("id", "long"), name="other")
    ids = double.add("users-value", old), double.add("users-value", new)
    messages = [
        message(ids[0], old, {"id": 1}),
        message(ids[1], new, {"name": "bob", "extra": 0.5, "id": 2**40}),
        None,
        message(ids[0], old, {"id": 3}),
    ]
    own = context(USERS, double.url, metadata=("schema-version", "schema-id", "schema"))
    found = FORMAT.decoder(own).decode(pa.array(messages))
    assert found.rows.to_pylist() == [
        {"id": 1, "name": None, "schema-version": 1, "schema-id": 1, "schema": old},
        {"id": 2**40, "name": "bob", "schema-version": 2, "schema-id": 2, "schema": new},
        {"id": 3, "name": None, "schema-version": 1, "schema-id": 1, "schema": old},
    ]
    assert found.rows.schema.types[2:] == [pa.int32(), pa.int32(), pa.string()]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 3]


OWN = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long", "aliases": ["key", "no"]},
        {"name": "word", "type": ["null", "string"], "default": None, "aliases": ["text"]},
        {"name": "n", "type": "int", "default": -7},
        {"name": "half", "type": ["double", "null"], "default": 0.5},
        {"name": "few", "type": {"type": "array", "items": "float"}, "default": [1, -2.5]},
        {"name": "raw", "type": "bytes", "default": "\u00ff\u0000"},
        {
            "name": "color",
            "type": {"type": "enum", "name": "c", "symbols": ["RED", "BLUE"]},
            "default": "BLUE",
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 86_400_000},
        {
            "name": "by",
            "type": {"type": "map", "values": ["null", "boolean"]},
            "default": {"a": True, "b": None},
        },
        {
            "name": "in",
            "type": {
                "type": "record",
                "name": "i",
                "fields": [
                    {"name": "x", "type": "int", "aliases": ["y"]},
                    {"name": "z", "type": "string", "default": "é"},
                ],
            },
            "default": {"x": 1},
        },
    ],
}
COLUMNS = pa.schema(
    {
        "id": pa.int64(), "word": pa.string(), "n": pa.int16(), "half": pa.float64(),
        "few": pa.list_(pa.float32()), "raw": pa.binary(), "color": pa.string(), "at": types.TIMESTAMP,
        "by": pa.map_(pa.string(), pa.bool_()), "in": pa.struct([("x", pa.int64()), ("z", pa.string())]),
    }
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"id": "int"}, {"id": 5}),
        ({"no": "int", "text": "string"}, {"no": 5, "text": "a"}),
        (
            {"n": "int", "key": "long", "few": {"type": "array", "items": "float"}},
            {"n": 1, "key": 2, "few": []},
        ),
        (
            {"in": {"type": "record", "name": "i", "fields": [{"name": "y", "type": "int"}]}, "id": "long"},
            {"in": {"y": 3}, "id": 1},
        ),
    ],
)
def test_aliases_and_defaults_of_the_schema_given_are_those_of_fastavro(
    double: Double, fields: dict[str, Any], value: dict[str, Any], count: int
) -> None:
    written, own = record(*fields.items()), json.dumps(OWN)
    id = double.add("users-value", written)
    # of defaults fastavro gives the JSON
    not_json = {"raw": b"\xff\x00", "at": datetime(1970, 1, 2, tzinfo=UTC), "in": {"x": 1, "z": "é"}}
    expected = fastavro.schemaless_reader(
        io.BytesIO(datum(written, value)), json.loads(written), fastavro.parse_schema(OWN)
    ) | {name: default for name, default in not_json.items() if name not in fields}
    found = FORMAT.decoder(context(COLUMNS, double.url, schema=own)).decode(
        pa.array([message(id, written, value)] * count)
    )
    (row,) = pa.Table.from_pylist([expected], COLUMNS).to_pylist()
    assert (found.rows.to_pylist(), found.bad) == ([row] * count, ())


def test_a_name_that_a_message_has_goes_before_its_aliases(double: Double) -> None:
    own = context(COLUMNS, double.url, schema=json.dumps(OWN))
    for names in (("key", "id"), ("no", "key"), ("id", "key", "no")):
        written = record(*((name, "long") for name in names), ("n", "int"))
        value = {name: place for place, name in enumerate(names)}
        given = message(double.add("users-value", written), written, {**value, "n": 5})
        (row,) = FORMAT.decoder(own).decode(pa.array([given])).rows.to_pylist()
        assert (row["id"], row["n"]) == (value.get("id", value["key"]), 5)


def test_a_default_that_is_null_is_bad_in_a_column_declared_not_null(double: Double) -> None:
    fields = pa.schema([("id", pa.int64()), pa.field("word", pa.string(), nullable=False)])
    written = record(("id", "long"))
    own = context(fields, double.url, schema=json.dumps(OWN))
    given = message(double.add("users-value", written), written, {"id": 1})
    (bad,) = FORMAT.decoder(own).decode(pa.array([given])).bad
    assert bad.reason == "schema 1 does not fit the columns: the schema has no field 'word'"


def test_default_that_is_no_value_is_refused() -> None:
    for type_, value in (
        ("int", "a"),
        ("int", True),
        ("string", 5),
        ({"type": "array", "items": "int"}, [None]),
    ):
        own = {"type": "record", "name": "r", "fields": [{"name": "v", "type": type_, "default": value}]}
        column = (
            pa.list_(pa.int32())
            if isinstance(type_, dict)
            else {"int": pa.int32(), "string": pa.string()}[type_]
        )
        with pytest.raises(SchemaError, match=r"the default of field 'v' must be .* in JSON, got"):
            context(one(column), schema=json.dumps(own))


def test_version_is_asked_for_only_where_it_is_wanted(double: Double) -> None:
    id = double.add("elsewhere", INT_RECORD)
    fields = one(pa.int32())
    messages = pa.array([message(id, INT_RECORD, {"v": 1})])
    FORMAT.decoder(context(fields, double.url)).decode(messages)
    assert [path for _, path in double.requests] == ["/schemas/ids/1"]
    with_version = context(fields, double.url, metadata=("schema-version",))
    assert FORMAT.decoder(with_version).decode(messages).rows["schema-version"].to_pylist() == [None]


def test_key_may_be_a_value_without_a_record(double: Double) -> None:
    id = double.add("users-key", '"string"')
    own = context(one(pa.string()), double.url, side=Side.KEY)
    assert FORMAT.decoder(own).decode(pa.array([message(id, '"string"', "ann")])).rows["v"].to_pylist() == [
        "ann"
    ]


def test_message_that_names_no_schema_is_bad_and_the_others_are_read(double: Double) -> None:
    good = double.add("users-value", derived(USERS))
    unfit = double.add("users-value", record(("id", "string")))
    broken = double.add("users-value", '{"type": "record"}')
    whole = message(good, derived(USERS), {"id": 1, "name": None})
    messages = [
        whole,
        b"",
        b"\x00\x00",
        b"\x01" + whole[1:],
        b"\x00\x00\x00\x00\x63\x02",
        b"\x00" + unfit.to_bytes(4, "big") + b"\x02a",
        b"\x00" + broken.to_bytes(4, "big"),
        whole + b"\x00",
        whole[:-1],
        whole,
    ]
    found = FORMAT.decoder(context(USERS, double.url)).decode(pa.array(messages))
    assert found.rows["id"].to_pylist() == [1, 1]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 9]
    begin = "a message must begin with a zero byte and a schema's id, got "
    assert found.bad == (
        BadMessage(1, begin + "b''"),
        BadMessage(2, begin + "b'\\x00\\x00'"),
        BadMessage(3, begin + "b'\\x01\\x00\\x00\\x00\\x01'"),
        BadMessage(4, "schema 99 is not in the registry"),
        BadMessage(5, "schema 2 does not fit the columns: 'id' is BIGINT, the schema says string"),
        BadMessage(6, "avro schema cannot be read: 'name' is missing"),
        BadMessage(7, "1 bytes follow the datum"),
        BadMessage(8, "no datum of the schema: it ends too early"),
    )


@given(
    st.lists(st.binary(max_size=8) | st.builds(lambda b: b"\x00\x00\x00\x00\x01" + b, st.binary(max_size=6)))
)
def test_any_bytes_give_rows_or_bad_messages(messages: list[bytes]) -> None:
    registry = SchemaRegistry(RegistryConfig((Secret(URL),)))
    registry._schemas = {(1, AVRO): derived(USERS)}
    registry._call = lambda *_: None  # type: ignore[method-assign]
    found = AvroConfluentDecoder(context(USERS), registry).decode(pa.array(messages, pa.binary()))
    rows = range(len(messages)) if found.positions is None else found.positions.tolist()
    assert sorted([*rows, *(bad.position for bad in found.bad)]) == list(range(len(messages)))
    assert found.rows.num_rows == len(rows)


def test_registry_that_is_down_is_no_fault_of_the_messages() -> None:
    registry = SchemaRegistry(RegistryConfig((Secret("http://127.0.0.1:9"),)), 0.0, lambda _: None)
    whole = pa.array([message(1, INT_RECORD, {"v": 1})])
    with pytest.raises(KafkaUnavailableError, match="the schema registry at"):
        AvroConfluentDecoder(context(one(pa.int32())), registry).decode(whole)
    with pytest.raises(KafkaUnavailableError, match="the schema registry at"):
        AvroConfluentEncoder(context(one(pa.int32())), registry).encode(
            pa.table([[1]], schema=one(pa.int32()))
        )


def test_given_schema_is_registered_and_written_with(double: Double) -> None:
    schema = record(("extra", ["null", "int"]), ("v", "long"), name="mine")
    own = context(one(pa.int32()), double.url, schema=schema)
    (found,) = FORMAT.encoder(own).encode(pa.table([[5]], schema=one(pa.int32()))).to_pylist()
    assert found == message(1, schema, {"extra": None, "v": 5})
    assert double.schemas == [schema]


def test_several_topics_need_a_subject_to_be_written() -> None:
    own = context(USERS, topic=None)
    with pytest.raises(ConfigurationError, match="option 'subject' is required to write into several topics"):
        FORMAT.encoder(own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "registry:8081"}, "option 'url' must be http: or https: addresses .* address 1 is none"),
        ({"url": "http://a, file:///etc/passwd"}, "address 2 is none"),
        ({"url": "http://ann:hunter2@"}, "address 1 is none"),
        ({"url": "http://a:99999"}, "address 1 is none"),
        ({"url": "http://ann:hunter2@a"}, "a user in the option 'url' and .* must be given together"),
        (
            {"basic-auth.credentials-source": "URL"},
            "a user in the option 'url' and .* must be given together",
        ),
        ({"basic-auth.credentials-source": "USER_INFO"}, "'basic-auth.user-info' must be given together"),
        ({"basic-auth.credentials-source": "SASL_INHERIT"}, "must be one of user_info, url"),
        ({"bearer-auth.credentials-source": "STATIC_TOKEN"}, "needs 'bearer-auth.token'"),
        (
            {"basic-auth.user-info": "ann:hunter2", "bearer-auth.token": "hunter2"},
            "basic and bearer authentication exclude each other",
        ),
        ({"ssl.truststore.password": "hunter2"}, "must be a PEM file, which has no password"),
        ({"uri": "http://a"}, "unknown option 'uri'; did you mean 'url'"),
        ({"codec": "snappy"}, "unknown option 'codec'"),
    ],
)
def test_wrong_option_is_refused_without_its_password(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        context(USERS, **options)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://a, https://b:8081/path"},
        {"url": "https://ann:pass@a", "basic-auth.credentials-source": "URL"},
        {"basic-auth.user-info": "ann:pass"},
        {"basic-auth.user-info": "ann:pass", "basic-auth.credentials-source": "USER_INFO"},
        {"bearer-auth.token": "t0ken", "bearer-auth.credentials-source": "STATIC_TOKEN"},
        {
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.location": "/own.pem",
            "ssl.keystore.password": "x",
        },
        {"timestamp_mapping.legacy": "true", "encoding": "binary", "subject": "mine"},
    ],
)
def test_good_options_are_taken(options: dict[str, str]) -> None:
    assert context(USERS, **options).options["url"]


def test_url_is_required() -> None:
    with pytest.raises(ConfigurationError, match="option 'url' is required"):
        parse_options("avro-confluent", FORMAT.options, {})


def test_columns_that_avro_does_not_have_are_refused() -> None:
    with pytest.raises(SchemaError, match="got 'a b'; rename the column"):
        context(pa.schema([("a b", pa.int32())]))


def test_context_can_be_sent_and_shows_no_secret() -> None:
    own = context(USERS, **{"schema-registry.basic-auth.user-info": "ann:hunter2"})
    assert pickle.loads(pickle.dumps(own)) == own
    assert "hunter2" not in repr(own)


def test_format_is_found_by_its_name_and_offers_metadata() -> None:
    assert format_named("avro-confluent", "t") is FORMAT
    assert FORMAT.is_insert_only
    keys = {key.key: key.type for key in FORMAT.metadata}
    assert keys == {"schema": pa.string(), "schema-id": pa.int32(), "schema-version": pa.int32()}


def test_schema_is_sent_as_text_within_json(double: Double) -> None:
    FORMAT.encoder(context(USERS, double.url)).encode(pa.table([[1], ["a"]], schema=USERS))
    assert json.loads(double.schemas[0])["name"] == "record"
