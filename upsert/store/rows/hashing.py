"""Hashes of rows: Spark's own ``xxhash64``, buckets, and a 128-bit identity of whole rows (pure).

``hash_columns`` equals Spark SQL's ``xxhash64(columns)`` bit for bit: XXH64 with seed 42, where the hash
of one column is the seed of the next and a NULL leaves the seed as it is. So the JVM plan and Python agree
on the bucket of a row without asking each other. Fixed-width types are hashed by numpy, all rows at once;
strings, binaries and wide decimals go through the ``xxhash`` package, one call a value inside ``map``.

``row_hashes`` tells whole rows apart. Rows are equal if all columns are: NULL equals NULL, -0.0 equals 0.0,
NaN equals NaN, maps are equal whatever the order of their entries. Two 64-bit chains with different seeds run
over the columns; a NULL is mixed in as a mark of its own, so that (NULL, 1) and (1, NULL) differ, unlike
under Spark's hash. Nested columns are first written as bytes in one canonical form, which costs a Python loop
over their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from upsert import types
from upsert.arrays import decimal_words, is_null, one_array
from upsert.errors import SchemaError

Hashes = npt.NDArray[np.uint64]

SEED: Final = 42
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int | None = None) -> Hashes:
    """Spark's ``xxhash64(columns)`` of every row, as unsigned numbers.

    The columns are of scalar types that a table stores; ``rows`` is needed only where there may be none.

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
    """Bucket of each hash: Spark's ``pmod(hash, buckets)``, the hash taken as a signed number."""
    if buckets & (buckets - 1) == 0:  # a power of two: the low bits, without a division for each row
        return (hashes & np.uint64(buckets - 1)).view(np.int64)
    found: npt.NDArray[np.int64] = np.mod(hashes.view(np.int64), np.int64(buckets))
    return found


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
    return _values(array, np.dtype(f"i{type_.bit_width // 8}"))


def normalised_floats(array: pa.Array) -> npt.NDArray[Any]:
    """Values of a float array with -0.0 as 0.0 and one NaN; NULL as any value."""
    dtype = np.dtype(np.float32 if pa.types.is_float32(array.type) else np.float64)
    values = _values(array, dtype) + dtype.type(0.0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = dtype.type(np.nan)
    return values


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
        return _by_pieces(hash_words, words[:, 0], words[:, 1], seeds)
    if is_text(type_):
        texts = array.view(pa.binary())
        if texts.null_count:
            texts = pc.fill_null(texts, b"")
        return _hash_bytes(texts.to_pylist(), seeds, is_uniform)
    if pa.types.is_decimal128(type_) and type_.precision > 18:
        return _hash_bytes(_java_bytes(array), seeds, is_uniform)
    values = _nanoseconds(array) if pa.types.is_time(type_) else fixed_width(array)
    if values.dtype.itemsize == 8:
        return _by_pieces(_hash_long, values.view(np.uint64), seeds)
    return _by_pieces(_hash_int, values.astype(np.int32).view(np.uint32), seeds)


_PIECE: Final = 1 << 14


def _by_pieces(hash_: Callable[..., Hashes], *arrays: npt.NDArray[Any]) -> Hashes:
    """A function of the rows of some arrays; what is computed of a piece of them stays in a core's cache.

    So it takes a quarter of the time.
    """
    count = len(arrays[0])
    if count <= _PIECE:
        return hash_(*arrays)
    starts = range(0, count, _PIECE)
    return np.concatenate([hash_(*(array[start : start + _PIECE] for array in arrays)) for start in starts])


def _nanoseconds(array: pa.Array) -> npt.NDArray[np.int64]:
    """Times of day as Spark counts them, whatever their unit."""
    counted: npt.NDArray[np.int64] = fixed_width(array).astype(np.int64) * types.NANOS[array.type]
    return counted


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


def _hash_long(values: Hashes, seeds: Hashes) -> Hashes:
    return _avalanche(_round(seeds + _P5 + np.uint64(8), values))


def _hash_int(values: npt.NDArray[np.uint32], seeds: Hashes) -> Hashes:
    hashes = (seeds + _P5 + np.uint64(4)) ^ (values.astype(np.uint64) * _P1)
    return _avalanche(_rotate(hashes, 23) * _P2 + _P3)


def hash_words(first: Hashes, second: Hashes, seeds: Hashes) -> Hashes:
    """XXH64 of 16 bytes a row, given as two little-endian words."""
    return _avalanche(_round(_round(seeds + _P5 + np.uint64(16), first), second))


_SEEDS: Final = (np.uint64(0x2545F4914F6CDD1D), np.uint64(0x9FB21C651E98DF25))
_NULL_MARK: Final = np.uint64(0xD1B54A32D192ED03)
_VALUE_MARK: Final = np.uint64(1)


def row_hashes(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> pa.Array:
    """The identity of every row, as fixed-size binaries of 16 bytes."""
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
    if pa.types.is_nested(type_) or is_text(type_):
        texts = canonical_bytes(array) if pa.types.is_nested(type_) else _texts(array)
        digests = b"".join(map(xxhash.xxh3_128_digest, texts))
        pairs = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]
    if pa.types.is_decimal128(type_):
        low, high = decimal_words(array)
        return low.view(np.uint64), high.view(np.uint64)
    if pa.types.is_null(type_):
        return np.zeros(len(array), dtype=np.uint64), np.zeros(len(array), dtype=np.uint64)
    # rows of a query may have types of 64 bits that no table has
    is_time = pa.types.is_duration(type_) or pa.types.is_timestamp(type_)
    if not (types.is_scalar(type_) or is_time):
        raise SchemaError(f"a row must have columns whose values can be compared, got {type_}; cast it")
    values = fixed_width(array).astype(np.int64).view(np.uint64)
    return values, np.zeros(len(values), dtype=np.uint64)


def is_text(type_: pa.DataType) -> bool:
    """Whether values are strings or binaries, each of a length of its own."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


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
    if is_text(type_):
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
