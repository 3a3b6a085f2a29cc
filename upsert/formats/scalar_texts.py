"""Columns of scalar values to columns of texts, as all text formats write them (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert.formats import base64_columns
from upsert.formats.timestamps import TimestampStandard, format_column

_ROWS_AT_ONCE: Final = 16_384
"""How many rows are written at once: few enough that their texts stay in the processor's cache."""


def scalar_texts(
    column: pa.Array, standard: TimestampStandard = TimestampStandard.SQL, *, is_plain: bool = False
) -> pa.Array:
    """The texts of a column's values, NULL for NULL; ``text_values`` reads them back.

    Args:
        column: values of a scalar type.
        standard: how times are written.
        is_plain: whether a small DECIMAL is never written like ``1E-8``.

    Raises:
        SchemaError: a date or time is not within the years 0001 to 9999.

    >>> scalar_texts(pa.array([1.5, float("inf"), None])).to_pylist()
    ['1.5', 'Infinity', None]
    """
    type_ = column.type
    if type_ == pa.string():
        return column
    if type_ == pa.binary():
        return base64_columns.encode(column)
    if pa.types.is_temporal(type_):
        return format_column(column, standard)
    if pa.types.is_floating(type_):
        return _float_texts(column)
    if pa.types.is_decimal(type_):
        return _decimal_texts(column, is_plain=is_plain)
    return column.cast(pa.string())


def _float_texts(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    infinity = pa.scalar(float("inf")).cast(column.type)
    texts = pc.if_else(pc.is_nan(column), "NaN", texts)
    texts = pc.if_else(pc.equal(column, infinity), "Infinity", texts)
    return pc.if_else(pc.equal(column, pc.negate(infinity)), "-Infinity", texts)


def _decimal_texts(column: pa.Array, *, is_plain: bool) -> pa.Array:
    """Zero is ``0``: Arrow writes it like ``0E-18`` where the scale is large."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    texts = pc.if_else(pc.equal(column, pa.scalar(0, column.type)), "0", texts)
    if not is_plain:
        return texts
    is_small = pc.match_substring(texts, "E").fill_null(False)
    small = [f"{value:f}" for value in column.filter(is_small).to_pylist()]
    return pc.replace_with_mask(texts, is_small, pa.array(small, pa.string()))


def encoded(rows: pa.Table, texts: Callable[[pa.RecordBatch], pa.Array]) -> pa.Array:
    """The messages of all rows as a binary array, their texts made from some thousand rows at a time."""
    batches = rows.to_batches(max_chunksize=_ROWS_AT_ONCE)
    return pa.concat_arrays(
        [pa.array([], pa.binary()), *(texts(batch).cast(pa.binary()) for batch in batches)]
    )
