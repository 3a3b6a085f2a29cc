"""The format ``debezium-json``: each message is a change, with the row before and after it (pure).

It follows Flink's format of this name. ``c`` and ``r`` (snapshot) are ``+I``, ``u`` is ``-U`` and ``+U``,
``d`` is ``-D``; a message of a log-compacted topic that is empty gives nothing. Values are those of the
format ``json``. Written are ``+I`` and ``+U`` as ``c``, ``-U`` and ``-D`` as ``d``.

>>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
>>> message = b'{"before": {"id": 1, "n": 5}, "after": {"id": 1, "n": 6}, "op": "u"}'
>>> found = FORMAT.decoder(context).decode(pa.array([message]))
>>> found.kinds.to_pylist(), found.rows.to_pylist()
(['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import Positions, is_null
from upsert.errors import ConfigurationError
from upsert.formats import cdc
from upsert.formats.base import FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.formats.text_values import TimestampStandard, read_column
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
_SOURCE: Final = {
    "source.timestamp": {"ts_ms": pa.int64()},
    "source.database": {"db": pa.string()},
    "source.schema": {"schema": pa.string()},
    "source.table": {"table": pa.string(), "collection": pa.string()},
}
"""Metadata key -> the fields of the block ``source`` that it comes from."""

REMEDY: Final = "a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL"
"""How Debezium comes to write the image before a change."""


def envelope(context: FormatContext) -> list[pa.Field]:
    """The fields of an envelope that a decoder needs."""
    image = pa.struct(list(context.fields))
    fields = [pa.field("before", image), pa.field("after", image), pa.field("op", pa.string())]
    if "ingestion-timestamp" in context.metadata:
        fields.append(pa.field("ts_ms", pa.int64()))
    if "source.properties" in context.metadata:
        fields.append(pa.field("source", _PROPERTIES))
    elif found := {name: type_ for key in context.metadata for name, type_ in _SOURCE.get(key, {}).items()}:
        fields.append(pa.field("source", pa.struct(found.items())))
    return fields


def of_source(key: str, envelopes: cdc.Envelopes) -> pa.Array:
    """The values of a metadata key, one for each envelope; not those of the schema."""
    columns = envelopes.columns
    if key == "source.properties":
        return columns["source"]
    if key == "ingestion-timestamp":
        return envelopes.times(columns["ts_ms"], "ts_ms")
    found = [_member(columns["source"], name) for name in _SOURCE[key]]
    if key != "source.timestamp":
        return pc.coalesce(*found)
    millis = found[0]
    if millis.type == pa.string():
        millis, bad = read_column(millis, pa.int64(), TimestampStandard.SQL)
        if bad is not None:
            envelopes.refuse(bad, "field 'source.ts_ms' is no BIGINT")
    return envelopes.times(millis, "source.ts_ms")


def _member(source: pa.Array, name: str) -> pa.Array:
    if pa.types.is_map(source.type):
        return pc.map_lookup(source, pa.scalar(name), "first")
    return source.flatten()[source.type.get_field_index(name)]


class _DebeziumReader:
    """Reads envelopes, with a schema around each of them or without."""

    def __init__(self, context: FormatContext) -> None:
        self._has_schema = bool(context.options.get("schema-include", False))
        fields = envelope(context)
        if self._has_schema:
            fields = [pa.field("payload", pa.struct(fields))]
        if "schema" in context.metadata:
            fields.append(pa.field("schema", pa.string()))
        self._reader = JsonReader(pa.schema(fields), JsonDialect.of(context.options), takes_arrays=False)

    def read(self, messages: pa.Array) -> cdc.Envelopes:
        envelopes = cdc.Envelopes(self._reader.decode(messages), messages)
        missing = "field 'op' is missing"
        if self._has_schema:
            payload = envelopes.columns.pop("payload")
            envelopes.refuse(is_null(payload), "field 'payload' is missing; schema-include is set")
            names = [field.name for field in payload.type]
            envelopes.columns |= dict(zip(names, payload.flatten(), strict=True))
        else:
            missing += "; where messages carry their schema, set schema-include"
        envelopes.refuse(is_null(envelopes.columns["op"]), missing)
        return envelopes

    def images(self, envelopes: cdc.Envelopes, first_kinds: Positions) -> cdc.Images:
        return cdc.before_and_after(envelopes, first_kinds, REMEDY)

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        return envelopes.columns[key] if key == "schema" else of_source(key, envelopes)


def _encoder(context: FormatContext) -> cdc.JsonChangeEncoder:
    if context.options.get("schema-include"):
        raise ConfigurationError(
            "debezium-json: option 'schema-include' must be false to write, got true; messages are written "
            "without a schema"
        )
    return cdc.JsonChangeEncoder(
        context, ('{"before":null,"after":', ',"op":"c"}'), ('{"before":', ',"after":null,"op":"d"}')
    )


OPERATION: Final = "op"
FIRST_KINDS: Final = {"c": cdc.INSERT, "r": cdc.INSERT, "u": cdc.UPDATE_BEFORE, "d": cdc.DELETE}

TOOL: Final = cdc.CdcTool(
    name="debezium-json",
    options=(
        Option("schema-include", options.boolean, "whether each message carries its schema", False),
        *SHARED_OPTIONS,
    ),
    metadata=METADATA,
    operation=OPERATION,
    first_kinds=FIRST_KINDS,
    check=cdc.check_json,
    reader=_DebeziumReader,
    encoder=_encoder,
)

FORMAT: Final = cdc.cdc_format(TOOL)
