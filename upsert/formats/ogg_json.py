"""The format ``ogg-json``: each message is a change that Oracle GoldenGate saw, before and after (pure).

It follows Flink's format of this name. ``I`` is ``+I``, ``U`` is ``-U`` and ``+U``, ``D`` is ``-D``; another
type, such as ``T`` for a table that was truncated, is bad, for its rows are not known. Written are ``+I`` and
``+U`` as ``I``, ``-U`` and ``-D`` as ``D``. Times of metadata without a zone are UTC.

>>> context = FormatContext(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
>>> message = b'{"before": {"id": 1, "n": 5}, "after": {"id": 1, "n": 6}, "op_type": "U"}'
>>> found = FORMAT.decoder(context).decode(pa.array([message]))
>>> found.kinds.to_pylist(), found.rows.to_pylist()
(['-U', '+U'], [{'id': 1, 'n': 5}, {'id': 1, 'n': 6}])
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Positions, is_null
from upsert.formats import cdc
from upsert.formats.base import FormatContext
from upsert.formats.json_reader import JsonReader
from upsert.formats.json_values import SHARED_OPTIONS, JsonDialect
from upsert.formats.text_values import TimestampStandard, read_column
from upsert.metadata_columns import MetadataKey

_MEMBERS: Final = {
    "table": pa.field("table", pa.string()),
    "primary-keys": pa.field("primary_keys", pa.list_(pa.field("element", pa.string()))),
    "ingestion-timestamp": pa.field("current_ts", pa.string()),
    "event-timestamp": pa.field("op_ts", pa.string()),
}
"""Metadata key -> the member of a message that it comes from."""

REMEDY: Final = (
    "Oracle needs ADD TRANDATA ... ALLCOLS, and GoldenGate GETUPDATEBEFORES, to log all of the old row"
)


class _OggReader:
    def __init__(self, context: FormatContext) -> None:
        image = pa.struct(list(context.fields))
        envelope = [
            pa.field("before", image),
            pa.field("after", image),
            pa.field("op_type", pa.string()),
            *(_MEMBERS[key] for key in context.metadata),
        ]
        self._reader = JsonReader(pa.schema(envelope), JsonDialect.of(context.options), takes_arrays=False)

    def read(self, messages: pa.Array) -> cdc.Envelopes:
        envelopes = cdc.Envelopes(self._reader.decode(messages), messages)
        envelopes.refuse(is_null(envelopes.columns["op_type"]), "field 'op_type' is missing")
        return envelopes

    def images(self, envelopes: cdc.Envelopes, first_kinds: Positions) -> cdc.Images:
        return cdc.before_and_after(envelopes, first_kinds, REMEDY)

    def metadata(self, key: str, envelopes: cdc.Envelopes) -> pa.Array:
        name = _MEMBERS[key].name
        values = envelopes.columns[name]
        if not key.endswith("-timestamp"):
            return values
        # op_ts has a space where current_ts has a T
        texts = pc.replace_substring(pc.utf8_rtrim(values, characters="Z"), "T", " ", max_replacements=1)
        times, bad = read_column(texts, types.TIMESTAMP_NTZ, TimestampStandard.SQL)
        if bad is not None:
            envelopes.refuse(bad, f"field {name!r} is no TIMESTAMP")
        return times.cast(types.TIMESTAMP)


TOOL: Final = cdc.CdcTool(
    name="ogg-json",
    options=SHARED_OPTIONS,
    metadata=tuple(
        MetadataKey(key, types.TIMESTAMP if key.endswith("-timestamp") else member.type)
        for key, member in _MEMBERS.items()
    ),
    operation="op_type",
    first_kinds={"I": cdc.INSERT, "U": cdc.UPDATE_BEFORE, "D": cdc.DELETE},
    check=cdc.check_json,
    reader=_OggReader,
    encoder=partial(
        cdc.JsonChangeEncoder,
        added=('{"before":null,"after":', ',"op_type":"I"}'),
        removed=('{"before":', ',"after":null,"op_type":"D"}'),
    ),
)

FORMAT: Final = cdc.cdc_format(TOOL)
