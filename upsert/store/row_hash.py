"""A 128-bit identity of whole rows, of any column types (pure).

Rows are equal if all columns are: NULL equals NULL, -0.0 equals 0.0, NaN equals NaN, maps are equal whatever
the order of their entries. Equal rows have equal hashes. Two 64-bit chains with different seeds run over the
columns; a NULL is mixed in as a mark of its own, so that (NULL, 1) and (1, NULL) differ, unlike under Spark's
hash. Nested columns are first written as bytes in one canonical form, which costs a Python loop over their
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from upsert import types
from upsert.errors import SchemaError
from upsert.store.hashing import Hashes, decimal_words, fixed_width, hash_words, is_null, one_array

_SEEDS: Final = (np.uint64(0x2545F4914F6CDD1D), np.uint64(0x9FB21C651E98DF25))
_NULL_MARK: Final = np.uint64(0xD1B54A32D192ED03)
_VALUE_MARK: Final = np.uint64(1)


def row_hashes(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> pa.Array:
    """The identity of every row, as fixed-size binaries of 16 bytes.

    >>> hashes = row_hashes([pa.array([None, 1, None]), pa.array([1, None, 1])], 3)
    >>> hashes[0] == hashes[2], hashes[0] == hashes[1]
    (True, False)
    """
    halves = [np.full(rows, seed, dtype=np.uint64) for seed in _SEEDS]
    for column in columns:
        array = one_array(column)
        low, high = _words(array)
        mark = np.full(rows, _VALUE_MARK, dtype=np.uint64)
        if array.null_count:
            missing = is_null(array)
            mark[missing] = _NULL_MARK
            low, high = np.where(missing, 0, low), np.where(missing, 0, high)
        halves = [hash_words(low, high, half ^ mark) for half in halves]
    both = np.ascontiguousarray(np.stack(halves, axis=1))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(both)])


def _words(array: pa.Array) -> tuple[Hashes, Hashes]:
    """128 bits that are equal for equal values of one column."""
    type_ = array.type
    if pa.types.is_nested(type_) or _is_text(type_):
        texts = canonical_bytes(array) if pa.types.is_nested(type_) else _texts(array)
        digests = b"".join(map(xxhash.xxh3_128_digest, texts))
        pairs = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]
    if pa.types.is_decimal128(type_):
        low, high = decimal_words(array)
        return low.view(np.uint64), high.view(np.uint64)
    if pa.types.is_null(type_):
        return np.zeros(len(array), dtype=np.uint64), np.zeros(len(array), dtype=np.uint64)
    if not (types.is_scalar(type_) or _is_time(type_)):
        raise SchemaError(f"a row must have columns whose values can be compared, got {type_}; cast it")
    values = fixed_width(array).astype(np.int64).view(np.uint64)
    return values, np.zeros(len(values), dtype=np.uint64)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def _is_time(type_: pa.DataType) -> bool:
    """Whether the type is one of 64 bits that no table has, but rows of a query may."""
    return bool(pa.types.is_duration(type_) or pa.types.is_time64(type_) or pa.types.is_timestamp(type_))


def _texts(array: pa.Array) -> Iterable[bytes]:
    return (value or b"" for value in array.view(pa.binary()).to_pylist())


def canonical_bytes(array: pa.Array) -> list[bytes]:
    """Each value as bytes: equal values, and only they, have equal bytes.

    A value begins with 0 for NULL, else with 1 and the length of what follows, so that lists of values need
    no separators.
    """
    plain = _plain_bytes(array)
    missing = is_null(array).tolist() if array.null_count else [False] * len(array)
    return [
        b"\0" if is_missing else b"\1" + len(value).to_bytes(5, "little") + value
        for value, is_missing in zip(plain, missing, strict=True)
    ]


def _plain_bytes(array: pa.Array) -> list[bytes]:
    type_ = array.type
    if pa.types.is_map(type_):
        keys, items = child_values(array, array.keys), child_values(array, array.items)
        entries = [
            key + item for key, item in zip(canonical_bytes(keys), canonical_bytes(items), strict=True)
        ]
        return [b"".join(sorted(entries[start:stop])) for start, stop in _stretches(array)]
    if pa.types.is_list(type_):
        elements = canonical_bytes(child_values(array, array.values))
        return [b"".join(elements[start:stop]) for start, stop in _stretches(array)]
    if pa.types.is_struct(type_):
        fields = [canonical_bytes(field) for field in array.flatten()]
        return [b"".join(parts) for parts in zip(*fields, strict=True)] if fields else [b""] * len(array)
    if _is_text(type_):
        return list(_texts(array))
    low, high = _words(array)
    width = 16 if pa.types.is_decimal(type_) else 8
    flat = np.ascontiguousarray(np.stack([low, high], axis=1)).tobytes()
    return [flat[start : start + width] for start in range(0, len(flat), 16)]


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def child_values(array: pa.Array, values: pa.Array) -> pa.Array:
    """The part of a nested array's child ``values`` that the array's own rows span."""
    offsets = _offsets(array)
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _stretches(array: pa.Array) -> Iterable[tuple[int, int]]:
    """Where each row's child values begin and end; none for NULL, whatever lies below it."""
    offsets = _offsets(array)
    limits = pairwise((offsets - offsets[0]).tolist())
    if not array.null_count:
        return limits
    valid = pc.is_valid(array).to_pylist()
    return (
        (start, stop if is_valid else start) for (start, stop), is_valid in zip(limits, valid, strict=True)
    )
