"""Which sorted runs of a bucket to merge next (pure): universal compaction, as in RocksDB and Paimon.

Runs are ordered from the newest to the oldest, and what is merged are always the newest ones, so the result
keeps its place in that order. Three rules, the first that applies decides:

1. *size amplification*: the runs above the oldest one have grown too large beside it; merge all;
2. *size ratio*: beginning with the newest, merge as long as the next run is not much larger;
3. *number of runs*: there are more than the trigger; merge so many that it is met again, then go on as in 2.

The result goes to the level just above the next older run; to the highest one if there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from upsert.store.file_entry import FileEntry
from upsert.store.file_set import Run


@dataclass(frozen=True)
class Chosen:
    """Files to merge with each other, and the level where the result goes."""

    files: tuple[FileEntry, ...]
    output_level: int


class Policy(Protocol):
    """How a table is compacted."""

    @property
    def max_level(self) -> int:
        """The highest level, where a full compaction leads to."""

    def choose(self, runs: Sequence[Run]) -> Chosen | None:
        """What to merge now, of the runs of a bucket, newest first; None if it is in good shape."""


@dataclass(frozen=True)
class RunSize:
    """What the policy needs to know about a sorted run."""

    level: int
    bytes: int


@dataclass(frozen=True)
class Pick:
    """Merge the newest ``runs`` runs and put the result on ``output_level``."""

    runs: int
    output_level: int


@dataclass(frozen=True)
class Universal:
    """The policy with its three settings, see ``table_options``."""

    trigger: int = 5
    max_size_amplification_percent: int = 200
    size_ratio: int = 1

    @property
    def max_level(self) -> int:
        """The highest level; there are enough levels for as many runs as the trigger allows."""
        return self.trigger

    def choose(self, runs: Sequence[Run]) -> Chosen | None:
        """What to merge now, of the runs of a bucket, newest first; None if it is in good shape."""
        pick = self.pick([RunSize(run[0].level, sum(entry.bytes for entry in run)) for run in runs])
        if pick is None:
            return None
        return Chosen(tuple(entry for run in runs[: pick.runs] for entry in run), pick.output_level)

    def pick(self, runs: Sequence[RunSize]) -> Pick | None:
        """What to merge now, newest run first; None if the bucket is in good shape.

        >>> Universal(trigger=3).pick([RunSize(0, 1), RunSize(1, 1), RunSize(2, 1), RunSize(3, 50)])
        Pick(runs=3, output_level=2)
        """
        if len(runs) < self.trigger:
            return None
        count = (
            self.by_size_amplification(runs)
            or self.by_size_ratio(runs, 1, is_forced=False)
            or self.by_number_of_runs(runs)
        )
        if count is None:
            return None
        found = self.with_output_level(runs, count)
        is_done = found.runs == 1 and runs[0].level == found.output_level
        return None if is_done else found

    def by_size_amplification(self, runs: Sequence[RunSize]) -> int | None:
        """All runs, if those above the oldest are too large beside it."""
        above = sum(run.bytes for run in runs[:-1])
        is_due = above * 100 > self.max_size_amplification_percent * runs[-1].bytes
        return len(runs) if is_due else None

    def by_size_ratio(self, runs: Sequence[RunSize], count: int, *, is_forced: bool) -> int | None:
        """The newest ``count`` runs and those after them that are not much larger than what is there.

        None if that is only the newest one and nothing forces a merge. Once something will be merged, runs
        up to level 1 are taken along whatever their size: a result cannot stay on level 0.
        """
        size = sum(run.bytes for run in runs[:count])
        for run in runs[count:]:
            is_triggered = is_forced or count > 1
            is_larger = size * (100 + self.size_ratio) < run.bytes * 100
            if is_larger and (not is_triggered or run.level > 1):
                break
            size += run.bytes
            count += 1
        return count if is_forced or count > 1 else None

    def by_number_of_runs(self, runs: Sequence[RunSize]) -> int | None:
        """So many of the newest runs that the trigger is met again, if there are more than it allows."""
        if len(runs) <= self.trigger:
            return None
        return self.by_size_ratio(runs, len(runs) - self.trigger + 1, is_forced=True)

    def with_output_level(self, runs: Sequence[RunSize], count: int) -> Pick:
        """Where the newest ``count`` runs go; takes along more if they had to stay on level 0."""
        level = self.max_level if count == len(runs) else max(0, runs[count].level - 1)
        while level == 0 and count < len(runs):
            level = runs[count].level
            count += 1
        return Pick(count, self.max_level if count == len(runs) else level)
