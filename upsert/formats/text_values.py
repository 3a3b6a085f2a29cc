"""Scalar values from their texts and back, one value or a column, as all text formats have them (pure).

``scalar_reader`` is what a text means. ``read_column`` gives the same for a column: texts in a plain form,
which a regular expression picks, are cast by Arrow at once, the others are read one by one. ``scalar_texts``
writes a column.

Times are written in one of the three standards that Flink's formats know:

====================== ============================ ================================
standard               TIMESTAMP (an instant)       TIMESTAMP_NTZ
====================== ============================ ================================
SQL                    2020-12-30 12:13:14.123Z     2020-12-30 12:13:14.123
ISO-8601               2020-12-30T12:13:14.123Z     2020-12-30T12:13:14.123
ISO-8601-WITH-OFFSET   2020-12-30T14:13:14.123+02:00, of both types; UTC is what it means without a zone
====================== ============================ ================================

A time of day is ``12:13:14.123`` in all of them. A fraction has up to nine digits, of which the microseconds,
or those of a time of day's type, are kept; ISO-8601 lets the seconds out.
Years run from 0001 to 9999. What one value gives and what a column gives is the same.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.errors import SchemaError
from upsert.formats.binary_columns import bytes_of


class TimestampStandard(StrEnum):
    """How a time is written."""

    SQL = "sql"
    ISO = "iso-8601"
    ISO_WITH_OFFSET = "iso-8601-with-offset"


_DATE: Final = "([0-9]{4})-([0-9]{2})-([0-9]{2})"
_SECONDS: Final = r":([0-9]{2})(?:\.([0-9]{1,9}))?"
_HOURS: Final = "([0-9]{2}):([0-9]{2})"
_OFFSET: Final = "(Z|[+-](?:0[0-9]|1[0-8]):[0-5][0-9])"
_DATE_PATTERN: Final = re.compile(_DATE)
_DAY: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = 1 - _EPOCH
_LAST_DAY: Final = date.max.toordinal() - _EPOCH


def pattern(type_: pa.DataType, standard: TimestampStandard) -> str:
    """The regular expression, without anchors, of all texts that may be a value of the type."""
    if type_ == pa.date32():
        return _DATE
    if pa.types.is_time(type_):
        return f"{_HOURS}{_SECONDS}" if standard is TimestampStandard.SQL else f"{_HOURS}(?:{_SECONDS})?"
    if standard is TimestampStandard.SQL:
        return f"{_DATE} {_HOURS}{_SECONDS}{'Z' if type_ == types.TIMESTAMP else ''}"
    iso = f"{_DATE}T{_HOURS}(?:{_SECONDS})?"
    if standard is TimestampStandard.ISO_WITH_OFFSET:
        return iso + _OFFSET
    return f"{iso}{'Z' if type_ == types.TIMESTAMP else ''}"


def has_form(type_: pa.DataType) -> bool:
    """Whether values of a type have a text: those of scalar types that are no intervals."""
    return types.is_scalar(type_) and not pa.types.is_duration(type_)


def example(type_: pa.DataType, standard: TimestampStandard) -> str:
    """A text that is a value of the type, for messages.

    >>> example(types.TIMESTAMP, TimestampStandard.SQL)
    '2020-12-30 12:13:14.123Z'
    """
    if type_ == pa.date32():
        return "2020-12-30"
    if pa.types.is_time(type_):
        return "12:13:14.123"
    between = " " if standard is TimestampStandard.SQL else "T"
    return f"2020-12-30{between}12:13:14.123{_zone(type_, standard)}"


def parse_date(text: str) -> int | None:
    """Days since 1970, or None when the text is no date.

    >>> parse_date("1970-01-02"), parse_date("1970-02-30")
    (1, None)
    """
    found = _DATE_PATTERN.fullmatch(text)
    return _day(found) if found else None


def _day(found: re.Match[str]) -> int | None:
    try:
        return date(int(found[1]), int(found[2]), int(found[3])).toordinal() - _EPOCH
    except ValueError:
        return None


def parse_timestamp(text: str, compiled: re.Pattern[str]) -> int | None:
    """Microseconds since 1970, or None when the text is no time.

    >>> sql = re.compile(pattern(types.TIMESTAMP_NTZ, TimestampStandard.SQL))
    >>> parse_timestamp("1970-01-01 00:00:01.5", sql), parse_timestamp("1970-01-01 24:00:00", sql)
    (1500000, None)
    """
    found = compiled.fullmatch(text)
    day = _day(found) if found else None
    if found is None or day is None:
        return None
    hour, minute, second = int(found[4]), int(found[5]), int(found[6] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((found[7] or "0").ljust(6, "0")[:6])
    offset = _offset_minutes(found[8]) if compiled.groups == 8 else 0
    value = day * _DAY + ((hour * 60 + minute - offset) * 60 + second) * 1_000_000 + micros
    return value if _FIRST_DAY * _DAY <= value < (_LAST_DAY + 1) * _DAY else None


def parse_time(text: str, type_: pa.DataType, compiled: re.Pattern[str]) -> int | None:
    """A time of day in the units of its type, or None when the text is none.

    >>> iso = re.compile(pattern(pa.time32("ms"), TimestampStandard.ISO))
    >>> parse_time("00:01:02.1239", pa.time32("ms"), iso), parse_time("24:00", pa.time32("ms"), iso)
    (62123, None)
    """
    found = compiled.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    nanos = int((found[4] or "0").ljust(9, "0"))
    return (((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos) // types.NANOS[type_]


def _offset_minutes(text: str) -> int:
    if text == "Z":
        return 0
    minutes = int(text[1:3]) * 60 + int(text[4:6])
    return -minutes if text[0] == "-" else minutes


def parse_column(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values of texts that all match the ``pattern`` of the type."""
    if type_ == pa.date32():
        return _within_years(texts.cast(type_))
    if pa.types.is_time(type_):
        return types.times_of(_with_digits(texts, types.time_digits(type_)), type_)
    micros_only = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    if type_ == types.TIMESTAMP_NTZ:
        micros_only = _without_zone(micros_only)
    return _within_years(micros_only.cast(type_))


