"""JSON that names its JSON Schema in a registry."""

import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, nested, plain, schemas, tables
from tests.upsert.formats.registry_double import Double
from tests.upsert.formats.test_avro import INT_RECORD
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats import json as json_format
from upsert.formats.base import BadMessage, FormatContext, Side
from upsert.formats.json_schema_confluent import FORMAT, derived
from upsert.options import parse as parse_options

URL = "http://registry.invalid:8081"
USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def context(
    fields: pa.Schema,
    url: str = URL,
    metadata: tuple[str, ...] = (),
    side: Side = Side.VALUE,
    **options: str,
) -> FormatContext:
    parsed = parse_options(FORMAT.name, FORMAT.options, {"url": url, **options})
    found = FormatContext(fields, parsed, side, "users", metadata)
    FORMAT.check(found)
    return found


def message(id: int, text: str) -> bytes:
    return b"\x00" + id.to_bytes(4, "big") + text.encode()


def test_rows_are_written_with_a_registered_schema_and_read_back(double: Double) -> None:
    rows = pa.table([pa.array([3, -1]), pa.array(["foo", None])], schema=USERS)
    own = context(USERS, double.url)
    messages = FORMAT.encoder(own).encode(rows)
    assert messages.to_pylist() == [
        b'\x00\x00\x00\x00\x01{"id":3,"name":"foo"}',
        b'\x00\x00\x00\x00\x01{"id":-1,"name":null}',
    ]
    assert json.loads(double.schemas[0]) == {
        "type": "object",
        "title": "record",
        "properties": {"id": {"type": "integer"}, "name": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
        "required": ["id"],
        "additionalProperties": False,
    }
    assert (double.kinds, double.subjects) == ({double.schemas[0]: "JSON"}, {"users-value": [1]})
    found = FORMAT.decoder(own).decode(messages)
    assert (found.rows.equals(rows), found.positions, found.bad) == (True, None, ())


def test_messages_are_read_with_the_metadata_of_their_own_schemas(double: Double) -> None:
    first, second = '{"type":"object"}', '{"type":"object","title":"newer"}'
    ids = double.add("users-value", first, "JSON"), double.add("users-value", second, "JSON")
    messages = [
        message(ids[1], '{"id": 1, "more": [1, 2]}'),
        None,
        message(ids[0], '[{"name": "a", "id": 2}, {"id": 3}]'),
        message(ids[1], ""),
        message(ids[1], '{"id": 4}'),
    ]
    own = context(USERS, double.url, ("schema-version", "schema-id", "schema"))
    found = FORMAT.decoder(own).decode(pa.array(messages))
    assert [list(row.values()) for row in found.rows.to_pylist()] == [
        [1, None, 2, 2, second],
        [2, "a", 1, 1, first],
        [3, None, 1, 1, first],
        [4, None, 2, 2, second],
    ]
    assert found.rows.schema.types[2:] == [pa.int32(), pa.int32(), pa.string()]
    assert found.bad == ()
    assert found.positions is not None
    assert found.positions.tolist() == [0, 2, 2, 4]


def test_bad_messages_name_what_is_wrong_and_can_be_passed_over(double: Double) -> None:
    good = double.add("users-value", "{}", "JSON")
    avro = double.add("users-value", INT_RECORD)
    messages = pa.array(
        [
            b'{"id": 1}',
            message(avro, '{"id": 1}'),
            message(99, '{"id": 1}'),
            message(good, '{"id": "x"}'),
            b"",
            message(good, '{"id": 1}'),
        ]
    )
    found = FORMAT.decoder(context(USERS, double.url)).decode(messages)
    header = "a message must begin with a zero byte and a schema's id, got "
    assert found.bad == (
        BadMessage(0, f"{header}b'{{\"id\"'"),
        BadMessage(1, f"schema {avro} must be a JSON schema, got 'AVRO'"),
        BadMessage(2, "schema 99 is not in the registry"),
        BadMessage(3, "field 'id': 'x' is no BIGINT"),
        BadMessage(4, f"{header}b''"),
    )
    assert found.rows.to_pylist() == [{"id": 1, "name": None}]
    nullable = pa.schema([field.with_nullable(True) for field in USERS])
    ignoring = context(nullable, double.url, **{"ignore-parse-errors": "true"})
    found = FORMAT.decoder(ignoring).decode(messages)
    assert (found.rows["id"].to_pylist(), found.bad) == ([None, 1], ())


def test_given_schema_and_subject_are_registered(double: Double) -> None:
    schema = '{"type": "object", "title": "mine"}'
    own = context(USERS, double.url, schema=schema, subject="mine")
    (found,) = FORMAT.encoder(own).encode(pa.table([[5], [None]], schema=USERS)).to_pylist()
    assert found == message(1, '{"id":5,"name":null}')
    assert (double.schemas, list(double.subjects)) == ([schema], ["mine"])
    key = context(USERS, double.url, side=Side.KEY)
    FORMAT.encoder(key).encode(pa.table([[5], [None]], schema=USERS))
    assert list(double.subjects) == ["mine", "users-key"]


def test_registry_is_not_asked_before_there_is_a_row(double: Double) -> None:
    own = context(USERS, double.url)
    assert FORMAT.encoder(own).encode(USERS.empty_table()).to_pylist() == []
    assert FORMAT.decoder(own).decode(pa.array([None], pa.binary())).rows.num_rows == 0
    assert double.requests == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(schemas(nested(SCALARS))), st.booleans())
