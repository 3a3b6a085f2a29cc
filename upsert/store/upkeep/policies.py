"""Which sorted runs of a bucket to merge next (pure): universal or leveled, as in RocksDB and Paimon.

*Universal*: runs are ordered from the newest to the oldest, and what is merged are always the newest ones, so
the result keeps its place in that order. Three rules, the first that applies decides:

1. *size amplification*: the runs above the oldest one have grown too large beside it; merge all;
2. *size ratio*: beginning with the newest, merge as long as the next run is not much larger;
3. *number of runs*: there are more than the trigger; merge so many that it is met again, then go on as in 2.

The result goes to the level just above the next older run; to the highest one if there is none.

*Leveled* (FLIP-188) picks files of one level and those of the next whose keys overlap theirs. Sections are
groups of files whose keys overlap, with nothing in common between groups: only files of one section have to
be merged with each other, and what is alone in its section needs no rewriting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.manifest import Run

Section = tuple[FileEntry, ...]


def sections(files: Iterable[FileEntry]) -> list[Section]:
    """The files by section, ascending by key; files that share just one key are in one section."""
    found: list[list[FileEntry]] = []
    last = b""
    for entry in sorted(files, key=lambda entry: (entry.first_key, entry.last_key)):
        if found and entry.first_key <= last:
            found[-1].append(entry)
            last = max(last, entry.last_key)
        else:
            found.append([entry])
            last = entry.last_key
    return [tuple(section) for section in found]


def overlapping(files: Iterable[FileEntry], others: Sequence[FileEntry]) -> list[FileEntry]:
    """Of ``files`` those whose keys may lie between the first and the last key of all ``others``."""
    if not others:
        return []
    first = min(entry.first_key for entry in others)
    last = max(entry.last_key for entry in others)
    return [entry for entry in files if entry.first_key <= last and first <= entry.last_key]


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
