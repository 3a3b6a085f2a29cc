"""Apache ORC: stripes of a few megabytes, of which only the wanted columns are read (pure).

A timestamp of ORC counts nanoseconds, which end in the year 2262, so timestamps are kept as BIGINT, in
microseconds since 1970. Times of day and intervals, which ORC lacks, are kept as the numbers that they are.
The Arrow schema is kept as an attribute of the first column. ``pyarrow.orc`` is imported where it is used, as
``pyarrow.parquet`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import types
from upsert.store.checksums import ChecksummedFile
from upsert.store.files.formats.base import (
    PART_BYTES,
    Compression,
    batch_of,
    refuse_empty_struct,
    refuse_nested_struct,
    replaced,
    retyped,
    schema_of,
    schema_text,
)

_SCHEMA: Final = b"arrow.schema"
_BATCH_ROWS: Final = 8192
_PLAIN: Final = {
    types.TIMESTAMP: pa.int64(),
    types.TIMESTAMP_NTZ: pa.int64(),
    types.INTERVAL: pa.int64(),
    **{time: pa.int32() if time.bit_width == 32 else pa.int64() for time in types.NANOS},
}
_CODECS: Final = {"none": "uncompressed"}


class OrcFormat:
    """Files that Hive and Trino like best."""

    name = "orc"
    suffix = ".orc"
    codecs: tuple[str, ...] = ("zstd", "snappy", "lz4", "zlib", "none")
    has_levels = False

    def refusal(self, field: pa.Field) -> str | None:
        """Structs without fields or within a struct."""
        return refuse_empty_struct(field, "ORC") or refuse_nested_struct(field, "ORC")

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows; ORC cuts stripes by their size once it is encoded."""
        from pyarrow import orc

        schema = _plain_schema(rows.schema)
        with orc.ORCWriter(
            out,
            batch_size=_BATCH_ROWS,
            stripe_size=PART_BYTES // 4,
            compression=_CODECS.get(compression.codec, compression.codec),
        ) as writer:
            plain = [_to_plain(c, field.type) for c, field in zip(rows.columns, schema, strict=True)]
            # all at once: of several calls, it mixes up the fields of structs in structs (Arrow 26)
            writer.write(pa.Table.from_arrays(plain, schema=schema))

    def open(self, content: pa.Buffer) -> OrcRows:
        """The rows of a file; only its footer is read."""
        return OrcRows(content)


class OrcRows:
    """Stripes that are decoded on their own, column by column."""

    is_mapped = False

    def __init__(self, content: pa.Buffer) -> None:
        from pyarrow import orc

        file = orc.ORCFile(pa.BufferReader(content))
        self.rows = int(file.nrows)
        columns = file.schema
        kept = columns.field(0).metadata or {} if len(columns) else {}
        self.schema: pa.Schema = schema_of(kept.get(_SCHEMA), columns.names)
        self._content = content
        self._stripes = int(file.nstripes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """As of every format; the rows of a stripe are known when one of its columns is decoded."""
        if self._stripes == 1:
            return (0, self.rows)
        lengths = (self.read(part, self.schema.names[:1]).num_rows for part in range(self._stripes))
        return tuple(accumulate(lengths, initial=0))

    def bounds(self, name: str) -> None:
        """Nothing: pyarrow does not read what ORC knows of a stripe."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one stripe."""
        from pyarrow import orc

        # to ORC ``a.b`` is the field of a struct, also where a column has this name
        is_plain = names and all(name and "." not in name for name in names)
        file = orc.ORCFile(pa.BufferReader(self._content))
        found = file.read_stripe(part, columns=list(names) if is_plain else None)
        arrays = []
        for name in names:
            column, type_ = found.column(name), self.schema.field(name).type
            arrays.append(column.cast(type_) if pa.types.is_fixed_size_binary(type_) else column)
        return batch_of(self.schema, pa.table(arrays, names=list(names)), names, found.num_rows)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    fields = []
    for field in schema:
        is_fixed = pa.types.is_fixed_size_binary(field.type)
        fields.append(pa.field(field.name, pa.binary() if is_fixed else replaced(field.type, _PLAIN)))
    return pa.schema([fields[0].with_metadata({_SCHEMA: schema_text(schema)}), *fields[1:]])


def _to_plain(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(column.type):
        return column.cast(type_)
    if pa.types.is_nested(type_) and column.offset:
        # the writer overlooks where a slice of structs begins (Arrow 26), so it gets a copy
        column = column.take(pa.array(np.arange(len(column))))
    return retyped(column, type_)
