"""Rows as binary values on their way through Spark's shuffles and state (pure).

One blob is one Arrow IPC stream with a label. Spark then moves a few binary values instead of rows, and
neither the JVM nor pandas converts any of them. What comes out of a shuffle or a state store is parsed and
checked like any other input, never unpickled.

Spark sends a group to task ``pmod(hash(number), tasks)``. With the numbers 0, 1 and two tasks both groups
meet in one task, which then does all the work. So `bucket_ids` calls a bucket by the smallest number whose
hash leads to it; with as many tasks as buckets (or a divisor of that) every task then has its equal share.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.errors import BrokenPayloadError

BLOB_BYTES: Final = 4 << 20
"""Bytes of a blob about: the JVM allocates each one whole, so a few large ones exhaust its direct memory."""

BLOB_COLUMN: Final = "blob"
"""The column of a DataFrame that has them."""

_PACK_BYTES: Final = 32 << 20
_WHOLE: Final = 1 << 62
_ROWS_PER_BATCH: Final = 100_000
_ABOUT: Final = b"upsert"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream of Arrow."""


def to_blobs(
    rows: pa.Table, about: Mapping[str, Any] | bytes, *, blob_bytes: int = BLOB_BYTES
) -> Iterator[bytes]:
    """The rows, if any, as blobs of about ``blob_bytes`` at most, in order; each carries ``about`` as JSON.

    A single row may exceed ``blob_bytes``. For many tables of one schema ``about`` may be their ``head``.

    >>> (blob,) = to_blobs(pa.table({"k": [1, 2]}), {"side": 1})
    >>> rows, about = from_blob(blob)
    >>> rows.to_pydict(), about
    ({'k': [1, 2]}, {'side': 1})
    """
    beginning = about if isinstance(about, bytes) else head(rows.schema, about)
    for batch in _cut(rows, blob_bytes):
        yield b"".join((beginning, batch.serialize(), _END))


