"""Why a column has no place in a format, in words that say what to do (pure)."""

from __future__ import annotations

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


def refuse_negative_scale(field: pa.Field, format_name: str) -> str | None:
    """A decimal that counts tens or hundreds."""
    if any(pa.types.is_decimal128(t) and t.scale < 0 for t in inner_types(field.type)):
        return refusal(field, f"{format_name} has no decimal with a negative scale", "give it scale 0")
    return None


def refusal(field: pa.Field, reason: str, remedy: str) -> str:
    """The column, its type, the reason and the remedy as one sentence."""
    return f"column {field.name!r} of type {types.sql_name(field.type)}: {reason}; {remedy}, or use arrow"