def _with_digits(texts: pa.Array, digits: int) -> pa.Array:
    if not digits:
        return pc.replace_substring_regex(texts, r"\.[0-9]+", "")
    return pc.replace_substring_regex(texts, rf"(\.[0-9]{{{digits}}})[0-9]+", r"\1")


def _without_zone(texts: pa.Array) -> pa.Array:
    """Local times from local times, UTC times from times with an offset."""
    zoned = pc.match_substring_regex(texts, pattern=f"{_OFFSET}$")
    if not pc.any(zoned).as_py():
        return texts
    local = texts.cast(types.TIMESTAMP).cast(pa.int64()).cast(types.TIMESTAMP_NTZ)
    return pc.replace_substring_regex(local.cast(pa.string()), "Z$", "")


def _within_years(values: pa.Array) -> pa.Array:
    unit, number = (1, pa.int32()) if values.type == pa.date32() else (_DAY, pa.int64())
    first, last = pc.min_max(values.view(number)).as_py().values()
    if first is not None and not (_FIRST_DAY * unit <= first and last < (_LAST_DAY + 1) * unit):
        raise pa.ArrowInvalid("a year is not within 0001 to 9999")
    return values


def format_column(values: pa.Array, standard: TimestampStandard) -> pa.Array:
    """Dates or times as texts, NULL for NULL; fractions without trailing zeros.

    Raises:
        SchemaError: a year is not within 0001 to 9999.
    """
    if pa.types.is_time(values.type):
        texts = values.cast(pa.string())
        has_fraction = types.time_digits(values.type) and len(texts)
        return pc.replace_substring_regex(texts, r"\.?0+$", "") if has_fraction else texts
    try:
        _within_years(values)
    except pa.ArrowInvalid:
        raise SchemaError(f"a {types.sql_name(values.type)} must be within the years 0001 to 9999") from None
    if values.type == pa.date32():
        return values.cast(pa.string())
    texts = values.cast(pa.int64()).cast(types.TIMESTAMP_NTZ).cast(pa.string())
    texts = pc.replace_substring_regex(texts, r"\.?0+$", "") if len(texts) else texts
    if standard is not TimestampStandard.SQL:
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    zone = _zone(values.type, standard)
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


def _zone(type_: pa.DataType, standard: TimestampStandard) -> str:
    if standard is TimestampStandard.ISO_WITH_OFFSET:
        return "+00:00"
    return "Z" if type_ == types.TIMESTAMP else ""


_BASE64: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def base64_bytes(texts: pa.Array) -> pa.Array:
    """Bytes of texts that all match ``_BASE64``; NULL for NULL."""
    decode = binascii.a2b_base64
    return pa.array([None if text is None else decode(text) for text in texts.to_pylist()], pa.binary())


def base64_texts(values: pa.Array) -> pa.Array:
    """Base64 texts of bytes; NULL for NULL."""
    encode = partial(binascii.b2a_base64, newline=False)
    texts = [None if value is None else encode(value) for value in values.to_pylist()]
    return pa.array(texts, pa.binary()).cast(pa.string())


def flat_bytes(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Positions]:
    """The bytes of all texts or binary values in one run, and how many each value has."""
    data, offsets = bytes_of(values.fill_null("" if values.type == pa.string() else b""))
    return data, np.diff(offsets)


_SPACES: Final = "".join(map(chr, range(33)))
"""What Java's ``trim`` takes away."""

