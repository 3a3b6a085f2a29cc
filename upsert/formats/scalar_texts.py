"""Columns of scalar values to columns of texts, as all text formats write them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Numbers as Java writes them, and so Jackson and Flink.

    The bytes of a key decide its partition, so a key must not look otherwise than Flink writes it: ``1.0``
    is no whole number there, from 10 million on and below a thousandth there is an exponent.

    >>> _float_texts(pa.array([1.0, -0.0, 1e7, 0.00025, float("-inf")])).to_pylist()
    ['1.0', '-0.0', '1.0E7', '2.5E-4', '-Infinity']
    """
    texts = column.cast(pa.string())
    size = pc.abs(column)
    is_plain = pc.or_(
        pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, _SMALLEST), pc.less(size, _LARGEST))
    )
    is_whole = pc.and_(is_plain, pc.equal(column, pc.floor(column))).fill_null(False)
    if pc.any(is_whole).as_py():
        whole = pc.binary_join_element_wise(texts.filter(is_whole), ".0", "")
        texts = pc.replace_with_mask(texts, is_whole, whole)
    if pc.all(is_plain).as_py() is not False:
        return texts
    is_finite = pc.is_finite(column)
    is_scientific = pc.and_(pc.invert(is_plain), is_finite).fill_null(False)
    scientific = _scientific(texts.filter(is_scientific), _TINY[column.type])
    texts = pc.replace_with_mask(texts, is_scientific, scientific)
    if pc.all(is_finite).as_py() is not False:
        return texts
    texts = pc.if_else(pc.is_nan(column), "NaN", texts)
    texts = pc.if_else(pc.equal(column, _INFINITY), "Infinity", texts)
    return pc.if_else(pc.equal(column, -_INFINITY), "-Infinity", texts)


_INFINITY: Final = float("inf")
_SMALLEST: Final = 1e-3
_LARGEST: Final = 1e7
"""Java writes what lies between without an exponent."""
_DECIMAL: Final = r"^(?P<sign>-?)(?P<whole>[0-9]+)(?:[.](?P<part>[0-9]+))?(?:e(?P<power>[+-]?[0-9]+))?$"


def _tiny(type_: pa.DataType, smallest: float) -> dict[str, str]:
    """Texts of Arrow that Java writes with another first digit, and how.

    Both write the shortest decimal that reads back as the number, but Java's (since 19 without exceptions)
    has two digits at least, and is the nearest of those. That is another one among the first hundred numbers
    above zero alone, where neighbours are far apart.
    """
    sizes = [number * smallest for number in range(1, 101)]
    found: dict[str, str] = {}
    for size, text in zip(sizes, pa.array(sizes, type_).cast(pa.string()).to_pylist(), strict=True):
        if "." in text:
            continue
        digits, _, exponent = f"{size:.1e}".partition("e")
        for sign in ("", "-"):
            found[f"{sign}{text}"] = f"{sign}{digits}E{int(exponent)}"
    return found


_TINY: Final = {pa.float64(): _tiny(pa.float64(), 2.0**-1074), pa.float32(): _tiny(pa.float32(), 2.0**-149)}


def _scientific(texts: pa.Array, tiny: Mapping[str, str]) -> pa.Array:
    """Decimals, with an exponent or not, as one digit, a point, the others and ``E`` with the exponent.

    >>> _scientific(pa.array(["12345678.5", "-2e+20", "5e-324"]), {"5e-324": "4.9E-324"}).to_pylist()
    ['1.23456785E7', '-2.0E20', '4.9E-324']
    """
    parts = pc.extract_regex(texts, _DECIMAL)
    sign, whole, part, power = (parts.field(name) for name in ("sign", "whole", "part", "power"))
    digits = pc.binary_join_element_wise(whole, part, "")
    significant = pc.utf8_ltrim(digits, characters="0")
    leading = pc.subtract(pc.utf8_length(digits), pc.utf8_length(significant))
    given = pc.if_else(pc.equal(power, ""), "0", pc.utf8_ltrim(power, characters="+")).cast(pa.int32())
    exponent = pc.add(pc.subtract(pc.subtract(pc.utf8_length(whole), leading), 1), given)
    significant = pc.utf8_rtrim(significant, characters="0")
    rest = pc.utf8_slice_codeunits(significant, 1)
    rest = pc.if_else(pc.equal(rest, ""), "0", rest)
    first = pc.utf8_slice_codeunits(significant, 0, 1)
    written = pc.binary_join_element_wise(sign, first, ".", rest, "E", exponent.cast(pa.string()), "")
    known = pc.index_in(texts, value_set=pa.array(tiny, pa.string()))
    return pc.coalesce(pa.array(tiny.values(), pa.string()).take(known), written)


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
