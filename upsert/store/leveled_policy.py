"""Which files of a bucket to merge next (pure): leveled compaction, as in RocksDB; follows FLIP-188.

Every level above 0 has a size that it may reach, each a multiple of the one before it. Two rules, the first
that applies decides:

1. there are as many commits on level 0 as the trigger says: merge all of level 0 into level 1;
2. a level is larger than it may be: merge one of its files into the next, the one that takes the fewest bytes
   along.

A key has at most one row a level, and a merge rewrites only what overlaps: less space and fewer runs to read
than under universal compaction, for more bytes written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from upsert.store.compaction_policy import Chosen
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import Run
from upsert.store.sections import overlapping

MAX_LEVEL: Final = 6
"""The lowest level, of any size."""


@dataclass(frozen=True)
class Leveled:
    """The policy with its three settings, see ``table_options``."""

    trigger: int = 4
    base_bytes: int = 256 << 20
    multiplier: int = 10

    @property
    def max_level(self) -> int:
        """The highest level, where a full compaction leads to."""
        return MAX_LEVEL

    def choose(self, runs: Sequence[Run]) -> Chosen | None:
        """What to merge now, of the runs of a bucket, newest first; None if it is in good shape.

        >>> Leveled().choose([]) is None
        True
        """
        flushed = [entry for run in runs for entry in run if entry.level == 0]
        levels = {run[0].level: run for run in runs if run[0].level}
        if sum(run[0].level == 0 for run in runs) >= self.trigger:
            return Chosen((*flushed, *overlapping(levels.get(1, ()), flushed)), 1)
        for level in sorted(levels):
            size = sum(entry.bytes for entry in levels[level])
            if level < MAX_LEVEL and size > self.largest(level):
                below = levels.get(level + 1, ())
                costs = [_cost(entry, below) for entry in levels[level]]
                entry = levels[level][costs.index(min(costs))]
                return Chosen((entry, *overlapping(below, [entry])), level + 1)
        return None

    def largest(self, level: int) -> int:
        """Bytes that a level from 1 on may have.

        >>> Leveled(base_bytes=1000, multiplier=5).largest(3)
        25000
        """
        largest: int = self.base_bytes * self.multiplier ** (level - 1)
        return largest


def _cost(entry: FileEntry, below: Run) -> float:
    """Bytes of the next level that have to be rewritten for each byte that leaves this one."""
    return sum(other.bytes for other in overlapping(below, [entry])) / max(1, entry.bytes)
