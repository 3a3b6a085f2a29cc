"""Protobuf messages to columns: all messages of a batch at once, a field at a time.

Where the rules of Protobuf are more than a look at the bytes, the library has to decide, and a message is
odd: it has a field twice that may occur once (two messages are merged), two members of a oneof, a key of a
map twice, or is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, Positions, is_null
from upsert.formats.binary_columns import Spans, Words, binaries, gathered
from upsert.formats.protobuf import descriptors as d
from upsert.formats.protobuf import wire
from upsert.formats.protobuf.descriptors import SECONDS_AND_NANOS, Kind, wire_of
from upsert.formats.protobuf.wire import LENGTH, VARINT, Found

_MICROS: Final = 1_000_000


@dataclass
class Trouble:
    """The odd messages, and those that do not fit their columns, with the reason."""

    odd: Mask
    unfit: dict[int, str] = field(default_factory=dict)

    def add(self, owners: Positions, reason: str) -> None:
        """These messages do not fit; the first reason of each counts."""
        for owner in owners.tolist():
            self.unfit.setdefault(owner, reason)


class MessageReader:
    """Reads the messages of one type into the columns of a table or of a STRUCT.

    ``defaults``: what is absent is the default value, also where NULL could say so. ``always`` has the names
    of fields of which this holds in any case.
    """

    def __init__(
        self, message: Any, fields: Sequence[pa.Field], *, defaults: bool, always: tuple[str, ...] = ()
    ) -> None:
        known = message.fields_by_name
        self._fields = [
            None
            if one.name not in known
            else _FieldReader(known[one.name], one, defaults=defaults, always=one.name in always)
            for one in fields
        ]
        self._types = [one.type for one in fields]
        groups = [
            [member.number for member in oneof.fields]
            for oneof in message.oneofs
            if len(oneof.fields) > 1
            and any(member.name in {one.name for one in fields} for member in oneof.fields)
        ]
        own = {one.found.number for one in self._fields if one is not None}
        self._numbers = np.array(sorted({*own, *(number for group in groups for number in group)}), np.int64)
        self._groups = [np.searchsorted(self._numbers, group).tolist() for group in groups]

    def read(self, messages: Spans, owner: Positions, trouble: Trouble) -> list[pa.Array]:
        """The columns; ``owner`` has the record of each message."""
        found, odd = wire.scan(messages, self._numbers)
        trouble.odd[owner[odd]] = True
        count = len(messages.begin)
        for group in self._groups:
            rows = np.concatenate([np.unique(found[code].row) for code in group])
            trouble.odd[owner[np.flatnonzero(np.bincount(rows, minlength=count) > 1)]] = True
        columns = []
        for reader, type_ in zip(self._fields, self._types, strict=True):
            if reader is None:
                columns.append(pa.nulls(count, type_))
                continue
            code = int(np.searchsorted(self._numbers, reader.found.number))
            columns.append(reader.read(found[code], owner, trouble))
        return columns


class _FieldReader:
    """Reads what messages have of one field into one column."""

    def __init__(self, found: Any, column: pa.Field, *, defaults: bool, always: bool) -> None:
        self.found = found
        self._column = column
        self._is_map = d.is_map(found)
        self._is_in_map = always
        self._fills = (
            always or defaults or not column.nullable
            if found.is_repeated
            else (always or defaults or not found.has_presence)
        )
        type_ = column.type
        self._value: _ValueReader
        if self._is_map:
            inner = [type_.key_field, type_.item_field.with_name("value")]
            inner[0] = inner[0].with_name("key")
            self._entries = MessageReader(
                found.message_type, inner, defaults=defaults, always=("key", "value")
            )
        else:
            of_value = type_.value_field if found.is_repeated else column
            self._value = _ValueReader(found, of_value.type, defaults=defaults)

    def read(self, found: Found, owner: Positions, trouble: Trouble) -> pa.Array:
        if self._is_map:
            values = self._map(found.of_wire(LENGTH), owner, trouble)
        elif self.found.is_repeated:
            values = self._list(found, owner, trouble)
        else:
            values = self._single(found.of_wire(wire_of(self.found.type)), owner, trouble)
        if not self._column.nullable and values.null_count:
            trouble.add(owner[is_null(values)], f"field {self._column.name!r} must not be null")
        return values

    def _single(self, found: Found, owner: Positions, trouble: Trouble) -> pa.Array:
        count = len(owner)
        if self.found.type == Kind.ENUM and self.found.enum_type.is_closed:
            known = self._without_unknown(found)
            if self._is_in_map and len(known.row) < len(found.row):
                trouble.odd[owner[found.row]] = True  # then the whole entry is unknown
            found = known
        if self.found.type == Kind.MESSAGE and len(found.row):
            occurs = np.bincount(found.row, minlength=count)
            trouble.odd[owner[occurs > 1]] = True
        if len(found.row) == count and (found.row == np.arange(count)).all():
            return self._value.read(found.payload, owner, trouble)
        last = np.full(count, -1)
        last[found.row] = np.arange(len(found.row))
        is_absent = last < 0
        if self.found.type == Kind.MESSAGE and self._fills:
            # an absent message is one without fields
            begin, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
            begin[~is_absent] = found.payload.begin[last[~is_absent]]
            end[~is_absent] = found.payload.end[last[~is_absent]]
            return self._value.read(Spans(found.payload.data, begin, end), owner, trouble)
        values = self._value.read(found.payload, owner[found.row], trouble)
        values = values.take(pa.array(last, mask=is_absent))
        if not self._fills or not is_absent.any():
            return values
        default = self._value.default()
        return pc.if_else(pa.array(is_absent), default, values) if values.null_count else values

    def _without_unknown(self, found: Found) -> Found:
        numbers = _signed_32(wire.words(found.payload, VARINT))
        is_known = np.isin(numbers, [*self.found.enum_type.values_by_number])
        return found if is_known.all() else found.take(np.flatnonzero(is_known))

    def _list(self, found: Found, owner: Positions, trouble: Trouble) -> pa.Array:
        single = wire_of(self.found.type)
        found = _by_row(found.of_wire(single, LENGTH))
        if single != LENGTH and (found.wire == LENGTH).any():
            found, odd = wire.unpacked(found, single)
            trouble.odd[owner[odd]] = True
        if self.found.type == Kind.ENUM and self.found.enum_type.is_closed:
            found = self._without_unknown(found)
        values = self._value.read(found.payload, owner[found.row], trouble)
        offsets, mask = self._offsets(found.row, len(owner))
        return pa.ListArray.from_arrays(offsets, values, type=self._column.type, mask=mask)

    def _map(self, found: Found, owner: Positions, trouble: Trouble) -> pa.Array:
        found = _by_row(found)
        keys, values = self._entries.read(found.payload, owner[found.row], trouble)
        codes = keys.dictionary_encode()
        if len(codes.dictionary) < len(keys):
            both = found.row * len(codes.dictionary) + codes.indices.to_numpy()
            _, first = np.unique(both, return_index=True)
            is_again = np.ones(len(both), np.bool_)
            is_again[first] = False
            trouble.odd[owner[found.row[is_again]]] = True
        offsets, mask = self._offsets(found.row, len(owner))
        return pa.MapArray.from_arrays(offsets, keys, values, type=self._column.type, mask=mask)

    def _offsets(self, row: Positions, count: int) -> tuple[pa.Array, pa.Array | None]:
        lengths = np.bincount(row, minlength=count) if len(row) else np.zeros(count, np.int64)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        is_empty = lengths == 0
        return offsets, None if self._fills or not is_empty.any() else pa.array(is_empty)


def _by_row(found: Found) -> Found:
    if len(found.row) < 2 or (np.diff(found.row) >= 0).all():
        return found
    return found.take(np.argsort(found.row, kind="stable"))


class _ValueReader:
    """Reads single values of a field: payloads to an array without NULLs, but for what is within messages."""

    def __init__(self, found: Any, type_: pa.DataType, *, defaults: bool) -> None:
        self._found = found
        self._type = type_
        self._messages: MessageReader | None = None
        if found.type == Kind.MESSAGE:
            within = list(type_) if pa.types.is_struct(type_) else [pa.field("value", type_)]
            if d.is_time(found, type_):
                within = list(SECONDS_AND_NANOS)
            self._messages = MessageReader(found.message_type, within, defaults=defaults)
        elif found.type == Kind.ENUM and type_ == pa.string():
            self._names = {value.number: value.name for value in reversed(found.enum_type.values)}

    def default(self) -> pa.Scalar:
        """The value that an absent field has."""
        value = self._found.default_value
        if self._found.type == Kind.ENUM and self._type == pa.string():
            value = self._names[value]
        if self._type == pa.string() and isinstance(value, bytes):
            value = value.decode(errors="replace")
        return pa.scalar(
            value.encode() if self._type == pa.binary() and isinstance(value, str) else value, self._type
        )

    def read(self, payload: Spans, owner: Positions, trouble: Trouble) -> pa.Array:
        kind = self._found.type
        if self._messages is not None:
            return self._message(self._messages.read(payload, owner, trouble), owner, trouble)
        if kind in (Kind.STRING, Kind.BYTES):
            return self._texts(payload, owner, trouble)
        words = wire.words(payload, wire_of(kind))
        if kind == Kind.BOOL:
            return pa.array(words != 0)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            own = words.view(np.float64) if kind == Kind.DOUBLE else words.astype(np.uint32).view(np.float32)
            return pa.array(own).cast(self._type)
        if kind == Kind.ENUM and self._type == pa.string():
            numbers, of_row = np.unique(_signed_32(words), return_inverse=True)
            names = pa.array(
                [self._names.get(number, str(number)) for number in numbers.tolist()], pa.string()
            )
            return names.take(pa.array(of_row))
        return self._integers(_numbers(kind, words), owner, trouble)

    def _integers(self, numbers: Any, owner: Positions, trouble: Trouble) -> pa.Array:
        values = pa.array(numbers)
        if pa.types.is_decimal128(self._type):
            return values.cast(pa.decimal128(20, 0)).cast(self._type)
        own = np.iinfo(self._type.to_pandas_dtype())
        if np.iinfo(numbers.dtype).max > own.max or np.iinfo(numbers.dtype).min < own.min:
            is_out = (numbers > own.max) | ((numbers < own.min) if numbers.dtype.kind == "i" else False)
            if is_out.any():
                trouble.add(
                    owner[is_out],
                    f"field {self._found.name!r} holds a number that is no {types.sql_name(self._type)}",
                )
                values = pa.array(np.where(is_out, 0, numbers))
        return values.cast(self._type)

    def _texts(self, payload: Spans, owner: Positions, trouble: Trouble) -> pa.Array:
        found = binaries(*gathered(payload))
        if self._type == pa.binary() and self._found.type == Kind.BYTES:
            return found
        try:
            return found.cast(pa.string()).cast(self._type)
        except pa.ArrowInvalid:
            pass  # find out which
        values = found.to_pylist()
        for place, value in enumerate(values):
            try:
                value.decode()
            except UnicodeDecodeError:
                trouble.add(owner[place : place + 1], f"field {self._found.name!r} is no text in UTF-8")
                values[place] = b""
        return pa.array(values, pa.binary()).cast(pa.string()).cast(self._type)

    def _message(self, columns: list[pa.Array], owner: Positions, trouble: Trouble) -> pa.Array:
        if d.is_time(self._found, self._type):
            seconds, nanos = (column.to_numpy() for column in columns)
            is_out = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _BILLION)
            trouble.add(owner[is_out], f"field {self._found.name!r} is no time of the years 1 to 9999")
            micros = pa.array(np.where(is_out, 0, seconds) * _MICROS + nanos // 1000)
            return micros.cast(self._type)
        if d.is_wrapped(self._found, self._type):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self._type))


_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_BILLION: Final = 1_000_000_000
"""What a Timestamp may hold."""


def _signed_32(words: Words) -> Any:
    return words.astype(np.uint32).view(np.int32)


def _numbers(kind: int, words: Words) -> Any:
    """The whole numbers that bits mean, in the type of the field."""
    if kind in d.ZIGZAG:
        is_short = kind in d.SIGNED_32
        bits = words.astype(np.uint32) if is_short else words
        decoded = (bits >> bits.dtype.type(1)) ^ (~(bits & bits.dtype.type(1)) + bits.dtype.type(1))
        return decoded.view(np.int32 if is_short else np.int64)
    if kind in d.SIGNED_32 or kind == Kind.ENUM:
        return _signed_32(words)
    if kind in d.UNSIGNED_32:
        return words.astype(np.uint32)
    return words.view(np.int64) if kind in d.SIGNED_64 else words
