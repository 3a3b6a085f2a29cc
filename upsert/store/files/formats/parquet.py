"""Apache Parquet: row groups of a few megabytes, of which only the wanted columns are read (pure).

pyarrow keeps the Arrow schema in the file, so types and field ids come back as they were. The footer's
statistics say which row groups a scan can skip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from upsert import types
from upsert.store.checksums import ChecksummedFile
from upsert.store.files.formats.base import (
    Bounds,
    Compression,
    batch_of,
    part_starts,
    refuse_empty_struct,
    refuse_negative_scale,
    schema_of,
)


def scalar_columns(footer: Any, schema: pa.Schema) -> dict[str, int]:
    """Where the footer keeps the statistics of each column of single values.

    A column ``a.b`` beside a column ``a`` with a field ``b`` is left out: to Parquet they have one name.
    """
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    often = Counter(paths)
    numbers = {path: number for number, path in enumerate(paths) if often[path] == 1}
    return {f.name: numbers[f.name] for f in schema if f.name in numbers and types.is_scalar(f.type)}


def group_bounds(footer: Any, column: int, type_: pa.DataType) -> Bounds:
    """Smallest and largest value of a column in each row group.

    Writers may cut a text, so that it is a bound and no value; NaN does not count; an unknown bound is NULL.
    """
    low, high = [], []
    value_of = _reader(type_)
    for group in range(footer.num_row_groups):
        found = footer.row_group(group).column(column).statistics
        is_known = found is not None and found.has_min_max
        low.append(value_of(found, "min") if is_known else None)
        high.append(value_of(found, "max") if is_known else None)
    return _array(low, type_), _array(high, type_)


def _reader(type_: pa.DataType) -> Callable[[Any, str], Any]:
    if pa.types.is_decimal128(type_):
        return getattr
    # Python's times end in the year 9999, the numbers that Parquet keeps do not
    raw: Callable[[Any, str], Any] = lambda found, which: getattr(found, f"{which}_raw")  # noqa: E731
    if type_ == pa.string():
        return lambda found, which: _text(raw(found, which))
    return raw


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None  # cut within a letter


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.int64()).cast(type_)
    return pa.array(values, pa.int32()).cast(type_) if type_ == pa.date32() else pa.array(values, type_)


_SCHEMA: Final = b"ARROW:schema"


class ParquetFormat:
    """Files that every engine reads."""

    name = "parquet"
    suffix = ".parquet"
    codecs: tuple[str, ...] = ("zstd", "snappy", "lz4", "gzip", "none")
    has_levels = True

    def refusal(self, field: pa.Field) -> str | None:
        """Structs without fields and decimals with a negative scale."""
        return refuse_empty_struct(field, "Parquet") or refuse_negative_scale(field, "Parquet")

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows, a row group a part."""
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
        return scalar_columns(self._footer, self.schema)

    def bounds(self, name: str) -> Bounds | None:
        """The statistics of the row groups; None for a column of arrays, maps or structs."""
        column = self._scalars.get(name)
        return None if column is None else group_bounds(self._footer, column, self.schema.field(name).type)

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one row group."""
        file = parquet.ParquetFile(pa.BufferReader(self._content), metadata=self._footer)
        # to Parquet ``a.b`` is a column of this name as well as the field of a struct: there may be more
        found = file.read_row_group(part, columns=list(names), use_threads=False)
        return batch_of(self.schema, found, names, found.num_rows)
