"""``where`` as text, for options (pure): JSON in the form of ``upsert.store.filters``.

What JSON has no values for is written as text that the column's type reads: days, times, decimals, and
binaries as hexadecimal digits.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upsert import types
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store.filters import Where
from upsert.store.partitions import partition_values


def where_to_json(where: Where) -> str:
    """The text of a ``where``.

    >>> where_to_json([("day", "=", date(2013, 1, 1)), ("n", "in", [1, 2])])
    '[["day", "=", "2013-01-01"], ["n", "in", [1, 2]]]'
    """
    return json.dumps(where, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return list(value)
    raise SchemaError(f"where: a value must be a number, text, day, time or bytes, got {value!r}")


def where_from_json(text: str, schema: TableSchema) -> Where:
    """The ``where`` that a text says, its values of the columns' types; ``parse_where`` checks the rest.

    Raises:
        SchemaError: the text is no JSON list, a column is unknown, or a value does not read as its type.

    >>> schema = TableSchema.of({"day": pa.date32(), "n": pa.int32()})
    >>> where_from_json('[["day", "=", "2013-01-01"], ["n", ">", 1]]', schema)
    [('day', '=', datetime.date(2013, 1, 1)), ('n', '>', 1)]
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise SchemaError(f"where: must be JSON, got {text!r}: {cause}") from cause
    if not isinstance(value, list):
        raise SchemaError(f"where: must be a JSON list, got {text!r}")
    return [_typed(part, schema) for part in value]


def _typed(part: Any, schema: TableSchema) -> Any:
    """A predicate, or a list of them, with values of the columns' types; anything else as it is."""
    if not isinstance(part, list) or not part:
        return part
    if not isinstance(part[0], str):
        return [_typed(each, schema) for each in part]
    if len(part) != 3:
        return part
    column, operator, value = part
    type_ = schema.type_of(column, "where")
    if isinstance(value, list):
        return column, operator, [_value(column, type_, each) for each in value]
    return column, operator, _value(column, type_, value)


def _value(column: str, type_: pa.DataType, value: Any) -> Any:
    if not isinstance(value, str) or pa.types.is_string(type_) or not types.is_scalar(type_):
        return value
    try:
        return partition_values([value], type_)[0].as_py()
    except (pa.ArrowException, ValueError) as cause:
        raise SchemaError(
            f"where: column {column!r} must be compared with a value of {types.sql_name(type_)}, got "
            f"{value!r}"
        ) from cause
