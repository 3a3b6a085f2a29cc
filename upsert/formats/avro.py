"""Format ``avro``: each message is one datum of one schema, as Flink's ``avro`` has it.

The schema follows from the columns, as Flink derives it: a record with a field for each column, a union with
null where the column is nullable. ``TIMESTAMP`` is ``timestamp-micros`` and ``TIMESTAMP_NTZ`` is
``local-timestamp-micros``, which Flink has with ``timestamp_mapping.legacy = false``. Messages carry no
schema: one they were written with otherwise must be given as option ``schema``, or they mean something else.

A message is the plain binary encoding of one record (or of one value, for a table with one column), without
a header. A message that is none is bad. Times without a zone are UTC. Messages are read by ``avro_reader``,
and written by ``avro_writer``, a field of all messages at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import options
from upsert.arrays import Positions, one_array
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.avro_reader import columns_of
from upsert.formats.avro_schema import AvroType, derived, mismatch, parse, record_mismatch, resolved
from upsert.formats.avro_writer import datums, records
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext, check_has_fields
from upsert.formats.binary_columns import Read, Spans, read_in_batches
from upsert.formats.metadata_columns import MetadataKey
from upsert.options import Option


class AvroCodec:
    """One schema and the columns that its messages hold; maybe also the table's ``own``, see ``resolved``."""

    def __init__(self, schema: str, fields: pa.Schema, own: str | None = None) -> None:
        self._root = parse(schema)
        if own is not None:
            self._root = resolved(self._root, parse(own))
        self._is_record = self._root.kind == "record"
        self._fields = fields

    def misfit(self, *, writing: bool) -> str | None:
        """Why the schema does not serve the columns; None if it does."""
        if self._is_record:
            return record_mismatch(self._root, list(self._fields), writing=writing)
        if len(self._fields) != 1:
            return f"the schema is of one {self._root}, not of a record"
        return mismatch(self._root, self._fields[0], writing=writing)

    def decode(self, messages: pa.Array, start: int = 0) -> tuple[pa.Table, Positions, list[BadMessage]]:
        """The rows of some messages, the position of each row's message, and the bad ones.

        NULL gives no row; of each message ``start`` bytes come before its datum.
        """
        return read_in_batches(messages, start, self._fields, self._read)

    def _read(self, spans: Spans) -> Read:
        columns, reasons = columns_of(spans, self._root, list(self._fields))
        rows = pa.Table.from_arrays(columns, schema=self._fields)
        is_good = np.ones(len(rows), np.bool_)
        is_good[[*reasons]] = False
        return rows.filter(pa.array(is_good)) if reasons else rows, np.flatnonzero(is_good), reasons

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None, *, before: bytes = b"") -> pa.Array:
        """One message for each row, whatever its kind, with the same bytes before each."""
        del kinds
        columns = {name: one_array(rows.column(name)) for name in rows.column_names}
        if self._is_record:
            return records(columns, self._root, rows.num_rows, before)
        return datums(columns[self._fields[0].name], self._root, before)


@lru_cache(maxsize=1_000)
def shared_codec(schema: str, fields: pa.Schema, own: str | None = None) -> AvroCodec:
    """The codec of a schema and columns; one for all tasks of a process."""
    return AvroCodec(schema, fields, own)


SCHEMA_KEY: Final = "schema"
"""Metadata key, and name of the option, of a schema's JSON text."""


def _schema_text(value: str) -> str:
    try:
        parse(value)
    except SchemaError as cause:
        raise ValueError(f"an Avro schema as JSON ({cause})") from None
    return value


def _no_codec(value: str) -> str:  # noqa: ARG001
    raise ValueError(
        "left out: it compresses files, and records have no codec of their own; use "
        "'properties.compression.type'"
    )


SHARED_OPTIONS: Final = (
    Option(
        SCHEMA_KEY,
        _schema_text,
        "the schema of the messages as JSON; default: the one that follows from the columns",
        None,
    ),
    Option(
        "timestamp_mapping.legacy",
        options.boolean,
        "whether times are timestamp-millis, as Flink writes TIMESTAMP(3) by default",
        False,
    ),
    Option("encoding", options.one_of("binary"), "Avro's encoding of a record; there is one", "binary"),
)
"""Options of ``avro`` and ``avro-confluent``."""


def schema_of(context: FormatContext) -> str:
    """The schema that a table has: the one that it was given, or the one of its columns."""
    given: str | None = context.options[SCHEMA_KEY]
    if given is not None:
        return given
    return derived(context.held, legacy_times=context.options["timestamp_mapping.legacy"])


def check(context: FormatContext) -> None:
    """Refuse fields and options that no Avro format can serve."""
    check_has_fields(context, "avro")
    if context.options[SCHEMA_KEY] is not None and context.options["timestamp_mapping.legacy"]:
        raise ConfigurationError(
            "avro: option 'timestamp_mapping.legacy' is for a derived schema, got 'schema' too; give one"
        )
    if reason := shared_codec(schema_of(context), context.fields).misfit(writing=False):
        raise SchemaError(f"avro: option 'schema' must fit the columns: {reason}")
    resolved(AvroType("record"), parse(schema_of(context)))  # refuses defaults that are none


def writing_codec(context: FormatContext) -> AvroCodec:
    """The codec of a table's own schema, with which its rows can be written."""
    codec = shared_codec(schema_of(context), context.fields)
    if reason := codec.misfit(writing=True):
        raise SchemaError(f"avro: option 'schema' must hold every row that is written: {reason}")
    return codec


class _AvroDecoder:
    """Messages of one schema to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._schema = schema_of(context)
        self._codec = shared_codec(self._schema, context.fields)
        self._metadata = context.metadata

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what is no datum of the schema, or more than one."""
        rows, positions, bad = self._codec.decode(messages)
        for key in self._metadata:
            rows = rows.append_column(key, pa.repeat(self._schema, rows.num_rows))
        return Decoded.at(positions, len(messages), rows, bad)


FORMAT: Final = Format(
    "avro",
    (*SHARED_OPTIONS, Option("codec", _no_codec, "refused: compresses Avro files only", None)),
    check,
    _AvroDecoder,
    writing_codec,
    metadata=(MetadataKey(SCHEMA_KEY, pa.string()),),
    reads_some=True,
)
"""Its metadata is the schema with which messages are read, as JSON text."""
