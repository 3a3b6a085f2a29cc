"""Columns of bytes, made and taken apart for all rows at once: varints, words, joined elements (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Mask, Positions, is_null
from upsert.formats.base import BadMessage

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


def binaries(data: Bytes, length: Positions) -> pa.Array:
    """A binary array of values that lie one after the other."""
    offsets = np.zeros(len(length) + 1, np.int32)
    np.cumsum(length, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(length), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def bytes_of(values: pa.Array) -> tuple[Bytes, Positions]:
    """The bytes of all values, none NULL, of binary or text, and where each begins and the last one ends."""
    if not len(values):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    buffer = values.buffers()[2]
    data = np.frombuffer(buffer if buffer is not None else b"", np.uint8)
    return data[offsets[0] : offsets[-1]], offsets.astype(np.int64) - int(offsets[0])


def varint_lengths(values: Words) -> Positions:
    """How many bytes each number takes.

    >>> varint_lengths(np.array([0, 127, 128, 2**64 - 1], np.uint64)).tolist()
    [1, 1, 2, 10]
    """
    length = np.ones(len(values), np.int64)
    rest = values >> np.uint64(7)
    while rest.any():
        length += rest != 0
        rest = rest >> np.uint64(7)
    return length


def varint_bytes(before: bytes, values: Words, is_present: Mask | None = None) -> pa.Array:
    r"""Of each number its bytes after some that are the same for all; nothing where it is not present.

    >>> varint_bytes(b"a", np.array([1, 300], np.uint64)).to_pylist()
    [b'a\x01', b'a\xac\x02']
    """
    own = varint_lengths(values)
    length = own + len(before)
    if is_present is not None:
        length = np.where(is_present, length, 0)
    begin = np.cumsum(length) - length
    flat = np.zeros(int(length.sum()), np.uint8)
    written = np.arange(len(values)) if is_present is None else np.flatnonzero(is_present)
    at = begin[written]
    for byte in before:
        flat[at] = byte
        at += 1
    rest, left = values[written], own[written]
    while len(rest):
        more = left > 1
        flat[at] = (rest & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        at, rest, left = at[more] + 1, rest[more] >> np.uint64(7), left[more] - 1
    return binaries(flat, length)


def fixed_bytes(before: bytes, values: npt.NDArray[Any], is_present: Mask | None = None) -> pa.Array:
    """As `varint_bytes`, of numbers that all take as many bytes as their type."""
    if is_present is None:
        is_present = np.ones(len(values), np.bool_)
    own = values[is_present]
    raw = (
        own.astype(own.dtype.newbyteorder("<"), copy=False)
        .view(np.uint8)
        .reshape(len(own), own.dtype.itemsize)
    )
    head = np.broadcast_to(np.frombuffer(before, np.uint8), (len(own), len(before)))
    flat = np.concatenate((head, raw), axis=1)
    return binaries(flat.ravel(), np.where(is_present, flat.shape[1], 0))


def joined_by_lists(elements: pa.Array, lengths: Positions) -> pa.Array:
    """The bytes of each list's elements, one after the other.

    >>> joined_by_lists(pa.array([b"a", b"b", b"c"]), np.array([2, 0, 1])).to_pylist()
    [b'ab', b'', b'c']
    """
    data, offsets = bytes_of(elements)
    return binaries(data, np.diff(offsets[np.concatenate(([0], np.cumsum(lengths)))]))


PADDING: Final = 16
"""Bytes behind the data, so that a number at its end can be read without a look at where it ends."""

FAR: Final = 1 << 62
"""Behind the end of all bytes."""

_LONG: Final = 64
"""Longer stretches are copied one by one; the place of each byte would take eight bytes, and longer."""


class Spans(NamedTuple):
    """Stretches of one run of bytes, which `PADDING` follows: messages, values, payloads of fields."""

    data: Bytes
    begin: Positions
    end: Positions

    def take(self, which: Any) -> Spans:
        """Some of them."""
        return Spans(self.data, self.begin[which], self.end[which])


def padded(data: Bytes) -> Bytes:
    """The bytes, and `PADDING` more."""
    return np.concatenate((data, np.zeros(PADDING, np.uint8)))


def varints(data: Bytes, at: Positions) -> tuple[Words, Positions]:
    """The numbers that begin at these places, and where each one ends; `FAR` away for malformed ones.

    >>> values, after = varints(padded(np.array([1, 0xAC, 0x02], np.uint8)), np.array([0, 1]))
    >>> values.tolist(), after.tolist()
    ([1, 300], [1, 3])
    """
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte > 0x7F)
    for shift in range(7, 70, 7):
        if not len(more):
            break
        byte = data[np.minimum(after[more], len(data) - 1)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        if shift == 63:  # the tenth byte has one bit
            after[more[byte > 1]] = FAR
        more = more[byte > 0x7F]
    return value, after


def places(begin: Positions, length: Positions) -> Positions:
    """The places in all stretches, one stretch after the other.

    >>> places(np.array([5, 1]), np.array([2, 3])).tolist()
    [5, 6, 1, 2, 3]
    """
    offsets = np.cumsum(length) - length
    found: Positions = np.repeat(begin - offsets, length)
    found += np.arange(len(found))
    return found


def gathered(spans: Spans) -> tuple[Bytes, Positions]:
    """The bytes of all stretches, one after the other, and how many each has."""
    length = spans.end - spans.begin
    if length.sum() > _LONG * len(length):
        stretches = zip(spans.begin.tolist(), spans.end.tolist(), strict=True)
        return np.concatenate([spans.data[begin:end] for begin, end in stretches]), length
    return spans.data[places(spans.begin, length)], length


BATCH: Final = 16_384
"""Messages that are read or written at once; what is known of them stays in the processor's cache."""

_BATCH_BYTES: Final = 4 << 20
"""Bytes of them that are read at once: what is known of the fields is many times as large as the fields."""


def _batches(messages: pa.Array) -> Iterator[tuple[int, int]]:
    """Where each batch of some messages begins and ends."""
    if not len(messages):
        return
    ends = np.cumsum(pc.binary_length(messages).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    numbers = np.arange(len(messages)) // BATCH
    is_last = (np.diff(numbers) != 0) | (np.diff(ends // _BATCH_BYTES) != 0)
    yield from pairwise([0, *(np.flatnonzero(is_last) + 1).tolist(), len(messages)])


Read = tuple[pa.Table, Positions, Mapping[int, str]]
"""Rows of some stretches, the number of each row's stretch, and why others are bad, by their numbers."""


def read_in_batches(
    messages: pa.Array, start: int, fields: pa.Schema, read: Callable[[Spans], Read]
) -> tuple[pa.Table, Positions, list[BadMessage]]:
    """The rows of some messages, the position of each row's message, and the bad ones; ``read`` has a batch.

    NULL gives no row; of each message ``start`` bytes come before what is read of it.
    """
    tables, positions, bad = [fields.empty_table()], [np.zeros(0, np.int64)], []
    for first, end in _batches(messages):
        batch = messages.slice(first, end - first)
        kept = np.flatnonzero(~is_null(batch))
        data, offsets = bytes_of(batch)
        rows, numbers, reasons = read(Spans(padded(data), offsets[:-1][kept] + start, offsets[1:][kept]))
        kept += first
        tables.append(rows)
        positions.append(kept[numbers])
        bad += [BadMessage(int(kept[number]), reason) for number, reason in reasons.items()]
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(positions), bad
