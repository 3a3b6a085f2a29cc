"""Dates and times as text, in the three standards that Flink's formats know, one value or a column (pure).

====================== ============================ ================================
standard               TIMESTAMP (an instant)       TIMESTAMP_NTZ
====================== ============================ ================================
SQL                    2020-12-30 12:13:14.123Z     2020-12-30 12:13:14.123
ISO-8601               2020-12-30T12:13:14.123Z     2020-12-30T12:13:14.123
ISO-8601-WITH-OFFSET   2020-12-30T14:13:14.123+02:00, of both types; UTC is what it means without a zone
====================== ============================ ================================

A fraction has up to nine digits, of which the microseconds are kept; ISO-8601 lets the seconds out.
Years run from 0001 to 9999. What one value gives and what a column gives is the same.
"""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.errors import SchemaError


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
    if standard is TimestampStandard.SQL:
        return f"{_DATE} {_HOURS}{_SECONDS}{'Z' if type_ == types.TIMESTAMP else ''}"
    iso = f"{_DATE}T{_HOURS}(?:{_SECONDS})?"
    if standard is TimestampStandard.ISO_WITH_OFFSET:
        return iso + _OFFSET
    return f"{iso}{'Z' if type_ == types.TIMESTAMP else ''}"


def example(type_: pa.DataType, standard: TimestampStandard) -> str:
    """A text that is a value of the type, for messages.

    >>> example(types.TIMESTAMP, TimestampStandard.SQL)
    '2020-12-30 12:13:14.123Z'
    """
    if type_ == pa.date32():
        return "2020-12-30"
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


def _offset_minutes(text: str) -> int:
    if text == "Z":
        return 0
    minutes = int(text[1:3]) * 60 + int(text[4:6])
    return -minutes if text[0] == "-" else minutes


def parse_column(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values of texts that all match the ``pattern`` of the type."""
    if type_ == pa.date32():
        return _within_years(texts.cast(type_), _FIRST_DAY, _LAST_DAY)
    micros_only = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    if type_ == types.TIMESTAMP_NTZ:
        micros_only = _without_zone(micros_only)
    values = micros_only.cast(type_)
    return _within_years(values, _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1)


def _without_zone(texts: pa.Array) -> pa.Array:
    """Local times from local times, UTC times from times with an offset."""
    zoned = pc.match_substring_regex(texts, pattern=f"{_OFFSET}$")
    if not pc.any(zoned).as_py():
        return texts
    utc = texts.cast(types.TIMESTAMP)
    return pc.replace_substring_regex(
        utc.cast(pa.int64()).cast(types.TIMESTAMP_NTZ).cast(pa.string()), "Z$", ""
    )


def _within_years(values: pa.Array, first: int, last: int) -> pa.Array:
    numbers = values.view(pa.int32() if values.type == pa.date32() else pa.int64())
    bounds = pc.min_max(numbers)
    if bounds["min"].is_valid and not (first <= bounds["min"].as_py() and bounds["max"].as_py() <= last):
        raise pa.ArrowInvalid("a year is not within 0001 to 9999")
    return values


def format_column(values: pa.Array, standard: TimestampStandard) -> pa.Array:
    """Dates or times as texts, NULL for NULL; fractions without trailing zeros.

    Raises:
        SchemaError: a year is not within 0001 to 9999.

    >>> format_column(pa.array([1_500_000], types.TIMESTAMP), TimestampStandard.ISO).to_pylist()
    ['1970-01-01T00:00:01.5Z']
    """
    is_date = values.type == pa.date32()
    unit = 1 if is_date else _DAY
    try:
        _within_years(values, _FIRST_DAY * unit, (_LAST_DAY + 1) * unit - 1)
    except pa.ArrowInvalid:
        raise SchemaError(f"a {types.sql_name(values.type)} must be within the years 0001 to 9999") from None
    if is_date:
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
