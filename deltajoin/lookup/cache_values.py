"""What a cache is asked, told and counted by (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltajoin.lookup.protocol import Answer, Positions


@dataclass(frozen=True)
class CacheCounts:
    """What a cache did since it was asked last, and what it holds.

    Attributes:
        hits: keys that were found, those without rows among them.
        misses: keys that were not.
        evictions: entries that gave way to others, or were too large.
        drops: how often all entries were dropped, because the epoch was another one.
        keys: entries now.
        bytes: memory that they take now, about.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    drops: int = 0
    keys: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Cached:
    """What a cache knows about a batch of keys.

    Attributes:
        positions: for each row the position of its key, ascending.
        rows: the rows.
        missing: positions of the keys that it knows nothing about, ascending.
    """

    positions: Positions
    rows: pa.Table
    missing: Positions


@dataclass(frozen=True, eq=False)
class Deed:
    """What a cache was told by `put` or by `update`, so that another one can be told the same.

    Attributes:
        keys: that were looked up; None for changes.
        rows: that were found, or that changed.
        marks: for each row the position of its key, or whether it was deleted.
    """

    keys: pa.Table | None
    rows: pa.Table
    marks: npt.NDArray[np.generic]

    @classmethod
    def of(cls, keys: pa.Table, answer: Answer) -> Self:
        """What ``put`` was told, without the keys whose lookup has failed."""
        if not answer.failures:
            return cls(keys, answer.rows, answer.positions)
        is_known = np.ones(keys.num_rows, np.bool_)
        is_known[list(answer.failures)] = False
        numbers = np.cumsum(is_known) - 1
        return cls(keys.filter(pa.array(is_known)), answer.rows, numbers[answer.positions])

    @property
    def size(self) -> int:
        """Keys and rows in it."""
        return int(self.rows.num_rows) + (0 if self.keys is None else int(self.keys.num_rows))
