"""Values from their texts, one value or a column, the same both ways (pure).

``scalar_reader`` is what a text means. ``read_column`` gives the same for a column: texts in a plain form,
which a regular expression picks, are cast by Arrow at once, the others are read one by one.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask
from upsert.formats import base64_columns
from upsert.formats.timestamps import (
    TimestampStandard,
    example,
    parse_column,
    parse_date,
    parse_timestamp,
    pattern,
)

_SPACES: Final = "".join(map(chr, range(33)))
"""What Java's ``trim`` takes away."""

_INTEGER: Final = re.compile("[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_MAX_SHOWN: Final = 80

Reader = Callable[[str], Any]


class BadValueError(ValueError):
    """A value is none of its type. ``path`` names the field from the outside in."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    @property
    def reason(self) -> str:
        """Field and reason in one line."""
        if not self.path:
            return str(self)
        return f"field {shown('.'.join(self.path))}: {self}"


def shown(value: object) -> str:
    """A value for a message, cut where it gets long.

    >>> shown("x" * 100)[-7:], shown("x")
    ("xxx'...", "'x'")
    """
    text = repr(value[: _MAX_SHOWN + 1]) if type(value) is str else repr(value)
    is_long = len(text) > _MAX_SHOWN
    return text[: _MAX_SHOWN - 1] + (text[0] if text[0] in "'\"" else "") + "..." if is_long else text


def integer_range(type_: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest value of a signed integer type."""
    half = 1 << (type_.bit_width - 1)
    return -half, half - 1


@lru_cache(maxsize=256)
def scalar_reader(type_: pa.DataType, standard: TimestampStandard) -> Reader:
    """What reads one text as a value of a scalar type; it raises ``BadValueError``.

    Days since 1970 stand for a date and microseconds since 1970 for a time. Spaces around are no part
    of a value, except of a string's. A DECIMAL is rounded half up to its scale, as Flink does.

    >>> scalar_reader(pa.int32(), TimestampStandard.SQL)(" 7 ")
    7
    """
    if type_ == pa.string():
        return _read_string
    read = _reader(type_, standard)
    name = types.sql_name(type_)
    if pa.types.is_temporal(type_):
        name += f" like {example(type_, standard)}"

    def trimmed(text: str) -> Any:
        value = read(text.strip(_SPACES))
        if value is None:
            raise BadValueError(f"{shown(text)} is no {name}")
        return value

    return trimmed


def _reader(type_: pa.DataType, standard: TimestampStandard) -> Reader:
    if type_ == pa.bool_():
        return _read_boolean
    if pa.types.is_integer(type_):
        return _integer_reader(type_)
    if pa.types.is_floating(type_):
        return _float_reader(type_)
    if pa.types.is_decimal128(type_):
        return _decimal_reader(type_)
    if type_ == pa.binary():
        return _read_base64
    if type_ == pa.date32():
        return parse_date
    compiled = re.compile(pattern(type_, standard))
    return lambda text: parse_timestamp(text, compiled)


def _read_string(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValueError("text holds half of a surrogate pair") from None
    return text


def _read_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _integer_reader(type_: pa.DataType) -> Reader:
    low, high = integer_range(type_)

    def read(text: str) -> int | None:
        if not _INTEGER.fullmatch(text):
            return None
        value = int(text)
        return value if low <= value <= high else None

    return read


def _float_reader(type_: pa.DataType) -> Reader:
    def read(text: str) -> float | None:
        if not _NUMBER.fullmatch(text):
            return _NOT_FINITE.get(text)
        if type_ == pa.float64():
            value = float(text)
        else:
            # Through a double it could be rounded twice.
            value = pa.scalar(text.removeprefix("+")).cast(type_).as_py()
        return value if math.isfinite(value) else None

    return read


def _decimal_reader(type_: pa.DataType) -> Reader:
    unit = Decimal(1).scaleb(-type_.scale)
    context = Context(prec=type_.precision, rounding=ROUND_HALF_UP)

    def read(text: str) -> Decimal | None:
        if not _NUMBER.fullmatch(text):
            return None
        try:
            return Decimal(text).quantize(unit, context=context)
        except InvalidOperation:
            return None

    return read


def _read_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def read_column(
    texts: pa.Array, type_: pa.DataType, standard: TimestampStandard
) -> tuple[pa.Array, Mask | None]:
    """The values of a column of texts, and which of them are none of the type: these are NULL.

    Returns:
        The values, and a mask of the bad ones or None when all are good.

    >>> values, bad = read_column(pa.array(["1", " 2", "x"]), pa.int32(), TimestampStandard.SQL)
    >>> values.to_pylist(), bad.tolist()
    ([1, 2, None], [False, False, True])
    """
    if type_ == pa.string():
        return texts, None
    is_plain = pc.match_substring_regex(texts, pattern=_plain_form(type_, standard)).fill_null(True)
    odd = ~is_plain.to_numpy(zero_copy_only=False)
    plain = texts if not odd.any() else pc.if_else(is_plain, texts, pa.scalar(None, pa.string()))
    try:
        values = _cast(plain, type_)
    except pa.ArrowInvalid:
        values, odd = pa.nulls(len(texts), type_), texts.is_valid().to_numpy(zero_copy_only=False)
    return (values, None) if not odd.any() else _with_odd_ones(values, texts, odd, standard)


def _with_odd_ones(
    values: pa.Array, texts: pa.Array, odd: Mask, standard: TimestampStandard
) -> tuple[pa.Array, Mask | None]:
    read = scalar_reader(values.type, standard)
    found: list[Any] = []
    bad = []
    places = np.flatnonzero(odd)
    for place, text in zip(places, texts.take(pa.array(places)).to_pylist(), strict=True):
        try:
            found.append(read(text))
        except BadValueError:
            found.append(None)
            bad.append(place)
    values = pc.replace_with_mask(values, pa.array(odd), pa.array(found, values.type))
    if not bad:
        return values, None
    mask = np.zeros(len(texts), dtype=np.bool_)
    mask[bad] = True
    return values, mask


@lru_cache(maxsize=256)
def _plain_form(type_: pa.DataType, standard: TimestampStandard) -> str:
    """Texts that Arrow surely casts to the very value that ``scalar_reader`` gives.

    Arrow alone reads more (hexadecimal, ``inf``) and less (``+1``, spaces), and a decimal whose scale is
    out of its tables reads foreign memory.
    """
    if type_ == pa.bool_():
        return "^(?:true|false)$"
    if pa.types.is_integer(type_):
        return f"^-?[0-9]{{1,{len(str(integer_range(type_)[1]))}}}$"
    if pa.types.is_floating(type_):
        return r"^-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9])?$"
    if pa.types.is_decimal128(type_):
        whole = type_.precision - type_.scale
        fraction = rf"(?:\.[0-9]{{1,{type_.scale}}})?" if type_.scale > 0 else ""
        return rf"^-?(?:[0-9]{{1,{whole}}}){fraction}$" if whole else rf"^-?0{fraction}$"
    if type_ == pa.binary():
        return f"^{base64_columns.PATTERN}$"
    return f"^{pattern(type_, standard)}$"


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if type_ == pa.binary():
        return base64_columns.decode(texts)
    if pa.types.is_temporal(type_):
        return parse_column(texts, type_)
    return texts.cast(type_)
