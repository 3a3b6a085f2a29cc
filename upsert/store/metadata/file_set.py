"""The live files of a snapshot by bucket and run: what readers, compaction and commits ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from upsert.arrays import Mask
from upsert.store.metadata.file_entry import FileEntry, Run, by_bucket, runs_of
from upsert.store.metadata.manifest import without_garbage_collection
from upsert.store.metadata.partition_order import Ends, Values, any_between
from upsert.store.metadata.shared_mapping import SharedMapping
from upsert.store.metadata.stored_files import MayHold, StoredFiles
from upsert.store.paths import BucketId, Partition


@dataclass(frozen=True)
class FileSet:
    """The live files of a snapshot.

    ``groups`` maps (partition, bucket) to the bucket's runs, newest first: the files of each commit that are
    still on level 0, then each higher level. The files of a run ascend by key.
    """

    groups: Mapping[BucketId, tuple[Run, ...]]

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> Self:
        """The set of these files, in any order."""
        with without_garbage_collection():
            return cls(SharedMapping({id: runs_of(files) for id, files in by_bucket(entries).items()}))

    def after(self, added: Iterable[FileEntry], removed: Iterable[FileEntry]) -> FileSet:
        """The set after a commit; only the buckets that it touches are looked at."""
        came, went = by_bucket(added), by_bucket(removed)
        touched = dict.fromkeys((*came, *went))
        before = self.within(touched).groups
        changes: dict[BucketId, tuple[Run, ...] | None] = {}
        for bucket_id in touched:
            runs = before.get(bucket_id, ())
            changes[bucket_id] = _after(runs, came.get(bucket_id, []), went.get(bucket_id, [])) or None
        return FileSet(self._groups.after(changes))

    @property
    def _groups(self) -> SharedMapping[BucketId, tuple[Run, ...]] | StoredFiles:
        groups = self.groups
        return groups if isinstance(groups, SharedMapping | StoredFiles) else SharedMapping(groups)

    def only(self, is_wanted: Callable[[Partition], bool], beginnings: Collection[Values] = ()) -> FileSet:
        """The files of some partitions, all of which begin with one of some values, if these are given."""

        def may_hold(ends: Sequence[Ends]) -> Mask:
            return np.array(any_between(beginnings or [()], ends), np.bool_)

        buckets = self.buckets(may_hold)
        wanted = {partition: is_wanted(partition) for partition in {bucket_id[0] for bucket_id in buckets}}
        return self.within(bucket_id for bucket_id in buckets if wanted[bucket_id[0]])

    def without(self, buckets: Iterable[BucketId]) -> FileSet:
        """The files but for those of some buckets."""
        return FileSet(self._groups.after(dict.fromkeys(buckets)))

    def within(self, buckets: Iterable[BucketId]) -> FileSet:
        """The files of some buckets, those that there are."""
        groups = self.groups
        if isinstance(groups, StoredFiles):
            return FileSet(groups.many(buckets))
        return FileSet({bucket_id: groups[bucket_id] for bucket_id in buckets if bucket_id in groups})

    def buckets(self, may_hold: MayHold | None = None) -> list[BucketId]:
        """All buckets that have files.

        With ``may_hold``, which says whether any partition between a first and a last one is wanted, those of
        other partitions may be missing.
        """
        if may_hold is not None and isinstance(self.groups, StoredFiles):
            return self.groups.buckets(may_hold)
        return list(self.groups)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files: newest first within a bucket."""
        return tuple(entry for runs in self.groups.values() for run in runs for entry in run)


def _after(runs: tuple[Run, ...], added: list[FileEntry], removed: list[FileEntry]) -> tuple[Run, ...]:
    """The runs of a bucket after a commit; what an append finds there is taken as it is, however much."""
    oldest_added = max((entry.age for entry in added), default=None)
    is_append = oldest_added is not None and (not runs or oldest_added < runs[0][0].age)
    if is_append and not removed:
        return (*runs_of(added), *runs)
    files = {entry.file: entry for run in runs for entry in run}
    for entry in removed:
        files.pop(entry.file)
    return runs_of(list((files | {entry.file: entry for entry in added}).values()))
