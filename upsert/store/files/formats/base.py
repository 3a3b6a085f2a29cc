"""What a file format is, and what formats share (pure): rows to bytes, and bytes to rows, part by part.

Types that a format lacks are kept as another type of the same layout in memory, or refused. Formats that lack
types or field ids keep the Arrow schema as text beside the rows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from upsert import types
from upsert.arrays import one_array
from upsert.store.checksums import ChecksummedFile

Bounds = tuple[pa.Array, pa.Array]
"""Of each part of a file, a value that is no larger than any of a column, and one that is no smaller.

NULL where that is not known; NULL and NaN in the column do not count.
"""


@dataclass(frozen=True)
class Compression:
    """The codec of a file's content, or ``none``; and how hard it tries, None for the library's default.

    ``plain`` are columns that stay as they are where others get narrower: they are searched.
    """

    codec: str = "none"
    level: int | None = None
    plain: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileForm:
    """How a table's new files are written: the name of a format, and how it compresses."""

    format: str = "arrow"
    compression: Compression = field(default_factory=Compression)


class StoredRows(Protocol):
    """The rows of one open file, in parts that can be decoded apart: batches, row groups, stripes, blocks.

    What reads raises ``OSError`` or ``ValueError``, of which ``pa.ArrowInvalid`` is one, for damaged content.
    ``schema`` is that which was written, with the metadata of its fields. Reading what ``is_mapped`` gives
    views of the content: it costs nothing, however often it is done.
    """

    schema: pa.Schema
    rows: int
    is_mapped: bool

    @property
    def starts(self) -> tuple[int, ...]:
        """Number of the first row of each part, and after these the number of rows."""

    def bounds(self, name: str) -> Bounds | None:
        """What the file says about the values of a column in each of its parts; None if it says nothing."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns, in this order, of one part."""


class FileFormat(Protocol):
    """One way to keep rows in a file, called ``name`` by the option ``file.format``.

    The first of ``codecs`` is the default of ``file.compression``; ``has_levels`` says whether the format can
    be told how hard zstd tries.
    """

    name: str
    suffix: str
    codecs: tuple[str, ...]
    has_levels: bool

    def refusal(self, field: pa.Field) -> str | None:
        """Why a column cannot be stored exactly, and what to do instead; None if it can."""

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write rows, at least one, as a whole file."""

    def open(self, content: pa.Buffer) -> StoredRows:
        """The rows of a whole file, which may be a memory map; errors as of ``StoredRows``."""


def retyped(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same memory under another type, which must lay it out alike; neither is checked against the other.

    Unlike a cast it takes nested types, with whatever names and NOT NULL their fields have.

    >>> retyped(pa.array([[1], None]), pa.list_(pa.timestamp("us"))).type
    ListType(list<item: timestamp[us]>)
    """
    if array.type.equals(type_, check_metadata=True):
        return array
    return pa.array(_Typed(array, type_))


class _Typed:
    """An array under another type, handed over by Arrow's own protocol."""

    def __init__(self, array: pa.Array, type_: pa.DataType) -> None:
        self._array = array
        self._type = type_

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._type.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def replaced(
    type_: pa.DataType, plain: Mapping[pa.DataType, pa.DataType], *, map_to_list: bool = False
) -> pa.DataType:
    """A type with some scalar types within it replaced by others, and maps by lists of entries if asked."""
    if type_ in plain:
        return plain[type_]

    changed = types.with_inner(type_, lambda inner: replaced(inner, plain, map_to_list=map_to_list))
    if map_to_list and pa.types.is_map(changed):
        entry = pa.struct([changed.key_field, changed.item_field])
        return pa.list_(pa.field("entries", entry, nullable=False))
    return changed


def field_names(type_: pa.DataType) -> list[str]:
    """Names of the fields of all structs within a type."""
    return [f.name for inner in types.within(type_) if pa.types.is_struct(inner) for f in inner]


PART_BYTES: Final = 4 << 20
"""In memory. A lookup decodes the parts that its rows lie in; a merge holds a few of each file."""