def test_what_is_written_keeps_to_its_schema_and_is_read_as_json_is(
    double: Double, rows: pa.Table, ignores_nulls: bool
) -> None:
    validator = pytest.importorskip("jsonschema").Draft7Validator
    options = {"encode.ignore-null-fields": str(ignores_nulls).lower()}
    own = context(rows.schema, double.url, **options)
    messages = FORMAT.encoder(own).encode(rows)
    rules = validator(json.loads(derived(rows.schema)))
    texts = [one[5:] for one in messages.to_pylist()]
    for text in texts:
        rules.validate(json.loads(text, parse_float=Decimal))
    found = FORMAT.decoder(own).decode(messages)
    json_ = FormatContext(rows.schema, parse_options("json", json_format.OPTIONS, options))
    same = json_format.FORMAT.decoder(json_).decode(pa.array(texts, pa.binary()))
    assert found.bad == ()
    assert plain(found.rows) == plain(same.rows) == plain(rows)


def test_schema_tells_other_messages_from_those_that_are_written() -> None:
    validator = pytest.importorskip("jsonschema").Draft7Validator
    rules = validator(json.loads(derived(USERS)))
    assert rules.is_valid({"id": 1})
    assert not any(map(rules.is_valid, ({}, {"id": None}, {"id": 1.5}, {"id": 1, "more": 2}, [], "x")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "registry:8081"}, "json-schema-confluent: option 'url' must be http: or https:"),
        ({"bearer-auth.credentials-source": "STATIC_TOKEN"}, "json-schema-confluent: .* needs"),
        ({"schema": "[]"}, "'schema' must be a JSON Schema, which is a JSON object, got '\\[\\]'"),
        ({"schema": "{"}, "'schema' must be a JSON Schema"),
        ({"fail-on-missing-field": "true", "ignore-parse-errors": "true"}, "must not both be true"),
        ({"timestamp_mapping.legacy": "true"}, "unknown option"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        context(USERS, **options)


def test_several_topics_need_a_subject_and_maps_need_names() -> None:
    expected = "json-schema-confluent: option 'subject' is required to write into several topics"
    with pytest.raises(ConfigurationError, match=expected):
        FORMAT.encoder(replace(context(USERS), topic=None))
    with pytest.raises(SchemaError, match="key of type STRING"):
        context(pa.schema([("m", pa.map_(pa.int32(), pa.string()))]))
