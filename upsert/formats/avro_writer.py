"""Columns to Avro's binary form: all rows of a batch at once, a field at a time (pure).

A datum is the data of its fields one after the other, so the bytes of a row are joined from those of its
columns, and those of an array from the bytes of all elements of its column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import floor_divided
from upsert.errors import SchemaError
from upsert.formats.avro_schema import AvroType, UnfitError, ticks, ticks_of_day, to_scale
from upsert.formats.binary_columns import binaries, fixed_bytes, joined_by_lists, varint_bytes

_MICROS: Final = 1_000_000
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)

_EXACT: Final = Context(prec=40)

Part: TypeAlias = Any
"""An Arrow array with the bytes of each row, or bytes that are the same for all rows."""


def datums(column: pa.Array, avro: AvroType, before: bytes = b"") -> pa.Array:
    r"""The datum of each value, after some bytes.

    Raises:
        SchemaError: a value is none of the type.

    >>> datums(pa.array(["foo", None]), AvroType("string", nullable=True)).to_pylist()
    [b'\x02\x06foo', b'\x00']
    """
    return _joined([before, *_parts(column, avro)], len(column))


def records(columns: Mapping[str, pa.Array], avro: AvroType, count: int, before: bytes = b"") -> pa.Array:
    """The record of each row, after some bytes; a field that has no column is null. Errors as `datums`."""
    branch = _branches(avro)[1] if avro.nullable else b""
    return _joined([before, branch, *_fields(columns, avro)], count)


def _joined(parts: Sequence[Part], count: int) -> pa.Array:
    """The parts one after the other; bytes that stand together become one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if any(not isinstance(part, bytes) for part in merged):
        return pc.binary_join_element_wise(*merged, b"")
    return pa.repeat(pa.scalar(b"".join(merged), pa.binary()), count)


def _fields(columns: Mapping[str, pa.Array], avro: AvroType) -> list[Part]:
    found: list[Part] = []
    for name, inner in avro.fields:
        found += _parts(columns[name], inner) if name in columns else [_branches(inner)[0]]
    return found


def _branches(avro: AvroType) -> tuple[bytes, bytes]:
    """What stands for null in a union, and what stands before a value."""
    return (b"\x00", b"\x02") if avro.null_is_first else (b"\x02", b"\x00")


def _parts(column: pa.Array, avro: AvroType) -> list[Part]:
    """What makes up the datum of each value when joined."""
    if not avro.nullable:
        if column.null_count:
            raise SchemaError(f"avro: a row does not fit the schema: a value of type {avro} must not be null")
        return _values(column, avro)
    null, value = _branches(avro)
    if not column.null_count:
        return [value, *_values(column, avro)]
    # what is within a NULL may be NULL too, where the schema wants a value
    given = column.drop_null()
    found = _joined([value, *_values(given, avro)], len(given))
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
    return [found.take(places).fill_null(null)]


def _values(column: pa.Array, avro: AvroType) -> list[Part]:
    """The same of values without NULL, which are in no union."""
    if avro.inner is not None:
        return _collections(column, avro, avro.inner)
    if avro.kind == "record":
        return _fields(dict(zip(column.type.names, column.flatten(), strict=True)), avro)
    if avro.logical == "decimal":
        numbers = _decimals(column, avro)
        return [numbers] if avro.kind == "fixed" else _with_lengths(numbers)
    if avro.kind == "boolean":
        return [fixed_bytes(b"", column.cast(pa.uint8()).to_numpy())]
    if avro.kind in ("float", "double"):
        own = pa.float32() if avro.kind == "float" else pa.float64()
        return [fixed_bytes(b"", column.cast(own).to_numpy())]
    if avro.kind == "fixed":
        return [_fixed(column, avro)]
    if avro.kind in ("string", "bytes"):
        return _with_lengths(column.cast(pa.binary()))
    return [_numbers(_whole_numbers(column, avro))]


