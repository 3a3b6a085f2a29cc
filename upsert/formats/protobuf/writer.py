"""Columns to Protobuf messages: all rows of a batch at once, a field at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, floor_divided, is_null
from upsert.errors import SchemaError
from upsert.formats.binary_columns import Words, fixed_bytes, joined_by_lists, places, varint_bytes
from upsert.formats.protobuf import descriptors as d
from upsert.formats.protobuf import wire
from upsert.formats.protobuf.descriptors import SECONDS_AND_NANOS, Kind, wire_of
from upsert.formats.protobuf.wire import FIXED32, LENGTH, VARINT

_MICROS: Final = 1_000_000


def _tag(number: int, wire_type: int) -> bytes:
    return wire.varint(number << 3 | wire_type)


class MessageWriter:
    """Writes the columns of a table or of a STRUCT as messages of one type, their fields by ascending number.

    ``null_text``: what stands for a NULL in an array or a map of texts; None: it is refused.
    """

    def __init__(self, message: Any, fields: Sequence[pa.Field], null_text: str | None) -> None:
        self._name = message.full_name
        known = message.fields_by_name
        places = {one.name: place for place, one in enumerate(fields)}
        self._fields = [
            (place, _FieldWriter(known[name], fields[place].type, null_text))
            for name, place in sorted(places.items(), key=lambda item: known[item[0]].number)
        ]
        self._groups = [
            [places[member.name] for member in oneof.fields if member.name in places]
            for oneof in message.oneofs
        ]

    def write(self, columns: Sequence[pa.Array], count: int) -> pa.Array:
        """The message of each row."""
        for group in self._groups:
            given = sum((~is_null(columns[place])).astype(np.int8) for place in group)
            if len(group) > 1 and np.any(given > 1):
                names = " and ".join(repr(w.found.name) for place, w in self._fields if place in group)
                raise SchemaError(
                    f"protobuf: of the members of a oneof a row must have one, got several of {names}; let "
                    "the others be NULL"
                )
        chunks = [chunk for place, writer in self._fields for chunk in writer.chunks(columns[place])]
        if not chunks:
            return pa.repeat(pa.scalar(b"", pa.binary()), count)
        return pc.binary_join_element_wise(*chunks, b"")


class _FieldWriter:
    """Writes one column as a field, with its tag, or as nothing where it is absent."""

    def __init__(self, found: Any, type_: pa.DataType, null_text: str | None) -> None:
        self.found = found
        self._null_text = null_text
        self._inner: MessageWriter | None = None
        if d.is_map(found):
            parts = [("key", type_.key_field), ("value", type_.item_field)]
            self._entry = [
                _FieldWriter(found.message_type.fields_by_name[name], part.type, null_text)
                for name, part in parts
            ]
        elif found.type == Kind.MESSAGE:
            own = type_.value_type if found.is_repeated else type_
            within = list(own) if pa.types.is_struct(own) else [pa.field("value", own)]
            if d.is_time(found, own):
                within = list(SECONDS_AND_NANOS)
            self._inner = MessageWriter(found.message_type, within, null_text)

    def chunks(self, column: pa.Array) -> list[pa.Array]:
        """Arrays of bytes, which make up each row's field when joined."""
        if self.found.is_repeated:
            return self._repeated(column)
        if self.found.is_required and column.null_count:
            raise SchemaError(
                f"protobuf: field {self.found.name!r} of {self.found.containing_type.full_name} is required, "
                "got NULL"
            )
        return self._single(column, always=False)

    def _single(self, column: pa.Array, *, always: bool) -> list[pa.Array]:
        """``always``: also default values are written, where the field cannot tell them from absent ones."""
        found = self.found
        is_present = ~is_null(column)
        if wire_of(found.type) == LENGTH:
            payload = self._payloads(column)
            if not found.has_presence and not always:
                is_present &= pc.binary_length(payload).to_numpy() > 0
            return _with_length(found.number, payload, is_present)
        words = self._words(column)
        if not found.has_presence and not always:
            is_present &= words != 0
        return [self._number(_tag(found.number, wire_of(found.type)), words, is_present)]

    def _number(self, before: bytes, words: Words, is_present: Mask | None = None) -> pa.Array:
        kind = wire_of(self.found.type)
        if kind == VARINT:
            return varint_bytes(before, words, is_present)
        return fixed_bytes(before, words.astype(np.uint32) if kind == FIXED32 else words, is_present)

    def _payloads(self, column: pa.Array) -> pa.Array:
        """The bytes of values with a length; anything for NULL."""
        if self._inner is None:
            return column.cast(pa.binary()).fill_null(b"")
        if d.is_time(self.found, column.type):
            columns = _seconds_and_nanos(column)
        elif d.is_wrapped(self.found, column.type):
            columns = [column]
        else:
            return self._structs(column, self._inner)
        return self._inner.write(columns, len(column))

    @staticmethod
    def _structs(column: pa.Array, inner: MessageWriter) -> pa.Array:
        given = column.drop_null()  # what is within a NULL is NULL, also where the message requires a value
        messages = inner.write(given.flatten(), len(given))
        if not column.null_count:
            return messages
        is_there = ~is_null(column)
        places = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        return messages.take(places).fill_null(b"")

    def _words(self, column: pa.Array) -> Any:
        """The bits of numbers; 0 for NULL."""
        kind, type_ = self.found.type, column.type
        if kind == Kind.BOOL:
            return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            own = pa.float32() if kind == Kind.FLOAT else pa.float64()
            values = column.cast(own).fill_null(pa.scalar(0.0, own)).to_numpy(zero_copy_only=False)
            return values.view(np.uint32 if kind == Kind.FLOAT else np.uint64).astype(np.uint64)
        if kind == Kind.ENUM:
            return self._enum(column).astype(np.int64).view(np.uint64)
        if pa.types.is_decimal128(type_):
            try:
                return column.fill_null(0).cast(pa.uint64()).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid:
                raise self._no_value(f"a number that is no {d.type_name(self.found)}") from None
        values = column.fill_null(pa.scalar(0, type_)).cast(pa.int64()).to_numpy(zero_copy_only=False)
        if kind in (*d.UNSIGNED_32, *d.UNSIGNED_64):
            largest = (1 << 32) - 1 if kind in d.UNSIGNED_32 else (1 << 63) - 1
            if ((values < 0) | (values > largest)).any():
                raise self._no_value(f"a number that is no {d.type_name(self.found)}")
        if kind in d.ZIGZAG:
            values = (values << 1) ^ (values >> 63)
        return values.view(np.uint64)

    def _no_value(self, what: str) -> SchemaError:
        return SchemaError(f"protobuf: field {self.found.name!r} cannot hold {what}")

    def _enum(self, column: pa.Array) -> Any:
        enum = self.found.enum_type
        if column.type == pa.string():
            encoded = column.dictionary_encode()
            numbers = [self._number_of(enum, name) for name in encoded.dictionary.to_pylist()]
            return np.array([*numbers, 0], np.int64)[encoded.indices.fill_null(len(numbers)).to_numpy()]
        numbers = column.fill_null(pa.scalar(0, column.type)).cast(pa.int64()).to_numpy(zero_copy_only=False)
        is_known = np.isin(numbers, [*enum.values_by_number]) | is_null(column)
        is_short = numbers == numbers.astype(np.int32)
        if not (is_known if enum.is_closed else is_short).all():
            raise self._no_value(f"a number that enum {enum.full_name} does not have")
        return numbers

    def _number_of(self, enum: Any, name: str) -> int:
        if (value := enum.values_by_name.get(name)) is not None:
            return int(value.number)
        digits = name.removeprefix("-")
        if not enum.is_closed and digits.isascii() and digits.isdigit() and -(1 << 31) <= int(name) < 1 << 31:
            return int(name)
        names = ", ".join([*enum.values_by_name][:10])
        raise SchemaError(
            f"protobuf: field {self.found.name!r} must be a name of enum {enum.full_name}, got {name!r}; "
            f"names are {names}"
        )

    def _repeated(self, column: pa.Array) -> list[pa.Array]:
        offsets = column.offsets.to_numpy().astype(np.int64)
        is_present = ~is_null(column)
        begin, lengths = offsets[:-1], np.where(is_present, np.diff(offsets), 0)
        which = pa.array(places(begin, lengths))
        number = self.found.number
        if d.is_map(self.found):
            keys, items = (column.values.field(part).take(which) for part in (0, 1))
            parts = [
                *self._entry[0]._single(keys, always=True),
                *self._entry[1]._single(self._entry[1]._filled(items, "a map"), always=True),
            ]
            entries = pc.binary_join_element_wise(*parts, b"")
            elements = _joined(_with_length(number, entries, None))
        else:
            values = self._filled(column.values.take(which), "an array")
            kind = wire_of(self.found.type)
            if kind == LENGTH:
                elements = _joined(_with_length(number, self._payloads(values), None))
            elif self.found.is_packed:
                packed = joined_by_lists(self._number(b"", self._words(values)), lengths)
                return _with_length(number, packed, lengths > 0)
            else:
                elements = self._number(_tag(number, kind), self._words(values))
        return [joined_by_lists(elements, lengths)]

    def _filled(self, values: pa.Array, where: str) -> pa.Array:
        """The elements without NULL, which Protobuf does not have there."""
        if not values.null_count:
            return values
        if self._null_text is not None and values.type == pa.string():
            return values.fill_null(self._null_text)
        name = (
            self.found.name if where == "an array" else self.found.containing_type.name.removesuffix("Entry")
        )
        also = "; set 'write-null-string-literal'" if values.type == pa.string() else "; filter NULLs out"
        raise SchemaError(f"protobuf: {where} of Protobuf has no NULL, got one in field {name!r}{also}")


def _joined(chunks: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*chunks, b"")


def _with_length(number: int, payload: pa.Array, is_present: Mask | None) -> list[pa.Array]:
    """Tag and length of payloads, and the payloads; both empty where absent."""
    lengths = pc.binary_length(payload).to_numpy(zero_copy_only=False).astype(np.uint64)
    head = varint_bytes(_tag(number, LENGTH), lengths, is_present)
    if is_present is None or is_present.all():
        return [head, payload]
    return [head, pc.if_else(pa.array(is_present), payload, pa.scalar(b"", pa.binary()))]


def _seconds_and_nanos(column: pa.Array) -> list[pa.Array]:
    micros = column.cast(pa.int64())
    seconds = floor_divided(micros, _MICROS)
    nanos = pc.multiply(pc.subtract(micros, pc.multiply(seconds, _MICROS)), 1000)
    return [seconds, nanos.cast(pa.int32())]