_LEAST_ROWS: Final = 1024


def part_starts(rows: pa.RecordBatch) -> tuple[int, ...]:
    """Number of the first row of each part, and after these the number of rows.

    >>> part_starts(pa.record_batch({"a": range(1_000_000)}))
    (0, 524288, 1000000)
    """
    a_part = max(_LEAST_ROWS, int(PART_BYTES * rows.num_rows / max(1, rows.nbytes)))
    return (*range(0, rows.num_rows, a_part), rows.num_rows)


def without_columns(rows: int) -> pa.RecordBatch:
    """So many rows without a column."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def batch_of(
    schema: pa.Schema, found: pa.Table | pa.RecordBatch, names: Sequence[str], rows: int
) -> pa.RecordBatch:
    """Some decoded columns, one batch under the types that were written."""
    if not names:
        return without_columns(rows)
    fields = [schema.field(name) for name in names]
    arrays = [retyped(one_array(found.column(field.name)), field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def schema_text(schema: pa.Schema) -> bytes:
    """The schema of some rows as base64, the way Arrow itself keeps it in Parquet."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def schema_of(text: bytes | None, columns: Sequence[str]) -> pa.Schema:
    """The schema of such a text, which must have these columns."""
    if text is None:
        raise ValueError("it has no Arrow schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError) as cause:
        raise ValueError(f"its Arrow schema is damaged, {cause}") from cause
    if schema.names != list(columns):
        raise ValueError(f"its columns are {', '.join(columns)}, its schema says {', '.join(schema.names)}")
    return schema.remove_metadata()


def refuse_empty_struct(field: pa.Field, format_name: str) -> str | None:
    """A struct without fields: no columnar file but Arrow's can hold one."""
    if any(pa.types.is_struct(t) and not t.num_fields for t in types.within(field.type)):
        return refusal(field, f"{format_name} has no struct without fields", "give it a field")
    return None


def refuse_nested_struct(field: pa.Field, format_name: str) -> str | None:
    """A struct anywhere within another one: the writer of Arrow 26 moves its values to other rows."""
    for outer in types.within(field.type):
        if pa.types.is_struct(outer) and any(
            pa.types.is_struct(inner) for below in outer for inner in types.within(below.type)
        ):
            reason = f"Arrow's writer of {format_name} mixes up a struct within a struct, if one is NULL"
            return refusal(field, reason, "make its fields columns")
    return None


MAX_LEVELS: Final = 64
"""Levels of a type that Arrow's writers and readers go down; a map takes two."""

_PARQUET_LEVELS: Final = 98
"""Levels of a column that Arrow's reader of Parquet goes down, where an array takes two as well."""


def refuse_depth(field: pa.Field, format_name: str) -> str | None:
    """A type that is nested so deeply that what is written in it cannot be read back."""
    levels, limit = _levels(field.type, of_list=1) + 1, MAX_LEVELS
    if format_name == "parquet" and levels <= limit:
        levels, limit = _levels(field.type, of_list=2), _PARQUET_LEVELS
    if levels <= limit:
        return None
    return (
        f"column {field.name!r}: its type must be nested at most {limit} levels deep, where a MAP takes two"
        f"{' and an ARRAY too' if limit == _PARQUET_LEVELS else ''}, got {levels}; make its parts columns, "
        "or store it as text"
    )


def _levels(type_: pa.DataType, of_list: int) -> int:
    if pa.types.is_list(type_):
        return of_list + _levels(type_.value_type, of_list)
    if pa.types.is_map(type_):
        return 2 + max(_levels(type_.key_type, of_list), _levels(type_.item_type, of_list))
    if pa.types.is_struct(type_):
        return 1 + max((_levels(inner.type, of_list) for inner in type_), default=0)
    return 0


def refusal(field: pa.Field, reason: str, remedy: str) -> str:
    """The column, its type, the reason and the remedy as one sentence."""
    return f"column {field.name!r} of type {types.sql_name(field.type)}: {reason}; {remedy}, or use arrow"