def _cut(rows: pa.Table, blob_bytes: int) -> list[pa.RecordBatch]:
    count = max(1, rows.num_rows * blob_bytes // max(rows.nbytes, 1))
    found: list[pa.RecordBatch] = rows.combine_chunks().to_batches(max_chunksize=count)
    return found


def to_blob(rows: pa.Table) -> bytes:
    """All rows as one blob, nothing for none; see ``rows_in``."""
    return b"".join(to_blobs(rows, {}, blob_bytes=_WHOLE))


def rows_in(blob: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of a blob, or of nothing, in a schema whose types they have.

    >>> schema = pa.schema({"k": pa.int64()})
    >>> [rows_in(to_blob(rows), schema).num_rows for rows in (schema.empty_table(), pa.table({"k": [1]}))]
    [0, 1]
    """
    return pa.Table.from_arrays(from_blob(blob)[0].columns, schema=schema) if blob else schema.empty_table()


def head(schema: pa.Schema, about: Mapping[str, Any]) -> bytes:
    """What blobs of a schema begin with, which carry something; no column of it has a dictionary."""
    found: bytes = schema.with_metadata({_ABOUT: json.dumps(about).encode()}).serialize().to_pybytes()
    return found


def from_blob(blob: bytes | pa.Buffer) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a blob, and what it carries with them.

    Raises:
        BrokenPayloadError: the bytes are none.
    """
    rows, text = rows_and_label(blob)
    try:
        about = json.loads(text)
        if not isinstance(about, dict):
            raise ValueError(f"it carries {about!r}")
    except ValueError as cause:
        raise _broken(blob, cause) from cause
    return rows, about


def rows_and_label(blob: bytes | pa.Buffer) -> tuple[pa.Table, bytes]:
    """The rows of a blob, and the text of what it carries; errors are those of ``from_blob``."""
    try:
        with pa.ipc.open_stream(blob) as reader:
            rows = reader.read_all()
        rows.validate()
        # a text may be no valid UTF-8: to Spark it is the bytes that it is
        pa.Table.from_arrays(list(map(_as_bytes, rows.columns)), names=rows.column_names).validate(full=True)
        label = (rows.schema.metadata or {})[_ABOUT]
    except (pa.ArrowException, OSError, ValueError, KeyError) as cause:
        raise _broken(blob, cause) from cause
    return rows.replace_schema_metadata(None), label


def _broken(blob: bytes | pa.Buffer, cause: Exception) -> BrokenPayloadError:
    return BrokenPayloadError(
        f"rows on their way must come as Arrow streams from the task that sent them, got {len(blob)} "
        f"bytes that are none ({cause}); run the micro-batch again"
    )


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def rows_of_blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a DataFrame's blobs, in their order; NULL is none."""
    for batch in batches:
        for blob in batch.column(BLOB_COLUMN).drop_null():
            yield from from_blob(blob.as_buffer())[0].to_batches(max_chunksize=_ROWS_PER_BATCH)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together, in order: the more rows a table has, the fewer blobs it takes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def by_number(rows: pa.Table, numbers: npt.NDArray[np.integer], count: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each number that has any, in their order.

    >>> [(n, part.to_pydict()) for n, part in by_number(pa.table({"k": [5, 6, 7]}), np.array([2, 0, 2]), 3)]
    [(0, {'k': [6]}), (2, {'k': [5, 7]})]
    """
    # numpy sorts numbers of two bytes by their digits
    short = numbers.astype(np.min_scalar_type(count))
    ordered = rows.combine_chunks().take(pa.array(np.argsort(short, kind="stable")))
    start = 0
    for number, size in enumerate(np.bincount(numbers, minlength=count).tolist()):
        if size:
            yield number, ordered.slice(start, size)
        start += size


def sent(
    parts: Iterable[tuple[pa.Table, npt.NDArray[np.integer]]], count: int, about: Mapping[str, Any]
) -> Iterator[tuple[int, bytes]]:
    """What a task sends into a shuffle: rows as blobs of one number each, which say how they follow another.

    Args:
        parts: rows, and the number of each.
        count: how many numbers there are.
        about: what each blob carries; its ``task`` tells this task's blobs from those of others.

    >>> rows = pa.table({"k": [5, 6, 7]})
    >>> found = list(sent([(rows, np.array([1, 0, 1]))] * 2, 2, {"task": 3}))
    >>> [number for number, _ in found]
    [0, 1, 0, 1]
    >>> [part.column("k").to_pylist() for part, _ in in_order(blob for n, blob in found[::-1] if n == 1)]
    [[5, 7], [5, 7]]
    """
    order = itertools.count()
    for rows, numbers in parts:
        for number, own in by_number(rows, numbers, count):
            for batch in _cut(own, BLOB_BYTES):
                beginning = head(own.schema, {**about, "number": next(order)})
                yield number, b"".join((beginning, batch.serialize(), _END))


def in_order(blobs: Iterable[bytes]) -> list[tuple[pa.Table, dict[str, Any]]]:
    """What tasks have ``sent``, with what it carries, task by task in its order: a shuffle keeps none."""
    return sorted(map(from_blob, blobs), key=lambda part: (part[1]["task"], part[1]["number"]))


_LOW_32_BITS = np.uint64(0xFFFFFFFF)


def bucket_ids(buckets: int) -> npt.NDArray[np.int32]:
    """The number that each bucket is called by; a function of ``buckets`` alone, for checkpoints keep it.

    >>> bucket_ids(2).tolist()
    [2, 0]
    """
    found = np.full(buckets, -1, np.int64)
    start, step = 0, 16 * buckets
    while (found < 0).any():
        numbers = np.arange(start, start + step)
        bucket, first = np.unique(np.mod(murmur3(numbers), buckets), return_index=True)
        missing = found[bucket] < 0
        found[bucket[missing]] = numbers[first[missing]]
        start += step
    return found.astype(np.int32)


def murmur3(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Spark SQL's ``hash(number)`` of INT values: Murmur3, as signed 32-bit numbers.

    >>> murmur3(np.array([0, 1])).tolist()
    [933211791, -559580957]
    """
    mixed = _times(_rotated(_times(numbers.astype(np.uint64) & _LOW_32_BITS, 0xCC9E2D51), 15), 0x1B873593)
    hashed = _rotated(np.uint64(42) ^ mixed, 13)
    hashed = (_times(hashed, 5) + np.uint64(0xE6546B64)) & _LOW_32_BITS
    hashed ^= np.uint64(4)  # bytes of an INT
    hashed = _times(hashed ^ (hashed >> np.uint64(16)), 0x85EBCA6B)
    hashed = _times(hashed ^ (hashed >> np.uint64(13)), 0xC2B2AE35)
    return (hashed ^ (hashed >> np.uint64(16))).astype(np.uint32).view(np.int32).astype(np.int64)


def _times(values: npt.NDArray[np.uint64], factor: int) -> npt.NDArray[np.uint64]:
    return (values * np.uint64(factor)) & _LOW_32_BITS


def _rotated(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return ((values << np.uint64(bits)) | (values >> np.uint64(32 - bits))) & _LOW_32_BITS
