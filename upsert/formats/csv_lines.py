"""CSV lines to the texts of their fields, one line a message, in bulk or one by one (pure).

``LineReader.fields_of`` is what a line means. ``LineReader.columns`` gives the same for many lines: those
that a regular expression finds well formed, with the right number of fields, go through ``pyarrow.csv``.

A field is quoted as a whole or not at all; in quotes a quote is doubled, and line breaks are text. After an
escape character ``n``, ``r``, ``t`` and ``0`` are the control characters of that name, any other character
is itself. Line breaks at the end of a message do not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from upsert.arrays import Positions
from upsert.formats.text_values import BadValueError

_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_MAX_BULK_FIELDS: Final = 200
BREAKS: Final = "\r\n"


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
    """Splits lines of one dialect into fields.

    >>> LineReader(CsvDialect()).fields_of('1,"say ""hi"", Bob",')
    ['1', 'say "hi", Bob', '']
    """

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
        """The texts of a line's fields.

        Raises:
            BadValueError: a quote is left open or followed by text, or there is more than one line.
        """
        line = line.rstrip(BREAKS)
        quote = self._dialect.quote
        found = []
        place = 0
        while True:
            is_quoted = quote is not None and line.startswith(quote, place)
            match = (self._quoted if is_quoted else self._unquoted).match(line, place)
            if match is None:
                why = "the quote is not closed in its field" if is_quoted else "a line break or a lone escape"
                raise BadValueError(f"not valid CSV: {why}, after character {place}")
            found.append(self._unescaped(match[1], self._escapes_in_quotes if is_quoted else self._escapes))
            if match.end() == len(line):
                return found
            place = match.end() + len(self._dialect.delimiter)

    def _unescaped(self, text: str, escapes: re.Pattern[str] | None) -> str:
        if escapes is None:
            return text
        return escapes.sub(lambda m: _CONTROLS.get(m[1], m[1]) or self._dialect.quote or "", text)

    def columns(self, lines: pa.Array, count: int) -> tuple[Positions, list[pa.Array]]:
        """The places of lines, ascending, and the texts of their fields, a column for each field.

        Args:
            lines: strings.
            count: how many fields a line must have.

        Returns:
            Only lines that are plain enough to be read together; the others are left to ``fields_of``.
        """
        field, delimiter = self._plain_field, re.escape(self._dialect.delimiter)
        places = np.zeros(0, np.int64)
        if 0 < count <= _MAX_BULK_FIELDS and self._dialect.delimiter.isascii():
            lines = pc.utf8_rtrim(lines, BREAKS)
            is_plain = pc.match_substring_regex(
                lines, pattern=f"^{field}(?:{delimiter}{field}){{{count - 1}}}$"
            )
            # An empty line would be no row for this reader, a byte order mark no text, a comment a row.
            odd_start = f"^(?:$|[\ufeff{'#' if self._dialect.allows_comments else ''}])"
            is_plain = pc.and_not(is_plain, pc.match_substring_regex(lines, pattern=odd_start))
            places = np.flatnonzero(is_plain.fill_null(False).to_numpy(zero_copy_only=False))
        if not len(places):
            return places, []
        text = pc.binary_join_element_wise(lines.take(pa.array(places)), "\n", "").buffers()[2]
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
        return places, [column.combine_chunks() for column in table.columns]
