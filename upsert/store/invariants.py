"""The rules of the store that every commit must keep, each as one named function (pure).

A function returns what breaks its rule, or None. They run on the live files of the very snapshot that a
commit builds on, so together with put-if-absent they hold for the published history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from upsert.store.file_entry import FileEntry
from upsert.store.paths import BucketId

Live = Mapping[str, FileEntry]


def removed_file_that_is_not_live(live: Live, removed: Collection[FileEntry]) -> FileEntry | None:
    """A file can be removed only once, and only while it is there, on the level where it was seen."""
    return next((e for e in removed if e.file not in live or live[e.file].level != e.level), None)


def added_file_that_is_live(
    live: Live, added: Collection[FileEntry], removed: Collection[FileEntry] = ()
) -> FileEntry | None:
    """A file is added once in its life, but for one that goes to another level: it is removed and added."""
    moved = {entry.file for entry in removed}
    return next((entry for entry in added if entry.file in live and entry.file not in moved), None)


def added_file_that_was_removed(removed: Collection[str], added: Collection[FileEntry]) -> FileEntry | None:
    """A file that was removed never comes back: whatever needed it may have expired, and the file with it."""
    return next((entry for entry in added if entry.file in removed), None)


def added_file_of_unknown_bucket(buckets: int, added: Collection[FileEntry]) -> FileEntry | None:
    """Buckets are numbered from 0 to the table's number of buckets, which never changes."""
    return next((entry for entry in added if not 0 <= entry.bucket < buckets), None)


def file_below_fence(fence: int, added: Collection[FileEntry]) -> FileEntry | None:
    """A file that was begun before the last clean-up may have been taken for waste."""
    return next((entry for entry in added if entry.base < fence), None)


def second_run_of_level(
    live: Live, added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """Above level 0 a level of a bucket is one sorted run: no key lies in two of its files.

    Equality of one file's last and another's first key counts as overlap: each key is stored once a run.
    """
    of_level = _by_place([entry for entry in added if entry.level > 0])
    for entry in _left_in(live, of_level, removed):
        for new in of_level[entry.partition, entry.bucket]:
            if new.level == entry.level and new.overlaps(entry):
                return entry
    return None


def run_between_inputs(
    live: Live, added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """What is merged sinks to the level of its result and may not pass an older file with the same keys.

    A file that stays above that level must be newer than every input whose keys it may hold.
    """
    lowest = {place: max(new.level for new in files) for place, files in _by_place(added).items()}
    inputs = _by_place(removed)
    for entry in _left_in(live, lowest, removed):
        place = entry.partition, entry.bucket
        if entry.level < lowest[place]:
            for sunk in inputs.get(place, ()):
                if sunk.age < entry.age and sunk.overlaps(entry):
                    return entry
    return None


def _by_place(entries: Iterable[FileEntry]) -> dict[BucketId, list[FileEntry]]:
    found: dict[BucketId, list[FileEntry]] = {}
    for entry in entries:
        found.setdefault((entry.partition, entry.bucket), []).append(entry)
    return found


def _left_in(live: Live, places: Collection[BucketId], removed: Collection[FileEntry]) -> Iterator[FileEntry]:
    """Live files of some buckets that are not removed."""
    gone = {entry.file for entry in removed}
    if not places:
        return iter(())
    return (e for name, e in live.items() if (e.partition, e.bucket) in places and name not in gone)
