"""The format ``csv``: a row is one line, its columns are the fields in their order (pure).

It follows Flink's format of this name. Beyond scalar types it knows ARRAY and STRUCT of scalar types, one
field with ``array-element-delimiter`` between the elements.

* Without ``null-literal`` NULL is written as nothing. Nothing is read as an empty STRING, BINARY or ARRAY,
  and as NULL of other types (where Flink fails). With one, a text equal to it is NULL, quoted or not: a
  string of that text, and an array of just NULL, come back as NULL.
* Times are in the standard SQL, BINARY is base64, NaN and infinity are ``NaN``, ``Infinity``, ``-Infinity``.
* A line has as many fields as there are columns. With ``ignore-parse-errors`` a bad value and a field that
  is missing are NULL, and a line with more fields, or that is no CSV, is passed over without a trace.
* An empty message, and with ``allow-comments`` a line that begins with ``#``, give no row.

``LineReader.fields_of`` is what a line means, `value_of` what a field means. ``LineReader.columns`` gives the
same for many lines: those that a regular expression finds well formed, with the right number of fields, go
through ``pyarrow.csv``. A field is quoted as a whole or not at all; in quotes a quote is doubled, and line
breaks are text. After an escape character ``n``, ``r``, ``t`` and ``0`` are the control characters of that
name, any other character is itself. Line breaks at the end of a message do not count.

>>> context = FormatContext(pa.schema([("word", pa.string()), ("n", pa.int64())]))
>>> messages = FORMAT.encoder(context).encode(pa.table({"word": ["a,b", "c"], "n": [1, None]}))
>>> messages.to_pylist()
[b'"a,b",1', b'c,']
>>> FORMAT.decoder(context).decode(messages).rows.to_pylist()
[{'word': 'a,b', 'n': 1}, {'word': 'c', 'n': None}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from upsert import options, types
from upsert.arrays import Mask, Positions
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext, check_has_fields
from upsert.formats.text_values import (
    BadValueError,
    TimestampStandard,
    encoded,
    has_form,
    joined_lists,
    read_column,
    scalar_reader,
    scalar_texts,
    shown,
)
from upsert.options import Option

_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_MAX_BULK_FIELDS: Final = 200
_BREAKS: Final = "\r\n"


@dataclass(frozen=True)
class CsvDialect:
    """How a CSV line is written; ``quote``, ``escape`` and ``null_literal`` may be None."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    array_delimiter: str = ";"
    null_literal: str | None = None
    allows_comments: bool = False
    ignores_parse_errors: bool = False


class LineReader:
    """Splits lines of one dialect into fields."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._dialect = dialect
        delimiter, quote, escape = (
            re.escape(text or "") for text in (dialect.delimiter, dialect.quote, dialect.escape)
        )
        escaped = f"|{escape}(?s:.)" if escape else ""
        end = rf"(?={delimiter}|\Z)"
        self._unquoted = re.compile(rf"((?:[^{delimiter}\r\n{escape}]{escaped})*+){end}")
        self._escapes = re.compile(f"{escape}((?s:.))") if escape else None
        self._plain_field = rf"[^{delimiter}{quote}{escape}\r\n\x00]*"
        if not quote:
            return
        body = f"(?:[^{quote}{escape}]|{quote}{quote}{escaped})*+"
        self._quoted = re.compile(rf"{quote}({body}){quote}[ \t]*{end}")
        self._escapes_in_quotes = re.compile(f"{quote}{quote}" + (f"|{escape}((?s:.))" if escape else "()"))
        in_quotes = rf"(?:[^{quote}{escape}\r\n\x00]|{quote}{quote})*"
        self._plain_field = f"(?:{quote}{in_quotes}{quote}|{self._plain_field})"

    def fields_of(self, line: str) -> list[str]:
        """The texts of a line's fields; raises ``BadValueError``."""
        line = line.rstrip(_BREAKS)
        quote = self._dialect.quote
        found = []
        position = 0
        while True:
            is_quoted = quote is not None and line.startswith(quote, position)
            match = (self._quoted if is_quoted else self._unquoted).match(line, position)
            if match is None:
                why = "the quote is not closed in its field" if is_quoted else "a line break or a lone escape"
                raise BadValueError(f"not valid CSV: {why}, after character {position}")
            found.append(self._unescaped(match[1], self._escapes_in_quotes if is_quoted else self._escapes))
            if match.end() == len(line):
                return found
            position = match.end() + len(self._dialect.delimiter)

    def _unescaped(self, text: str, escapes: re.Pattern[str] | None) -> str:
        if escapes is None:
            return text
        return escapes.sub(lambda m: _CONTROLS.get(m[1], m[1]) or self._dialect.quote or "", text)

    def columns(self, lines: pa.Array, count: int) -> tuple[Positions, list[pa.Array]]:
        """The positions of lines, ascending, and the texts of their ``count`` fields, a column for each.

        They are the lines that are plain enough to be read together; the others are left to ``fields_of``.
        """
        field, delimiter = self._plain_field, re.escape(self._dialect.delimiter)
        positions = np.zeros(0, np.int64)
        signs = f"{self._dialect.delimiter}{self._dialect.quote or ''}"
        if 0 < count <= _MAX_BULK_FIELDS and signs.isascii():
            lines = pc.utf8_rtrim(lines, _BREAKS)
            pattern = f"^{field}(?:{delimiter}{field}){{{count - 1}}}$"
            is_plain = pc.match_substring_regex(lines, pattern=pattern)
            # An empty line would be no row for this reader, a byte order mark no text, a comment a row.
            odd_start = f"^(?:$|[\ufeff{'#' if self._dialect.allows_comments else ''}])"
            is_plain = pc.and_not(is_plain, pc.match_substring_regex(lines, pattern=odd_start))
            positions = np.flatnonzero(is_plain.fill_null(False).to_numpy(zero_copy_only=False))
        if not len(positions):
            return positions, []
        text = pc.binary_join_element_wise(lines.take(pa.array(positions)), "\n", "").buffers()[2]
        names = [str(index) for index in range(count)]
        table = pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            parse_options=pa_csv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char=self._dialect.quote or False,
                ignore_empty_lines=False,
            ),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
        return positions, [column.combine_chunks() for column in table.columns]


