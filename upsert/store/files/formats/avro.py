"""Apache Avro: rows one after the other, in blocks that are each decoded as a whole (pure).

The codec is fastavro, which only writers and readers of such files need. It takes rows one by one, so
this is by far the slowest format; it is here because FLIP-188 has it. Times are written as the numbers that
they are, under Avro's logical types, and read as such: Python's own times end in the year 9999. A map is an
array of its entries, as in Iceberg, so that it may have keys of any type.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from upsert import types
from upsert.errors import optional_package
from upsert.formats import avro_schema
from upsert.store.checksums import ChecksummedFile
from upsert.store.files.formats.base import (
    Compression,
    batch_of,
    field_names,
    part_starts,
    refusal,
    replaced,
    retyped,
    schema_of,
    schema_text,
)

_SCHEMA: Final = "arrow.schema"
_SYNC_BYTES: Final = 16
_CODECS: Final = {"none": "null"}

_DAMAGE: Final = (
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    LookupError,
    OSError,
    zlib.error,
    lzma.LZMAError,
)
"""What fastavro and the codecs raise for bytes that are no file of the schema."""

_INFLATE: Final[dict[str, Callable[[pa.Buffer], bytes]]] = {
    "null": pa.Buffer.to_pybytes,
    "deflate": lambda body: zlib.decompress(body, -zlib.MAX_WBITS),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}

_END_OF_ARRAY: Final = b"\x00"
_WITHOUT_RECORDS: Final[Mapping[pa.DataType, Any]] = {
    types.time_of(0): "int",
    types.time_of(3): {"type": "int", "logicalType": "time-millis"},
    types.time_of(6): {"type": "long", "logicalType": "time-micros"},
    types.time_of(9): "long",
    types.INTERVAL: "long",
}
_NUMBERS: Final = {
    types.TIMESTAMP: pa.int64(),
    types.TIMESTAMP_NTZ: pa.int64(),
    pa.date32(): pa.int32(),
    types.INTERVAL: pa.int64(),
    **{time: pa.int32() if time.bit_width == 32 else pa.int64() for time in types.NANOS},
}


class AvroFormat:
    """Files of rows."""

    name = "avro"
    suffix = ".avro"
    codecs: tuple[str, ...] = ("deflate", "bzip2", "xz", "none")
    has_levels = False

    def refusal(self, field: pa.Field) -> str | None:
        """Names that Avro does not have."""
        for name in (field.name, *field_names(field.type)):
            if not avro_schema.NAME.fullmatch(name):
                reason = f"a name in Avro has letters, digits and _ only, got {name!r}"
                return refusal(field, reason, "rename it")
        return None

    def write(self, out: ChecksummedFile, rows: pa.RecordBatch, compression: Compression) -> None:
        """Write the rows, a block a part."""
        writer = _fastavro().write.Writer(
            out,
            _record(rows.schema, "row"),
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
        """The rows of a file; only its header and where its blocks lie is read."""
        return AvroRows(content)


class AvroRows:
    """Blocks that are decoded on their own, all columns: to read past one takes as long as to read it."""

    is_mapped = False

    def __init__(self, content: pa.Buffer) -> None:
        front = _Front(content)
        codec = _fastavro()
        try:
            head = codec.reader(front)
            columns = [field["name"] for field in head.writer_schema["fields"]]
            self.schema: pa.Schema = schema_of(head.metadata[_SCHEMA].encode(), columns)
            self._inflate = _INFLATE[head.codec]
            plain = pa.schema([_plain_field(field) for field in self.schema])
            self._array = codec.parse_schema({"type": "array", "items": _record(plain, "row")})
            self._blocks = _blocks(content, front.at)
        except (*_DAMAGE, codec.schema.SchemaParseException, codec.schema.UnknownType) as cause:
            raise ValueError(f"its header or a block is damaged, {cause!r}") from cause
        self.starts = tuple(accumulate((block.rows for block in self._blocks), initial=0))
        self.rows = self.starts[-1]
        self._content = content

    def bounds(self, name: str) -> None:
        """Nothing is known of the values in a part."""

    def read(self, part: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of one block."""
        try:
            rows = self._decoded(self._blocks[part])
        except _DAMAGE as cause:
            raise ValueError(f"block {part} is damaged, {cause!r}") from cause
        wanted = [_plain_field(self.schema.field(name)) for name in names]
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in wanted]
        return batch_of(self.schema, pa.table(arrays, names=list(names)), names, len(rows))

    def _decoded(self, block: _Block) -> list[dict[str, Any]]:
        """The rows of a block; as an array, which is laid out alike, fastavro reads them twice as fast."""
        body = self._content.slice(block.start, block.stop - block.start)
        array = b"".join((block.rows_bytes, self._inflate(body), _END_OF_ARRAY))
        stream = BytesIO(array)
        rows: list[dict[str, Any]] = _fastavro().schemaless_reader(stream, self._array, None)
        if stream.tell() != len(array):
            raise ValueError(f"{len(array) - stream.tell()} bytes follow its rows")
        return rows


