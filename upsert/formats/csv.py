"""The format ``csv``: a row is one line, its columns are the fields in their order (pure).

It follows Flink's format of this name; ``csv_lines`` says what a line is. Beyond scalar types it knows
ARRAY and STRUCT of scalar types, one field with ``array-element-delimiter`` between the elements.

* Without ``null-literal`` NULL is written as nothing. Nothing is read as an empty STRING, BINARY or ARRAY,
  and as NULL of other types (where Flink fails). With one, a text equal to it is NULL, quoted or not: a
  string of that text, and an array of just NULL, come back as NULL.
* Times are in the standard SQL, BINARY is base64, NaN and infinity are ``NaN``, ``Infinity``, ``-Infinity``.
* A line has as many fields as there are columns. With ``ignore-parse-errors`` a bad value and a field that
  is missing are NULL, and a line with more fields, or that is no CSV, is passed over without a trace.
* An empty message, and with ``allow-comments`` a line that begins with ``#``, give no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from upsert import options, types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import Decoder, Encoder, FormatContext, Side
from upsert.formats.csv_lines import BREAKS, CsvDialect
from upsert.formats.csv_values import CsvDecoder, CsvEncoder
from upsert.metadata_columns import MetadataKey
from upsert.options import Option

_JAVA_ESCAPES: Final = {"\\t": "\t", "\\\\": "\\", "\\'": "'", '\\"': '"', "\\b": "\b", "\\f": "\f"}

_ONE_CHARACTER: Final = "one character that is no letter, digit or line break"


def character(text: str) -> str:
    r"""One character, or one of Java's escapes for it, such as ``\t`` and ``\u0001``.

    Raises:
        ValueError: the text is something else, or a letter, a digit or a line break.

    >>> character(r"\u0001"), character("|")
    ('\x01', '|')
    """
    text = _JAVA_ESCAPES.get(text, text)
    if len(text) == 6 and text.startswith("\\u"):
        try:
            text = chr(int(text[2:], 16))
        except ValueError:
            raise ValueError(_ONE_CHARACTER) from None
    if len(text) != 1 or text in BREAKS or text.isalnum() or "\ud800" <= text <= "\udfff":
        raise ValueError(_ONE_CHARACTER)
    return text


def dialect_of(given: Mapping[str, Any]) -> CsvDialect:
    """The dialect that the options ask for."""
    quote = None if given.get("disable-quote-character") else given.get("quote-character") or '"'
    return CsvDialect(
        delimiter=given.get("field-delimiter", ","),
        quote=quote,
        escape=given.get("escape-character"),
        array_delimiter=given.get("array-element-delimiter", ";"),
        null_literal=given.get("null-literal"),
        allows_comments=given.get("allow-comments", False),
        ignores_parse_errors=given.get("ignore-parse-errors", False),
    )


@dataclass(frozen=True)
class CsvFormat:
    """One CSV line for each row.

    >>> context = FormatContext(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> messages = FORMAT.encoder(context).encode(pa.table({"word": ["a,b", "c"], "n": [1, None]}))
    >>> messages.to_pylist()
    [b'"a,b",1', b'c,']
    >>> FORMAT.decoder(context).decode(messages).rows.to_pylist()
    [{'word': 'a,b', 'n': 1}, {'word': 'c', 'n': None}]
    """

    name: str = "csv"
    options: Sequence[Option] = (
        Option("field-delimiter", character, "the character between fields", ","),
        Option("disable-quote-character", options.boolean, "whether no field is in quotes", False),
        Option("quote-character", character, 'the character around fields that need it; " without it', None),
        Option("allow-comments", options.boolean, "whether lines that begin with # are passed over", False),
        Option(
            "ignore-parse-errors",
            options.boolean,
            "whether bad values become NULL and unreadable lines are passed over",
            False,
        ),
        Option(
            "array-element-delimiter", options.text, "the text between elements of an ARRAY or STRUCT", ";"
        ),
        Option("escape-character", character, "the character that makes the next one text", None),
        Option("null-literal", str, "the text that stands for NULL", None),
    )
    is_insert_only: bool = True

    def check(self, context: FormatContext) -> None:
        """Refuse MAPs and deeper nesting, and characters that have two meanings."""
        if context.options.get("disable-quote-character") and context.options.get("quote-character"):
            raise ConfigurationError(
                "csv: options 'quote-character' and 'disable-quote-character' must not both be set; drop one"
            )
        dialect = dialect_of(context.options)
        meanings = [text for text in (dialect.delimiter, dialect.quote, dialect.escape) if text is not None]
        if len(set(meanings)) < len(meanings):
            raise ConfigurationError(
                "csv: the options 'field-delimiter', 'quote-character' and 'escape-character' must differ, "
                f"got {meanings}"
            )
        for field in context.fields:
            _check_type(field)

    def readable_metadata(self, side: Side, options: Mapping[str, Any]) -> Sequence[MetadataKey]:
        """Nothing: a line has no data besides its fields."""
        del side, options
        return ()

    def decoder(self, context: FormatContext) -> Decoder:
        """A decoder for one task."""
        return CsvDecoder(context.fields, dialect_of(context.options))

    def encoder(self, context: FormatContext) -> Encoder:
        """An encoder for one task."""
        return CsvEncoder(context.fields, dialect_of(context.options))


def _check_type(field: pa.Field) -> None:
    type_ = field.type
    inner = (
        [type_.field(index).type for index in range(type_.num_fields)] if pa.types.is_nested(type_) else []
    )
    if pa.types.is_map(type_) or not all(types.is_scalar(found) for found in inner or [type_]):
        raise SchemaError(
            f"column {field.name!r}: in CSV it must be of a scalar type, or an ARRAY or STRUCT of them, "
            f"got {types.sql_name(type_)}; write it as a STRING"
        )


FORMAT: Final = CsvFormat()
