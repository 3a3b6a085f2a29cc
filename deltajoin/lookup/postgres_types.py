"""The statement that looks keys up in PostgreSQL, and its values as columns (pure).

Only types whose values and whose equality are the same on both sides are taken. Times come from the driver as
the integers that PostgreSQL sends, counted from 2000-01-01, so that no value loses anything on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltajoin.errors import LookupFailedError
from upsert import types
from upsert.arrays import Mask
from upsert.errors import SchemaError
from upsert.postgres.types import pg_types, qualified, quoted

_DAYS: Final = 10_957
_MICROS: Final = _DAYS * 86_400_000_000
_INFINITE_DAYS: Final = (-(2**31), 2**31 - 1)
_INFINITE_MICROS: Final = (-(2**63), 2**63 - 1)


def check_column_types(schema: pa.Schema) -> None:
    """Refuse columns that PostgreSQL has no equal type for."""
    for field in schema:
        if not pg_types(field.type):
            raise SchemaError(
                f"PostgresLookup: column {field.name!r} must have a scalar type, got "
                f"{types.sql_name(field.type)}; leave it out, or let a view split it into columns"
            )


def lookup_statement(table: Sequence[str], schema: pa.Schema, keys: Sequence[str]) -> str:
    """The statement whose parameters are one array for each key column.

    Its rows are the number of a key, from 1, and the columns of the schema.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> print(lookup_statement(("public", "users"), schema, ["id"]))
    SELECT k.n, t."id", t."name" FROM unnest($1::int8[]) WITH ORDINALITY AS k(k0, n)
    JOIN "public"."users" AS t ON t."id" = k.k0
    """
    columns = ", ".join(f"t.{quoted(name)}" for name in schema.names)
    arrays = ", ".join(f"${at + 1}::{pg_types(schema.field(key).type)[0]}[]" for at, key in enumerate(keys))
    aliases = ", ".join(f"k{at}" for at in range(len(keys)))
    equal = " AND ".join(f"t.{quoted(key)} = k.k{at}" for at, key in enumerate(keys))
    return (
        f"SELECT k.n, {columns} FROM unnest({arrays}) WITH ORDINALITY AS k({aliases}, n)\n"
        f"JOIN {qualified(table)} AS t ON {equal}"
    )


_SINCE_4714_BC: Final = pa.int64(), -210_866_803_200_000_000, 2**63 - 1
_RANGES: Final = {
    pa.date32(): (pa.int32(), -2_440_588, 2_145_042_905),
    types.TIMESTAMP: _SINCE_4714_BC,
    types.TIMESTAMP_NTZ: _SINCE_4714_BC,
}
"""Days and microseconds since 1970 that PostgreSQL has: their type, the first and the last one."""


def are_possible(column: pa.Array) -> Mask:
    """Which keys can be there: no text of PostgreSQL has the character NUL, and no time is before 4714 BC.

    >>> are_possible(pa.array([-(2**31), 0]).cast(pa.int32()).cast(pa.date32())).tolist()
    [False, True]
    """
    found: Mask = np.ones(len(column), np.bool_)
    if pa.types.is_string(column.type):
        found = ~pc.match_substring(column, "\0").to_numpy(zero_copy_only=False)
    elif column.type in _RANGES:
        numbers, first, last = _RANGES[column.type]
        values = column.cast(numbers).to_numpy()
        found = (values >= first) & (values <= last)
    return found


def to_parameter(column: pa.Array) -> list[Any]:
    """Keys of one column as the driver takes them."""
    type_ = column.type
    if type_ == pa.date32():
        return [days - _DAYS for days in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(type_):
        return [micros - _MICROS for micros in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def from_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """A column of what the driver gave, whose values must have an equal in the column's type.

    >>> from_values([0, None], pa.field("d", pa.date32())).to_pylist()
    [datetime.date(2000, 1, 1), None]
    """
    type_ = field.type
    try:
        if type_ == pa.date32():
            return pa.array(_shifted(values, _DAYS, _INFINITE_DAYS), pa.int32()).cast(type_)
        if pa.types.is_timestamp(type_):
            return pa.array(_shifted(values, _MICROS, _INFINITE_MICROS), pa.int64()).cast(type_)
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as cause:
        raise LookupFailedError(
            f"PostgresLookup: column {field.name!r}: values must fit into {types.sql_name(type_)} ({cause}); "
            "declare a wider type, or let a view convert them"
        ) from cause


def _shifted(values: Sequence[int | None], by: int, infinite: tuple[int, int]) -> list[int | None]:
    if any(end in values for end in infinite):
        raise pa.ArrowInvalid("one is infinite")
    return [None if value is None else value + by for value in values]
