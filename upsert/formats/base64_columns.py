"""A column of bytes as a column of base64 texts and back (pure).

Python's ``base64`` takes one value a call. Here the texts of a column, whose lengths are multiples of four,
are one run of groups of four characters, so that a whole column is a few numpy operations.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions

PATTERN: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
"""What a base64 text looks like, as a regular expression without anchors."""

_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
_PAD: Final = ord("=")
_VALUES: Final = np.zeros(256, dtype=np.uint32)
_VALUES[_ALPHABET] = np.arange(64, dtype=np.uint32)


def decode(texts: pa.Array) -> pa.Array:
    r"""Bytes of texts that all match ``PATTERN``; NULL for NULL.

    >>> decode(pa.array(["3q2+7w==", None, ""])).to_pylist()
    [b'\xde\xad\xbe\xef', None, b'']
    """
    data, lengths = _flat(texts.cast(pa.binary()))
    groups = _VALUES[data].reshape(-1, 4)
    words = (groups[:, 0] << 18) | (groups[:, 1] << 12) | (groups[:, 2] << 6) | groups[:, 3]
    triples = np.stack([words >> 16, words >> 8, words], axis=1).astype(np.uint8)
    padding = (data.reshape(-1, 4) == _PAD).sum(axis=1)
    kept = np.arange(3) < (3 - padding)[:, None]
    ends = np.concatenate([[0], np.cumsum(3 - padding)])
    offsets = ends[np.concatenate([[0], np.cumsum(lengths // 4)])]
    return _array(offsets, triples[kept], pa.binary(), texts)


def encode(values: pa.Array) -> pa.Array:
    r"""Base64 texts of bytes; NULL for NULL.

    >>> encode(pa.array([b"\xde\xad\xbe\xef", None, b""])).to_pylist()
    ['3q2+7w==', None, '']
    """
    data, lengths = _flat(values)
    groups = (lengths + 2) // 3
    starts = np.cumsum(groups) - groups
    padded = np.zeros(int(groups.sum()) * 3, dtype=np.uint32)
    places = np.repeat(starts * 3 - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(data))
    padded[places] = data
    words = padded.reshape(-1, 3) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    texts = _ALPHABET[np.stack([words >> 18, words >> 12, words >> 6, words], axis=1) & 63]
    missing = groups * 3 - lengths
    last = starts + groups - 1
    texts[last[missing > 0], 3] = _PAD
    texts[last[missing == 2], 2] = _PAD
    offsets = np.concatenate([[0], np.cumsum(groups * 4)])
    return _array(offsets, texts.reshape(-1), pa.string(), values)


def _flat(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Positions]:
    """The bytes of all values in one run, and how many each value has."""
    filled = values.fill_null(b"")
    offsets = np.frombuffer(filled.buffers()[1], dtype=np.int32)[filled.offset :][: len(filled) + 1]
    if not len(filled):
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    buffer = filled.buffers()[2]
    data = np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    return data[offsets[0] : offsets[-1]], np.diff(offsets).astype(np.int64)


def _array(offsets: Positions, data: npt.NDArray[np.uint8], type_: pa.DataType, like: pa.Array) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    found = pa.Array.from_buffers(type_, len(like), buffers)
    if like.null_count == 0:
        return found
    return pa.compute.if_else(like.is_valid(), found, pa.scalar(None, type_))
