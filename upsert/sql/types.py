"""Names of column types as Spark SQL and Flink SQL write them, and the Arrow types that store them (pure).

A bare ``TIMESTAMP`` is Spark's: an instant, whatever the session's ``spark.sql.timestampType``. A spelling
that only Flink has means what it means there: ``TIMESTAMP(p)`` and ``TIMESTAMP[(p)] WITHOUT TIME ZONE`` are
wall-clock times (``TIMESTAMP_NTZ``), ``TIMESTAMP_LTZ(p)`` and ``TIMESTAMP[(p)] WITH LOCAL TIME ZONE`` are
instants. Every time is stored in microseconds: ``p`` may be 0 to 6, and values are not cut to it.

``VARCHAR(n)`` and ``VARBINARY(n)`` are ``STRING`` and ``BINARY``: as in Flink by default, lengths are not
enforced. ``CHAR(n)`` is refused, for nothing here would pad its values.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from upsert import types
from upsert.sql.tokens import Cursor

SCALAR_NAMES: Final[dict[str, pa.DataType]] = {
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
}
"""Every scalar type that needs no parameters: its names -> its Arrow type."""

_DECIMAL_NAMES: Final = ("DECIMAL", "DEC", "NUMERIC")
_SIZED: Final = {"VARCHAR": pa.string(), "VARBINARY": pa.binary()}

_ZONES: Final = {
    ("WITH", "LOCAL", "TIME", "ZONE"): types.TIMESTAMP,
    ("WITHOUT", "TIME", "ZONE"): types.TIMESTAMP_NTZ,
}

_MAX_TIME_PRECISION: Final = 6

_REMEDIES: Final = {
    "CHAR": "lengths are not checked here; use STRING",
    "CHARACTER": "lengths are not checked here; use STRING",
    "TEXT": "use STRING",
    "DATETIME": "use TIMESTAMP_NTZ",
    "MULTISET": "use MAP<element, INT>",
    "INTERVAL": "use a number of a stated unit",
    "TIME": "use a number of a stated unit",
}


def read_type(cursor: Cursor) -> pa.DataType:
    """Read a column type.

    Raises:
        SchemaError: there is none, or it is one that tables cannot hold.

    >>> read_type(Cursor("ARRAY<DECIMAL(10, 2)>"))
    ListType(list<element: decimal128(10, 2)>)
    """
    if type_ := _scalar(cursor) or _nested(cursor):
        return type_
    for name, remedy in _REMEDIES.items():
        if cursor.ahead(name):
            raise cursor.refusal(f"expected a type that tables can hold ({remedy})")
    nested = ("DECIMAL(p,s)", "VARCHAR(n)", "ARRAY<…>", "MAP<…>", "STRUCT<…>", "ROW<…>")
    raise cursor.refusal(f"expected a column type, one of {', '.join((*SCALAR_NAMES, *nested))}")


def _scalar(cursor: Cursor) -> pa.DataType | None:
    if cursor.ahead("TIMESTAMP") or cursor.ahead("TIMESTAMP_LTZ"):
        return _time(cursor)
    for name, type_ in SCALAR_NAMES.items():
        if cursor.skip(name):
            if cursor.ahead("("):
                raise cursor.refusal(f"type {name} has no parameters")
            return type_
    for name, type_ in _SIZED.items():
        if cursor.skip(name):
            _parameters(cursor, f"{name}(length)", most=1)
            return type_
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
    """``TIMESTAMP`` in all its spellings."""
    is_instant = cursor.skip("TIMESTAMP_LTZ")
    if not is_instant:
        cursor.expect("TIMESTAMP")
    precision = _parameters(cursor, "TIMESTAMP(precision)", most=1)
    if precision and precision[0] > _MAX_TIME_PRECISION:
        raise cursor.refusal(
            f"a precision of {precision[0]} cannot be stored: times have microseconds; use 6"
        )
    for words, type_ in _ZONES.items():
        if not is_instant and cursor.skip(*words):
            return type_
    if cursor.ahead("WITH", "TIME", "ZONE"):
        raise cursor.refusal("a time with its own zone cannot be stored; use TIMESTAMP WITH LOCAL TIME ZONE")
    return types.TIMESTAMP_NTZ if precision and not is_instant else types.TIMESTAMP


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
