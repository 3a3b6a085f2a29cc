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

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import Positions, is_null
from upsert.formats import cdc
from upsert.formats.base import FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import JsonDialect
from upsert.formats.text_values import read_column
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

_NO_IMAGE_BEFORE: Final = (
    "field 'before' is NULL in an update or delete; "
    "a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL"
)


class _DebeziumReader:
    """Reads envelopes, with a schema around each of them or without."""

    def __init__(self, context: FormatContext, dialect: JsonDialect) -> None:
        self._dialect = dialect
        self._has_schema = bool(context.options.get("schema-include", False))
        self._reader = JsonReader(self._envelope(context), dialect, takes_arrays=False)

    def _envelope(self, context: FormatContext) -> pa.Schema:
        image = pa.struct(list(context.fields))
        fields = [pa.field("before", image), pa.field("after", image), pa.field("op", pa.string())]
        if "ingestion-timestamp" in context.metadata:
            fields.append(pa.field("ts_ms", pa.int64()))
        if "source.properties" in context.metadata:
            fields.append(pa.field("source", _PROPERTIES))
        elif found := {
            name: type_ for key in context.metadata for name, type_ in _SOURCE.get(key, {}).items()
        }:
            fields.append(pa.field("source", pa.struct(found.items())))
        if self._has_schema:
            fields = [pa.field("payload", pa.struct(fields))]
        if "schema" in context.metadata:
            fields.append(pa.field("schema", pa.string()))
        return pa.schema(fields)

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
        """The rows before and after each change."""
        before, after = envelopes.columns["before"], envelopes.columns["after"]
        is_update = first_kinds == cdc.UPDATE_BEFORE
        envelopes.refuse((is_update | (first_kinds == cdc.DELETE)) & is_null(before), _NO_IMAGE_BEFORE)
        envelopes.refuse(
            (is_update | (first_kinds == cdc.INSERT)) & is_null(after),
            "field 'after' is NULL in an insert or update",
        )
        return cdc.Images(None, partial(_columns, before, after))

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        columns = envelopes.columns
        match key:
            case "schema":
                return columns["schema"]
            case "source.properties":
                return columns["source"]
            case "ingestion-timestamp":
                return self._times(columns["ts_ms"], "ts_ms", envelopes)
        found = [_of_source(columns["source"], name) for name in _SOURCE[key]]
        if key == "source.timestamp":
            return self._times(found[0], "source.ts_ms", envelopes)
        return pc.coalesce(*found)

    def _times(self, millis: pa.Array, name: str, envelopes: cdc.Envelopes) -> pa.Array:
        if millis.type == pa.string():
            millis, bad = read_column(millis, pa.int64(), self._dialect.timestamps)
            if bad is not None:
                envelopes.refuse(bad, f"field {name!r} is no BIGINT")
        return envelopes.times(millis, name)


def _of_source(source: pa.Array, name: str) -> pa.Array:
    if pa.types.is_map(source.type):
        return pc.map_lookup(source, pa.scalar(name), "first")
    return source.flatten()[source.type.get_field_index(name)]


def _columns(before: pa.Array, after: pa.Array, rows: cdc.ChangedRows) -> list[pa.Array]:
    is_after = (rows.kinds == cdc.INSERT) | (rows.kinds == cdc.UPDATE_AFTER)
    positions = pa.array(rows.envelope + np.where(is_after, len(before), 0))
    return [
        pa.concat_arrays(both).take(positions) for both in zip(before.flatten(), after.flatten(), strict=True)
    ]


TOOL: Final = cdc.CdcTool(
    name="debezium-json",
    own_options=(
        Option("schema-include", options.boolean, "whether each message carries its schema", False),
    ),
    metadata=METADATA,
    operation="op",
    first_kinds={"c": cdc.INSERT, "r": cdc.INSERT, "u": cdc.UPDATE_BEFORE, "d": cdc.DELETE},
    reader=_DebeziumReader,
    added=('{"before":null,"after":', ',"op":"c"}'),
    removed=('{"before":', ',"after":null,"op":"d"}'),
    read_only=("schema-include", "messages are written without a schema"),
)

FORMAT: Final = cdc.cdc_format(TOOL)