_STANDARD: Final = TimestampStandard.SQL
_BYTE_ORDER_MARK: Final = "\ufeff"
_EMPTY_IS_A_VALUE: Final = (pa.string(), pa.binary())
_NULL: Final = pa.scalar(None, pa.string())


def value_of(text: str | None, field: pa.Field, dialect: CsvDialect) -> Any:
    """The value that a field's text means, as ``pa.array`` takes it, or ``BadValueError``: the reference."""
    value = None
    if text is not None and text != dialect.null_literal:
        try:
            value = _value_of(text, field.type, dialect)
        except BadValueError:
            if not dialect.ignores_parse_errors:
                raise
    if value is None and not field.nullable:
        raise BadValueError("is NULL, but declared NOT NULL")
    return value


def _value_of(text: str, type_: pa.DataType, dialect: CsvDialect) -> Any:
    if type_ == pa.string():
        return text
    if pa.types.is_list(type_):
        parts = text.split(dialect.array_delimiter) if text else []
        return [value_of(part, type_.value_field, dialect) for part in parts]
    if not text and type_ not in _EMPTY_IS_A_VALUE:
        return None
    if not pa.types.is_struct(type_):
        return scalar_reader(type_, _STANDARD)(text)
    parts = text.split(dialect.array_delimiter)
    missing = type_.num_fields - len(parts)
    if missing < 0 or (missing and not dialect.ignores_parse_errors):
        raise BadValueError(f"{shown(text)} must have {type_.num_fields} parts, got {len(parts)}")
    padded = (*parts, *[None] * missing)
    return tuple(value_of(part, field, dialect) for part, field in zip(padded, type_, strict=True))


