"""The types of columns as SQL writes them (pure).

A bare ``TIMESTAMP`` is Spark's: an instant, whatever the session's ``spark.sql.timestampType``. A spelling
that only Flink has means what it means there: ``TIMESTAMP(p)`` and ``TIMESTAMP[(p)] WITHOUT TIME ZONE`` are
wall-clock times (``TIMESTAMP_NTZ``), ``TIMESTAMP_LTZ(p)`` and ``TIMESTAMP[(p)] WITH LOCAL TIME ZONE`` are
instants. Every time is stored in microseconds: ``p`` may be 0 to 6, and values are not cut to it.

``TIME(p)`` is a time of day with ``p`` digits of a second, 6 where nothing is said; it is kept with 0, 3, 6
or 9 of them, the next more that there are.

``INTERVAL DAY TO SECOND`` may have other fields in a column, as in ``INTERVAL HOUR TO MINUTE``. Digits of a
field, as Flink has them, are read and mean nothing: days have nine, seconds six digits after the point.

``VARCHAR(n)`` and ``CHAR(n)`` are texts of a column with a length, as in Spark; what is inside of nested
types has none. ``VARBINARY(n)`` is ``BINARY``: as in Flink by default, its length is not enforced.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.schema import MAX_LENGTH, Length
from upsert.sql.tokens import Cursor

_SCALAR_NAMES: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMP_LTZ": types.TIMESTAMP,
    "TIMESTAMP_NTZ": types.TIMESTAMP_NTZ,
    "VARIANT": types.VARIANT,
}
_TIME_PRECISION: Final = 6
"""Digits of a second of ``TIME``, as in Spark."""
_DECIMAL_NAMES: Final = ("DECIMAL", "DEC", "NUMERIC")
_TEXTS: Final = {"VARCHAR": False, "CHAR": True, "CHARACTER": True}
"""Texts that may have a length -> whether they are filled up with blanks."""

_ZONES: Final = {
    ("WITH", "LOCAL", "TIME", "ZONE"): types.TIMESTAMP,
    ("WITHOUT", "TIME", "ZONE"): types.TIMESTAMP_NTZ,
}

_REMEDIES: Final = {
    "CHAR": "CHAR needs a length, as in CHAR(10)",
    "CHARACTER": "CHARACTER needs a length, as in CHARACTER(10)",
    "TEXT": "use STRING",
    "DATETIME": "use TIMESTAMP_NTZ",
    "MULTISET": "use MAP<element, INT>",
    "INTERVAL": "use INT for months, and make_ym_interval in queries",
}


def read_type(cursor: Cursor) -> pa.DataType:
    """Read a column type.

    >>> read_type(Cursor("ARRAY<DECIMAL(10, 2)>"))
    ListType(list<element: decimal128(10, 2)>)
    """
    if type_ := _scalar(cursor) or _nested(cursor):
        return type_
    for name, remedy in _REMEDIES.items():
        if cursor.ahead(name):
            raise cursor.refusal(f"expected a type that tables can hold ({remedy})")
    nested = (
        "TIME(p)",
        "INTERVAL DAY TO SECOND",
        "DECIMAL(p,s)",
        "VARCHAR(n)",
        "ARRAY<…>",
        "MAP<…>",
        "STRUCT<…>",
        "ROW<…>",
    )
    words = [name.partition("(")[0].partition("<")[0] for name in (*_SCALAR_NAMES, *nested)]
    if close := get_close_matches(cursor.word(0), words, n=1, cutoff=0.7):
        raise cursor.refusal(f"expected a column type, such as {close[0]}")
    raise cursor.refusal(f"expected a column type, one of {', '.join((*_SCALAR_NAMES, *nested))}")


def read_column_type(cursor: Cursor) -> tuple[pa.DataType, Length | None]:
    """Read the type of a column, which may be a text with a length.

    >>> read_column_type(Cursor("CHAR(2)"))
    (DataType(string), Length(characters=2, is_padded=True))
    """
    for name, is_padded in _TEXTS.items():
        if cursor.ahead(name, "("):
            cursor.expect(name)
            (characters,) = _parameters(cursor, f"{name}(length)", most=1)
            is_any = characters == MAX_LENGTH and not is_padded
            return pa.string(), None if is_any else Length(characters, is_padded)
    return read_type(cursor), None


def _scalar(cursor: Cursor) -> pa.DataType | None:
    if cursor.ahead("TIMESTAMP") or cursor.ahead("TIMESTAMP_LTZ"):
        return _time(cursor)
    if cursor.ahead("TIME"):
        return _time_of_day(cursor)
    if (fields := read_interval(cursor)) is not None:
        if fields != types.WHOLE_INTERVAL:
            raise cursor.refusal(
                "other fields than DAY TO SECOND are of new columns, not of what is inside of ARRAY, MAP "
                "and STRUCT"
            )
        return types.INTERVAL
    for name, type_ in _SCALAR_NAMES.items():
        if cursor.skip(name):
            if cursor.ahead("("):
                raise cursor.refusal(f"type {name} has no parameters")
            return type_
    for name in _TEXTS:
        if cursor.ahead(name, "("):
            raise cursor.refusal(
                "a column has a length, what is inside of ARRAY, MAP and STRUCT has none; use STRING there"
            )
    if cursor.skip("VARCHAR"):
        return pa.string()
    if cursor.skip("VARBINARY"):
        _parameters(cursor, "VARBINARY(length)", most=1)
        return pa.binary()
    if any(cursor.skip(name) for name in _DECIMAL_NAMES):
        return _decimal(cursor)
    return None


def _nested(cursor: Cursor) -> pa.DataType | None:
    if cursor.skip("ARRAY"):
        element = cursor.listed(lambda: read_type(cursor), opened="<", closed=">")
        if len(element) != 1:
            raise cursor.refusal("ARRAY<element> has one type")
        return pa.list_(pa.field("element", element[0]))
    if cursor.skip("MAP"):
        pair = cursor.listed(lambda: read_type(cursor), opened="<", closed=">")
        if len(pair) != 2:
            raise cursor.refusal("MAP<key, value> has two types")
        return pa.map_(pair[0], pa.field("value", pair[1]))
    if cursor.skip("ROW"):
        opened, closed = ("(", ")") if cursor.ahead("(") else ("<", ">")
        return pa.struct(cursor.listed(lambda: _field(cursor), opened=opened, closed=closed))
    if cursor.skip("STRUCT"):
        return pa.struct(cursor.listed(lambda: _field(cursor), opened="<", closed=">"))
    return None


def _parameters(cursor: Cursor, form: str, most: int) -> list[int]:
    """The numbers in parentheses after a type's name; none where there are no parentheses."""
    found = cursor.listed(lambda: cursor.number("a number")) if cursor.ahead("(") else []
    if len(found) > most:
        raise cursor.refusal(f"expected {form}, no more numbers")
    return found


