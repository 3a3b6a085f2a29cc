"""Splits of a scan: buckets in parts of about one size, for tasks that share nothing (pure).

A task reads whole small buckets, or a range of the keys of a large one, which its files merged are cut into.
Only manifests are looked at: within a file keys are taken to be spread evenly between its first one and its
last one. Where they are not, tasks are of different size; each key is in one of them all the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.paths import BucketId

TASK_BYTES: Final = 128 << 20
"""Small partitions are read together, up to this size, and larger buckets in parts: a task costs some tenths
of a second."""

OPEN_BYTES: Final = 1 << 20
"""What opening a bucket counts for."""


@dataclass(frozen=True)
class Split:
    """A bucket, or its rows whose keys are not below ``low``, and below ``high`` unless that is None.

    Both compare with keys as bytes, see ``keys.key_bytes``.
    """

    bucket_id: BucketId
    low: bytes = b""
    high: bytes | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole bucket."""
        return not self.low and self.high is None

    def may_have(self, entry: FileEntry) -> bool:
        """Whether a file of the bucket may have such rows."""
        return self.low <= entry.last_key and (self.high is None or entry.first_key < self.high)

    def runs(self, of_bucket: tuple[Run, ...]) -> tuple[Run, ...]:
        """The runs of the bucket, without files that have none of its rows."""
        if self.is_whole:
            return of_bucket
        return tuple(tuple(filter(self.may_have, run)) for run in of_bucket)

    def between(self, rows: int, key: Callable[[int], bytes]) -> tuple[int, int]:
        """Which of so many rows, ascending by ``key``, are its own: the first, and the one after the last.

        >>> Split(((), 0), b"b", b"d").between(5, lambda row: b"abcde"[row : row + 1])
        (1, 3)
        """
        low = bisect_left(range(rows), self.low, key=key) if self.low else 0
        return low, rows if self.high is None else bisect_left(range(rows), self.high, key=key)


def tasks(files: FileSet, wanted: Collection[BucketId], max_bytes: int = TASK_BYTES) -> list[list[Split]]:
    """Which splits each task reads, of the wanted buckets: neighbouring partitions that are small together.

    Buckets of a table without partitions are never together, for they are few.
    """
    found: list[list[Split]] = []
    room = 0
    groups = files.within(wanted).groups
    for bucket_id in sorted(wanted, key=repr):
        entries = [entry for run in groups[bucket_id] for entry in run]
        cost = OPEN_BYTES + sum(entry.bytes for entry in entries)
        parts = cut(bucket_id, entries, max_bytes)
        if len(parts) > 1:
            found += [[part] for part in parts]
            room = 0
            continue
        if not bucket_id[0] or cost > room:
            found.append([])
            room = max_bytes
        found[-1] += parts
        room -= cost
    return found


def cut(bucket_id: BucketId, entries: Collection[FileEntry], max_bytes: int) -> list[Split]:
    """The files of a bucket in ranges of keys of about ``max_bytes`` each, ascending."""
    if sum(entry.bytes for entry in entries) <= max_bytes or not all(entry.last_key for entry in entries):
        return [Split(bucket_id)]  # files of early releases do not tell their keys
    pieces = sorted(piece for entry in entries for piece in _spread(entry, max_bytes // _PIECES))
    bounds, size = [pieces[0][0]], 0
    for key, weight in pieces:
        if size + weight > max_bytes and key > bounds[-1]:
            bounds.append(key)
            size = 0
        size += weight
    ends = [b"", *bounds[1:], None]
    return [Split(bucket_id, low or b"", high) for low, high in pairwise(ends)]


_PIECES: Final = 4
"""Of so many pieces at least a range of keys is made up."""

_DIGITS: Final = 8
"""Bytes of two keys, from the first one in which they differ, that say what lies between."""


def _spread(entry: FileEntry, piece_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Keys at which pieces of a file begin, and the size of each."""
    count = max(1, -(-entry.bytes // max(1, piece_bytes)))
    first, last = entry.first_key, entry.last_key
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    low, high = (
        int.from_bytes(key[same : same + _DIGITS].ljust(_DIGITS, b"\0"), "big") for key in (first, last)
    )
    count = count if high > low else 1
    yield first, entry.bytes // count
    for number in range(1, count):
        between = low + (high - low) * number // count
        yield first[:same] + between.to_bytes(_DIGITS, "big"), entry.bytes // count
