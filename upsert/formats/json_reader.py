"""Messages with a JSON object each to rows: in bulk where that is exact, else one by one (pure).

All JSON formats read through this; the CDC formats read their envelope as a row and go on from there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions
from upsert.formats.base import BadMessage, Decoded
from upsert.formats.json_bulk import BulkReader
from upsert.formats.json_dialect import JsonDialect
from upsert.formats.json_values import parse, struct_converter
from upsert.formats.text_values import BadValueError

_MESSAGES_AT_ONCE: Final = 8192
_BYTES_AT_ONCE: Final = 16 << 20


class JsonReader:
    """Reads messages into rows of the given fields.

    An object is one row, a top-level array one row for each element if arrays are taken, else bad. No
    message, an empty one, ``null`` and a ``null`` element give no row.

    >>> reader = JsonReader(pa.schema([("n", pa.int64())]), JsonDialect())
    >>> found = reader.read(pa.array([b'[{"n": 1}, {"n": 2}]', b"", b'{"n": "x"}']))
    >>> found.rows.to_pylist(), found.positions.tolist(), found.bad
    ([{'n': 1}, {'n': 2}], [0, 0], (BadMessage(position=2, reason="field 'n': 'x' is no BIGINT"),))
    """

    def __init__(self, fields: pa.Schema, dialect: JsonDialect, *, takes_arrays: bool = True) -> None:
        self._fields = fields
        self._dialect = dialect
        self._takes_arrays = takes_arrays
        self._bulk = BulkReader(fields, dialect)
        self._convert = struct_converter(list(fields), dialect)

    def read(self, messages: pa.Array) -> Decoded:
        """The rows of all messages, in their order; bad messages give none, and no exception."""
        tables: list[pa.Table] = []
        positions: list[Positions] = []
        bad: list[BadMessage] = []
        start = 0
        while start < len(messages):
            chunk = _chunk(messages, start)
            self._read_chunk(chunk, start, tables, positions, bad)
            start += len(chunk)
        where = np.concatenate([np.zeros(0, np.int64), *positions])
        rows = pa.concat_tables([self._fields.empty_table(), *tables])
        if not len(self._fields):
            rows = _without_columns(len(where))
        is_one_each = len(where) == len(messages) and bool((where == np.arange(len(where))).all())
        return Decoded(rows, None if is_one_each else where, bad=tuple(bad))

    def _read_chunk(
        self,
        messages: pa.Array,
        start: int,
        tables: list[pa.Table],
        positions: list[Positions],
        bad: list[BadMessage],
    ) -> None:
        found = [
            (where, pa.Table.from_arrays(columns, schema=self._fields))
            for where, columns in self._bulk.read(messages)
        ]
        is_left = messages.is_valid().to_numpy(zero_copy_only=False).copy()
        for where, _ in found:
            is_left[where] = False
        if is_left.any():
            found.append(self._read_singly(messages, np.flatnonzero(is_left), start, bad))
        if not found:
            return
        where = np.concatenate([where for where, _ in found])
        table = pa.concat_tables([table for _, table in found])
        if len(found) > 1:
            order = np.argsort(where, kind="stable")
            where, table = where[order], table.take(pa.array(order))
        tables.append(table)
        positions.append(where + start)

    def _read_singly(
        self, messages: pa.Array, places: Positions, start: int, bad: list[BadMessage]
    ) -> tuple[Positions, pa.Table]:
        rows: list[tuple[Any, ...]] = []
        where: list[int] = []
        for place, message in zip(places.tolist(), messages.take(pa.array(places)).to_pylist(), strict=True):
            try:
                of_message = self.rows_of(message)
            except BadValueError as cause:
                if not self._dialect.ignore_parse_errors:
                    bad.append(BadMessage(start + place, cause.reason))
                continue
            rows += of_message
            where += [place] * len(of_message)
        columns = [
            pa.array([row[index] for row in rows], field.type) for index, field in enumerate(self._fields)
        ]
        return np.array(where, dtype=np.int64), pa.Table.from_arrays(columns, schema=self._fields)

    def rows_of(self, message: bytes) -> list[tuple[Any, ...]]:
        """The rows of one message as tuples, read by the reference.

        Raises:
            BadValueError: the message is bad.
        """
        value = parse(message)
        items = value if isinstance(value, list) and self._takes_arrays else [value]
        found = []
        for item in items:
            try:
                if item is not None:
                    found.append(self._convert(item))
            except BadValueError:
                if not self._dialect.ignore_parse_errors:
                    raise
        return found


def _without_columns(num_rows: int) -> pa.Table:
    """A table of no columns: Arrow keeps the number of its rows when the last column is taken away."""
    return pa.table({"_": pa.nulls(num_rows)}).select([])


def _chunk(messages: pa.Array, start: int) -> pa.Array:
    size = _MESSAGES_AT_ONCE
    chunk = messages.slice(start, size)
    while chunk.nbytes > _BYTES_AT_ONCE and len(chunk) > 1:
        size //= 2
        chunk = messages.slice(start, size)
    return chunk
