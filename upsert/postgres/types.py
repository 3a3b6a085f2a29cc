"""Which types of PostgreSQL are which of ours, and names in its SQL (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from upsert import types

_READABLE: Final[dict[pa.DataType, tuple[str, ...]]] = {
    pa.bool_(): ("bool",),
    pa.int8(): ("int2",),
    pa.int16(): ("int2",),
    pa.int32(): ("int4", "int2"),
    pa.int64(): ("int8", "int4", "int2"),
    pa.float32(): ("float4",),
    pa.float64(): ("float8", "float4"),
    pa.string(): ("text", "varchar"),
    pa.binary(): ("bytea",),
    pa.date32(): ("date",),
    types.TIMESTAMP: ("timestamptz",),
    types.TIMESTAMP_NTZ: ("timestamp",),
}
"""Arrow type -> types of PostgreSQL that it can be read from; the first is the one that is its equal."""

_WRITABLE: Final[dict[pa.DataType, tuple[str, ...]]] = {
    pa.int8(): ("int4", "int8", "numeric"),
    pa.int16(): ("int4", "int8", "numeric"),
    pa.int32(): ("int8", "numeric"),
    pa.int64(): ("numeric",),
    pa.float32(): ("float8",),
    pa.string(): ("bpchar", "citext", "uuid", "json", "jsonb", "xml", "inet", "cidr"),
}
"""Arrow type -> types beside its equal that hold every value of it, or that refuse what is none of theirs."""


def pg_types(type_: pa.DataType) -> tuple[str, ...]:
    """Types of PostgreSQL that a column of this type can be read from; none for types that it has not.

    >>> pg_types(pa.int32()), pg_types(pa.decimal128(10, 2))
    (('int4', 'int2'), ('numeric',))
    """
    return ("numeric",) if pa.types.is_decimal128(type_) else _READABLE.get(type_, ())


def sink_types(type_: pa.DataType) -> tuple[str, ...]:
    """Types of PostgreSQL that a column of this type can be written into, the best first; none for others.

    >>> sink_types(pa.int32()), sink_types(pa.list_(pa.int32()))
    (('int4', 'int8', 'numeric'), ())
    """
    equal = ("text", "varchar") if type_ == pa.string() else pg_types(type_)[:1]
    return (*equal, *_WRITABLE.get(type_, ())) if equal else ()


def quoted(name: str) -> str:
    """A name as an identifier of SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def qualified(parts: Sequence[str]) -> str:
    """The name of a table, with or without its schema, as SQL has it.

    >>> qualified(["public", "users"])
    '"public"."users"'
    """
    return ".".join(map(quoted, parts))