_INTEGER: Final = re.compile("[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_MAX_SHOWN: Final = 80


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
    """A value for a message, cut where it gets long."""
    text = repr(value[: _MAX_SHOWN + 1]) if type(value) is str else repr(value)
    is_long = len(text) > _MAX_SHOWN
    return text[: _MAX_SHOWN - 1] + (text[0] if text[0] in "'\"" else "") + "..." if is_long else text


def integer_range(type_: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest value of a signed integer type."""
    half = 1 << (type_.bit_width - 1)
    return -half, half - 1


@lru_cache(maxsize=256)
def scalar_reader(type_: pa.DataType, standard: TimestampStandard) -> Callable[[str], Any]:
    """What reads one text as a value of a scalar type; it raises ``BadValueError``.

    Days since 1970 stand for a date, microseconds since 1970 for a time, and the units of its type since
    midnight for a time of day. Spaces around are no part
    of a value, except of a string's. A DECIMAL is rounded half up to its scale, as Flink does.
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


def _reader(type_: pa.DataType, standard: TimestampStandard) -> Callable[[str], Any]:
    if type_ == pa.bool_():
        return lambda text: {"true": True, "false": False}.get(text.lower())
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
    if pa.types.is_time(type_):
        return lambda text: parse_time(text, type_, compiled)
    return lambda text: parse_timestamp(text, compiled)


def _read_string(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValueError("text holds half of a surrogate pair") from None
    return text


def _integer_reader(type_: pa.DataType) -> Callable[[str], Any]:
    low, high = integer_range(type_)

    def read(text: str) -> int | None:
        if not _INTEGER.fullmatch(text):
            return None
        value = int(text)
        return value if low <= value <= high else None

    return read


def _float_reader(type_: pa.DataType) -> Callable[[str], Any]:
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


def _decimal_reader(type_: pa.DataType) -> Callable[[str], Any]:
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
    """The values of a column of texts; which of them are none of the type, and so NULL, or None for none."""
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
    positions = np.flatnonzero(odd)
    for position, text in zip(positions, texts.take(pa.array(positions)).to_pylist(), strict=True):
        try:
            found.append(read(text))
        except BadValueError:
            found.append(None)
            bad.append(position)
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
        return f"^{_BASE64}$"
    return f"^{pattern(type_, standard)}$"


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if type_ == pa.binary():
        return base64_bytes(texts)
    if pa.types.is_temporal(type_):
        return parse_column(texts, type_)
    return texts.cast(type_)


def scalar_texts(
    column: pa.Array, standard: TimestampStandard = TimestampStandard.SQL, *, is_plain: bool = False
) -> pa.Array:
    """The texts of a column's values, NULL for NULL; ``is_plain``: a small DECIMAL is never like ``1E-8``."""
    type_ = column.type
    if type_ == pa.string():
        return column
    if type_ == pa.binary():
        return base64_texts(column)
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
    scientific = _scientific(texts.filter(is_scientific), _tiny(column.type))
    texts = pc.replace_with_mask(texts, is_scientific, scientific)
    if pc.all(is_finite).as_py() is not False:
        return texts
    texts = pc.if_else(pc.is_nan(column), "NaN", texts)
    texts = pc.if_else(pc.equal(column, math.inf), "Infinity", texts)
    return pc.if_else(pc.equal(column, -math.inf), "-Infinity", texts)


_SMALLEST: Final = 1e-3
_LARGEST: Final = 1e7
"""Java writes what lies between without an exponent."""

_DECIMAL: Final = r"^(?P<sign>-?)(?P<whole>[0-9]+)(?:[.](?P<part>[0-9]+))?(?:e(?P<power>[+-]?[0-9]+))?$"


@cache
def _tiny(type_: pa.DataType) -> dict[str, str]:
    """Texts of Arrow that Java writes with another first digit, and how.

    Both write the shortest decimal that reads back as the number, but Java's (since 19 without exceptions)
    has two digits at least, and is the nearest of those. That is another one among the first hundred numbers
    above zero alone, where neighbours are far apart.
    """
    smallest = 2.0 ** (-1074 if pa.types.is_float64(type_) else -149)
    sizes = [number * smallest for number in range(1, 101)]
    found: dict[str, str] = {}
    for size, text in zip(sizes, pa.array(sizes, type_).cast(pa.string()).to_pylist(), strict=True):
        if "." in text:
            continue
        digits, _, exponent = f"{size:.1e}".partition("e")
        for sign in ("", "-"):
            found[f"{sign}{text}"] = f"{sign}{digits}E{int(exponent)}"
    return found


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


def joined_lists(column: pa.Array, elements: pa.Array, separator: str) -> pa.Array:
    """The texts of each list's elements, with a separator between them; empty for NULL."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), elements), separator)


def encoded(rows: pa.Table, texts: Callable[[pa.RecordBatch], pa.Array]) -> pa.Array:
    """The messages of all rows as a binary array, their texts made from some thousand rows at a time."""
    batches = rows.to_batches(max_chunksize=16_384)  # their texts stay in the processor's cache
    return pa.concat_arrays(
        [pa.array([], pa.binary()), *(texts(batch).cast(pa.binary()) for batch in batches)]
    )
