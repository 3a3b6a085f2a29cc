"""Numbers for buckets that Spark's hash partitioning spreads evenly over its tasks (pure).

Spark sends a group to task ``pmod(hash(number), tasks)``. With the numbers 0, 1 and two tasks both groups
meet in one task, which then does all the work. So a bucket is called by the smallest number whose hash leads
to it; with as many tasks as buckets (or a divisor of that) every task then has its equal share.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SEED = 42
_MASK = np.uint64(0xFFFFFFFF)


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
    mixed = _times(_rotated(_times(numbers.astype(np.uint64) & _MASK, 0xCC9E2D51), 15), 0x1B873593)
    hashed = _rotated(np.uint64(_SEED) ^ mixed, 13)
    hashed = (_times(hashed, 5) + np.uint64(0xE6546B64)) & _MASK
    hashed ^= np.uint64(4)  # bytes of an INT
    hashed = _times(hashed ^ (hashed >> np.uint64(16)), 0x85EBCA6B)
    hashed = _times(hashed ^ (hashed >> np.uint64(13)), 0xC2B2AE35)
    return (hashed ^ (hashed >> np.uint64(16))).astype(np.uint32).view(np.int32).astype(np.int64)


def _times(values: npt.NDArray[np.uint64], factor: int) -> npt.NDArray[np.uint64]:
    return (values * np.uint64(factor)) & _MASK


def _rotated(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return ((values << np.uint64(bits)) | (values >> np.uint64(32 - bits))) & _MASK
