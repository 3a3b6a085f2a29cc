"""The format ``debezium-json``: each message is a change, with the row before and after it (pure).

It follows Flink's format of this name. ``c`` and ``r`` (snapshot) are ``+I``, ``u`` is ``-U`` and ``+U``,
``d`` is ``-D``; a message of a log-compacted topic that is empty gives nothing. Values are those of the
format ``json``. Written are ``+I`` and ``+U`` as ``c``, ``-U`` and ``-D`` as ``d``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import Positions
from upsert.errors import ConfigurationError
from upsert.formats.base import Decoded, Decoder, Encoder, FormatContext, Side
from upsert.formats.cdc import (
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    Around,
    ChangeEncoder,
    Envelopes,
    any_null,
    check_cdc,
    timestamps,
    with_metadata,
)
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import (
    DECIMAL_AS_PLAIN_NUMBER,
    IGNORE_PARSE_ERRORS,
    MAP_NULL_KEY_LITERAL,
    MAP_NULL_KEY_MODE,
    TIMESTAMP_STANDARD,
    JsonDialect,
)
from upsert.formats.text_values import read_column, shown
from upsert.metadata_columns import MetadataKey
from upsert.options import Option

_PROPERTIES: Final = pa.map_(pa.string(), pa.string())

METADATA: Final = (
    MetadataKey("schema", pa.string()),
    MetadataKey("ingestion-timestamp", types.TIMESTAMP),
    MetadataKey("source.timestamp", types.TIMESTAMP),
    MetadataKey("source.database", pa.string()),
    MetadataKey("source.schema", pa.string()),
    MetadataKey("source.table", pa.string()),
    MetadataKey("source.properties", _PROPERTIES),
)
_TYPES: Final = {key.key: key.type for key in METADATA}

_SOURCE: Final = {
    "source.timestamp": {"ts_ms": pa.int64()},
    "source.database": {"db": pa.string()},
    "source.schema": {"schema": pa.string()},
    "source.table": {"table": pa.string(), "collection": pa.string()},
}
"""Metadata key -> the fields of the block ``source`` that it comes from."""

_OPERATIONS: Final = pa.array(["c", "r", "u", "d"])
_FIRST_KINDS: Final = np.array([INSERT, INSERT, UPDATE_BEFORE, DELETE])
_READS_BEFORE: Final = np.array([False, False, True, True])
_READS_AFTER: Final = np.array([True, True, True, False])
_UPDATE: Final = 2

_NO_IMAGE_BEFORE: Final = (
    "field 'before' is NULL in an update or delete; "
    "a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL"
)


class _Decoder:
    """Reads the envelopes as rows, then takes their images apart."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._metadata = context.metadata
        self._schema = with_metadata(context.fields, [(key, _TYPES[key]) for key in context.metadata])
        self._has_schema = bool(context.options.get("schema-include", False))
        self._dialect = JsonDialect.of(context.options)
        self._reader = JsonReader(self._envelope(), self._dialect, takes_arrays=False)

    def _envelope(self) -> pa.Schema:
        image = pa.struct(list(self._fields))
        fields = [pa.field("before", image), pa.field("after", image), pa.field("op", pa.string())]
        if "ingestion-timestamp" in self._metadata:
            fields.append(pa.field("ts_ms", pa.int64()))
        if "source.properties" in self._metadata:
            fields.append(pa.field("source", _PROPERTIES))
        elif found := {name: type_ for key in self._metadata for name, type_ in _SOURCE.get(key, {}).items()}:
            fields.append(pa.field("source", pa.struct(found.items())))
        if self._has_schema:
            fields = [pa.field("payload", pa.struct(fields))]
        if "schema" in self._metadata:
            fields.append(pa.field("schema", pa.string()))
        return pa.schema(fields)

    def decode(self, messages: pa.Array) -> Decoded:
        """The changes of all messages."""
        envelopes = Envelopes(self._reader.read(messages), len(messages))
        parts = self._parts(envelopes)
        before, after = parts["before"], parts["after"]
        codes = self._operations(parts["op"], envelopes)
        envelopes.refuse(_READS_BEFORE[codes] & any_null(before), _NO_IMAGE_BEFORE)
        envelopes.refuse(
            _READS_AFTER[codes] & any_null(after), "field 'after' is NULL in an insert or update"
        )
        metadata = [self._metadata_of(key, parts, envelopes) for key in self._metadata]

        good = np.flatnonzero(envelopes.is_good)
        of_row = np.repeat(good, np.where(codes[good] == _UPDATE, 2, 1))
        is_second = np.zeros(len(of_row), dtype=np.bool_)
        is_second[1:] = of_row[1:] == of_row[:-1]
        kinds = np.where(is_second, UPDATE_AFTER, _FIRST_KINDS[codes[of_row]])
        is_after = is_second | ~_READS_BEFORE[codes[of_row]]
        places = pa.array(of_row + np.where(is_after, len(before), 0))
        images = [
            pa.concat_arrays(both).take(places)
            for both in zip(before.flatten(), after.flatten(), strict=True)
        ]
        return envelopes.changes(
            self._schema, images, metadata, of_row, kinds, ignore_errors=self._dialect.ignore_parse_errors
        )

    def _parts(self, envelopes: Envelopes) -> dict[str, pa.Array]:
        """The fields of the envelopes by name, whether or not a schema lies around them."""
        parts = {name: envelopes.column(name) for name in envelopes.rows.column_names}
        if self._has_schema:
            payload = parts.pop("payload")
            envelopes.refuse(any_null(payload), "field 'payload' is missing; schema-include is set")
            parts |= {
                field.name: column for field, column in zip(payload.type, payload.flatten(), strict=True)
            }
        return parts

    def _operations(self, operations: pa.Array, envelopes: Envelopes) -> Positions:
        missing = "field 'op' is missing"
        if not self._has_schema:
            missing += "; where messages carry their schema, set schema-include"
        envelopes.refuse(any_null(operations), missing)
        found = pc.index_in(operations, value_set=_OPERATIONS)
        envelopes.refuse(
            any_null(found),
            lambda place: f"field 'op': {shown(operations[place].as_py())} is none of c, r, u, d",
        )
        codes: Positions = found.fill_null(0).cast(pa.int64()).to_numpy()
        return codes

    def _metadata_of(self, key: str, parts: Mapping[str, pa.Array], envelopes: Envelopes) -> pa.Array:
        """The values of one key, one for each envelope."""
        if key == "schema":
            return parts["schema"]
        if key == "source.properties":
            return parts["source"]
        if key == "ingestion-timestamp":
            return self._times(parts["ts_ms"], "ts_ms", envelopes)
        found = [_of_source(parts["source"], name) for name in _SOURCE[key]]
        if key == "source.timestamp":
            return self._times(found[0], "source.ts_ms", envelopes)
        return pc.coalesce(*found)

    def _times(self, millis: pa.Array, name: str, envelopes: Envelopes) -> pa.Array:
        if millis.type == pa.string():
            millis, bad = read_column(millis, pa.int64(), self._dialect.timestamps)
            if bad is not None:
                envelopes.refuse(bad, f"field {name!r} is no BIGINT")
        values, outside = timestamps(millis)
        envelopes.refuse(outside, f"field {name!r} is out of range for milliseconds")
        return values


