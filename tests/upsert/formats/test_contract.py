"""What every format keeps to, whatever its messages look like."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.upsert.formats.protobuf_messages import descriptor_options, file_of
from tests.upsert.formats.registry_double import registry_double
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import FORMATS, OF_ROWS, Decoded, Format, FormatContext, Side, format_named
from upsert.options import parse

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
    ]
)
FIELDS = {
    "raw": pa.schema([pa.field("id", pa.int64(), nullable=False)]),
    "protobuf": pa.schema([COLUMNS.field("id"), COLUMNS.field("word")]),
    "protobuf-confluent": pa.schema([COLUMNS.field("id"), COLUMNS.field("word")]),
}
"""The columns of formats that cannot have those above."""

NOT_A_MESSAGE = b"\xff\xfe\x00"
"""Bytes that are no message of any format for these columns."""

MANY = 5_000


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> Format:
    return format_named(request.param, "test")


@pytest.fixture
def context(format: Format, tmp_path: Path) -> Iterator[FormatContext]:
    fields = FIELDS.get(format.name, COLUMNS)
    made = partial(FormatContext, fields, topic="topic")
    if format.name == "protobuf":
        named = descriptor_options(tmp_path, file_of("Row\nint64 id = 1\noptional string word = 2"), "Row")
        yield made(options=parse(format.name, format.options, named))
    elif not any(option.key == "url" for option in format.options):
        yield made(options=parse(format.name, format.options, {}))
    else:
        with registry_double() as registry:
            yield made(options=parse(format.name, format.options, {"url": registry.url}))


def rows(context: FormatContext, count: int) -> pa.Table:
    """Some rows of the context's fields; a NULL now and then where it may be."""
    all_rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "word": pa.array(
                [None if n % 7 == 3 else f'word "{n}", größer' for n in range(count)], pa.string()
            ),
            "price": pa.array(range(count), pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(10, 2)),
        }
    ).select(context.fields.names)
    return all_rows.cast(context.fields)


def encode(format: Format, context: FormatContext, table: pa.Table) -> pa.Array:
    return format.encoder(context).encode(table, pa.repeat("+I", table.num_rows))


def decode(format: Format, context: FormatContext, messages: Any) -> Decoded:
    """The rows of messages, checked for what holds of all of them."""
    array = pa.array(messages, pa.binary()) if isinstance(messages, list) else messages
    found = format.decoder(context).decode(array)
    found.rows.validate(full=True)
    assert found.rows.schema == context.fields
    count = found.rows.num_rows
    if found.positions is None:
        assert count == len(array)
    else:
        assert len(found.positions) == count
        assert (np.diff(found.positions) >= 0).all()
        assert not set(found.positions.tolist()) & {bad.position for bad in found.bad}
    assert (found.kinds is None) == format.is_insert_only
    if found.kinds is not None:
        assert len(found.kinds) == count
    assert [bad.position for bad in found.bad] == sorted({bad.position for bad in found.bad})
    return found


def test_rows_of_no_columns_are_as_many_as_their_messages_or_refused(
    format: Format, context: FormatContext
) -> None:
    """As values are where the key has all columns, and not the value too."""
    none = replace(context, fields=pa.schema([]))
    rows_of_none = pa.table({"id": [1, 2, 3]}).select([])
    if "json" in format.name and format.is_insert_only:
        format.check(none)
        assert decode(format, none, encode(format, none, rows_of_none)).rows.num_rows == 3
    else:
        with pytest.raises(SchemaError, match=r"a value must be .*one column.*, got none; choose"):
            format.check(none)


def test_each_format_has_the_name_by_which_it_is_chosen() -> None:
    found = {name: format_named(name, "test") for name in FORMATS}
    assert {name: format.name for name, format in found.items()} == {name: name for name in FORMATS}
    assert {name for name, format in found.items() if format.is_insert_only} == set(OF_ROWS)
    assert all(option.doc for format in found.values() for option in format.options)