def _whole_numbers(column: pa.Array, avro: AvroType) -> pa.Array:
    if avro.kind == "enum":
        found = pc.index_in(column, value_set=pa.array(avro.symbols, pa.string()))
        if found.null_count:
            unknown = column.filter(found.is_null())[0].as_py()
            raise SchemaError(
                f"avro: a row does not fit the schema: {unknown!r} is no symbol of {avro.name!r}"
            )
        return found
    if column.type in _TIMES:
        return _ticks(column.cast(pa.int64()), ticks(avro) or _MICROS)
    if pa.types.is_time(column.type):
        numbers = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())
        return pc.multiply(numbers, types.NANOS[column.type] * (ticks_of_day(avro) or 0) // 10**9)
    return column.cast(pa.int32()) if column.type == pa.date32() else column


def _ticks(micros: pa.Array, per_second: int) -> pa.Array:
    if per_second <= _MICROS:
        return floor_divided(micros, _MICROS // per_second)
    try:
        return pc.multiply_checked(micros, pa.scalar(per_second // _MICROS, pa.int64()))
    except pa.ArrowInvalid as cause:
        raise SchemaError(f"avro: a time is out of the range of nanoseconds: {cause}") from cause


def _numbers(column: pa.Array, is_present: Any = None) -> pa.Array:
    """Whole numbers as zigzag varints; nothing where they are not present."""
    values = column.cast(pa.int64()).to_numpy()
    return varint_bytes(b"", ((values << 1) ^ (values >> 63)).view(np.uint64), is_present)


def _with_lengths(values: pa.Array) -> list[Part]:
    return [_numbers(pc.binary_length(values)), values]


def _fixed(column: pa.Array, avro: AvroType) -> pa.Array:
    values = column.cast(pa.binary())
    if pc.any(pc.not_equal(pc.binary_length(values), avro.size)).as_py():
        raise SchemaError(f"avro: a row does not fit the schema: {avro.name!r} has {avro.size} bytes")
    return values


def _decimals(column: pa.Array, avro: AvroType) -> pa.Array:
    """Unscaled numbers as big-endian bytes: as few as Java needs, or as many as a fixed has."""
    type_ = column.type
    if avro.kind == "fixed" or avro.scale != type_.scale or avro.precision < type_.precision:
        numbers = [int(value.scaleb(type_.scale, _EXACT)) for value in column.to_pylist()]
        return pa.array([_two_complement(number, type_.scale, avro) for number in numbers], pa.binary())
    words = np.frombuffer(column.buffers()[1], np.uint8)[16 * column.offset :][: 16 * len(column)]
    digits = words.reshape(-1, 16)[:, ::-1]
    # a byte of nothing but the sign is left out where the next one has the sign too
    is_negative = digits[:, :1] > 127
    is_sign = (digits[:, :-1] == np.where(is_negative, 255, 0)) & ((digits[:, 1:] > 127) == is_negative)
    left_out = np.logical_and.accumulate(is_sign, axis=1).sum(axis=1)
    return binaries(digits[np.arange(16) >= left_out[:, None]], 16 - left_out)


def _two_complement(number: int, scale: int, avro: AvroType) -> bytes:
    try:
        found = to_scale(number, avro.scale - scale)
        if abs(found) >= 10**avro.precision:
            raise UnfitError(f"a decimal has more than {avro.precision} digits")
        bits = (found if found >= 0 else ~found).bit_length()
        return found.to_bytes(avro.size or bits // 8 + 1, "big", signed=True)
    except (UnfitError, OverflowError) as cause:
        raise SchemaError(f"avro: a value does not fit the schema: {cause}") from None


def _collections(column: pa.Array, avro: AvroType, inner: AvroType) -> list[Part]:
    """Arrays and maps: their length and elements, where there are some, and a zero."""
    offsets = column.offsets.to_numpy()
    start, lengths = int(offsets[0]), np.diff(offsets).astype(np.int64)
    count = int(offsets[-1]) - start
    if avro.kind == "array":
        elements = datums(column.values.slice(start, count), inner)
    else:
        keys, items = column.keys.slice(start, count), column.items.slice(start, count)
        elements = _joined([*_with_lengths(keys.cast(pa.binary())), *_parts(items, inner)], count)
    return [_numbers(pa.array(lengths), lengths > 0), joined_by_lists(elements, lengths), b"\x00"]
