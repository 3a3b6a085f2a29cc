"""Records whose key and value have columns of their own, as the key and value formats see them."""

import json

import pyarrow as pa
import pytest

from upsert.formats.base import FormatContext, Side, format_named
from upsert.options import parse

KEY = pa.schema(
    [pa.field("event_id", pa.int64(), nullable=False), pa.field("user_id", pa.int64(), nullable=False)]
)
VALUE = pa.schema([("name", pa.string()), ("user_id", pa.int32()), ("payload", pa.string())])
KEYS = pa.table({"event_id": [100, 101], "user_id": [1, 2]}, schema=KEY)
VALUES = pa.table(
    {"name": ["name 1", "name 2"], "user_id": [41, 42], "payload": ["payload 1", ""]}, schema=VALUE
)


def context(name: str, fields: pa.Schema, side: Side) -> FormatContext:
    made = FormatContext(fields, parse(name, format_named(name, "test").options, {}), side)
    format_named(name, "test").check(made)
    return made


@pytest.mark.parametrize("name", ["json", "csv", "avro"])
def test_a_name_may_mean_one_type_in_the_key_and_another_in_the_value(name: str) -> None:
    """A prefix of the key's columns is gone before a format sees them; the primary key gives their order."""
    wire = format_named(name, "test")
    for rows, side in ((KEYS, Side.KEY), (VALUES, Side.VALUE)):
        made = context(name, rows.schema, side)
        messages = wire.encoder(made).encode(rows)
        found = wire.decoder(made).decode(messages)
        assert found.bad == ()
        assert found.rows.equals(rows)


def test_members_are_written_in_the_order_of_the_columns() -> None:
    keys = format_named("json", "test").encoder(context("json", KEY, Side.KEY)).encode(KEYS)
    values = format_named("json", "test").encoder(context("json", VALUE, Side.VALUE)).encode(VALUES)
    assert [list(json.loads(message).items()) for message in keys.to_pylist()] == [
        [("event_id", 100), ("user_id", 1)],
        [("event_id", 101), ("user_id", 2)],
    ]
    assert [list(json.loads(message).items()) for message in values.to_pylist()] == [
        [("name", "name 1"), ("user_id", 41), ("payload", "payload 1")],
        [("name", "name 2"), ("user_id", 42), ("payload", "")],
    ]


def test_columns_of_metadata_take_no_part_in_the_value() -> None:
    """Physical columns lie between those of metadata; the format sees only the former, in their order."""
    fields = pa.schema([("physical_1", pa.string()), ("physical_2", pa.int32()), ("physical_3", pa.bool_())])
    rows = pa.table(
        {"physical_1": ["data 1", "data 2"], "physical_2": [1, 2], "physical_3": [True, False]}, schema=fields
    )
    wire = format_named("json", "test")
    made = context("json", fields, Side.VALUE)
    messages = wire.encoder(made).encode(rows)
    assert messages.to_pylist()[0] == b'{"physical_1":"data 1","physical_2":1,"physical_3":true}'
    assert wire.decoder(made).decode(messages).rows.equals(rows)
