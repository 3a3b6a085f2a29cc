"""Apache Avro: rows one after the other, in blocks that are each decoded as a whole (pure).

The codec is fastavro, which is needed by who writes and reads such files only. It takes rows one by one, so
this is by far the slowest format; it is here because FLIP-188 has it. Times are written as the numbers that
they are, under Avro's logical types, and read as such: Python's own times end in the year 9999. A map is an
array of its entries, as in Iceberg, so that it may have keys of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Any, Final

import pyarrow as pa

from upsert import types
from upsert.errors import ConfigurationError
from upsert.store.file_formats.base import Compression, Output
from upsert.store.file_formats.parts import batch_of, part_starts
from upsert.store.file_formats.refusals import refusal, refuse_negative_scale
from upsert.store.file_formats.retyped import field_names, replaced, retyped
from upsert.store.file_formats.schema_text import schema_of, schema_text

_SCHEMA: Final = "arrow.schema"
_SYNC_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CODECS: Final = {"none": "null"}
_DAMAGE: Final = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, LookupError)
"""What fastavro raises for bytes that are no file of the schema."""

_SCALARS: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    types.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
    types.TIMESTAMP_NTZ: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_NUMBERS: Final = {types.TIMESTAMP: pa.int64(), types.TIMESTAMP_NTZ: pa.int64(), pa.date32(): pa.int32()}


class AvroFormat:
    """Files of rows."""

    name = "avro"
    suffix = ".avro"
    codecs: tuple[str, ...] = ("deflate", "bzip2", "xz", "none")
    has_levels = False

    def refusal(self, field: pa.Field) -> str | None:
        """Names that Avro does not have, and decimals with a negative scale."""
        for name in (field.name, *field_names(field.type)):
            if not _NAME.fullmatch(name):
                reason = f"a name in Avro has letters, digits and _ only, got {name!r}"
                return refusal(field, reason, "rename it")
        return refuse_negative_scale(field, "Avro")

    def write(self, out: Output, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows, a block a part."""
        writer = _fastavro().write.Writer(
            out,
            _avro_schema(rows.schema),
            codec=_CODECS.get(compression.codec, compression.codec),
            metadata={_SCHEMA: schema_text(rows.schema).decode()},
            sync_interval=2**62,
        )
        plain = [_plain_field(field) for field in rows.schema]
        for start, stop in pairwise(part_starts(rows)):
            columns = rows.slice(start, stop - start).columns
            values = [retyped(c, field.type).to_pylist() for c, field in zip(columns, plain, strict=True)]
            for row in zip(*values, strict=True):
                writer.write(dict(zip(rows.schema.names, row, strict=True)))
            writer.flush()

    def open(self, content: pa.Buffer) -> AvroRows:
        """The rows of a file; only its header and the places of its blocks are read."""
        return AvroRows(content)


class AvroRows:
    """Blocks that are decoded on their own; the columns of a row are read past, if not wanted."""

    is_mapped = False

    def __init__(self, content: pa.Buffer) -> None:
        file = pa.BufferReader(content)
        codec = _fastavro()
        try:
            head = codec.reader(file)
            columns = [field["name"] for field in head.writer_schema["fields"]]
            self.schema: pa.Schema = schema_of(head.metadata[_SCHEMA].encode(), columns)
            self._header = _plain_header(self.schema, head.codec, content, file.tell())
            self._blocks, lengths = _blocks(content, file.tell())
        except _DAMAGE as cause:
            raise ValueError(f"its header or a block is damaged, {cause!r}") from cause
        self.starts = tuple(accumulate(lengths, initial=0))
        self.rows = self.starts[-1]
        self._content = content

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one block."""
        start, stop = self._blocks[part]
        block = self._content.slice(start, stop - start).to_pybytes()
        wanted = [_plain_field(self.schema.field(name)) for name in names]
        codec = _fastavro()
        try:
            rows = list(codec.reader(BytesIO(self._header + block), _avro_schema(pa.schema(wanted))))
        except _DAMAGE as cause:
            raise ValueError(f"block {part} is damaged, {cause!r}") from cause
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in wanted]
        return batch_of(self.schema, pa.table(arrays, names=list(names)), names, len(rows))


def _fastavro() -> Any:
    """The package ``fastavro``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import fastavro as package
    except ImportError as cause:
        raise ConfigurationError(
            "file.format 'avro' needs the package fastavro, which is missing; pip install 'deltajoin[avro]'"
        ) from cause
    return package


def _plain_header(schema: pa.Schema, codec: str, content: pa.Buffer, end: int) -> bytes:
    """The file's header with numbers for times: Python's own times end in the year 9999."""
    sync = content.slice(end - _SYNC_BYTES, _SYNC_BYTES).to_pybytes()
    header = BytesIO()
    plain = pa.schema([_plain_field(field) for field in schema])
    _fastavro().writer(header, _avro_schema(plain), [], codec=codec, sync_marker=sync)
    return header.getvalue()


def _blocks(content: pa.Buffer, at: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Where each block begins and ends, from the end of the header on, and how many rows it has."""
    sync = content.slice(at - _SYNC_BYTES, _SYNC_BYTES).to_pybytes()
    view = memoryview(content).cast("B")
    places, lengths = [], []
    while at < len(view):
        rows, size_at = _number(view, at)
        size, body = _number(view, size_at)
        end = body + size + _SYNC_BYTES
        if rows < 0 or size < 0 or end > len(view) or view[end - _SYNC_BYTES : end] != sync:
            raise ValueError(f"there is no block at {at}")
        places.append((at, end))
        lengths.append(rows)
        at = end
    return places, lengths


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """The zigzag number of variable length at a place, and where it ends."""
    value = shift = 0
    while view[at] & 0x80:
        value |= (view[at] & 0x7F) << shift
        shift += 7
        at += 1
    value |= view[at] << shift
    return (value >> 1) ^ -(value & 1), at + 1


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Numbers for times, and lists of entries for maps: their layout in memory is the same."""
    return replaced(type_, _NUMBERS, map_to_list=True)


def _avro_schema(schema: pa.Schema) -> dict[str, Any]:
    return {"type": "record", "name": "row", "fields": _avro_fields(schema, "row")}


def _avro_fields(fields: Iterable[pa.Field], within: str) -> list[dict[str, Any]]:
    return [{"name": f.name, "type": _avro_type(f, within)} for f in fields]


def _avro_type(field: pa.Field, within: str) -> Any:
    # the name of a type tells its place, so that it is the same where only some columns are read
    found = _not_null(field.type, f"{within}_{len(field.name)}_{field.name}")
    return ["null", found] if field.nullable else found


def _not_null(type_: pa.DataType, place: str) -> Any:
    if type_ in _SCALARS:
        return _SCALARS[type_]
    if pa.types.is_decimal128(type_):
        size = {"precision": type_.precision, "scale": type_.scale}
        return {"type": "bytes", "logicalType": "decimal", **size}
    if pa.types.is_fixed_size_binary(type_):
        return {"type": "fixed", "name": place, "size": type_.byte_width}
    if pa.types.is_list(type_):
        return {"type": "array", "items": _avro_type(type_.value_field, place)}
    if pa.types.is_map(type_):
        entry = pa.struct([type_.key_field, type_.item_field])
        return {"type": "array", "logicalType": "map", "items": _not_null(entry, place)}
    return {"type": "record", "name": place, "fields": _avro_fields(type_, place)}
