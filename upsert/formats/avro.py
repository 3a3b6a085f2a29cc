"""Format ``avro``: each message is one datum of one schema, as Flink's ``avro`` has it.

The schema follows from the columns, as Flink derives it: a record with a field for each column, a union with
null where the column is nullable. ``TIMESTAMP`` is ``timestamp-micros`` and ``TIMESTAMP_NTZ`` is
``local-timestamp-micros``, which Flink has with ``timestamp_mapping.legacy = false``. Messages carry no
schema: one they were written with otherwise must be given as option ``schema``, or they mean something else.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from upsert import options
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.avro_codec import AvroCodec, fastavro, shared_codec
from upsert.formats.avro_schema import derived, parse
from upsert.formats.base import Decoded, Format, FormatContext
from upsert.metadata_columns import MetadataKey
from upsert.options import Option

SCHEMA_KEY: Final = "schema"
"""Metadata key, and name of the option, of a schema's JSON text."""


def schema_text(value: str) -> str:
    """The JSON text of a schema that tables can have."""
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
        schema_text,
        "the schema of the messages as JSON; default: the one that follows from the columns",
        None,
    ),
    Option(
        "timestamp_mapping.legacy",
        options.boolean,
        "whether times are timestamp-millis, as Flink writes TIMESTAMP(3) by default",
        False,
    ),
    Option("encoding", options.one_of("binary"), "of Avro's encodings the binary one", "binary"),
)
"""Options of ``avro`` and ``avro-confluent``."""

OPTIONS: Final = (
    *SHARED_OPTIONS,
    Option("codec", _no_codec, "refused: compresses Avro files only", None),
)


def schema_of(context: FormatContext) -> str:
    """The schema that a table has: the one that it was given, or the one of its columns."""
    given: str | None = context.options[SCHEMA_KEY]
    if given is not None:
        return given
    return derived(context.fields, legacy_times=context.options["timestamp_mapping.legacy"])


def check(context: FormatContext) -> None:
    """Refuse fields and options that no Avro format can serve.

    Raises:
        ConfigurationError: fastavro is missing, or a schema is given and ``timestamp_mapping.legacy`` too.
        SchemaError: a column has no form in Avro, or does not fit the given schema.
    """
    fastavro()
    if context.options[SCHEMA_KEY] is not None and context.options["timestamp_mapping.legacy"]:
        raise ConfigurationError(
            "avro: option 'timestamp_mapping.legacy' is for a derived schema, got 'schema' too; give one"
        )
    if reason := shared_codec(schema_of(context), context.fields).misfit(writing=False):
        raise SchemaError(f"avro: option 'schema' must fit the columns: {reason}")


def writing_codec(context: FormatContext) -> AvroCodec:
    """The codec of a table's own schema, with which its rows can be written.

    Raises:
        SchemaError: the given schema cannot hold every row.
    """
    codec = shared_codec(schema_of(context), context.fields)
    if reason := codec.misfit(writing=True):
        raise SchemaError(f"avro: option 'schema' must hold every row that is written: {reason}")
    return codec


class AvroDecoder:
    """Messages of one schema to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._schema = schema_of(context)
        self._codec = shared_codec(self._schema, context.fields)
        self._metadata = context.metadata

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what is no datum of the schema, or more than one."""
        rows, positions, bad = self._codec.decode(messages.to_pylist())
        for key in self._metadata:
            rows = rows.append_column(key, pa.repeat(self._schema, rows.num_rows))
        return Decoded.at(np.array(positions, np.int64), len(messages), rows, bad)


class AvroEncoder:
    """Rows to messages of one schema."""

    def __init__(self, context: FormatContext) -> None:
        self._codec = writing_codec(context)

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:  # noqa: ARG002
        """One message a row."""
        return self._codec.encode(rows)


FORMAT: Final = Format(
    "avro", OPTIONS, check, AvroDecoder, AvroEncoder, metadata=(MetadataKey(SCHEMA_KEY, pa.string()),)
)
"""Its metadata is the schema with which messages are read, as JSON text."""