def _fastavro() -> Any:
    with optional_package("fastavro", "avro", "file.format 'avro'"):
        import fastavro
    return fastavro


class _Front:
    """Reads a file's header. A length that lies gets what there is, and takes no memory."""

    def __init__(self, content: pa.Buffer) -> None:
        self._bytes = memoryview(content).cast("B")
        self.at = 0

    def read(self, size: int) -> bytes:
        found = bytes(self._bytes[self.at : self.at + max(0, size)])
        self.at += len(found)
        return found


class _Block(NamedTuple):
    """The number of a block's rows, also in the bytes that say so, and where the rows themselves lie."""

    rows: int
    rows_bytes: bytes
    start: int
    stop: int


def _blocks(content: pa.Buffer, at: int) -> list[_Block]:
    """The blocks from the end of the header on."""
    sync = content.slice(at - _SYNC_BYTES, _SYNC_BYTES).to_pybytes()
    view = memoryview(content).cast("B")
    found = []
    while at < len(view):
        rows, size_at = _number(view, at)
        size, start = _number(view, size_at)
        stop = start + size
        end = stop + _SYNC_BYTES
        if rows < 1 or size < 0 or end > len(view) or view[stop:end] != sync:
            raise ValueError(f"there is no block at {at}")
        found.append(_Block(rows, bytes(view[at:size_at]), start, stop))
        at = end
    return found


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """The zigzag number of variable length from a byte on, and where it ends."""
    value = shift = 0
    while view[at] & 0x80:
        value |= (view[at] & 0x7F) << shift
        shift += 7
        at += 1
    value |= view[at] << shift
    return (value >> 1) ^ -(value & 1), at + 1


def _plain_field(field: pa.Field) -> pa.Field:
    """Numbers for times, and lists of entries for maps: their layout in memory is the same."""
    return pa.field(field.name, replaced(field.type, _NUMBERS, map_to_list=True), field.nullable)


def _record(fields: Iterable[pa.Field], name: str) -> dict[str, Any]:
    inner = [{"name": field.name, "type": _avro_type(field, name)} for field in fields]
    return {"type": "record", "name": name, "fields": inner}


def _avro_type(field: pa.Field, within: str) -> Any:
    # a name may be given to one type only, so it tells where it stands
    found = _not_null(field.type, f"{within}_{len(field.name)}_{field.name}")
    return ["null", found] if field.nullable else found


def _not_null(type_: pa.DataType, path: str) -> Any:
    if (scalar := _WITHOUT_RECORDS.get(type_) or avro_schema.scalar(type_)) is not None:
        return scalar
    if pa.types.is_fixed_size_binary(type_):
        return {"type": "fixed", "name": path, "size": type_.byte_width}
    if pa.types.is_list(type_):
        return {"type": "array", "items": _avro_type(type_.value_field, path)}
    if pa.types.is_map(type_):
        entry = pa.struct([type_.key_field, type_.item_field])
        return {"type": "array", "logicalType": "map", "items": _not_null(entry, path)}
    return _record(type_, path)
