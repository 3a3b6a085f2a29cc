"""Arrays under other types with the same layout of memory, for formats that lack a type (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def retyped(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same memory under another type, which must lay it out alike; neither is checked against the other.

    Unlike a cast it takes nested types, with whatever names and NOT NULL their fields have.

    >>> retyped(pa.array([[1], None]), pa.list_(pa.timestamp("us"))).type
    ListType(list<item: timestamp[us]>)
    """
    if array.type.equals(type_, check_metadata=True):
        return array
    return pa.array(_Typed(array, type_))


class _Typed:
    """An array as Arrow's C interface hands it over, but for the type."""

    def __init__(self, array: pa.Array, type_: pa.DataType) -> None:
        self._array = array
        self._type = type_

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._type.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


Plain = Mapping[pa.DataType, pa.DataType]
"""Scalar types, and what stands for each."""


def replaced(type_: pa.DataType, plain: Plain, *, map_to_list: bool = False) -> pa.DataType:
    """A type with some scalar types within it replaced by others, and maps by lists of entries if asked.

    >>> replaced(pa.list_(pa.date32()), {pa.date32(): pa.int32()})
    ListType(list<item: int32>)
    """
    if type_ in plain:
        return plain[type_]

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(replaced(field.type, plain, map_to_list=map_to_list))

    if pa.types.is_list(type_):
        return pa.list_(inner(type_.value_field))
    if pa.types.is_map(type_):
        key, item = inner(type_.key_field), inner(type_.item_field)
        if map_to_list:
            return pa.list_(pa.field("entries", pa.struct([key, item]), nullable=False))
        return pa.map_(key.type, item)
    if pa.types.is_struct(type_):
        return pa.struct([inner(field) for field in type_])
    return type_


def inner_types(type_: pa.DataType) -> list[pa.DataType]:
    """A type and all types within it.

    >>> inner_types(pa.map_(pa.string(), pa.list_(pa.int8())))[1:]
    [DataType(string), ListType(list<item: int8>), DataType(int8)]
    """
    found = [type_]
    if pa.types.is_list(type_):
        found += inner_types(type_.value_type)
    elif pa.types.is_map(type_):
        found += [*inner_types(type_.key_type), *inner_types(type_.item_type)]
    elif pa.types.is_struct(type_):
        for field in type_:
            found += inner_types(field.type)
    return found


def field_names(type_: pa.DataType) -> list[str]:
    """Names of the fields of all structs within a type.

    >>> field_names(pa.list_(pa.struct([("a", pa.struct([("b", pa.int8())]))])))
    ['a', 'b']
    """
    return [f.name for inner in inner_types(type_) if pa.types.is_struct(inner) for f in inner]
