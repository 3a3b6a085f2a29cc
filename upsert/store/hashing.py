"""Hashes of rows: Spark's own ``xxhash64``, buckets, and a 128-bit identity of whole rows (pure).

``hash_columns`` equals Spark SQL's ``xxhash64(columns)`` bit for bit: XXH64 with seed 42, where the hash
of one column is the seed of the next and a NULL leaves the seed as it is. So the JVM plan and Python agree
on the bucket of a row without asking each other. Fixed-width types are hashed by numpy, all rows at once;
strings, binaries and wide decimals go through the ``xxhash`` package, one call a value inside ``map``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Hashes = npt.NDArray[np.uint64]

SEED: Final = 42
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int | None = None) -> Hashes:
    """Spark's ``xxhash64(columns)`` of every row, as unsigned numbers.

    Args:
        columns: arrays of equal length, of the scalar types that a table stores.
        rows: their length; needed only where ``columns`` may be empty.

    >>> hash_columns([pa.array([1, None]), pa.array(["a", "a"])]).view("int64").tolist()
    [-8527884376001292090, -8582455328737087284]
    """
    count = len(columns[0]) if rows is None else rows
    if count and any(isinstance(column, pa.ChunkedArray) and column.num_chunks > 1 for column in columns):
        # piece by piece: texts of more than 2 GB do not fit into one array
        pieces = pa.table(list(columns), names=[str(i) for i in range(len(columns))]).to_batches()
        return np.concatenate([hash_columns(piece.columns) for piece in pieces])
    seeds = np.full(count, SEED, dtype=np.uint64)
    is_uniform = True
    for column in columns:
        array = one_array(column)
        hashed = _hash_array(array, seeds, is_uniform)
        seeds = np.where(is_null(array), seeds, hashed) if array.null_count else hashed
        is_uniform = False
    return seeds


def bucket_of(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """Bucket of each hash: Spark's ``pmod(hash, buckets)``, the hash taken as a signed number.

    >>> bucket_of(np.array([2**64 - 1, 5], dtype=np.uint64), 4).tolist()
    [3, 1]
    """
    if buckets & (buckets - 1) == 0:  # a power of two: the low bits, without a division for each row
        return (hashes & np.uint64(buckets - 1)).view(np.int64)
    found: npt.NDArray[np.int64] = np.mod(hashes.view(np.int64), np.int64(buckets))
    return found


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; copies only what lies in several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def is_null(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the NULLs of an array."""
    mask: npt.NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return mask


def fixed_width(array: pa.Array) -> npt.NDArray[Any]:
    """Values of a fixed-width array as integers: bool as 0/1, floats as normalised bits, NULL as any value.

    -0.0 becomes 0.0 and every NaN the same NaN, so that equal keys have equal bits.
    """
    type_ = array.type
    if pa.types.is_boolean(type_):
        flags: npt.NDArray[np.bool_] = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        return flags.view(np.int8)
    if pa.types.is_decimal128(type_):
        return decimal_words(array)[0]
    if pa.types.is_floating(type_):
        values = normalised_floats(array)
        return values.view(np.int32 if values.dtype == np.float32 else np.int64)
    width = type_.bit_width
    dtype = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}[width]
    return _values(array, np.dtype(dtype))


def normalised_floats(array: pa.Array) -> npt.NDArray[Any]:
    """Values of a float array with -0.0 as 0.0 and one NaN; NULL as any value."""
    dtype = np.dtype(np.float32 if pa.types.is_float32(array.type) else np.float64)
    values = _values(array, dtype) + dtype.type(0.0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = dtype.type(np.nan)
    return values


def decimal_words(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Low and high 64-bit words of the unscaled values of a decimal array."""
    words = np.frombuffer(array.buffers()[1], dtype=np.int64) if len(array) else np.empty(0, np.int64)
    pairs = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def fixed_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Values of a fixed-size binary array, one row of bytes each."""
    width = array.type.byte_width
    flat = np.frombuffer(array.buffers()[1], dtype=np.uint8) if len(array) else np.empty(0, np.uint8)
    return flat[width * array.offset : width * (array.offset + len(array))].reshape(-1, width)


def _values(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The value buffer of a primitive array as numpy, NULL slots included."""
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype=dtype)[array.offset : array.offset + len(array)]


def _hash_array(array: pa.Array, seeds: Hashes, is_uniform: bool) -> Hashes:
    type_ = array.type
    if pa.types.is_fixed_size_binary(type_):
        words = np.ascontiguousarray(fixed_bytes(array)).view(np.uint64)
        return hash_words(words[:, 0], words[:, 1], seeds)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        texts = array.view(pa.binary())
        if texts.null_count:
            texts = pc.fill_null(texts, b"")
        return _hash_bytes(texts.to_pylist(), seeds, is_uniform)
    if pa.types.is_decimal128(type_) and type_.precision > 18:
        return _hash_bytes(_java_bytes(array), seeds, is_uniform)
    values = fixed_width(array)
    if values.dtype.itemsize == 8:
        return _hash_long(values.view(np.uint64), seeds)
    return _hash_int(values.astype(np.int32).view(np.uint32), seeds)


def _hash_bytes(values: Iterable[bytes], seeds: Hashes, is_uniform: bool) -> Hashes:
    each: Iterable[int] = repeat(SEED) if is_uniform else seeds.tolist()
    return np.fromiter(map(xxhash.xxh64_intdigest, values, each), dtype=np.uint64, count=len(seeds))


def _java_bytes(array: pa.Array) -> Iterable[bytes]:
    """``BigInteger.toByteArray`` of each unscaled value: the shortest big-endian two's complement."""
    low, high = decimal_words(array)
    for lower, upper in zip(low.view(np.uint64).tolist(), high.tolist(), strict=True):
        value = (upper << 64) | lower
        bits = (value if value >= 0 else ~value).bit_length()
        yield value.to_bytes(bits // 8 + 1, "big", signed=True)


def _rotate(values: Hashes, bits: int) -> Hashes:
    rotated: Hashes = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated


def _avalanche(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _round(hashes: Hashes, words: Hashes) -> Hashes:
    mixed: Hashes = _rotate(hashes ^ (_rotate(words * _P2, 31) * _P1), 27) * _P1 + _P4
    return mixed


def _hash_int(values: npt.NDArray[np.uint32], seeds: Hashes) -> Hashes:
    hashes = (seeds + _P5 + np.uint64(4)) ^ (values.astype(np.uint64) * _P1)
    return _avalanche(_rotate(hashes, 23) * _P2 + _P3)


def _hash_long(values: Hashes, seeds: Hashes) -> Hashes:
    return _avalanche(_round(seeds + _P5 + np.uint64(8), values))


def hash_words(first: Hashes, second: Hashes, seeds: Hashes) -> Hashes:
    """XXH64 of 16 bytes a row, given as two little-endian words."""
    return _avalanche(_round(_round(seeds + _P5 + np.uint64(16), first), second))
