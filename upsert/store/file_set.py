"""The live data files of one snapshot, by partition and bucket (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Self

from upsert.store.file_entry import FileEntry
from upsert.store.many_objects import without_garbage_collection
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
        with without_garbage_collection():
            return cls({group: _runs(files) for group, files in _by_place(entries).items()})

    def after(self, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> FileSet:
        """The set after a commit; only the buckets that it touches are looked at."""
        came, went = _by_place(added), _by_place(removed)
        groups = dict(self.groups)
        for place in came.keys() | went.keys():
            runs = self.groups.get(place, ())
            if after := _after(runs, came.get(place, []), went.get(place, [])):
                groups[place] = after
            else:
                del groups[place]
        return FileSet(groups)

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


def _by_place(entries: Iterable[FileEntry]) -> dict[tuple[Partition, int], list[FileEntry]]:
    found: dict[tuple[Partition, int], list[FileEntry]] = {}
    for entry in entries:
        found.setdefault((entry.partition, entry.bucket), []).append(entry)
    return found


def _after(runs: tuple[Run, ...], added: list[FileEntry], removed: list[FileEntry]) -> tuple[Run, ...]:
    """The runs of a bucket after a commit; what an append finds there is taken as it is, however much."""
    oldest_added = max((entry.age for entry in added), default=None)
    is_append = oldest_added is not None and (not runs or oldest_added < runs[0][0].age)
    if is_append and not removed:
        return (*_runs(added), *runs)
    files = {entry.file: entry for run in runs for entry in run}
    for entry in removed:
        files.pop(entry.file)
    return _runs(list((files | {entry.file: entry for entry in added}).values()))


def _runs(files: Sequence[FileEntry]) -> tuple[Run, ...]:
    if len(files) == 1:
        return ((files[0],),)
    ordered = sorted((entry.age, entry.first_key, number) for number, entry in enumerate(files))
    return tuple(tuple(files[number] for *_, number in run) for _, run in groupby(ordered, key=itemgetter(0)))
