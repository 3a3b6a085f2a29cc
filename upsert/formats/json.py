"""The format ``json``: a row is a JSON object, its columns are the members (pure).

It follows Flink's format of this name; where it is stricter, ``json_values`` says so. With
``ignore-parse-errors`` a bad value is NULL and a message that is no JSON, or whose NULL goes into a
NOT NULL column, is passed over without a trace.

Messages are read by `JsonReader`. They are written a column at a time: the text of a row is joined from the
texts of its columns, that of an array from the texts of all elements of its column, so no value is touched
in Python.

>>> context = FormatContext(pa.schema([("word", pa.string()), ("n", pa.int64())]))
>>> message = FORMAT.encoder(context).encode(pa.table({"word": ["a"], "n": [1]}))
>>> message.to_pylist()
[b'{"word":"a","n":1}']
>>> FORMAT.decoder(context).decode(message).rows.to_pylist()
[{'word': 'a', 'n': 1}]
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import Format, FormatContext
from upsert.formats.debezium.rows import EncodedReader
from upsert.formats.debezium.values import OPTIONS as CONNECTOR_OPTIONS
from upsert.formats.debezium.values import Modes
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect, check_types
from upsert.formats.text_values import encoded, flat_bytes, joined_lists, scalar_texts
from upsert.options import Option

OPTIONS: Final = (
    Option(
        "fail-on-missing-field", options.boolean, "whether a message without one of the fields is bad", False
    ),
    *SHARED_OPTIONS,
    *CONNECTOR_OPTIONS,
    Option(
        "encode.ignore-null-fields", options.boolean, "whether NULLs are left out of what is written", False
    ),
)

TextPart = Any
"""An Arrow string array, or a text that is the same for all rows."""


def row_texts(
    columns: Sequence[pa.Array], fields: Sequence[pa.Field], dialect: JsonDialect, num_rows: int
) -> pa.Array:
    """The JSON object of each row, as a string array without NULLs.

    >>> row_texts([pa.array([1, None])], [pa.field("n", pa.int64())], JsonDialect(), 2).to_pylist()
    ['{"n":1}', '{"n":null}']
    """
    if not fields:
        return pa.repeat("{}", num_rows)
    if dialect.ignore_null_fields:
        return _without_nulls(columns, fields, dialect)
    parts: list[TextPart] = []
    for column, field in zip(columns, fields, strict=True):
        parts.append(f"{',' if parts else '{'}{encode_basestring(field.name)}:")
        parts += _parts(column, field, dialect)
    return _joined([*parts, "}"])


def _without_nulls(columns: Sequence[pa.Array], fields: Sequence[pa.Field], dialect: JsonDialect) -> pa.Array:
    members = []
    for column, field in zip(columns, fields, strict=True):
        member = _joined([f",{encode_basestring(field.name)}:", *_parts(column, field, dialect)])
        members.append(pc.if_else(column.is_valid(), member, "") if column.null_count else member)
    # The first comma, if any, is replaced by the brace.
    return _joined([pc.binary_replace_slice(_joined(members), 0, 1, "{"), "}"])


def _joined(parts: Sequence[TextPart]) -> pa.Array:
    """The parts one after the other; texts that stand together become one."""
    merged: list[TextPart] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pc.binary_join_element_wise(*merged, "")


def _parts(column: pa.Array, field: pa.Field, dialect: JsonDialect) -> list[TextPart]:
    """What makes up the JSON of each value when joined; ``null`` for NULL."""
    try:
        before, texts, after = _texts(column, field.type, dialect)
    except SchemaError as cause:
        raise SchemaError(f"column {field.name!r}: {cause}") from None
    if not column.null_count:
        return [before, texts, after]
    whole = _joined([before, texts.fill_null(""), after]) if before or after else texts
    return [pc.if_else(column.is_valid(), whole, "null")]


def _texts(column: pa.Array, type_: pa.DataType, dialect: JsonDialect) -> tuple[str, pa.Array, str]:
    """Texts of the values, and what stands before and after each of them; anything for NULL."""
    if pa.types.is_struct(type_):
        return "", row_texts(column.flatten(), list(type_), dialect, len(column)), ""
    if pa.types.is_list(type_):
        elements = _joined(_parts(column.flatten(), type_.value_field, dialect))
        return "[", joined_lists(column, elements, ","), "]"
    if pa.types.is_map(type_):
        return "{", _map_texts(column, type_, dialect), "}"
    if type_ == pa.string():
        return '"', escaped(column), '"'
    if type_ == pa.binary() or pa.types.is_temporal(type_):
        return '"', scalar_texts(column, dialect.timestamps), '"'
    if pa.types.is_floating(type_):
        return "", _float_texts(column), ""
    return "", scalar_texts(column, dialect.timestamps, is_plain=dialect.decimal_as_plain_number), ""


def _map_texts(column: pa.Array, type_: pa.DataType, dialect: JsonDialect) -> pa.Array:
    """The members of each map's object, with commas between. Arrow's maps have no NULL keys."""
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names, items = column.keys, column.items
    if len(names) != last - first:
        names, items = names.slice(first, last - first), items.slice(first, last - first)
    members = _joined(['"', escaped(names), '":', *_parts(items, type_.item_field, dialect)])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - first), members), ",")


def escaped(texts: pa.Array) -> pa.Array:
    r"""Texts as they stand between the quotes of a JSON string; NULL for NULL.

    >>> escaped(pa.array(['say "hi"', "a\tb", None])).to_pylist()
    ['say \\"hi\\"', 'a\\tb', None]
    """
    data, _ = flat_bytes(texts)
    # The backslash comes first: those that the others bring must stay.
    codes = [code for code in (ord("\\"), ord('"')) if (data == code).any()]
    is_control = data < 32
    if is_control.any():
        codes += np.unique(data[is_control]).tolist()
    for code in codes:
        texts = pc.replace_substring(texts, chr(code), encode_basestring(chr(code))[1:-1])
    return texts


def _float_texts(column: pa.Array) -> pa.Array:
    """Numbers, and strings for those that JSON has no number for.

    >>> _float_texts(pa.array([1.0, float("nan"), None])).to_pylist()
    ['1.0', '"NaN"', None]
    """
    texts = scalar_texts(column)
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    is_finite = pc.is_finite(column).fill_null(True)
    return pc.if_else(is_finite, texts, pc.binary_join_element_wise('"', texts, '"', ""))


class JsonEncoder:
    """One row is one object."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = list(context.fields)
        self._dialect = JsonDialect.of(context.options)
        modes = Modes.of(context.options)
        if found := [field.name for field in self._fields if modes.encoding(field.type).is_base64]:
            raise ConfigurationError(
                f"json: option 'decimal.handling.mode' must not be precise to write column {found[0]!r}, got "
                "'precise'; decimals are written as numbers, which would be read as base64 then"
            )

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """The messages of all rows, whatever their kinds."""
        del kinds
        return encoded(
            rows.select([field.name for field in self._fields]),
            lambda batch: row_texts(batch.columns, self._fields, self._dialect, batch.num_rows),
        )


def check(context: FormatContext) -> None:
    """Refuse MAPs whose key is no STRING, and options that exclude each other."""
    check_types(context.fields)
    dialect = JsonDialect.of(context.options)
    if dialect.fail_on_missing_field and dialect.ignore_parse_errors:
        raise ConfigurationError(
            "json: options 'fail-on-missing-field' and 'ignore-parse-errors' must not both be true; "
            "a missing field cannot fail where errors are ignored"
        )


def _decoder(context: FormatContext) -> JsonReader | EncodedReader:
    dialect, modes = JsonDialect.of(context.options), Modes.of(context.options)
    if modes == Modes():
        return JsonReader(context.fields, dialect)
    return EncodedReader(
        context.fields, {field.name: modes.encoding(field.type) for field in context.fields}, dialect
    )


FORMAT: Final = Format("json", OPTIONS, check, _decoder, JsonEncoder, reads_some=True, nothing=b"null")
