"""The distinct keys of some changes, a bounded number at a time (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from deltajoin.row_codes import Ints, first_of_each, stable_order

FIRST_LOOKUP_KEYS: Final = 16_384
MAX_LOOKUP_KEYS: Final = 131_072
LOOKUP_ROWS: Final = 524_288
"""Rows that one lookup should bring at most; only a single key with more rows than that exceeds it."""


class KeyChunk(NamedTuple):
    """Some distinct keys: which positions have them, which key each has, and one position for each key."""

    positions: Ints
    keys: Ints
    first: Ints


class KeyChunks:
    """Distinct keys in chunks, whose size follows from how many rows the last lookup brought.

    Args:
        codes: for each position the code of its key, dense from 0.

    >>> [chunk.positions.tolist() for chunk in KeyChunks(np.array([0, 1, 0]))]
    [[0, 2, 1]]
    """

    def __init__(self, codes: Ints) -> None:
        self._first = first_of_each(codes)
        is_in_order = bool(np.all(codes[1:] >= codes[:-1]))
        self._order = np.arange(len(codes)) if is_in_order else stable_order(codes)
        self._codes = codes if is_in_order else codes[self._order]
        self._size = FIRST_LOOKUP_KEYS
        self._asked = 0

    def found(self, rows: int) -> None:
        """Tell how many rows the lookup of the last chunk's keys brought."""
        wanted = LOOKUP_ROWS * self._asked // max(rows, 1)
        self._size = min(max(wanted, 1), MAX_LOOKUP_KEYS)

    def __iter__(self) -> Iterator[KeyChunk]:
        low = 0
        while low < len(self._first):
            high = min(low + self._size, len(self._first))
            self._asked = high - low
            yield self.between(low, high)
            low = high

    def between(self, low: int, high: int) -> KeyChunk:
        """The keys whose codes are ``low`` to ``high - 1``."""
        begin, end = np.searchsorted(self._codes, [low, high])
        return KeyChunk(self._order[begin:end], self._codes[begin:end] - low, self._first[low:high])
