"""The rules of the store that every commit must keep, each as one named function (pure).

A function returns what breaks its rule, or None. They run on the live files of the very snapshot that a
commit builds on, so together with put-if-absent they hold for the published history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from upsert.store.data_file import FileEntry
from upsert.store.paths import Partition

Live = Mapping[str, FileEntry]


def removed_file_that_is_not_live(live: Live, removed: Collection[FileEntry]) -> FileEntry | None:
    """A file can be removed only once, and only while it is there."""
    return next((entry for entry in removed if entry.file not in live), None)


def added_file_that_is_live(live: Live, added: Collection[FileEntry]) -> FileEntry | None:
    """A file is added once in its life."""
    return next((entry for entry in added if entry.file in live), None)


def added_file_of_unknown_bucket(buckets: int, added: Collection[FileEntry]) -> FileEntry | None:
    """Buckets are numbered from 0 to the table's number of buckets, which never changes."""
    return next((entry for entry in added if not 0 <= entry.bucket < buckets), None)


def file_below_fence(fence: int, added: Collection[FileEntry]) -> FileEntry | None:
    """A file that was begun before the last clean-up may have been taken for waste."""
    return next((entry for entry in added if entry.base < fence), None)


def second_run_of_level(
    live: Live, added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """Above level 0 a level of a bucket is one sorted run: what is added must be all there is."""
    gone = {entry.file for entry in removed}
    places = {_place(entry) for entry in added if entry.level > 0}
    if not places:
        return None
    left = (entry for name, entry in live.items() if name not in gone)
    return next((entry for entry in left if entry.level > 0 and _place(entry) in places), None)


def run_between_inputs(
    live: Live, added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """What is merged must be neighbours in age: a run between them would change its place in the order."""
    ages: dict[tuple[Partition, int], list[int]] = {}
    for entry in removed:
        ages.setdefault((entry.partition, entry.bucket), []).append(entry.sequence)
    if not added:
        return None
    gone = {entry.file for entry in removed}
    for name, entry in live.items():
        merged = ages.get((entry.partition, entry.bucket))
        if merged and name not in gone and min(merged) <= entry.sequence <= max(merged):
            return entry
    return None


def _place(entry: FileEntry) -> tuple[Partition, int, int]:
    return entry.partition, entry.bucket, entry.level
