"""Arrow IPC: uncompressed as one batch that readers map, or compressed batch by batch (pure).

What is mapped is never decoded, which is what makes lookups fast, see docs/decisions/0002.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.store.checksums import ChecksummedFile
from upsert.store.files.formats.base import Compression, part_starts
from upsert.store.files.formats.narrow import NOTES, NarrowRows, narrowed

_OFFSETS: Final[dict[pa.DataType, np.dtype[Any]]] = {
    pa.string(): np.dtype("<i4"),
    pa.binary(): np.dtype("<i4"),
    pa.large_string(): np.dtype("<i8"),
    pa.large_binary(): np.dtype("<i8"),
}


def has_offsets(type_: pa.DataType) -> bool:
    """Whether values of a type, or values within them, differ in length."""
    return type_ in _OFFSETS or pa.types.is_nested(type_) or pa.types.is_dictionary(type_)


Some = npt.NDArray[np.integer[Any]] | slice
"""Some rows of a column, as numpy takes them."""

EVERY: Final = slice(None)
"""All rows of a column."""


def check_offsets(column: pa.Array, rows: Some = EVERY) -> None:
    """Refuse offsets of some rows that do not ascend, or that lead out of the column's bytes: `ValueError`.

    A nested column is looked at as a whole, its text too.
    """
    if (dtype := _OFFSETS.get(column.type)) is None:
        column.validate(full=True)
        return
    _, offsets, content = column.buffers()
    if not len(column) or offsets is None:
        return
    bounds = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * dtype.itemsize)
    starts, stops = bounds[:-1][rows], bounds[1:][rows]
    size = 0 if content is None else content.size
    wrong = (starts < 0) | (starts > stops) | (stops > size)
    if wrong.any():
        at = int(np.argmax(wrong))
        row = np.arange(len(column))[rows][at]
        raise ValueError(f"row {row} lies in bytes {starts[at]} to {stops[at]} of {size}")


_PARTS: Final = b"part_starts"
"""Metadata of the schema of a compressed file: only a file without it is one batch that can be mapped."""


class ArrowFormat:
    """Files that are Arrow's own layout of memory."""

    name = "arrow"
    suffix = ".arrow"
    codecs: tuple[str, ...] = ("narrow", "none", "lz4", "zstd")
    has_levels = True

    def refusal(self, field: pa.Field) -> str | None:  # noqa: ARG002
        """None: it has every type."""
        return None

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows as one batch, or as compressed ones of a bounded size."""
        if compression.codec in ("narrow", "none"):
            if compression.codec == "narrow":
                rows = narrowed(rows, compression.plain)
            with pa.ipc.new_file(out, rows.schema) as writer:
                writer.write_batch(rows)
            return
        codec = pa.Codec(compression.codec, compression.level)
        starts = part_starts(rows)
        schema = rows.schema.with_metadata({_PARTS: ",".join(map(str, starts))})
        with pa.ipc.new_file(out, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            for start, stop in pairwise(starts):
                part = rows.slice(start, stop - start)
                writer.write_batch(pa.RecordBatch.from_arrays(part.columns, schema=schema))

    def open(self, content: pa.Buffer) -> MappedRows | NarrowRows | CompressedBatches:
        """The rows of a file of either kind."""
        reader = pa.ipc.open_file(content)
        if _PARTS in (reader.schema.metadata or {}):
            return CompressedBatches(content, reader)
        if reader.num_record_batches != 1:
            raise ValueError(f"it has {reader.num_record_batches} record batches instead of one")
        rows = reader.get_batch(0)
        return NarrowRows(rows) if NOTES in (rows.schema.metadata or {}) else MappedRows(rows)


class MappedRows:
    """Rows that are views of a file's content, or of any other memory."""

    is_mapped = True

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.schema: pa.Schema = rows.schema
        self.rows = int(rows.num_rows)
        self.starts = (0, self.rows)
        self._batch = rows

    def bounds(self, name: str) -> None:
        """Nothing is known of the values in a part."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:  # noqa: ARG002 - there is one
        """Some columns; no copy."""
        return self._batch.select(names)


class CompressedBatches:
    """Record batches of which only the wanted columns are decompressed."""

    is_mapped = False

    def __init__(self, content: pa.Buffer, reader: pa.RecordBatchFileReader) -> None:
        self.schema: pa.Schema = reader.schema.remove_metadata()
        self.starts = tuple(map(int, reader.schema.metadata[_PARTS].split(b",")))
        if len(self.starts) != reader.num_record_batches + 1:
            raise ValueError(f"it has {reader.num_record_batches} record batches, not {len(self.starts) - 1}")
        self.rows = self.starts[-1]
        self._content = content

    def bounds(self, name: str) -> None:
        """Nothing is known of the values in a part."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one batch."""
        fields = sorted(self.schema.get_field_index(name) for name in names)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        found = pa.ipc.open_file(self._content, options=options).get_batch(part).select(names)
        for column in found.columns:
            if has_offsets(column.type):
                check_offsets(column)
        return found
