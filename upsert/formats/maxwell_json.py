"""The format ``maxwell-json``: each message is a change of one row of a MySQL table (pure).

It follows Flink's format of this name. ``old`` has only the columns that an update changed: one that is not
in it is as in ``data``, one that is there as ``null`` was NULL. Rows of a bootstrap, ``bootstrap-insert``,
are ``+I``, and its start and end give nothing; Flink knows neither. Other types, such as DDL's, are bad.
Written are ``+I`` and ``+U`` as ``insert``, ``-U`` and ``-D`` as ``delete``. ``ts`` is in seconds, as Maxwell
writes it; Flink takes it for milliseconds.

>>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
>>> message = b'{"type": "update", "data": {"id": 1, "n": 6}, "old": {"n": 5}}'
>>> found = FORMAT.decoder(context).decode(pa.array([message]))
>>> found.kinds.to_pylist(), found.rows.to_pylist()
(['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.arrays import Positions, is_null
from upsert.formats import cdc
from upsert.formats.base import FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.metadata_columns import MetadataKey

_MEMBERS: Final = {
    "database": pa.field("database", pa.string()),
    "table": pa.field("table", pa.string()),
    "primary-key-columns": pa.field("primary_key_columns", pa.list_(pa.field("element", pa.string()))),
    "ingestion-timestamp": pa.field("ts", pa.int64()),
}
"""Metadata key -> the member of a message that it comes from; a number is a time."""


class _MaxwellReader:
    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._dialect = JsonDialect.of(context.options)
        envelope = [
            pa.field("data", pa.struct(list(context.fields))),
            pa.field("old", cdc.old_of(context.fields)),
            pa.field("type", pa.string()),
            *(_MEMBERS[key] for key in context.metadata),
        ]
        self._reader = JsonReader(pa.schema(envelope), self._dialect, takes_arrays=False)

    def read(self, messages: pa.Array) -> cdc.Envelopes:
        envelopes = cdc.Envelopes(self._reader.decode(messages), messages)
        envelopes.refuse(is_null(envelopes.columns["type"]), "field 'type' is missing")
        return envelopes

    def images(self, envelopes: cdc.Envelopes, first_kinds: Positions) -> cdc.Images:
        return cdc.data_and_old(envelopes, first_kinds, self._fields, self._dialect)

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        member = _MEMBERS[key]
        values = envelopes.columns[member.name]
        return envelopes.times(values, member.name, per_second=1) if member.type == pa.int64() else values


TOOL: Final = cdc.CdcTool(
    name="maxwell-json",
    options=SHARED_OPTIONS,
    metadata=tuple(
        MetadataKey(key, types.TIMESTAMP if member.type == pa.int64() else member.type)
        for key, member in _MEMBERS.items()
    ),
    operation="type",
    first_kinds={
        "insert": cdc.INSERT,
        "update": cdc.UPDATE_BEFORE,
        "delete": cdc.DELETE,
        "bootstrap-insert": cdc.INSERT,
        "bootstrap-start": cdc.NO_ROW,
        "bootstrap-complete": cdc.NO_ROW,
    },
    check=cdc.check_json,
    reader=_MaxwellReader,
    encoder=partial(
        cdc.JsonChangeEncoder,
        added=('{"data":', ',"type":"insert"}'),
        removed=('{"data":', ',"type":"delete"}'),
    ),
)

FORMAT: Final = cdc.cdc_format(TOOL)
