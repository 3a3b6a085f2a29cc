"""Format ``protobuf-confluent``: Protobuf messages that name their schema by its id in a schema registry.

A message is a zero byte, the id in four bytes, which message of the schema's file it is, and the message, as
Confluent's serializers write it. Messages are read with the schemas that they were written with, of which the
registry gives the descriptors, whatever mixture a topic holds; rows are written with the message that is
derived from the columns. With ``descriptor-file`` both are done with the message that it describes, and the
registry is asked for ids alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions
from upsert.errors import SchemaError
from upsert.formats import avro_confluent
from upsert.formats.avro_confluent import HEADER_BYTES
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext, check_has_fields
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.protobuf import descriptors as d
from upsert.formats.protobuf import format as plain
from upsert.formats.protobuf import wire
from upsert.formats.protobuf.format import ProtobufCodec, given_message, shared_codec, writing_codec
from upsert.formats.schema_registry import RegistryConfig, shared_registry

NAME: Final = "protobuf-confluent"
_ID, _VERSION, _MESSAGE = "schema-id", "schema-version", "message-name"
_METADATA: Final = {_ID: pa.int32(), _VERSION: pa.int32(), _MESSAGE: pa.string()}
"""Of what a message was written with: the schema's id and version in the subject, the full name."""

_FIRST: Final = b"\x00"
"""Says that a message is of the first type of its file; short for a list of one zero."""
_MAX_INDEXES: Final = 64
_MAX_VARINT: Final = 2**35 - 1


def index_bytes(indexes: tuple[int, ...]) -> bytes:
    r"""Which message of its file a message is: how many indexes, and each of them, as Confluent has it.

    >>> index_bytes((0,)), index_bytes((1, 0))
    (b'\x00', b'\x04\x02\x00')
    """
    if indexes == (0,):
        return _FIRST
    return b"".join(wire.varint(number << 1) for number in (len(indexes), *indexes))


def indexes_in(message: bytes, at: int) -> tuple[tuple[int, ...], int]:
    r"""The indexes at a place of a message, and where they end; `SchemaError` if there are none.

    >>> indexes_in(b"\x04\x02\x00rest", 0)
    ((1, 0), 3)
    """
    numbers: list[int] = []
    wanted = 1
    while len(numbers) < wanted:
        try:
            value, at = wire.varint_in(message, at)
        except IndexError:
            value = 1
        numbers.append(value >> 1)
        if value & 1 or value > _MAX_VARINT or numbers[0] > _MAX_INDEXES:
            raise SchemaError("a message must say after the schema's id which one of the schema it is")
        wanted = 1 + numbers[0]
    return tuple(numbers[1:]) or (0,), at


class _Decoder:
    """Messages of any schemas of a registry to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._fields = context.fields
        self._registry = shared_registry(RegistryConfig.of(context.options))
        self._subject = avro_confluent.subject_of(context)
        self._metadata = {key: _METADATA[key] for key in context.metadata}
        self._empty = pa.schema([*self._fields, *self._metadata.items()]).empty_table()
        self._passes_bad_over = bool(context.options["ignore-parse-errors"])
        self._defaults = bool(context.options["read-default-values"])
        self._given = given_message(context.options, NAME)
        self._files = () if self._given is None else context.options["descriptor-file"].files
        self._known: dict[tuple[int, tuple[int, ...]], tuple[str, ProtobufCodec]] = {}

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what names no message of a schema of the registry, or is none."""
        prefixes, bad = _by_prefix(messages)
        groups = []
        for prefix, own in prefixes.items():
            rows, kept, reasons = self._of_schema(prefix, messages.take(pa.array(own)))
            groups.append((own[kept], rows))
            bad += [BadMessage(int(own[one.position]), one.reason) for one in reasons]
        left = () if self._passes_bad_over else bad
        return Decoded.of_groups(groups, len(messages), self._empty, left)

    def _of_schema(self, prefix: bytes, messages: pa.Array) -> tuple[pa.Table, Positions, list[BadMessage]]:
        """The rows of messages that begin with the same id and indexes."""
        try:
            id = avro_confluent.id_in(prefix[:HEADER_BYTES])
            name, codec = self._codec(id, indexes_in(prefix, HEADER_BYTES)[0])
        except SchemaError as cause:
            none = np.zeros(0, np.int64)
            return self._empty, none, [BadMessage(place, str(cause)) for place in range(len(messages))]
        rows, places, bad = codec.decode(messages, start=len(prefix))
        for key, type_ in self._metadata.items():
            value = id if key == _ID else name if key == _MESSAGE else self._version(id)
            rows = rows.append_column(key, pa.repeat(pa.scalar(value, type_), rows.num_rows))
        return rows, places, bad

    def _codec(self, id: int, indexes: tuple[int, ...]) -> tuple[str, ProtobufCodec]:
        if (id, indexes) not in self._known:
            if self._given is None:
                files = _named(self._registry.files(id))
                message = d.message_at(files, indexes)
            else:
                files, message = self._files, self._given
                if indexes != d.indexes_of(message):
                    raise SchemaError(
                        f"the message is that at {list(indexes)} of its schema, and {message.full_name} is "
                        f"that at {list(d.indexes_of(message))}"
                    )
            codec = shared_codec(files, message.full_name, self._fields, self._defaults)
            if reason := codec.misfit(writing=False, may_lack=self._given is None):
                raise SchemaError(f"schema {id} does not fit the columns: {reason}")
            self._known[id, indexes] = message.full_name, codec
        return self._known[id, indexes]

    def _version(self, id: int) -> int | None:
        return None if self._subject is None else self._registry.version(id, self._subject)


