"""Debezium's envelopes, in JSON or Avro: a row before and after a change, and where it comes from (pure)."""

from __future__ import annotations

from hashlib import md5
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.formats import cdc
from upsert.formats.base import FormatContext
from upsert.formats.cdc import Envelopes, Images
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.text_values import TimestampStandard, read_column

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

REMEDY: Final = (
    "a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL, or, for updates, its topic the "
    "option 'cdc-events-duplicate' = 'true'"
)
"""How Debezium comes to write the image before a change."""


_UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium writes for a value that a database did not send; a connector may be told another text."""

_IN_TEXTS: Final = {
    # PostgreSQL's hstore is JSON, and what stands for a uuid[] has the UUID of the text
    pa.string(): (
        _UNAVAILABLE,
        f'{{"{_UNAVAILABLE}":"{_UNAVAILABLE}"}}',
        str(UUID(bytes=md5(_UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)),
    ),
    pa.binary(): (_UNAVAILABLE,),
}
_LETTERS: Final = pa.array(_UNAVAILABLE.encode(), pa.int32())
_COUNTED: Final = (pa.int32(), pa.int64(), pa.date32())
"""Elements of arrays for which Debezium writes the letters' numbers; for those of others it writes NULL."""


def images(envelopes: Envelopes, first_kinds: Positions, *, needs_before: bool) -> Images:
    """The images of Debezium's envelopes; refuses those that lack one, or a value.

    Of a long value that an update leaves as it is, PostgreSQL says nothing, nor does Oracle of a LOB.
    """
    after = envelopes.columns["after"]
    for field, column in zip(after.type, after.flatten(), strict=True):
        envelopes.refuse(
            _is_unavailable(column),
            f"field 'after.{field.name}' has no value, for the database did not send a long one that was not "
            "changed; a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL, or leave out the "
            "column",
        )
    return cdc.before_and_after(envelopes, first_kinds, REMEDY, needs_before=needs_before)


def _is_unavailable(column: pa.Array) -> Mask:
    type_ = column.type
    found = np.zeros(len(column), np.bool_)
    if pa.types.is_map(type_):
        return _is_unavailable(pa.ListArray.from_arrays(column.offsets, column.keys))
    if type_ in _IN_TEXTS:
        texts = pa.array([text.encode() for text in _IN_TEXTS[type_]]).cast(type_)
        found[:] = pc.is_in(column, value_set=texts).to_numpy(zero_copy_only=False)
    elif pa.types.is_list(type_) and type_.value_type in _IN_TEXTS:
        found[pc.list_parent_indices(column).to_numpy()[_is_unavailable(column.flatten())]] = True
    elif pa.types.is_list(type_) and type_.value_type in _COUNTED:
        is_as_long = pc.equal(pc.list_value_length(column), len(_UNAVAILABLE)).fill_null(False)
        for row in np.flatnonzero(is_as_long.to_numpy(zero_copy_only=False)).tolist():
            items = column[row].values
            found[row] = items.cast(pa.int32()).equals(_LETTERS) if items.null_count == 0 else False
    return found


def refuse_truncations(envelopes: Envelopes) -> None:
    """Refuse a TRUNCATE, which a connector writes that is told not to skip it."""
    is_truncation = pc.equal(envelopes.columns["op"], "t").fill_null(False).to_numpy(zero_copy_only=False)
    envelopes.refuse(
        is_truncation,
        "field 'op': 't' is a TRUNCATE, which does not say what rows there were; truncate the tables into "
        "which the changes go, and pass it over by 'bad-records' = 'skip'",
    )


def fields_of(context: FormatContext) -> list[pa.Field]:
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


def metadata(key: str, envelopes: Envelopes) -> pa.Array:
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


OPERATION: Final = "op"
KINDS: Final = {"c": cdc.INSERT, "r": cdc.INSERT, "u": cdc.UPDATE_BEFORE, "d": cdc.DELETE}