def test_checked_context_can_be_pickled(format: Format, context: FormatContext) -> None:
    format.check(context)
    copy = pickle.loads(pickle.dumps(context))
    assert copy.fields == context.fields
    assert encode(format, copy, rows(copy, 2)).equals(encode(format, context, rows(context, 2)))


def test_formats_for_inserts_serve_both_sides_and_those_for_changes_only_values(
    format: Format, context: FormatContext
) -> None:
    key = FormatContext(context.fields, context.options, Side.KEY, context.topic)
    if format.is_insert_only:
        format.check(key)
    else:
        with pytest.raises(ConfigurationError):
            format.check(key)


@pytest.mark.parametrize("count", [0, 1, 3, MANY])
def test_rows_come_back_as_they_were(format: Format, context: FormatContext, count: int) -> None:
    table = rows(context, count)
    messages = encode(format, context, table)
    assert messages.type == pa.binary()
    assert len(messages) == count
    assert messages.null_count == 0
    found = decode(format, context, messages)
    expected = table
    if format.name == "csv":
        # Without a null-literal CSV has no NULL for a STRING.
        word = table["word"].fill_null("")
        expected = table.set_column(1, table.schema.field("word"), word)
    assert found.rows.equals(expected)
    assert found.bad == ()
    assert found.positions is None


def test_chunks_and_slices_are_written_like_the_rows_themselves(
    format: Format, context: FormatContext
) -> None:
    table = rows(context, 5)
    whole = encode(format, context, table).to_pylist()
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2)])
    assert encode(format, context, chunked).to_pylist() == whole
    assert encode(format, context, table.slice(3)).to_pylist() == whole[3:]


def test_no_message_gives_nothing_and_is_not_bad(format: Format, context: FormatContext) -> None:
    one, two = encode(format, context, rows(context, 2)).to_pylist()
    assert decode(format, context, [None, None]).rows.num_rows == 0
    found = decode(format, context, [None, one, None, two, None])
    assert found.bad == ()
    assert found.positions is not None
    assert found.positions.tolist() == [1, 3]
    assert found.rows["id"].to_pylist() == [0, 1]


def test_slice_of_messages_is_read_like_the_messages_themselves(
    format: Format, context: FormatContext
) -> None:
    messages = encode(format, context, rows(context, 6))
    found = decode(format, context, messages.slice(2, 3))
    assert found.rows["id"].to_pylist() == [2, 3, 4]


def test_bad_message_is_named_and_takes_no_other_with_it(format: Format, context: FormatContext) -> None:
    one, two = encode(format, context, rows(context, 2)).to_pylist()
    found = decode(format, context, [one, NOT_A_MESSAGE, two])
    assert found.rows["id"].to_pylist() == [0, 1]
    (bad,) = found.bad
    assert bad.position == 1
    assert bad.reason
    assert "\n" not in bad.reason
    assert len(bad.reason) < 200


def test_few_bad_messages_among_many_are_found(format: Format, context: FormatContext) -> None:
    messages = encode(format, context, rows(context, MANY)).to_pylist()
    places = [0, 777, MANY - 1]
    for place in places:
        messages[place] = NOT_A_MESSAGE
    found = decode(format, context, messages)
    assert [bad.position for bad in found.bad] == places
    assert found.rows.num_rows == MANY - len(places)


def test_decoder_can_be_used_again(format: Format, context: FormatContext) -> None:
    decoder = format.decoder(context)
    messages = encode(format, context, rows(context, 4))
    first = decoder.decode(messages)
    decoder.decode(pa.array([NOT_A_MESSAGE]))
    assert decoder.decode(messages).rows.equals(first.rows)


def test_metadata_follows_the_fields(format: Format, context: FormatContext) -> None:
    offered = format.metadata
    keys = tuple(key.key for key in offered)
    assert len(set(keys)) == len(keys)
    asked = FormatContext(context.fields, context.options, topic=context.topic, metadata=keys)
    messages = encode(format, context, rows(context, 3))
    found = format.decoder(asked).decode(messages)
    assert found.rows.schema.names == [*context.fields.names, *keys]
    assert [field.type for field in found.rows.schema][len(context.fields) :] == [key.type for key in offered]
    assert found.rows.num_rows == 3