class _CsvDecoder:
    """Lines to rows: values of scalar types column by column, arrays and structs one by one."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._dialect = dialect_of(context.options)
        self._lines = LineReader(self._dialect)

    def decode(self, messages: pa.Array) -> Decoded:
        reasons: dict[int, str] = {}
        positions, texts = self._split(messages, reasons)
        is_good = np.ones(len(positions), dtype=np.bool_)
        columns = []
        for text, field in zip(texts, self._fields, strict=True):
            values, doubtful = self._values(text, field)
            for row in np.flatnonzero(doubtful & is_good).tolist():
                try:
                    value_of(text[row].as_py(), field, self._dialect)
                except BadValueError as bad:
                    reasons[int(positions[row])] = f"field {field.name!r}: {bad}"
                    is_good[row] = False
            columns.append(values)
        if not is_good.all():
            kept = pa.array(is_good)
            positions, columns = positions[is_good], [column.filter(kept) for column in columns]
        named = {} if self._dialect.ignores_parse_errors else reasons
        bad_lines = (BadMessage(position, reason) for position, reason in named.items())
        rows = pa.Table.from_arrays(columns, schema=self._fields)
        return Decoded.at(positions, len(messages), rows, bad_lines)

    def _split(self, messages: pa.Array, reasons: dict[int, str]) -> tuple[Positions, list[pa.Array]]:
        """Messages that are lines with enough fields, and the texts of their fields, by column."""
        lines = _decoded(messages, reasons)
        together, columns = self._lines.columns(lines, len(self._fields))
        is_left = lines.is_valid().to_numpy(zero_copy_only=False).copy()
        is_left[together] = False
        rest = np.flatnonzero(is_left)
        where, rows = [], []
        for position, line in zip(rest.tolist(), lines.take(pa.array(rest)).to_pylist(), strict=True):
            try:
                fields = self._fields_of(line)
            except BadValueError as bad:
                reasons[position] = str(bad)
                continue
            if fields is not None:
                where.append(position)
                rows.append(fields)
        singly = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(self._fields))]
        if not len(together):
            return np.array(where, dtype=np.int64), singly
        if not where:
            return together, columns
        positions = np.concatenate([together, np.array(where, dtype=np.int64)])
        order = np.argsort(positions)
        return positions[order], [
            pa.concat_arrays(both).take(pa.array(order)) for both in zip(columns, singly, strict=True)
        ]

    def _fields_of(self, line: str) -> list[str | None] | None:
        """The texts of a line's fields; None when the line is no row."""
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.rstrip(_BREAKS) or (self._dialect.allows_comments and line.startswith("#")):
            return None
        found: list[str | None] = [*self._lines.fields_of(line)]
        missing = len(self._fields) - len(found)
        if missing < 0 or (missing and not self._dialect.ignores_parse_errors):
            raise BadValueError(f"a line must have {len(self._fields)} fields, got {len(found)}")
        return found + [None] * missing

    def _values(self, texts: pa.Array, field: pa.Field) -> tuple[pa.Array, Mask]:
        """The values of a column, and where they may be bad: the reference knows why."""
        if not types.is_scalar(field.type):
            return self._nested_values(texts, field)
        if self._dialect.null_literal is not None:
            texts = pc.if_else(pc.equal(texts, self._dialect.null_literal), _NULL, texts)
        if field.type not in _EMPTY_IS_A_VALUE:
            texts = pc.if_else(pc.equal(texts, ""), _NULL, texts)
        values, bad = read_column(texts, field.type, _STANDARD)
        doubtful = np.zeros(len(texts), dtype=np.bool_) if bad is None else bad
        if values.null_count and not field.nullable:
            doubtful = doubtful | values.is_null().to_numpy(zero_copy_only=False)
        return values, doubtful

    def _nested_values(self, texts: pa.Array, field: pa.Field) -> tuple[pa.Array, Mask]:
        values = []
        bad = np.zeros(len(texts), dtype=np.bool_)
        for row, text in enumerate(texts.to_pylist()):
            try:
                values.append(value_of(text, field, self._dialect))
            except BadValueError:
                values.append(None)
                bad[row] = True
        return pa.array(values, field.type), bad


