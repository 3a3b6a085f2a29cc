"""The live data files of one snapshot, by partition and bucket (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from upsert.store.file_entry import FileEntry
from upsert.store.paths import Partition

Run = tuple[FileEntry, ...]
"""Files of one bucket whose keys are disjoint: together one sorted run."""


@dataclass(frozen=True)
class FileSet:
    """The live files of a snapshot.

    ``groups`` maps (partition, bucket) to the bucket's runs, newest first: the files of each commit that are
    still on level 0, then each higher level. The files of a run ascend by key.
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

    def after(self, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> FileSet:
        """The set after a commit; only the buckets that it touches are looked at."""
        touched: dict[tuple[Partition, int], dict[str, FileEntry]] = {}

        def of_place(entry: FileEntry) -> dict[str, FileEntry]:
            place = entry.partition, entry.bucket
            if place not in touched:
                touched[place] = {file.file: file for run in self.groups.get(place, ()) for file in run}
            return touched[place]

        for entry in removed:
            of_place(entry).pop(entry.file)
        for entry in added:
            of_place(entry)[entry.file] = entry
        groups = {**self.groups, **{place: tuple(_runs(files.values())) for place, files in touched.items()}}
        return FileSet({place: runs for place, runs in groups.items() if runs} if removed else groups)

    def only(self, is_wanted: Callable[[Partition], bool]) -> FileSet:
        """The files of some partitions."""
        wanted = {partition: is_wanted(partition) for partition in {place[0] for place in self.groups}}
        if all(wanted.values()):
            return self
        return FileSet({place: runs for place, runs in self.groups.items() if wanted[place[0]]})

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files: newest first within a bucket."""
        return tuple(entry for runs in self.groups.values() for run in runs for entry in run)


def _runs(files: Iterable[FileEntry]) -> Iterable[Run]:
    ordered = sorted(files, key=lambda entry: (entry.age, entry.first_key))
    for _, run in groupby(ordered, key=lambda entry: entry.age):
        yield tuple(run)
