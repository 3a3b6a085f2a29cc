"""Why a column has no place in a format, in words that say what to do (pure)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from upsert import types
from upsert.store.file_formats.retyped import inner_types


def refuse_empty_struct(field: pa.Field, format_name: str) -> str | None:
    """A struct without fields: no columnar file but Arrow's can hold one."""
    if any(pa.types.is_struct(t) and not t.num_fields for t in inner_types(field.type)):
        return refusal(field, f"{format_name} has no struct without fields", "give it a field")
    return None


def refuse_nested_struct(field: pa.Field, format_name: str) -> str | None:
    """A struct anywhere within another one: the writer of Arrow 26 moves its values to other rows."""
    for outer in inner_types(field.type):
        if pa.types.is_struct(outer) and any(
            pa.types.is_struct(inner) for below in outer for inner in inner_types(below.type)
        ):
            reason = f"Arrow's writer of {format_name} mixes up a struct within a struct, if one is NULL"
            return refusal(field, reason, "make its fields columns")
    return None


MAX_LEVELS: Final = 64
"""Levels of a type that Arrow's writers and readers go down; a map takes two."""
_PARQUET_LEVELS: Final = 98
"""Levels of a column that Arrow's reader of Parquet goes down, where an array takes two as well."""


def refuse_depth(field: pa.Field, format_name: str) -> str | None:
    """A type that is nested so deeply that what is written in it cannot be read back."""
    levels, limit = _levels(field.type, of_list=1) + 1, MAX_LEVELS
    if format_name == "parquet" and levels <= limit:
        levels, limit = _levels(field.type, of_list=2), _PARQUET_LEVELS
    if levels <= limit:
        return None
    return (
        f"column {field.name!r}: its type must be nested at most {limit} levels deep, where a MAP takes two"
        f"{' and an ARRAY too' if limit == _PARQUET_LEVELS else ''}, got {levels}; make its parts columns, "
        "or store it as text"
    )


def _levels(type_: pa.DataType, of_list: int) -> int:
    if pa.types.is_list(type_):
        return of_list + _levels(type_.value_type, of_list)
    if pa.types.is_map(type_):
        return 2 + max(_levels(type_.key_type, of_list), _levels(type_.item_type, of_list))
    if pa.types.is_struct(type_):
        return 1 + max((_levels(inner.type, of_list) for inner in type_), default=0)
    return 0


def refuse_negative_scale(field: pa.Field, format_name: str) -> str | None:
    """A decimal that counts tens or hundreds."""
    if any(pa.types.is_decimal128(t) and t.scale < 0 for t in inner_types(field.type)):
        return refusal(field, f"{format_name} has no decimal with a negative scale", "give it scale 0")
    return None


def refusal(field: pa.Field, reason: str, remedy: str) -> str:
    """The column, its type, the reason and the remedy as one sentence."""
    return f"column {field.name!r} of type {types.sql_name(field.type)}: {reason}; {remedy}, or use arrow"
