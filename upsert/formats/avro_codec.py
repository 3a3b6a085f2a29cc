"""Messages of one Avro schema to rows and back: the codec is fastavro, columns are made in Arrow.

A message is the plain binary encoding of one record (or of one value, for a table with one column), without
a header. Bad messages are told apart from good ones whatever bytes they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from upsert import avro_types
from upsert.errors import SchemaError
from upsert.formats.avro_fit import mismatch, record_mismatch
from upsert.formats.avro_schema import codec_schema, parse
from upsert.formats.avro_values import UnfitError, fields_to_arrow, from_arrow, records_from_arrow, to_arrow
from upsert.formats.base import BadMessage

_READ_ERRORS = (EOFError, ValueError, IndexError, OverflowError)
"""What fastavro raises for bytes that are no datum of the schema."""


def fastavro() -> Any:
    """The package ``fastavro``.

    Raises:
        ConfigurationError: it is not installed.
    """
    return avro_types.fastavro("an avro format", "kafka")


class AvroCodec:
    """One schema and the columns that its messages hold.

    Args:
        schema: the schema's JSON text.
        fields: the columns.

    Raises:
        SchemaError: the text is no schema, or one that no table can have.
    """

    def __init__(self, schema: str, fields: pa.Schema) -> None:
        self._root = parse(schema)
        self._fields = list(fields)
        self._arrow = fields
        self._codec = fastavro().parse_schema(codec_schema(self._root))

    def misfit(self, *, writing: bool) -> str | None:
        """Why the schema does not serve the columns; None if it does."""
        if self._is_record:
            return record_mismatch(self._root, self._fields, writing=writing)
        if len(self._fields) != 1:
            return f"the schema is of one {self._root}, not of a record"
        return mismatch(self._root, self._fields[0], writing=writing)

    @property
    def _is_record(self) -> bool:
        return self._root.kind == "record"

    def decode(
        self, messages: Sequence[bytes | None], start: int = 0
    ) -> tuple[pa.Table, list[int], list[BadMessage]]:
        """The rows of some messages, the place of each row's message, and the bad ones.

        Args:
            messages: their bytes; None gives no row.
            start: how many bytes of each message come before its datum.
        """
        data, places, bad = self._read(messages, start)
        tables: list[pa.Table] = []
        kept: list[int] = []

        def convert(begin: int, end: int) -> None:
            """Convert a stretch; where a value does not fit, halve the stretch until it is found."""
            try:
                tables.append(self._table(data[begin:end]))
                kept.extend(places[begin:end])
            except UnfitError as cause:
                if end - begin == 1:
                    bad.append(BadMessage(places[begin], str(cause)))
                    return
                middle = (begin + end) // 2
                convert(begin, middle)
                convert(middle, end)

        convert(0, len(data))
        bad.sort(key=lambda message: message.position)
        return pa.concat_tables(tables or [self._arrow.empty_table()]).combine_chunks(), kept, bad

    def _read(
        self, messages: Sequence[bytes | None], start: int
    ) -> tuple[list[Any], list[int], list[BadMessage]]:
        read, codec = fastavro().schemaless_reader, self._codec
        data: list[Any] = []
        places: list[int] = []
        bad: list[BadMessage] = []
        for place, message in enumerate(messages):
            if message is None:
                continue
            stream = BytesIO(message)
            stream.seek(start)
            try:
                datum = read(stream, codec)
            except _READ_ERRORS as cause:
                bad.append(BadMessage(place, f"no datum of the schema: {type(cause).__name__}"))
                continue
            if (rest := len(message) - stream.tell()) != 0:
                bad.append(BadMessage(place, f"{rest} bytes follow the datum"))
                continue
            data.append(datum)
            places.append(place)
        return data, places, bad

    def _table(self, data: list[Any]) -> pa.Table:
        is_null = np.fromiter((datum is None for datum in data), bool, len(data))
        if not self._is_record:
            return pa.table([to_arrow(data, self._root, self._fields[0])], schema=self._arrow)
        if is_null.any():
            raise UnfitError("the record is null")
        return pa.table(fields_to_arrow(data, self._root, self._fields, is_null), schema=self._arrow)

    def encode(self, rows: pa.Table, before: bytes = b"") -> pa.Array:
        """One message for each row.

        Args:
            rows: the columns.
            before: what comes before each datum.

        Raises:
            SchemaError: a value does not fit the schema.
        """
        write, codec = fastavro().schemaless_writer, self._codec
        messages = []
        for datum in self._data(rows):
            stream = BytesIO()
            stream.write(before)
            try:
                write(stream, codec, datum)
            except (ValueError, TypeError, OverflowError) as cause:
                raise SchemaError(f"avro: a row does not fit the schema: {cause}") from cause
            messages.append(stream.getvalue())
        return pa.array(messages, pa.binary())

    def _data(self, rows: pa.Table) -> list[Any]:
        columns = {
            name: pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
        if self._is_record:
            return records_from_arrow(columns, self._root)
        return from_arrow(columns[self._fields[0].name], self._root)


@lru_cache(maxsize=1_000)
def shared_codec(schema: str, fields: pa.Schema) -> AvroCodec:
    """The codec of a schema and columns; one for all tasks of a process."""
    return AvroCodec(schema, fields)
