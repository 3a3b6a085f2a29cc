"""Protobuf's wire form, for all messages of a batch at once: where fields lie, and numbers as bytes (pure).

A message is a run of fields, each a tag (number and wire type) and a payload. `scan` steps through all
messages together, field by field, so that a step is some numpy operations for a whole batch. The few messages
that have many more fields than the others are finished one by one.

What this does not read as the library would, it names as odd: fields that are cut off, malformed tags. Who
asks gives such messages to the library, which says what is wrong with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from upsert.arrays import Mask, Positions
from upsert.formats.binary_columns import FAR, Bytes, Spans, gathered, padded, varints

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)
"""The wire types."""

_FEW: Final = 48
"""So many messages are stepped through one by one; numpy would take longer."""

_MAX_LENGTH: Final = (1 << 31) - 1
_MAX_TAG: Final = (1 << 32) - 1
_SIZES: Final = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True)
class Found:
    """The fields of one number in some messages; those of a message in their order.

    Attributes:
        row: the message of each, by number.
        wire: its wire type.
        payload: where its number or its bytes are.
    """

    row: Positions
    wire: npt.NDArray[np.int8]
    payload: Spans

    def take(self, which: Any) -> Found:
        """Some of them."""
        return Found(self.row[which], self.wire[which], self.payload.take(which))

    def of_wire(self, *wires: int) -> Found:
        """Those of these wire types; the library takes the others for unknown fields."""
        is_right = np.isin(self.wire, wires)
        return self if is_right.all() else self.take(np.flatnonzero(is_right))


def scan(messages: Spans, numbers: Positions) -> tuple[list[Found], Mask]:
    """The fields of each of some numbers, which ascend; and which messages are odd.

    >>> data = padded(np.frombuffer(bytes.fromhex("0801" "0802" "120161"), np.uint8))
    >>> found, odd = scan(Spans(data, np.array([0, 2]), np.array([2, 7])), np.array([1, 2]))
    >>> [one.row.tolist() for one in found], odd.tolist()
    ([[0, 1], [1]], [False, False])
    """
    data, begin, end = messages
    odd = np.zeros(len(begin), np.bool_)
    pieces: list[tuple[Any, Any, Any, Any, Any]] = []
    row = np.flatnonzero(begin < end)
    at, limit = begin[row], end[row]
    alone: list[int] = []  # messages with groups
    resume: dict[int, int] = {}
    while len(row) > _FEW:
        tag, start = varints(data, at)
        wire = (tag & np.uint64(7)).astype(np.int8)
        number = (tag >> np.uint64(3)).astype(np.int64)
        start, stop = _payloads(data, start, wire)
        is_good = (stop <= limit) & (number > 0) & (tag <= _MAX_TAG)
        if not is_good.all():
            is_group = (wire == GROUP) & (number > 0) & (tag <= _MAX_TAG)
            for place in np.flatnonzero(is_group).tolist():
                alone.append(int(row[place]))
                resume[alone[-1]] = int(at[place])
            odd[row[~is_good & ~is_group]] = True
            which = np.flatnonzero(is_good)
            row, limit, wire = row[which], limit[which], wire[which]
            number, start, stop = number[which], start[which], stop[which]
        code = np.minimum(np.searchsorted(numbers, number), len(numbers) - 1) if len(numbers) else number
        is_wanted = numbers[code] == number if len(numbers) else np.zeros(len(number), np.bool_)
        if is_wanted.all():
            pieces.append((code, row, wire, start, stop))
        elif is_wanted.any():
            pieces.append(tuple(part[is_wanted] for part in (code, row, wire, start, stop)))
        goes_on = stop < limit
        if goes_on.all():
            at = stop
        else:
            row, at, limit = row[goes_on], stop[goes_on], limit[goes_on]
    rest = [*zip(row.tolist(), at.tolist(), strict=True), *((one, resume[one]) for one in alone)]
    if rest:
        pieces.append(_one_by_one(data, rest, end, numbers, odd))
    return _by_number(data, pieces, len(numbers)), odd


def _payloads(data: Bytes, at: Positions, wire: npt.NDArray[np.int8]) -> tuple[Positions, Positions]:
    """Where the payloads of fields begin and end, of which the tags end here; far away for what is none."""
    start, stop = np.minimum(at, len(data) - 1), np.full(len(at), FAR)
    counts = np.bincount(wire, minlength=8)
    for kind in np.flatnonzero(counts).tolist():
        which: Any = slice(None) if counts[kind] == len(wire) else np.flatnonzero(wire == kind)
        if kind == VARINT:
            stop[which] = varints(data, start[which])[1]
        elif kind in _SIZES:
            stop[which] = start[which] + _SIZES[kind]
        elif kind == LENGTH:
            length, begin = varints(data, start[which])
            start[which] = begin
            is_short = length <= _MAX_LENGTH
            stop[which] = np.where(is_short, begin + length.astype(np.int64), FAR)
    return start, stop


def _one_by_one(
    data: Bytes, rest: list[tuple[int, int]], end: Positions, numbers: Positions, odd: Mask
) -> tuple[Any, ...]:
    """The wanted fields of messages from places on; as arrays of code, message, wire type, begin and end."""
    view = memoryview(data.data)
    codes = {number: code for code, number in enumerate(numbers.tolist())}
    found: list[tuple[int, int, int, int, int]] = []
    for row, start in rest:
        at, limit = start, int(end[row])
        before = len(found)
        groups: list[int] = []
        try:
            while at < limit:
                tag, at = varint_in(view, at)
                number, wire = tag >> 3, tag & 7
                if not number or tag > _MAX_TAG:
                    raise IndexError
                begin = at
                if wire == VARINT:
                    _, at = varint_in(view, at)
                elif wire in _SIZES:
                    at += _SIZES[wire]
                elif wire == LENGTH:
                    length, begin = varint_in(view, at)
                    at = begin + length
                elif wire == GROUP:
                    groups.append(number)
                elif wire != GROUP_END or not groups or groups.pop() != number:
                    raise IndexError
                is_whole = not groups and wire not in (GROUP, GROUP_END)
                if is_whole and (code := codes.get(number)) is not None:
                    found.append((code, row, wire, begin, at))
            if at > limit or groups:
                raise IndexError
        except IndexError:
            odd[row] = True
            del found[before:]
    parts = np.array(found, np.int64).reshape(-1, 5)
    return parts[:, 0], parts[:, 1], parts[:, 2].astype(np.int8), parts[:, 3], parts[:, 4]


def varint(value: int) -> bytes:
    r"""The bytes of one number.

    >>> varint(300)
    b'\xac\x02'
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def varint_in(view: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends; `IndexError` if there is none."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise IndexError
            return value, at
        shift += 7
        if shift == 70:
            raise IndexError


def _by_number(data: Bytes, pieces: list[tuple[Any, ...]], count: int) -> list[Found]:
    if not pieces:
        none = np.zeros(0, np.int64)
        return [Found(none, none.astype(np.int8), Spans(data, none, none))] * count
    code, row, wire, begin, end = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(code.astype(np.uint16), kind="stable")
    everything = Found(row, wire, Spans(data, begin, end)).take(order)
    bounds = np.searchsorted(code[order], np.arange(count + 1))
    return [everything.take(slice(bounds[i], bounds[i + 1])) for i in range(count)]


def unpacked(found: Found, wire: int) -> tuple[Found, Positions]:
    """Each number of packed fields as a field of its own; the messages of those that are odd.

    ``wire`` is the type of a single number. Fields that are not packed stay as they are.
    """
    data = found.payload.data
    length = found.payload.end - found.payload.begin
    if wire == VARINT:
        last = data[found.payload.end - 1] > 0x7F
        is_odd = (length > 0) & last
    else:
        is_odd = length % _SIZES[wire] != 0
    odd = found.row[is_odd]
    if len(odd):
        found = found.take(np.flatnonzero(~is_odd))
    flat, length = gathered(found.payload)
    if wire == VARINT:
        ends = np.flatnonzero(flat < 0x80) + 1
        begins = np.concatenate((np.zeros(1, np.int64), ends))[: len(ends)]
        is_long = ends - begins > 10
    else:
        begins = np.arange(0, len(flat), _SIZES[wire])
        ends = begins + _SIZES[wire]
        is_long = np.zeros(len(ends), np.bool_)
    row = found.row[np.searchsorted(np.cumsum(length), ends, side="left")]
    odd = np.concatenate((odd, row[is_long]))
    return Found(row, np.full(len(row), wire, np.int8), Spans(padded(flat), begins, ends)), odd


def words(payload: Spans, wire: int) -> Any:
    """The bits of numbers of a wire type; those of four bytes in the lower half."""
    data, begin, _ = payload
    if wire == VARINT:
        return varints(data, begin)[0]
    size = _SIZES[wire]
    raw = data[begin[:, None] + np.arange(size)]
    return raw.view("<u8" if size == 8 else "<u4").ravel().astype(np.uint64)
