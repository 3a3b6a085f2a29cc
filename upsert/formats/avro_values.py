"""Values of the Avro codec to Arrow arrays and back, a column at a time (pure).

The codec knows no logical types: a time is a number, a decimal its bytes, a record a dict of ``f<i>``. What
they mean is settled here, in Arrow, for a whole column at once. Times without a zone are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.errors import SchemaError
from upsert.formats.avro_fit import ticks
from upsert.formats.avro_schema import AvroType

_INTEGERS: Final = ("int", "long")
_TEXTS: Final = ("string", "enum")
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
_MICROS: Final = 1_000_000


class UnfitError(ValueError):
    """A value does not fit its column; the text says which in a few words."""


def to_arrow(values: Sequence[Any], avro: AvroType, field: pa.Field) -> pa.Array:
    """Values of the codec as a column, which may be of an inner field.

    Raises:
        UnfitError: one of them does not fit.
    """
    is_null = np.fromiter((value is None for value in values), bool, len(values))
    if not field.nullable and is_null.any():
        raise UnfitError(f"field {field.name!r} must not be null")
    try:
        return _converted(values, avro, field.type, is_null)
    except UnfitError:
        raise
    except (pa.ArrowInvalid, OverflowError) as cause:
        raise UnfitError(f"field {field.name!r} does not fit {types.sql_name(field.type)}: {cause}") from None


def _converted(values: Sequence[Any], avro: AvroType, type_: pa.DataType, is_null: Any) -> pa.Array:
    if avro.inner is not None:
        return _nested(values, avro, avro.inner, type_, is_null)
    if avro.kind == "record":
        children = fields_to_arrow(values, avro, list(type_), is_null)
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=pa.array(is_null))
    if avro.logical == "decimal":
        return _decimals(values, avro, type_)
    if (per_second := ticks(avro)) is not None and type_ in _TIMES:
        return _times(pa.array(values, pa.int64()), per_second).cast(type_)
    if avro.kind in _INTEGERS:
        numbers = pa.array(values, pa.int64())
        if type_ == pa.date32():
            return numbers.cast(pa.int32()).cast(type_)
        return numbers.cast(type_, safe=not pa.types.is_floating(type_))
    if avro.kind in ("bytes", "fixed"):
        return pa.array(values, pa.binary()).cast(type_)
    return pa.array(values, pa.string() if avro.kind in _TEXTS else type_).cast(type_)


def fields_to_arrow(
    values: Sequence[Mapping[str, Any] | None], avro: AvroType, fields: Sequence[pa.Field], is_null: Any
) -> list[pa.Array]:
    """The columns of records; NULL where the whole record is, also in a column that is NOT NULL."""
    places = {name: (f"f{i}", inner) for i, (name, inner) in enumerate(avro.fields)}
    children = []
    for field in fields:
        if field.name not in places:
            children.append(pa.nulls(len(values), field.type))
            continue
        key, inner = places[field.name]
        if not is_null.any():
            children.append(to_arrow([value[key] for value in values], inner, field))  # type: ignore[index]
            continue
        present = to_arrow([value[key] for value in values if value is not None], inner, field)
        children.append(_spread(present, is_null))
    return children


def _spread(present: pa.Array, is_null: Any) -> pa.Array:
    """The values at the places that are not NULL."""
    places = np.cumsum(~is_null) - 1
    return present.take(pa.array(places, mask=is_null))


def _nested(
    values: Sequence[Any], avro: AvroType, inner: AvroType, type_: pa.DataType, is_null: Any
) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in values]
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    mask = pa.array(is_null)
    if avro.kind == "array":
        items = to_arrow([item for value in values if value for item in value], inner, type_.value_field)
        return pa.ListArray.from_arrays(offsets, items, type=type_, mask=mask)
    keys = pa.array([key for value in values if value for key in value], type_.key_type)
    items = to_arrow([item for value in values if value for item in value.values()], inner, type_.item_field)
    return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=mask)


def _times(numbers: pa.Array, per_second: int) -> pa.Array:
    """Microseconds, rounded down."""
    if per_second <= _MICROS:
        return pc.multiply_checked(numbers, pa.scalar(_MICROS // per_second, pa.int64()))
    return _floor_divide(numbers, per_second // _MICROS)


def _floor_divide(numbers: pa.Array, divisor: int) -> pa.Array:
    plain = numbers.fill_null(0).to_numpy(zero_copy_only=False) // divisor
    return pa.array(plain, mask=pc.is_null(numbers).to_numpy(zero_copy_only=False))


def _decimals(values: Iterable[bytes | None], avro: AvroType, type_: pa.DataType) -> pa.Array:
    limit = 10**type_.precision
    unscaled = [None if value is None else int.from_bytes(value, "big", signed=True) for value in values]
    rescaled = [_rescaled(number, type_.scale - avro.scale) for number in unscaled]
    if any(number is not None and abs(number) >= limit for number in rescaled):
        raise UnfitError(f"a decimal has more digits than {types.sql_name(type_)}")
    data = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in rescaled)
    is_valid = pa.array([number is not None for number in rescaled], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, len(rescaled), [is_valid, pa.py_buffer(data)])


def _rescaled(number: int | None, digits: int) -> int | None:
    """An unscaled number with so many more digits after the point; fewer only where nothing is lost."""
    if number is None or digits == 0:
        return number
    factor: int = 10 ** abs(digits)
    if digits > 0:
        return number * factor
    shortened, rest = divmod(number, factor)
    if rest:
        raise UnfitError("a decimal has more digits after the point than its column")
    return shortened


def from_arrow(column: pa.Array, avro: AvroType) -> list[Any]:
    """A column as values for the codec.

    Raises:
        SchemaError: a value does not fit the schema.
    """
    if avro.inner is not None:
        return _collections(column, avro, avro.inner)
    if avro.kind == "record":
        records = records_from_arrow(dict(zip(column.type.names, column.flatten(), strict=True)), avro)
        valid = column.is_valid().to_pylist()
        return [record if is_valid else None for record, is_valid in zip(records, valid, strict=True)]
    if avro.logical == "decimal":
        return _decimal_bytes(column, avro)
    if column.type in _TIMES:
        return _from_times(column.cast(pa.int64()), ticks(avro) or _MICROS)
    if column.type == pa.date32():
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return found


def records_from_arrow(columns: Mapping[str, pa.Array], avro: AvroType) -> list[dict[str, Any]]:
    """Records of columns, of which there is at least one; a field that has no column is null."""
    length = len(next(iter(columns.values())))
    lists = [
        from_arrow(columns[name], inner) if name in columns else [None] * length
        for name, inner in avro.fields
    ]
    keys = [f"f{i}" for i in range(len(lists))]
    return [dict(zip(keys, values, strict=True)) for values in zip(*lists, strict=True)]


def _collections(column: pa.Array, avro: AvroType, inner: AvroType) -> list[Any]:
    offsets = column.offsets.to_pylist()
    start, end = offsets[0], offsets[-1]
    spans = [(begin - start, stop - start) for begin, stop in pairwise(offsets)]
    valid = column.is_valid().to_pylist()
    if avro.kind == "array":
        items = from_arrow(column.values.slice(start, end - start), inner)
        return [items[a:b] if ok else None for (a, b), ok in zip(spans, valid, strict=True)]
    keys = column.keys.slice(start, end - start).to_pylist()
    items = from_arrow(column.items.slice(start, end - start), inner)
    return [
        dict(zip(keys[a:b], items[a:b], strict=True)) if ok else None
        for (a, b), ok in zip(spans, valid, strict=True)
    ]


def _from_times(micros: pa.Array, per_second: int) -> list[Any]:
    if per_second <= _MICROS:
        found: list[Any] = _floor_divide(micros, _MICROS // per_second).to_pylist()
        return found
    try:
        found = pc.multiply_checked(micros, pa.scalar(per_second // _MICROS, pa.int64())).to_pylist()
    except pa.ArrowInvalid as cause:
        raise SchemaError(f"avro: a time is out of the range of nanoseconds: {cause}") from cause
    return found


def _decimal_bytes(column: pa.Array, avro: AvroType) -> list[bytes | None]:
    words = column.cast(pa.decimal128(38, column.type.scale))
    plain = pa.Array.from_buffers(pa.binary(16), len(words), [None, words.buffers()[1]], offset=words.offset)
    valid = column.is_valid().to_pylist()
    return [
        _two_complement(int.from_bytes(word, "little", signed=True), column.type.scale, avro) if ok else None
        for word, ok in zip(plain.to_pylist(), valid, strict=True)
    ]


def _two_complement(number: int, scale: int, avro: AvroType) -> bytes:
    """Big-endian bytes, as few as Java's ``BigInteger`` needs, or as many as a fixed has."""
    try:
        rescaled = _rescaled(number, avro.scale - scale) or 0
        if abs(rescaled) >= 10**avro.precision:
            raise UnfitError(f"a decimal has more than {avro.precision} digits")
        bits = (rescaled if rescaled >= 0 else ~rescaled).bit_length()
        return rescaled.to_bytes(avro.size or bits // 8 + 1, "big", signed=True)
    except (UnfitError, OverflowError) as cause:
        raise SchemaError(f"avro: a value does not fit the schema: {cause}") from None
