"""Apache Parquet: row groups of a few megabytes, of which only the wanted columns are read (pure).

pyarrow keeps the Arrow schema in the file, so types and field ids come back as they were. The footer's
statistics say which row groups a scan can skip. ``pyarrow.parquet`` is imported where it is used: it loads
Arrow's clients of object stores, and most processes meet no such file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.store.checksums import ChecksummedFile
from upsert.store.files.formats.base import (
    Bounds,
    Compression,
    batch_of,
    part_starts,
    refuse_empty_struct,
    schema_of,
)

_SCHEMA: Final = b"ARROW:schema"
_SECONDS: Final = pa.time32("s")
"""Parquet has no such times of day: they are milliseconds there."""


class ParquetFormat:
    """Files that every engine reads."""

    name = "parquet"
    suffix = ".parquet"
    codecs: tuple[str, ...] = ("zstd", "snappy", "lz4", "gzip", "none")
    has_levels = True

    def refusal(self, field: pa.Field) -> str | None:
        """Structs without fields."""
        return refuse_empty_struct(field, "Parquet")

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows, a row group a part."""
        from pyarrow import parquet

        columns = [_without_null_in_null(column) for column in rows.columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
        with parquet.ParquetWriter(
            out, rows.schema, compression=compression.codec, compression_level=compression.level
        ) as writer:
            for start, stop in pairwise(part_starts(rows)):
                writer.write_batch(rows.slice(start, stop - start))

    def open(self, content: pa.Buffer) -> ParquetRows:
        """The rows of a file; only its footer is read."""
        return ParquetRows(content)


class ParquetRows:
    """Row groups that are decoded on their own, column by column."""

    is_mapped = False

    def __init__(self, content: pa.Buffer) -> None:
        from pyarrow import parquet

        footer = parquet.read_metadata(pa.BufferReader(content))
        groups = (footer.row_group(number).num_rows for number in range(footer.num_row_groups))
        self.rows = int(footer.num_rows)
        self.starts = tuple(accumulate(groups, initial=0))
        columns = footer.schema.to_arrow_schema().names
        self.schema: pa.Schema = schema_of((footer.metadata or {}).get(_SCHEMA), columns)
        self._content = content
        self._footer = footer

    @cached_property
    def _scalars(self) -> dict[str, int]:
        """Where the footer keeps the statistics of each column of single values.

        A column ``a.b`` beside a column ``a`` with a field ``b`` is left out: to Parquet they have one name.
        """
        paths = [self._footer.schema.column(number).path for number in range(self._footer.num_columns)]
        often = Counter(paths)
        numbers = {path: number for number, path in enumerate(paths) if often[path] == 1}
        return {f.name: numbers[f.name] for f in self.schema if f.name in numbers and types.is_scalar(f.type)}

    def bounds(self, name: str) -> Bounds | None:
        """The statistics of the row groups; None for a column of arrays, maps or structs."""
        if (column := self._scalars.get(name)) is None:
            return None
        type_ = self.schema.field(name).type
        groups = range(self._footer.num_row_groups)
        found = [self._footer.row_group(number).column(column).statistics for number in groups]
        low, high = ([_bound(each, which, type_) for each in found] for which in ("min", "max"))
        return _array(low, type_), _array(high, type_)

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one row group."""
        from pyarrow import parquet

        file = parquet.ParquetFile(pa.BufferReader(self._content), metadata=self._footer)
        # to Parquet ``a.b`` is a column of this name as well as the field of a struct: there may be more
        found = file.read_row_group(part, columns=list(names), use_threads=False)
        for number, name in enumerate(found.column_names):
            type_ = self.schema.field(name).type
            if _SECONDS in types.within(type_):
                found = found.set_column(number, name, found.column(name).cast(type_))
        return batch_of(self.schema, found, names, found.num_rows)


def _without_null_in_null(array: pa.Array) -> pa.Array:
    """The array with any value for each NULL in a NOT NULL field, of which the struct is NULL: none reads it.

    Parquet's writer looks at the field alone, and refuses it. Spark's rows have such NULLs.
    """
    type_ = array.type
    if not any(_has_required(inner) for inner in types.within(type_)):
        return array
    if pa.types.is_struct(type_):
        fields = [_without_null_in_null(array.field(number)) for number in range(type_.num_fields)]
        fields = [
            one if field.nullable or not one.null_count else _valid(one)
            for field, one in zip(type_, fields, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=mask)
    return _with_parts(array, [_without_null_in_null(part) for part in _parts(array)], array.buffers()[0])


def _has_required(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_)) and any(not field.nullable for field in type_)


def _valid(array: pa.Array) -> pa.Array:
    """The array with some value where it is NULL."""
    if pa.types.is_struct(array.type):
        fields = [array.field(number) for number in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(array.type))
    if array.type.num_fields:
        return _with_parts(array, _parts(array), None)
    buffers = [None, *array.buffers()[1:]]
    return pa.Array.from_buffers(array.type, len(array), buffers, 0, array.offset)


def _parts(array: pa.Array) -> list[pa.Array]:
    """The values of arrays or the keys and values of maps, all that lie in the memory."""
    return [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]


def _with_parts(array: pa.Array, parts: list[pa.Array], validity: pa.Buffer | None) -> pa.Array:
    type_ = array.type
    if pa.types.is_map(type_):
        parts = [pa.StructArray.from_arrays(parts, fields=[type_.key_field, type_.item_field])]
    buffers = [validity, array.buffers()[1]]
    return pa.Array.from_buffers(type_, len(array), buffers, -1, array.offset, children=parts)


def _bound(statistics: Any, which: str, type_: pa.DataType) -> Any:
    """The smallest or largest value of a column in a row group; None if that is unknown.

    Writers may cut a text, so that it is a bound and no value; NaN does not count.
    """
    if statistics is None or not statistics.has_min_max:
        return None
    if pa.types.is_decimal128(type_):
        return getattr(statistics, which)
    # Python's times end in the year 9999, the numbers that Parquet keeps do not
    raw = getattr(statistics, f"{which}_raw")
    if type_ != pa.string():
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # cut within a letter


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if type_ == _SECONDS:
        return pa.array(values, pa.int32()).cast(pa.time32("ms")).cast(type_)
    if pa.types.is_time(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, pa.int32()).cast(type_) if type_ == pa.date32() else pa.array(values, type_)
