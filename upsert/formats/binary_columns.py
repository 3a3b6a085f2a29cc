"""Columns of bytes, made for all rows at once: varints, words, elements joined by lists (pure)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Mask, Positions

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
    """The bytes of all values of a binary array, and where in them each begins and the last one ends."""
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