def _of_source(source: pa.Array, name: str) -> pa.Array:
    if pa.types.is_map(source.type):
        return pc.map_lookup(source, pa.scalar(name), "first")
    return source.flatten()[source.type.get_field_index(name)]


_THERE: Final = Around('{"before":null,"after":', ',"op":"c"}')
_GONE: Final = Around('{"before":', ',"after":null,"op":"d"}')


@dataclass(frozen=True)
class DebeziumJsonFormat:
    """Changes as Debezium writes them.

    >>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    >>> message = b'{"before": {"id": 1, "n": 5}, "after": {"id": 1, "n": 6}, "op": "u"}'
    >>> found = FORMAT.decoder(context).decode(pa.array([message]))
    >>> found.kinds.to_pylist(), found.rows.to_pylist()
    (['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
    """

    name: str = "debezium-json"
    options: Sequence[Option] = (
        Option("schema-include", options.boolean, "whether each message carries its schema", False),
        IGNORE_PARSE_ERRORS,
        TIMESTAMP_STANDARD,
        MAP_NULL_KEY_MODE,
        MAP_NULL_KEY_LITERAL,
        DECIMAL_AS_PLAIN_NUMBER,
    )
    is_insert_only: bool = False

    def check(self, context: FormatContext) -> None:
        """Refuse MAPs whose key is no STRING, and use as the format of a key."""
        check_cdc(self.name, context)

    def readable_metadata(self, side: Side, options: Mapping[str, Any]) -> Sequence[MetadataKey]:
        """Schema, times and origin of a change, which only a value has."""
        del options
        return METADATA if side is Side.VALUE else ()

    def decoder(self, context: FormatContext) -> Decoder:
        """A decoder for one task."""
        return _Decoder(context)

    def encoder(self, context: FormatContext) -> Encoder:
        """An encoder for one task.

        Raises:
            ConfigurationError: ``schema-include`` is set, which is for reading only.
        """
        if context.options.get("schema-include"):
            raise ConfigurationError(
                "debezium-json: option 'schema-include' must be false to write, got true; "
                "messages are written without a schema"
            )
        return ChangeEncoder(context, _THERE, _GONE)


FORMAT: Final = DebeziumJsonFormat()