def _time(cursor: Cursor) -> pa.DataType:
    is_instant = cursor.skip("TIMESTAMP_LTZ")
    if not is_instant:
        cursor.expect("TIMESTAMP")
    precision = _parameters(cursor, "TIMESTAMP(precision)", most=1)
    if precision and precision[0] > 6:
        raise cursor.refusal(
            f"a precision of {precision[0]} cannot be stored: times have microseconds; use 6"
        )
    for words, type_ in _ZONES.items():
        if not is_instant and cursor.skip(*words):
            return type_
    if cursor.ahead("WITH", "TIME", "ZONE"):
        raise cursor.refusal("a time with its own zone cannot be stored; use TIMESTAMP WITH LOCAL TIME ZONE")
    return types.TIMESTAMP_NTZ if precision and not is_instant else types.TIMESTAMP


def _time_of_day(cursor: Cursor) -> pa.DataType:
    cursor.expect("TIME")
    precision, *_ = _parameters(cursor, "TIME(precision)", most=1) or (_TIME_PRECISION,)
    if precision > types.MAX_TIME_PRECISION:
        raise cursor.refusal(f"TIME(precision) needs precision ≤ {types.MAX_TIME_PRECISION}")
    if cursor.ahead("WITH", "TIME", "ZONE") or cursor.ahead("WITH", "LOCAL", "TIME", "ZONE"):
        raise cursor.refusal("a time of day has no zone; use TIME, or TIMESTAMP WITH LOCAL TIME ZONE")
    cursor.skip("WITHOUT", "TIME", "ZONE")
    return types.time_of(precision)


def read_interval(cursor: Cursor) -> str | None:
    """Read ``INTERVAL first [TO last]`` of days and their parts; None, and nothing is read, for all else."""
    fields = [field for field in types.INTERVALS if " " not in field]
    if not (cursor.ahead("INTERVAL") and cursor.word(1).lower() in fields):
        return None
    cursor.expect("INTERVAL")
    found = [cursor.name("the first field of an interval").lower()]
    _parameters(cursor, "INTERVAL DAY(digits)", most=1)
    if cursor.skip("TO"):
        start = cursor.refusal(f"expected a field after {found[0].upper()}, of DAY, HOUR, MINUTE and SECOND")
        found.append(cursor.name("the last field of an interval").lower())
        _parameters(cursor, "INTERVAL DAY TO SECOND(digits)", most=1)
        if " to ".join(found) not in types.INTERVALS:
            raise start
    return " to ".join(found)


def _decimal(cursor: Cursor) -> pa.DataType:
    precision, *rest = _parameters(cursor, "DECIMAL(precision, scale)", most=2) or (10,)
    scale = rest[0] if rest else 0
    if not 1 <= precision <= types.MAX_DECIMAL_PRECISION or scale > precision:
        limit = types.MAX_DECIMAL_PRECISION
        raise cursor.refusal(f"DECIMAL(precision, scale) needs 1 ≤ precision ≤ {limit} and scale ≤ precision")
    return pa.decimal128(precision, scale)


def _field(cursor: Cursor) -> pa.Field:
    name = cursor.name("the name of a struct field")
    cursor.skip(":")
    type_ = read_type(cursor)
    nullable = not cursor.skip("NOT", "NULL")
    if cursor.ahead("COMMENT"):
        raise cursor.refusal("comments of struct fields are not kept; comment the column")
    return pa.field(name, type_, nullable=nullable)
