"""Format ``protobuf``: each message is one Protobuf message of one type, as Flink's ``protobuf`` has it.

The type is named by a descriptor file, which protoc writes, and a message's full name; a column is the field
of its name. Nothing is compiled: messages become columns and columns messages by their wire form, see
docs/decisions/0072. Messages for which that is not enough are read by the library, which writes them in the
plain form, or says what is wrong with them.

What a message does not say is NULL where Protobuf can tell: for fields with presence (``optional``, members
of a oneof, messages, all of proto2), and arrays and maps without elements. Else it is the default value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options
from upsert.arrays import Positions
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext, check_has_fields
from upsert.formats.binary_columns import BATCH, Read, Spans, padded, read_in_batches
from upsert.formats.protobuf import descriptors as d
from upsert.formats.protobuf.reader import MessageReader, Trouble
from upsert.formats.protobuf.writer import MessageWriter
from upsert.options import Option

_MAX_REASON: Final = 150


class ProtobufCodec:
    """One type of messages and the columns that they hold."""

    def __init__(self, message: Any, fields: pa.Schema, *, defaults: bool = False) -> None:
        self._message = message
        self._fields = fields
        self._defaults = defaults
        self._reader: MessageReader | None = None
        self._class: Any = None

    def misfit(self, *, writing: bool, may_lack: bool = False) -> str | None:
        """Why the messages do not serve the columns; None if they do."""
        return d.mismatch(self._message, list(self._fields), writing=writing, may_lack=may_lack)

    def decode(self, messages: pa.Array, start: int = 0) -> tuple[pa.Table, Positions, list[BadMessage]]:
        """The rows of some messages, the position of each row's message, and the bad ones.

        NULL gives no row; of each message ``start`` bytes come before its own.
        """
        return read_in_batches(messages, start, self._fields, self._read)

    def _read(self, spans: Spans) -> Read:
        rows, trouble = self._read_plain(spans)
        odd = np.flatnonzero(trouble.odd)
        if not len(odd) and not trouble.unfit:
            return rows, np.arange(len(rows)), {}
        texts, reasons = self._normalized(spans, odd)
        is_good = ~trouble.odd
        is_good[[place for place in trouble.unfit if is_good[place]]] = False
        bad = {place: reason for place, reason in trouble.unfit.items() if not trouble.odd[place]}
        bad |= reasons
        again = np.array([place for place in odd.tolist() if place not in reasons], np.int64)
        tables, positions = [rows.filter(pa.array(is_good))], [np.flatnonzero(is_good)]
        if len(again):
            more, other = self._read_plain(_spans_of(texts))
            for place in np.flatnonzero(other.odd).tolist():
                other.unfit.setdefault(place, f"no message {self._message.full_name}")
            bad |= {int(again[place]): reason for place, reason in other.unfit.items()}
            is_read = np.ones(len(again), np.bool_)
            is_read[[*other.unfit]] = False
            tables.append(more.filter(pa.array(is_read)))
            positions.append(again[is_read])
        found = np.concatenate(positions)
        order = np.argsort(found, kind="stable")
        return pa.concat_tables(tables).take(pa.array(order)).combine_chunks(), found[order], bad

    def _read_plain(self, spans: Spans) -> tuple[pa.Table, Trouble]:
        if self._reader is None:
            self._reader = MessageReader(self._message, list(self._fields), defaults=self._defaults)
        count = len(spans.begin)
        trouble = Trouble(np.zeros(count, np.bool_))
        columns = self._reader.read(spans, np.arange(count), trouble)
        return pa.Table.from_arrays(columns, schema=self._fields), trouble

    def _normalized(self, spans: Spans, which: Positions) -> tuple[list[bytes], dict[int, str]]:
        """Messages as the library writes what it has read of them, and why it cannot read the others."""
        package = d.library()
        if self._class is None:
            self._class = package.message_factory.GetMessageClass(self._message)
        texts, reasons = [], {}
        for place in which.tolist():
            own = spans.data[spans.begin[place] : spans.end[place]].tobytes()
            try:
                message = self._class.FromString(own)
                message.DiscardUnknownFields()
                texts.append(message.SerializePartialToString(deterministic=True))
            except (package.message.DecodeError, package.message.EncodeError, ValueError) as cause:
                reason = " ".join(str(cause).split())[:_MAX_REASON]
                reasons[place] = f"no message {self._message.full_name}: {reason}"
        return texts, reasons

    def encoder(self, null_text: str | None, before: bytes = b"") -> Callable[[pa.Table], pa.Array]:
        """What writes rows as messages, with the same bytes before each."""
        writer = MessageWriter(self._message, list(self._fields), null_text)

        def encode(rows: pa.Table) -> pa.Array:
            chunks = [pa.array([], pa.binary())]
            for batch in rows.select(self._fields.names).to_batches(max_chunksize=BATCH):
                own = writer.write(batch.columns, batch.num_rows)
                chunks.append(pc.binary_join_element_wise(before, own, b"") if before else own)
            return pa.concat_arrays(chunks)

        return encode


def _spans_of(texts: Sequence[bytes]) -> Spans:
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths)
    return Spans(padded(np.frombuffer(b"".join(texts), np.uint8)), ends - lengths, ends)


@dataclass(frozen=True)
class DescriptorFile:
    """What a file with a FileDescriptorSet holds: tasks may run where there is no such file."""

    path: str
    files: tuple[bytes, ...] = field(repr=False)


def descriptor_file(value: str) -> DescriptorFile:
    """The descriptors in a file, which is read now."""
    try:
        with open(value, "rb") as file:
            return DescriptorFile(value, d.files_in(file.read()))
    except OSError as cause:
        raise ValueError(f"a file that can be read ({cause.strerror})") from None
    except SchemaError as cause:
        raise ValueError(f"a path; the file {cause}") from None


def _no_class(value: str) -> str:  # noqa: ARG001
    raise ValueError("left out: there are no Java classes here; write 'descriptor-file' and 'message-name'")


DESCRIPTOR_OPTIONS: Final = (
    Option(
        "descriptor-file",
        descriptor_file,
        "file with a FileDescriptorSet, from protoc --include_imports --descriptor_set_out=…",
        None,
    ),
    Option("message-name", options.text, "full name of the message in it, like shop.v1.Order", None),
    Option("message-class-name", _no_class, "refused: Flink's name of a Java class", None),
)
"""Which messages these are."""

VALUE_OPTIONS: Final = (
    Option("ignore-parse-errors", options.boolean, "whether bad messages are skipped", False),
    Option(
        "read-default-values",
        options.boolean,
        "whether an absent field is its default value; false: NULL, where the field can tell",
        False,
    ),
    Option(
        "write-null-string-literal",
        str,
        "what is written for a NULL text in an array or a map; default: such a row is refused",
        None,
    ),
)
"""What absent values and bad messages become."""


def given_message(given: Mapping[str, Any], of: str) -> Any | None:
    """The descriptor that the options name; None if they name none."""
    file, name = given["descriptor-file"], given["message-name"]
    if (file is None) != (name is None):
        raise ConfigurationError(
            f"{of}: options 'descriptor-file' and 'message-name' must be given together, got "
            f"{'the first' if name is None else 'the second'} alone"
        )
    if file is None:
        return None
    try:
        return d.message_named(file.files, name)
    except SchemaError as cause:
        raise ConfigurationError(f"{of}: options 'descriptor-file' and 'message-name': {cause}") from None


@lru_cache(maxsize=1_000)
def shared_codec(files: tuple[bytes, ...], name: str, fields: pa.Schema, defaults: bool) -> ProtobufCodec:
    """The codec of a message and columns; one for all tasks of a process."""
    return ProtobufCodec(d.message_named(files, name), fields, defaults=defaults)


def _codec_of(context: FormatContext) -> ProtobufCodec:
    given = context.options
    return shared_codec(
        given["descriptor-file"].files, given["message-name"], context.fields, given["read-default-values"]
    )


def check(context: FormatContext) -> None:
    """Refuse fields that the message does not have, or not so."""
    d.library()
    check_has_fields(context, "protobuf")
    if given_message(context.options, "protobuf") is None:
        raise ConfigurationError(
            "protobuf: needs options 'descriptor-file' and 'message-name': messages do not say what they hold"
        )
    if reason := _codec_of(context).misfit(writing=False):
        raise SchemaError(f"protobuf: option 'message-name' must fit the columns: {reason}")


def writing_codec(codec: ProtobufCodec) -> ProtobufCodec:
    """The codec, whose messages must hold every row."""
    if reason := codec.misfit(writing=True):
        raise SchemaError(f"protobuf: option 'message-name' must hold every row that is written: {reason}")
    return codec


class _Decoder:
    """Messages of one type to rows."""

    def __init__(self, context: FormatContext) -> None:
        self._codec = _codec_of(context)
        self._passes_bad_over = bool(context.options["ignore-parse-errors"])

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what is none, or does not fit the columns."""
        rows, positions, bad = self._codec.decode(messages)
        return Decoded.at(positions, len(messages), rows, () if self._passes_bad_over else bad)


class _Encoder:
    """Rows to messages of one type."""

    def __init__(self, context: FormatContext) -> None:
        null_text = context.options["write-null-string-literal"]
        self._encode = writing_codec(_codec_of(context)).encoder(null_text)

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:
        """One message a row, whatever its kind."""
        del kinds
        return self._encode(rows)


FORMAT: Final = Format(
    "protobuf", (*DESCRIPTOR_OPTIONS, *VALUE_OPTIONS), check, _Decoder, _Encoder, reads_some=True
)
