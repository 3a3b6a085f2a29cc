"""Apache Parquet: row groups of a few megabytes, of which only the wanted columns are read (pure).

pyarrow keeps the Arrow schema in the file, so types and field ids come back as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from upsert.store.file_formats.base import Bounds, Compression, Output
from upsert.store.file_formats.parquet_bounds import group_bounds, scalar_columns
from upsert.store.file_formats.parts import batch_of, part_starts
from upsert.store.file_formats.refusals import refuse_empty_struct, refuse_negative_scale
from upsert.store.file_formats.schema_text import schema_of

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

    def write(self, out: Output, rows: pa.RecordBatch, compression: Compression) -> None:
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
