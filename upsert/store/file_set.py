"""The live data files of one snapshot, by partition and bucket (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from upsert.store.data_file import FileEntry
from upsert.store.paths import Partition

Run = tuple[FileEntry, ...]
"""Files of one bucket whose keys are disjoint: together one sorted run."""


@dataclass(frozen=True)
class FileSet:
    """The live files of a snapshot.

    ``groups`` maps (partition, bucket) to the bucket's runs, newest first. A run is newer than another if its
    sequence is higher or, at the same sequence, its level lower: the output of a compaction keeps the highest
    sequence of its inputs, and another file of that commit may not have taken part in it.
    """

    groups: Mapping[tuple[Partition, int], tuple[Run, ...]]

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> Self:
        """The set of these files, in any order.

        >>> FileSet.of([]).groups
        {}
        """
        found: dict[tuple[Partition, int], list[FileEntry]] = {}
        for entry in entries:
            found.setdefault((entry.partition, entry.bucket), []).append(entry)
        return cls({group: tuple(_runs(files)) for group, files in found.items()})

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files: newest first within a bucket."""
        return tuple(entry for runs in self.groups.values() for run in runs for entry in run)


def _age(entry: FileEntry) -> tuple[int, int]:
    return -entry.sequence, entry.level


def _runs(files: Iterable[FileEntry]) -> Iterable[Run]:
    for _, run in groupby(sorted(files, key=_age), key=_age):
        yield tuple(run)
