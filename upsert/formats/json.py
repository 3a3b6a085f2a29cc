"""The format ``json``: a row is a JSON object, its columns are the members (pure).

It follows Flink's format of this name; where it is stricter, ``json_values`` says so. With
``ignore-parse-errors`` a bad value is NULL and a message that is no JSON, or whose NULL goes into a
NOT NULL column, is passed over without a trace.

>>> context = FormatContext(pa.schema([("word", pa.string()), ("n", pa.int64())]))
>>> message = FORMAT.encoder(context).encode(pa.table({"word": ["a"], "n": [1]}))
>>> message.to_pylist()
[b'{"word":"a","n":1}']
>>> FORMAT.decoder(context).decode(message).rows.to_pylist()
[{'word': 'a', 'n': 1}]
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from upsert.errors import ConfigurationError
from upsert.formats.base import Decoded, Format, FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import (
    DECIMAL_AS_PLAIN_NUMBER,
    FAIL_ON_MISSING_FIELD,
    IGNORE_NULL_FIELDS,
    IGNORE_PARSE_ERRORS,
    MAP_NULL_KEY_LITERAL,
    MAP_NULL_KEY_MODE,
    TIMESTAMP_STANDARD,
    JsonDialect,
    check_types,
)
from upsert.formats.json_writer import row_texts
from upsert.formats.text_values import encoded

OPTIONS: Final = (
    FAIL_ON_MISSING_FIELD,
    IGNORE_PARSE_ERRORS,
    TIMESTAMP_STANDARD,
    MAP_NULL_KEY_MODE,
    MAP_NULL_KEY_LITERAL,
    DECIMAL_AS_PLAIN_NUMBER,
    IGNORE_NULL_FIELDS,
)


class JsonDecoder:
    """One object, or one element of a top-level array, is one row."""

    def __init__(self, context: FormatContext) -> None:
        self._reader = JsonReader(context.fields, JsonDialect.of(context.options))

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages."""
        return self._reader.read(messages)


class JsonEncoder:
    """One row is one object."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = list(context.fields)
        self._dialect = JsonDialect.of(context.options)

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """The messages of all rows, whatever their kinds."""
        del kinds
        return encoded(rows.select([field.name for field in self._fields]), self._texts)

    def _texts(self, batch: pa.RecordBatch) -> pa.Array:
        return row_texts(batch.columns, self._fields, self._dialect, batch.num_rows)


def check(context: FormatContext) -> None:
    """Refuse MAPs whose key is no STRING, and options that exclude each other."""
    check_types(context.fields)
    dialect = JsonDialect.of(context.options)
    if dialect.fail_on_missing_field and dialect.ignore_parse_errors:
        raise ConfigurationError(
            "json: options 'fail-on-missing-field' and 'ignore-parse-errors' must not both be true; "
            "a missing field cannot fail where errors are ignored"
        )


FORMAT: Final = Format("json", OPTIONS, check, JsonDecoder, JsonEncoder)
