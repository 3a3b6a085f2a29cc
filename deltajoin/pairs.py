"""Pairs of positions whose codes are equal, made in pieces of bounded size (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from deltajoin.row_codes import Ints, stable_order


class Pairs(NamedTuple):
    """Equally long arrays: position ``left[i]`` meets position ``right[i]``."""

    left: Ints
    right: Ints


def equal_pairs(left: Ints, right: Ints, *, at_most: int) -> Iterator[Pairs]:
    """Every pair of positions ``(i, j)`` with ``left[i] == right[j]``, at most so many at a time.

    Codes are small non-negative integers. Pairs come in order of ``left``; a position that has more
    partners than fit is continued in the next piece, so a hot key needs no more memory than others.

    >>> pieces = equal_pairs(np.array([5, 3]), np.array([3, 5, 5]), at_most=2)
    >>> [(piece.left.tolist(), piece.right.tolist()) for piece in pieces]
    [([0, 0], [1, 2]), ([1], [0])]
    """
    if not len(left) or not len(right):
        return
    codes = int(max(left.max(), right.max())) + 1
    by_code, starts, counts = _grouped(right, codes)
    partners = counts[left]
    ends = np.cumsum(partners)
    for low in range(0, int(ends[-1]), at_most):
        high = min(low + at_most, int(ends[-1]))
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        some = np.arange(first, last + 1)
        begin = np.maximum(ends[some] - partners[some], low)
        length = np.minimum(ends[some], high) - begin
        driver = np.repeat(some, length)
        nth = np.arange(low, high) - (ends[driver] - partners[driver])
        yield Pairs(driver, by_code[starts[left[driver]] + nth])


def _grouped(codes: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Positions in order of their code, and for each code where its positions start and their number."""
    counts = np.bincount(codes, minlength=count)
    is_sorted = bool(np.all(codes[1:] >= codes[:-1]))
    order = np.arange(len(codes)) if is_sorted else stable_order(codes)
    return order, np.cumsum(counts) - counts, counts