def _decoded(messages: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """Messages as texts; NULL for what is no UTF-8, with the reason."""
    try:
        return messages.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for position, message in enumerate(messages.to_pylist()):
            try:
                texts.append(None if message is None else message.decode())
            except UnicodeDecodeError as cause:
                reasons[position] = f"not valid UTF-8 at byte {cause.start}"
                texts.append(None)
        return pa.array(texts, pa.string())


class _CsvEncoder:
    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._dialect = dialect = dialect_of(context.options)
        special = "".join(text for text in (dialect.delimiter, dialect.quote, dialect.escape) if text)
        self._special = f"[{re.escape(special)}\r\n]"
        self._line_starts = f"^[{_BYTE_ORDER_MARK}{'#' if dialect.allows_comments else ''}]"

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        del kinds
        return encoded(rows.select(self._fields.names), self._line_texts)

    def _line_texts(self, batch: pa.RecordBatch) -> pa.Array:
        if not batch.num_columns:
            return pa.repeat("", batch.num_rows)
        cells: list[pa.Array] = []
        for column, field in zip(batch.columns, self._fields, strict=True):
            try:
                cells.append(self._protected(self._cells(column), is_first=not cells))
            except SchemaError as cause:
                raise SchemaError(f"column {field.name!r}: {cause}") from None
        return pc.binary_join_element_wise(*cells, self._dialect.delimiter)

    def _cells(self, column: pa.Array) -> pa.Array:
        """The texts of a column's values, what stands for NULL included."""
        null = self._dialect.null_literal or ""
        if pa.types.is_struct(column.type):
            parts = [self._without_delimiter(self._cells(child)) for child in column.flatten()]
            texts = pc.binary_join_element_wise(*parts, self._dialect.array_delimiter)
        elif pa.types.is_list(column.type):
            parts = self._without_delimiter(self._cells(column.flatten()))
            texts = joined_lists(column, parts, self._dialect.array_delimiter)
        else:
            return scalar_texts(column, _STANDARD).fill_null(null)
        return pc.if_else(column.is_valid(), texts, null)

    def _without_delimiter(self, parts: pa.Array) -> pa.Array:
        has_one = pc.match_substring(parts, self._dialect.array_delimiter)
        if pc.any(has_one).as_py():
            raise SchemaError(
                f"an element must not hold the array-element-delimiter {self._dialect.array_delimiter!r}, "
                f"got {shown(parts.filter(has_one)[0].as_py())}; choose another delimiter"
            )
        return parts

    def _protected(self, cells: pa.Array, *, is_first: bool) -> pa.Array:
        """The cells, those in quotes or with escapes that could be taken for something else."""
        quote, escape = self._dialect.quote, self._dialect.escape
        needs_it = pc.match_substring_regex(cells, pattern=self._special)
        if is_first:
            starts_line = pc.match_substring_regex(cells, pattern=self._line_starts)
            needs_it = pc.or_(needs_it, starts_line)
            if len(self._fields) == 1:
                # A line of nothing is no row.
                is_nothing = pc.equal(cells, "")
                if not quote and pc.any(is_nothing).as_py():
                    raise SchemaError(
                        "nothing in the only column of a line needs quotes, which are disabled; set "
                        "quote-character, or null-literal for NULL"
                    )
                needs_it = pc.or_(needs_it, is_nothing)
        if not pc.any(needs_it).as_py():
            return cells
        if not quote and not escape:
            text = shown(cells.filter(needs_it)[0].as_py())
            raise SchemaError(f"{text} needs quotes, which are disabled; set escape-character")
        if escape:
            cells = _replaced(cells, {escape: escape * 2, "\r": f"{escape}r", "\n": f"{escape}n"})
        if quote:
            in_quotes = pc.binary_join_element_wise(quote, _replaced(cells, {quote: quote * 2}), quote, "")
            return pc.if_else(needs_it, in_quotes, cells)
        cells = _replaced(cells, {self._dialect.delimiter: f"{escape}{self._dialect.delimiter}"})
        if is_first:
            cells = pc.if_else(starts_line, pc.binary_join_element_wise(escape, cells, ""), cells)
        return cells


def _replaced(texts: pa.Array, by: dict[str, str]) -> pa.Array:
    for old, new in by.items():
        texts = pc.replace_substring(texts, old, new)
    return texts


_JAVA_ESCAPES: Final = {"\\t": "\t", "\\\\": "\\", "\\'": "'", '\\"': '"', "\\b": "\b", "\\f": "\f"}
_ONE_CHARACTER: Final = "one character that is no letter, digit or line break"


def character(text: str) -> str:
    r"""One character but letters, digits and line breaks; or Java's escape for it, such as ``\t``.

    >>> character(r"\u0001"), character("|")
    ('\x01', '|')
    """
    text = _JAVA_ESCAPES.get(text, text)
    if len(text) == 6 and text.startswith("\\u"):
        try:
            text = chr(int(text[2:], 16))
        except ValueError:
            raise ValueError(_ONE_CHARACTER) from None
    if len(text) != 1 or text in _BREAKS or text.isalnum() or "\ud800" <= text <= "\udfff":
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


OPTIONS: Final = (
    Option("field-delimiter", character, "the character between fields", ","),
    Option("disable-quote-character", options.boolean, "whether no field is in quotes", False),
    Option("quote-character", character, 'the character around fields that need it; " without it', None),
    Option("allow-comments", options.boolean, "whether lines that begin with # are skipped", False),
    Option(
        "ignore-parse-errors",
        options.boolean,
        "whether bad values become NULL and unreadable lines are skipped",
        False,
    ),
    Option("array-element-delimiter", options.text, "the text between elements of an ARRAY or STRUCT", ";"),
    Option("escape-character", character, "the character that makes the next one text", None),
    Option("null-literal", str, "the text that stands for NULL", None),
)


def check(context: FormatContext) -> None:
    """Refuse MAPs and deeper nesting, no columns, and characters that have two meanings."""
    check_has_fields(context, "csv")
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
        type_ = field.type
        parts = (
            [type_.field(part) for part in range(type_.num_fields)] if pa.types.is_nested(type_) else [field]
        )
        inner = [part.type for part in parts]
        if pa.types.is_map(type_) or type_ == types.VARIANT or not all(map(has_form, inner)):
            raise SchemaError(
                f"column {field.name!r}: in CSV it must be of a scalar type, or an ARRAY or STRUCT of them, "
                f"got {types.sql_name(type_)}; write it as a STRING"
            )


FORMAT: Final = Format("csv", OPTIONS, check, _CsvDecoder, _CsvEncoder)