def _by_prefix(messages: pa.Array) -> tuple[dict[bytes, Positions], list[BadMessage]]:
    """The places of messages by the bytes before them; those that have none are bad."""
    heads = pc.binary_slice(messages, 0, HEADER_BYTES + 1).dictionary_encode()
    numbers = heads.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    groups: dict[bytes, Positions] = {}
    apart: dict[bytes, list[int]] = {}
    bad: list[BadMessage] = []
    for number, head in enumerate(heads.dictionary.to_pylist()):
        own = np.flatnonzero(numbers == number)
        try:
            avro_confluent.id_in(head[:HEADER_BYTES])
        except SchemaError as cause:
            bad += [BadMessage(place, str(cause)) for place in own.tolist()]
            continue
        if head.endswith(_FIRST) and len(head) > HEADER_BYTES:
            groups[head] = own
            continue
        for place, message in zip(own.tolist(), messages.take(pa.array(own)).to_pylist(), strict=True):
            try:
                _, end = indexes_in(message, HEADER_BYTES)
            except SchemaError as cause:
                bad.append(BadMessage(place, str(cause)))
            else:
                apart.setdefault(message[:end], []).append(place)
    return groups | {prefix: np.array(own, np.int64) for prefix, own in apart.items()}, bad


def _named(files: tuple[tuple[str, bytes], ...]) -> tuple[bytes, ...]:
    """Files from a registry, by the names by which others import them."""
    return tuple(d.renamed(content, name) for name, content in files)


class _Encoder:
    """Rows to messages of one type, whose schema has an id in a registry."""

    def __init__(self, context: FormatContext) -> None:
        self._subject = avro_confluent.subject_to_write(context, NAME)
        self._registry = shared_registry(RegistryConfig.of(context.options))
        self._files, self._message = _own(context)
        codec = shared_codec(self._files, self._message.full_name, context.fields, False)
        self._codec = writing_codec(codec)
        self._null_text = context.options["write-null-string-literal"]
        self._encode: Any = None

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """One message a row, whatever its kind."""
        del kinds
        if not rows.num_rows:
            return pa.array([], pa.binary())
        if self._encode is None:
            id = self._register(self._message.file.name, self._subject)
            before = avro_confluent.header_of(id) + index_bytes(d.indexes_of(self._message))
            self._encode = self._codec.encoder(self._null_text, before)
        found: pa.Array = self._encode(rows)
        return found

    def _register(self, name: str, subject: str) -> int:
        """The id of a file in a subject; what it imports is registered before, in subjects of its names."""
        content, imports = d.file_named(self._files, name)
        references = []
        for one in imports:
            id = self._register(one, one)
            references.append((one, one, self._registry.version(id, one) or 1))
        return self._registry.id_of_file(subject, content, tuple(references))


def _own(context: FormatContext) -> tuple[tuple[bytes, ...], Any]:
    """The files and the message of a table's own schema: the one given, or the one of its columns."""
    if (given := given_message(context.options, NAME)) is not None:
        return context.options["descriptor-file"].files, given
    files = d.derived(context.fields)
    return files, d.message_named(files, d.DERIVED)


def _check(context: FormatContext) -> None:
    check_has_fields(context, NAME)
    files, message = _own(context)
    if reason := shared_codec(files, message.full_name, context.fields, False).misfit(writing=False):
        raise SchemaError(f"{NAME}: option 'message-name' must fit the columns: {reason}")
    avro_confluent.check_registry(context.options, NAME)


FORMAT: Final = Format(
    NAME,
    (*avro_confluent.REGISTRY_OPTIONS, *plain.DESCRIPTOR_OPTIONS, *plain.VALUE_OPTIONS),
    _check,
    _Decoder,
    _Encoder,
    metadata=tuple(MetadataKey(key, type_) for key, type_ in _METADATA.items()),
    reads_some=True,
)
