"""Names of Spark SQL's column types, and the Arrow types that store them (pure).

``TIMESTAMP`` is an instant, whatever the session's ``spark.sql.timestampType``; ``TIMESTAMP_NTZ`` is a
wall-clock time. ``CHAR(n)`` and ``VARCHAR(n)`` are refused: nothing here would check or pad their lengths.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from upsert import types
from upsert.catalog.tokens import Cursor

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
    "DATE": pa.date32(),
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMP_LTZ": types.TIMESTAMP,
    "TIMESTAMP_NTZ": types.TIMESTAMP_NTZ,
}
"""Every scalar type that has no parameters: its names in Spark SQL -> its Arrow type."""

_DECIMAL_NAMES: Final = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_REMEDIES: Final = {
    "CHAR": "lengths are not checked here; use STRING",
    "CHARACTER": "lengths are not checked here; use STRING",
    "VARCHAR": "lengths are not checked here; use STRING",
    "TEXT": "use STRING",
    "BYTES": "use BINARY",
    "VARBINARY": "use BINARY",
    "DATETIME": "use TIMESTAMP_NTZ",
    "ROW": "use STRUCT",
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
    for name, type_ in SCALAR_NAMES.items():
        if cursor.skip(name):
            if cursor.ahead("("):
                raise cursor.refusal(f"type {name} has no parameters in Spark")
            return type_
    if any(cursor.skip(name) for name in _DECIMAL_NAMES):
        return _decimal(cursor)
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
    if cursor.skip("STRUCT"):
        return pa.struct(cursor.listed(lambda: _field(cursor), opened="<", closed=">"))
    for name, remedy in _REMEDIES.items():
        if cursor.ahead(name):
            raise cursor.refusal(f"expected a type that tables can hold ({remedy})")
    known = ", ".join((*SCALAR_NAMES, "DECIMAL(p,s)", "ARRAY<…>", "MAP<…>", "STRUCT<…>"))
    raise cursor.refusal(f"expected a column type, one of {known}")


def _decimal(cursor: Cursor) -> pa.DataType:
    precision, *rest = cursor.listed(lambda: cursor.number("a number")) if cursor.ahead("(") else (10,)
    scale, *surplus = rest or (0,)
    if surplus or not 1 <= precision <= types.MAX_DECIMAL_PRECISION or scale > precision:
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
