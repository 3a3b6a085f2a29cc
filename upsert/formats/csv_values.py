"""Fields of CSV lines to columns and back: the two sides of the format csv (pure)."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.errors import SchemaError
from upsert.formats.base import BadMessage, Decoded
from upsert.formats.csv_lines import BREAKS, CsvDialect, LineReader
from upsert.formats.scalar_texts import encoded, scalar_texts
from upsert.formats.text_values import BadValueError, read_column, scalar_reader, shown
from upsert.formats.timestamps import TimestampStandard

_STANDARD: Final = TimestampStandard.SQL
_BYTE_ORDER_MARK: Final = "\ufeff"
_EMPTY_IS_A_VALUE: Final = (pa.string(), pa.binary())
_NULL: Final = pa.scalar(None, pa.string())


def value_of(text: str | None, field: pa.Field, dialect: CsvDialect) -> Any:
    """The value that a field's text means, as ``pa.array`` takes it: the reference.

    Raises:
        BadValueError: the text is no value of the field's type.

    >>> value_of("1;2", pa.field("a", pa.list_(pa.int64())), CsvDialect())
    [1, 2]
    """
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


class CsvDecoder:
    """Lines to rows: values of scalar types column by column, arrays and structs one by one."""

    def __init__(self, fields: pa.Schema, dialect: CsvDialect) -> None:
        self._fields = fields
        self._dialect = dialect
        self._lines = LineReader(dialect)

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages."""
        reasons: dict[int, str] = {}
        places, texts = self._split(messages, reasons)
        is_good = np.ones(len(places), dtype=np.bool_)
        columns = []
        for text, field in zip(texts, self._fields, strict=True):
            values, doubtful = self._values(text, field)
            for row in np.flatnonzero(doubtful & is_good).tolist():
                try:
                    value_of(text[row].as_py(), field, self._dialect)
                except BadValueError as bad:
                    reasons[int(places[row])] = f"field {field.name!r}: {bad}"
                    is_good[row] = False
            columns.append(values)
        if not is_good.all():
            kept = pa.array(is_good)
            places, columns = places[is_good], [column.filter(kept) for column in columns]
        named = () if self._dialect.ignores_parse_errors else sorted(reasons.items())
        bad_messages = tuple(BadMessage(place, reason) for place, reason in named)
        rows = pa.Table.from_arrays(columns, schema=self._fields)
        return Decoded(rows, None if len(places) == len(messages) else places, bad=bad_messages)

    def _split(self, messages: pa.Array, reasons: dict[int, str]) -> tuple[Positions, list[pa.Array]]:
        """Messages that are lines with enough fields, and the texts of their fields, by column."""
        lines = _decoded(messages, reasons)
        together, columns = self._lines.columns(lines, len(self._fields))
        is_left = lines.is_valid().to_numpy(zero_copy_only=False).copy()
        is_left[together] = False
        rest = np.flatnonzero(is_left)
        where, rows = [], []
        for place, line in zip(rest.tolist(), lines.take(pa.array(rest)).to_pylist(), strict=True):
            try:
                fields = self._fields_of(line)
            except BadValueError as bad:
                reasons[place] = str(bad)
                continue
            if fields is not None:
                where.append(place)
                rows.append(fields)
        singly = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(self._fields))]
        if not len(together):
            return np.array(where, dtype=np.int64), singly
        if not where:
            return together, columns
        places = np.concatenate([together, np.array(where, dtype=np.int64)])
        order = np.argsort(places)
        return places[order], [
            pa.concat_arrays(both).take(pa.array(order)) for both in zip(columns, singly, strict=True)
        ]

    def _fields_of(self, line: str) -> list[str | None] | None:
        """The texts of a line's fields; None when the line is no row."""
        line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.rstrip(BREAKS) or (self._dialect.allows_comments and line.startswith("#")):
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
        for place, message in enumerate(messages.to_pylist()):
            try:
                texts.append(None if message is None else message.decode())
            except UnicodeDecodeError as cause:
                reasons[place] = f"not valid UTF-8 at byte {cause.start}"
                texts.append(None)
        return pa.array(texts, pa.string())


class CsvEncoder:
    """Rows to lines."""

    def __init__(self, fields: pa.Schema, dialect: CsvDialect) -> None:
        self._fields = fields
        self._dialect = dialect
        special = "".join(text for text in (dialect.delimiter, dialect.quote, dialect.escape) if text)
        self._special = f"[{re.escape(special)}\r\n]"
        self._line_starts = f"^[{_BYTE_ORDER_MARK}{'#' if dialect.allows_comments else ''}]"

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """The messages of all rows, whatever their kinds."""
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
            return pc.if_else(column.is_valid(), texts, null)
        if pa.types.is_list(column.type):
            parts = self._without_delimiter(self._cells(column.flatten()))
            lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            texts = pc.binary_join(pa.ListArray.from_arrays(offsets, parts), self._dialect.array_delimiter)
            return pc.if_else(column.is_valid(), texts, null)
        return scalar_texts(column, _STANDARD).fill_null(null)

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
            if len(self._fields) == 1 and quote:
                # A line of nothing is no row.
                needs_it = pc.or_(needs_it, pc.equal(cells, ""))
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
