"""Metadata columns: which keys a record offers, and how a key's values become those of a column (pure).

Follows FLIP-107. A column is declared as ``name TYPE METADATA [FROM 'key'] [VIRTUAL]``; its type is an
explicit cast from the key's own type when it is read, and back to it when it is written.
Times as whole numbers are milliseconds since 1970, times without a zone are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import floor_divided
from upsert.errors import SchemaError
from upsert.schema import Column


@dataclass(frozen=True)
class MetadataKey:
    """One piece of metadata: its key, the Arrow type of its values, and who may write it."""

    key: str
    type: pa.DataType
    is_writable: bool = False


@dataclass(frozen=True)
class MetadataColumn:
    """A column of a table and the metadata that it holds."""

    column: Column
    key: MetadataKey

    def read(self, values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Values of the key as values of the column."""
        return cast(values, self.column.type, f"column {self.column.name!r}")

    def write(self, values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Values of the column as values of the key."""
        return cast(values, self.key.type, f"metadata {self.key.key!r} from column {self.column.name!r}")


def resolve(
    columns: Iterable[Column],
    offered: Mapping[str, MetadataKey],
    aliases: Mapping[str, str],
    *,
    of: str,
    writing: bool,
) -> tuple[MetadataColumn, ...]:
    """The metadata columns of a table with the keys that they hold; VIRTUAL ones only where it is read.

    Args:
        columns: the table's columns; physical ones are ignored.
        offered: all keys that the connector and its formats have.
        aliases: other spellings of keys.
        of: the table, for messages.
        writing: whether a query writes into the table.

    Raises:
        SchemaError: a key is unknown, its type cannot be cast to the column's, or it cannot be written.

    >>> offset = {"offset": MetadataKey("offset", pa.int64())}
    >>> column = Column("place", pa.int32(), metadata="offset", virtual=True)
    >>> resolve([column], offset, {}, of="table 't'", writing=False)[0].key.key
    'offset'
    """
    found = []
    for column in columns:
        if column.metadata is None or (writing and column.virtual):
            continue
        key = offered.get(aliases.get(column.metadata, column.metadata))
        if key is None:
            hint = _suggestion(column.metadata, offered)
            raise SchemaError(f"{of}: column {column.name!r}: unknown metadata key {column.metadata!r}{hint}")
        _check(column, key, of, writing)
        found.append(MetadataColumn(column, key))
    return tuple(found)


def _suggestion(key: str, offered: Mapping[str, MetadataKey]) -> str:
    name = key.split(".", 1)[-1]
    same = [known for known in offered if known.split(".", 1)[-1] == name]
    close = same or get_close_matches(key, offered, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint}; keys are {', '.join(offered) or '(none)'}"


def _check(column: Column, key: MetadataKey, of: str, writing: bool) -> None:
    own, held = types.sql_name(column.type), types.sql_name(key.type)
    if not is_castable(key.type, column.type):
        raise SchemaError(
            f"{of}: column {column.name!r} holds the metadata {key.key!r} of type {held}, which cannot be "
            f"cast to {own}; declare it as {held}"
        )
    if not writing:
        return
    if not key.is_writable:
        raise SchemaError(
            f"{of}: column {column.name!r} holds the metadata {key.key!r}, which is read-only; "
            f"declare it as METADATA FROM '{key.key}' VIRTUAL"
        )
    if not is_castable(column.type, key.type):
        raise SchemaError(
            f"{of}: column {column.name!r} of type {own} cannot be cast to the metadata {key.key!r} of type "
            f"{held}; declare it as {held}, or VIRTUAL"
        )


_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)


def is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type can be cast to another one.

    >>> is_castable(types.TIMESTAMP, pa.int64()), is_castable(pa.map_(pa.string(), pa.binary()), pa.int64())
    (True, False)
    """
    if source == target or _without_names(source) == _without_names(target):
        return True
    if source in _TIMES:
        return target in (*_TIMES, pa.int64(), pa.date32(), pa.string())
    if pa.types.is_integer(source):
        is_number = pa.types.is_integer(target) or pa.types.is_floating(target)
        return is_number or target == pa.string() or (source == pa.int64() and target in _TIMES)
    return False


def _without_names(type_: pa.DataType) -> str:
    """A nested type as text, without the names and the nullability that Arrow gives inner fields."""
    return types.sql_name(type_) if pa.types.is_nested(type_) else str(type_)


def cast(values: pa.Array | pa.ChunkedArray, target: pa.DataType, what: str) -> pa.Array | pa.ChunkedArray:
    """The values as values of another type; whole numbers and times mean milliseconds since 1970.

    Raises:
        SchemaError: a value does not fit.

    >>> cast(pa.array([1_500], types.TIMESTAMP), pa.int64(), "column 'ts'").to_pylist()
    [1]
    """
    source = values.type
    if source == target:
        return values
    try:
        if source in _TIMES and target == pa.int64():
            return floor_divided(values.cast(pa.int64()), 1000)
        if source == pa.int64() and target in _TIMES:
            return pc.multiply_checked(values, pa.scalar(1000, pa.int64())).cast(target)
        if source == types.TIMESTAMP and target == pa.string():
            return types.instant_texts(values)
        if source in _TIMES and target in _TIMES:
            return values.cast(pa.int64()).cast(target)
        return values.cast(target)
    except pa.ArrowInvalid as cause:
        raise SchemaError(f"{what} must fit {types.sql_name(target)}: {cause}") from cause
