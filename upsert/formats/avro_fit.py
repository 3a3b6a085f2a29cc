"""Which types of Avro schemas and of columns go together, and why others do not (pure).

Reading is generous where nothing is lost: whole numbers of other widths, enums as texts, and times of any
unit and either kind. Writing takes what the schema's readers get back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.formats.avro_schema import AvroType

_INTEGERS: Final = ("int", "long")
_FLOATS: Final = ("float", "double")
_TEXTS: Final = ("string", "enum", "bytes", "fixed")
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def ticks(avro: AvroType) -> int | None:
    """How many units of a time are in a second; None for what is no time.

    >>> ticks(AvroType("long", "timestamp-millis"))
    1000
    """
    name, _, unit = (avro.logical or "").rpartition("-")
    is_time = avro.kind == "long" and name in ("timestamp", "local-timestamp")
    return _PER_SECOND.get(unit) if is_time else None


def mismatch(avro: AvroType, field: pa.Field, *, writing: bool) -> str | None:
    """Why values of an Avro type are none of a column, or the other way round; None if they are.

    >>> mismatch(AvroType("string"), pa.field("n", pa.int64()), writing=False)
    "'n' is BIGINT, the schema says string"
    """
    type_ = field.type
    if writing and field.nullable and not avro.nullable:
        return f"{field.name!r} may be NULL, the schema says {avro} without null"
    if avro.kind == "array" and avro.inner is not None and pa.types.is_list(type_):
        return mismatch(avro.inner, type_.value_field, writing=writing)
    if avro.kind == "map" and avro.inner is not None and pa.types.is_map(type_):
        if type_.key_type == pa.string():
            return mismatch(avro.inner, type_.item_field, writing=writing)
    elif avro.kind == "record" and pa.types.is_struct(type_):
        return record_mismatch(avro, list(type_), writing=writing)
    elif (_can_write if writing else _can_read)(avro, type_):
        return None
    return f"{field.name!r} is {types.sql_name(type_)}, the schema says {avro}"


def record_mismatch(avro: AvroType, fields: Sequence[pa.Field], *, writing: bool) -> str | None:
    """Why the fields of a record are not these; a nullable column that the record lacks is NULL."""
    own = dict(avro.fields)
    for field in fields:
        if field.name in own:
            if reason := mismatch(own[field.name], field, writing=writing):
                return reason
        elif writing or not field.nullable:
            return f"the schema has no field {field.name!r}"
    if writing:
        columns = {field.name for field in fields}
        for name, inner in avro.fields:
            if name not in columns and not inner.nullable:
                return f"the schema's field {name!r} has no column and must not be null"
    return None


def _can_read(avro: AvroType, type_: pa.DataType) -> bool:
    if avro.logical == "decimal":
        return bool(pa.types.is_decimal128(type_))
    if avro.kind in _INTEGERS and pa.types.is_integer(type_):
        return True
    if type_ in (pa.string(), pa.binary()):
        return avro.kind in _TEXTS
    if type_ == pa.float64():
        return avro.kind in (*_FLOATS, *_INTEGERS)
    if type_ == pa.float32():
        return avro.kind in ("float", *_INTEGERS)
    if type_ in _TIMES:
        return ticks(avro) is not None
    if type_ == pa.date32():
        return avro.kind == "int" and avro.logical in ("date", None)
    return bool(avro.kind == "boolean" and type_ == pa.bool_())


def _can_write(avro: AvroType, type_: pa.DataType) -> bool:
    if not _can_read(avro, type_):
        return False
    if pa.types.is_integer(type_):
        return avro.kind == "long" or type_ != pa.int64()
    if type_ == pa.float64():
        return avro.kind == "double"
    if pa.types.is_floating(type_):
        return avro.kind in _FLOATS
    if type_ == pa.string():
        return avro.kind in ("string", "enum")
    if type_ == pa.binary():
        return avro.kind in ("bytes", "fixed")
    return True
