"""The rules of a history: what snapshots and manifests say, each by itself and together with those before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from upsert.store import invariants, paths
from upsert.store.check_data import Finding
from upsert.store.file_set import FileSet

if TYPE_CHECKING:
    from upsert.store.disk_state import DiskState


def snapshot_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every snapshot from the earliest to the latest has a whole file."""
    for id, reason in sorted(state.unreadable.items()):
        yield Finding(paths.snapshot_file(id), reason)


def parent_is_the_snapshot_before(state: DiskState) -> Iterator[Finding]:
    """A snapshot names the one before it as its parent: the history has one line."""
    for one, following in pairwise(state.published):
        if following.info.id == one.info.id + 1 and following.info.parent != one.info.uuid:
            yield Finding(
                paths.snapshot_file(following.info.id),
                f"its parent is {following.info.parent!r}, snapshot {one.info.id} is {one.info.uuid!r}",
            )


def numbers_never_fall(state: DiskState) -> Iterator[Finding]:
    """Time, boundary, fence, states, definition and the newest untracked commit only grow."""
    for one, following in pairwise(state.published):
        for name in ("time_ms", "oldest", "fence", "states", "definition", "last_untracked", "data_version"):
            before, after = (getattr(each.info, name, 0) for each in (one, following))
            if after < before:
                yield Finding(
                    paths.snapshot_file(following.info.id), f"{name} must not fall, from {before} to {after}"
                )


def manifest_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every manifest that a snapshot or tag names is there and holds the entries that it should."""
    for name, reason in sorted(state.bad_manifests.items()):
        yield Finding(name, reason)


def totals_fit_the_files(state: DiskState) -> Iterator[Finding]:
    """A snapshot's numbers of files and rows are those of its live files."""
    files = rows = 0
    for moment in state.walk():
        if moment.before is None:
            files, rows = len(moment.live), sum(entry.rows for entry in moment.live.values())
        else:
            files += len(moment.delta.added) - len(moment.delta.removed)
            rows += sum(e.rows for e in moment.delta.added) - sum(e.rows for e in moment.delta.removed)
        info = moment.one.info
        if (info.files, info.rows) != (files, rows):
            stated = f"{info.files} files and {info.rows} rows"
            yield Finding(moment.one.name, f"it must have {stated}, its manifests give {files} and {rows}")
            files, rows = info.files, info.rows


def states_are_counted(state: DiskState) -> Iterator[Finding]:
    """A commit that changes rows is a state of its own, any other keeps that of the snapshot before it."""
    for before, one in pairwise(one.info for one in state.published):
        expected = (
            (one.id, before.states + 1)
            if one.data_version == one.id
            else (before.data_version, before.states)
        )
        if one.id == before.id + 1 and (one.data_version, one.states) != expected:
            found = f"data version {one.data_version} and {one.states} states"
            yield Finding(
                paths.snapshot_file(one.id), f"it must have {expected[0]} and {expected[1]}, got {found}"
            )


def manifests_fit_the_commits(state: DiskState) -> Iterator[Finding]:
    """The files of a snapshot are those before it, less what its commit removed, and with what it added."""
    for moment in state.walk():
        info, before = moment.one.info, moment.before
        own = () if info.delta is None else (info.delta,)
        if before is None or info.manifests == (*before.manifests, *own):
            continue  # the way begins here, or nothing was folded
        expected = moment.live.keys() - {entry.file for entry in moment.delta.removed}
        expected |= {entry.file for entry in moment.delta.added}
        if (found := state.files_of(info)) is not None and found.keys() != expected:
            odd = ", ".join(sorted(expected ^ found.keys())[:3])
            yield Finding(moment.one.name, f"its manifests and the commits up to it differ in {odd}")


def removed_file_is_live(state: DiskState) -> Iterator[Finding]:
    """``invariants.removed_file_that_is_not_live`` of each commit."""
    for moment in state.walk():
        if gone := invariants.removed_file_that_is_not_live(moment.live, moment.delta.removed):
            yield Finding(gone.file, f"{moment.one.name} removes it, and it was not there")


def added_file_is_new(state: DiskState) -> Iterator[Finding]:
    """``invariants.added_file_that_is_live`` of each commit, and no file comes back."""
    removed: set[str] = set()
    for moment in state.walk():
        delta = moment.delta
        there = invariants.added_file_that_is_live(moment.live, delta.added, delta.removed)
        if there := there or invariants.added_file_that_was_removed(removed, delta.added):
            yield Finding(there.file, f"{moment.one.name} adds it, and it was there before")
        removed |= {entry.file for entry in delta.removed} - {entry.file for entry in delta.added}


def file_was_begun_after_the_fence(state: DiskState) -> Iterator[Finding]:
    """``invariants.file_below_fence`` of each commit; a file that only goes to another level was there."""
    for moment in state.walk():
        new = [entry for entry in moment.delta.added if entry.file not in moment.live]
        if moment.before and (stale := invariants.file_below_fence(moment.before.fence, new)):
            yield Finding(stale.file, f"its base is {stale.base}, the fence was {moment.before.fence}")


def bucket_is_known(state: DiskState) -> Iterator[Finding]:
    """``invariants.added_file_of_unknown_bucket`` of all live files."""
    for entry in state.entries:
        if invariants.added_file_of_unknown_bucket(state.history.layout.buckets, [entry]):
            yield Finding(entry.file, f"bucket {entry.bucket} is none of {state.history.layout.buckets}")


def files_of_a_run_are_disjoint(state: DiskState) -> Iterator[Finding]:
    """``invariants.second_run_of_level``: a key lies in one file of a run at most.

    A run is a level above 0, or what one commit has added on level 0.
    """
    for moment in state.walk():
        new = moment.live.values() if moment.before is None else moment.delta.added
        for runs in FileSet.of(new).groups.values():
            for one, following in (pair for run in runs for pair in pairwise(run)):
                if one.overlaps(following):
                    yield Finding(following.file, f"its keys overlap those of {one.file}")
        delta = moment.delta
        if moment.before and (
            other := invariants.second_run_of_level(moment.live, delta.added, delta.removed)
        ):
            yield Finding(
                other.file, f"its keys overlap those of a file of level {other.level} in {moment.one.name}"
            )


RULES: Final[tuple[Callable[[DiskState], Iterator[Finding]], ...]] = (
    snapshot_can_be_read,
    parent_is_the_snapshot_before,
    numbers_never_fall,
    manifest_can_be_read,
    totals_fit_the_files,
    states_are_counted,
    manifests_fit_the_commits,
    removed_file_is_live,
    added_file_is_new,
    file_was_begun_after_the_fence,
    bucket_is_known,
    files_of_a_run_are_disjoint,
)
"""The rules that ask for snapshots and manifests."""
