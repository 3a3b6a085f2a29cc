"""The live files of a snapshot by bucket and run: what readers, compaction and commits ask for.

Of very many files entries are made when their bucket is asked for. An entry as a Python object takes 6
microseconds and more than a kilobyte: a million of them take seconds and more memory than many executors
have. A reader of one partition needs a few. So manifests stay what they are, columns, in which numpy finds
the rows of each bucket, and those that have no entry of the partitions that are asked for are not even
opened. See docs/decisions/0089.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np

from upsert.arrays import Mask
from upsert.errors import CorruptTableError, SnapshotExpiredError
from upsert.store.metadata.file_entry import FileEntry, Run, by_bucket, runs_of
from upsert.store.metadata.manifest import ManifestRows, without_garbage_collection
from upsert.store.metadata.partition_order import Ends, Values, any_between, values_of
from upsert.store.metadata.shared_mapping import SharedMapping
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.paths import BucketId, Partition

FEWEST: Final = 20_000
"""With fewer files all entries are made at once."""

MOST_CHANGED: Final = 2048
"""After commits have changed more buckets, the manifests are begun with again."""

MayHold = Callable[[Sequence[Ends]], Mask]
"""Whether any partition between two is wanted, for several such pairs."""

_T = TypeVar("_T")


class OpenManifest:
    """The rows of a manifest by bucket."""

    def __init__(self, manifest: ManifestRows) -> None:
        self._manifest = manifest
        self._is_added = manifest.is_added
        self._buckets = manifest.buckets()

    def counts(self) -> Iterator[tuple[BucketId, int]]:
        """Each of its buckets, and how many more files it adds there than it removes."""
        if not len(self._is_added):
            return
        signs = np.where(self._is_added, 1, -1)[self._buckets.order]
        more = np.add.reduceat(signs, self._buckets.begins).tolist()
        for bucket_id, rank in self._buckets.ranks.items():
            yield bucket_id, more[rank]

    def apply(self, live: Mapping[BucketId, dict[str, FileEntry]]) -> None:
        """Bring the live files of some buckets, by name, from before the manifest to after it."""
        there = self._buckets.ranks
        own = (
            [id for id in live if id in there]
            if len(live) < len(there)
            else [id for id in there if id in live]
        )
        if not own:
            return
        parts = [self._buckets.of(bucket_id) for bucket_id in own]
        rows = np.concatenate(parts)
        is_added = self._is_added[rows]
        if not is_added.all():
            places = np.repeat(np.arange(len(own)), [len(part) for part in parts])[~is_added]
            for place, file in zip(places.tolist(), self._manifest.names(rows[~is_added]), strict=True):
                if live[own[place]].pop(file, None) is None:
                    raise CorruptTableError(
                        f"a manifest must remove live files only, got {file!r}; restore the table"
                    )
        for entry in self._manifest.entries(np.sort(rows[is_added])):
            live[entry.bucket_id][entry.file] = entry


class Manifests:
    """The manifests of a snapshot, oldest first, which are opened when a partition of theirs is asked for."""

    def __init__(
        self,
        refs: Sequence[ManifestRef],
        open_one: Callable[[ManifestRef], OpenManifest],
        check: Callable[[int], None],
    ) -> None:
        """``check`` is given the number of files that they leave, as far as it is known."""
        self._refs = refs
        self._check = check
        self._open_one = open_one
        self._opened: dict[int, OpenManifest] = {}
        self._known = [(number, ref.ends) for number, ref in enumerate(refs) if ref.ends is not None]
        self._made: dict[BucketId, tuple[Run, ...]] = {}
        self._all: dict[BucketId, int] | None = None
        if len(self._known) == len(refs):
            check(sum(ref.entries - 2 * ref.removed for ref in refs))

    def buckets(self, may_hold: MayHold | None) -> Mapping[BucketId, int]:
        """The number of files of each bucket, 0 where all have gone.

        Numbers of buckets are wrong that are in no wanted partition, see ``FileSet.buckets``.
        """
        wanted = list(range(len(self._refs)))
        if may_hold is not None:
            wanted = self._where(may_hold([ends for _, ends in self._known]))
        if len(wanted) < len(self._refs):
            return self._counts(wanted)
        if self._all is None:
            self._all = self._counts(wanted)
            self._check(sum(self._all.values()))
        return self._all

    def _counts(self, numbers: Iterable[int]) -> dict[BucketId, int]:
        counts: dict[BucketId, int] = {}
        for number in numbers:
            for bucket_id, more in self._at(number).counts():
                counts[bucket_id] = counts.get(bucket_id, 0) + more
        return counts

    def many(self, buckets: Collection[BucketId]) -> dict[BucketId, tuple[Run, ...]]:
        """The runs of some buckets, those that there are."""
        made = self._made
        if lacking := [bucket_id for bucket_id in buckets if bucket_id not in made]:
            with without_garbage_collection():
                files: dict[BucketId, dict[str, FileEntry]] = {bucket_id: {} for bucket_id in lacking}
                for manifest in self._of({partition for partition, _ in lacking}):
                    manifest.apply(files)
                made |= {id: runs_of(list(found.values())) for id, found in files.items() if found}
        return {bucket_id: made[bucket_id] for bucket_id in buckets if bucket_id in made}

    def _of(self, partitions: Iterable[Partition]) -> Iterator[OpenManifest]:
        """The manifests that may have entries of some partitions."""
        ends = (ends for _, ends in self._known)
        return map(self._at, self._where(any_between(map(values_of, partitions), ends)))

    def _where(self, is_possible: Iterable[bool]) -> list[int]:
        """The numbers of the manifests but those of known ends of which something is not possible."""
        left_out = {number for (number, _), may in zip(self._known, is_possible, strict=True) if not may}
        return [number for number in range(len(self._refs)) if number not in left_out]

    def _at(self, number: int) -> OpenManifest:
        if (found := self._opened.get(number)) is None:
            found = self._opened[number] = self._open_one(self._refs[number])
        return found


_Changed = Mapping[BucketId, tuple[Run, ...] | None]
"""The runs of some buckets; None where they are gone."""

_Begun = tuple[Manifests, _Changed, Callable[[], Manifests] | None]


class StoredFiles(Mapping[BucketId, tuple[Run, ...]]):
    """The runs of each bucket of a snapshot: by its manifests, or by earlier ones and what has changed since.

    The earlier ones may expire while they are read. Then those of the snapshot itself are begun with.
    """

    def __init__(
        self,
        manifests: Manifests,
        changed: _Changed | None = None,
        own: Callable[[], Manifests] | None = None,
        changed_since: _Changed | None = None,
    ) -> None:
        """``own`` gives the manifests of the snapshot itself, if ``manifests`` are earlier ones.

        ``changed`` is what has changed since ``manifests``, ``changed_since`` what has since the snapshot.
        """
        self._begun: _Begun = manifests, changed or {}, own
        self._changed_since = changed_since or {}

    def after(self, changes: _Changed) -> StoredFiles:
        """The runs after those of some buckets have changed; None: they are gone."""
        manifests, changed, own = self._begun
        changed_since = {**self._changed_since, **changes}
        return StoredFiles(manifests, {**changed, **changes}, own, changed_since)

    def of(self, own: Callable[[], Manifests]) -> StoredFiles:
        """The same runs as those of a snapshot with these manifests."""
        manifests, changed, _ = self._begun
        return StoredFiles(own()) if len(changed) > MOST_CHANGED else StoredFiles(manifests, changed, own)

    def many(self, buckets: Iterable[BucketId]) -> dict[BucketId, tuple[Run, ...]]:
        """The runs of some buckets, those that there are; one by one they cost many times as much."""
        wanted = list(dict.fromkeys(buckets))

        def ask(manifests: Manifests, changed: _Changed) -> dict[BucketId, tuple[Run, ...]]:
            stored = manifests.many([bucket_id for bucket_id in wanted if bucket_id not in changed])
            both = ((id, changed[id] if id in changed else stored.get(id)) for id in wanted)
            return {bucket_id: runs for bucket_id, runs in both if runs is not None}

        return self._asked(ask)

    def buckets(self, may_hold: MayHold | None = None) -> list[BucketId]:
        """All buckets, but for some in partitions that are not wanted, see ``FileSet.buckets``."""

        def ask(manifests: Manifests, changed: _Changed) -> list[BucketId]:
            counts = manifests.buckets(may_hold)
            found = [id for id, count in counts.items() if count > 0 and changed.get(id, ()) is not None]
            return found + [id for id, runs in changed.items() if runs and counts.get(id, 0) <= 0]

        return self._asked(ask)

    def _asked(self, ask: Callable[[Manifests, _Changed], _T]) -> _T:
        manifests, changed, own = self._begun
        try:
            return ask(manifests, changed)
        except SnapshotExpiredError:
            if own is None:
                raise
            manifests, changed = own(), self._changed_since
            self._begun = manifests, changed, None  # in one step: other threads ask too
            return ask(manifests, changed)

    def __getitem__(self, bucket_id: BucketId) -> tuple[Run, ...]:
        return self.many([bucket_id])[bucket_id]

    def __iter__(self) -> Iterator[BucketId]:
        return iter(self.buckets())

    def __len__(self) -> int:
        return len(self.buckets())

    def items(self) -> ItemsView[BucketId, tuple[Run, ...]]:
        """All at once."""
        return self.many(self.buckets()).items()

    def values(self) -> ValuesView[tuple[Run, ...]]:
        """All at once."""
        return self.many(self.buckets()).values()


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
