"""Which files have the keys that commits between two versions touched, and which commits may be shown.

Three cases differ only in where the keys are found:

- *load* (base 0): all rows of the target; there is nothing to look up;
- *delta*: the files that commits have added;
- *diff* (of a bucket from which a commit has removed files: its partition was overwritten or dropped; or of
  all, if commits have expired since the base was tagged, or the table has got another number of buckets): all
  keys that it has at the base and at the target.

In a table without primary key ALTER TABLE may bring a row into another bucket. What commits before and after
it have changed is found apart, and counted together.

Compaction, expiry and clean-up change no rows and are not seen here at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from upsert.errors import UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import Partition
from upsert.store.predicate import EVERY_ROW, Filter, remaining
from upsert.store.read.shares import TouchedFile
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.rows.partitions import partition_name


@dataclass(frozen=True)
class ChangeFiles:
    """The files in which the touched keys are found, oldest first within each bucket.

    ``new`` hold what is there at the target or was added on the way, ``old`` what was replaced or dropped.
    """

    new: tuple[FileEntry, ...]
    old: tuple[FileEntry, ...] = ()

    @property
    def all(self) -> tuple[FileEntry, ...]:
        """Both."""
        return (*self.old, *self.new)

    def within(self, bucket: int) -> Sequence[TouchedFile]:
        """Those of a bucket."""
        return self.by_bucket.get(bucket, [])

    @cached_property
    def by_bucket(self) -> Mapping[int, list[TouchedFile]]:
        """Those of each bucket that has any."""
        found: dict[int, list[TouchedFile]] = {}
        for files, is_old in ((self.old, True), (self.new, False)):
            for entry in files:
                found.setdefault(entry.bucket, []).append(TouchedFile(entry, is_old))
        return found


@dataclass(frozen=True)
class Scope:
    """Which changes a reader wants: of rows of which ``where`` is true.

    ``skips_untracked`` passes over what was committed with ``change-tracking = false``, instead of stopping
    there; then the changes alone do not lead from state to state.
    """

    where: Filter = EVERY_ROW
    skips_untracked: bool = False

    def wanted(self, partitions: Iterable[Partition], schema: TableSchema) -> Collection[Partition]:
        """The partitions that may have such rows."""
        return remaining(self.where, partitions, schema).keys()


EVERYTHING: Final = Scope()


def change_files(table: PinnedTable, base: int, target: int, scope: Scope = EVERYTHING) -> ChangeFiles:
    """The files of all keys that may differ between two data versions."""
    after = table.snapshot(target)
    if base == 0:
        return _within(table, scope, _oldest_first(after.files))
    before = table.snapshot(base)
    if table.has_gap(before, target):
        check_all_tracked(table, base, after.info)
        return _difference(table, scope, before, after)
    commits = [*table.data_commits(base, target)]
    hidden = _hidden(table, commits, scope)
    if len({*map(table.published.buckets_of, commits)}) > 1:
        return _difference(table, scope, before, after)
    new: list[FileEntry] = []
    old: list[FileEntry] = []
    for some in _with_rows_alike(table, commits):
        deltas = table.published.deltas(some)
        replaced = dict.fromkeys(entry.bucket_id for delta in deltas for entry in delta.removed)
        new += [entry for delta in deltas for entry in delta.added if entry.bucket_id not in replaced]
        if replaced:
            new += _oldest_first(table.snapshot(some[-1].id).files.within(replaced))
            old += _oldest_first(table.snapshot(some[0].id - 1).files.within(replaced))
    return _within(table, scope, new, old, hidden)


def _difference(table: PinnedTable, scope: Scope, before: Snapshot, after: Snapshot) -> ChangeFiles:
    """All files of two states; as of one bucket where they have not the same number of buckets."""
    old, new = _oldest_first(before.files), _oldest_first(after.files)
    if before.layout.buckets != after.layout.buckets:
        old, new = (tuple(replace(entry, bucket=0) for entry in files) for files in (old, new))
    return _within(table, scope, new, old)


def _with_rows_alike(table: PinnedTable, commits: Sequence[SnapshotInfo]) -> Iterator[list[SnapshotInfo]]:
    """Commits in groups, so that rows of one lie alike: what a bucket had and has can be compared."""
    some: list[SnapshotInfo] = []
    for commit in commits:
        if some and not table.published.lie_alike(some[-1], commit):
            yield some
            some = []
        some.append(commit)
    if some:
        yield some


def _within(
    table: PinnedTable,
    scope: Scope,
    new: Sequence[FileEntry],
    old: Sequence[FileEntry] = (),
    hidden: Collection[Partition] = (),
) -> ChangeFiles:
    partitions = {entry.partition for entry in (*new, *old)}.difference(hidden)
    wanted = scope.wanted(partitions, table.layout.schema)
    return ChangeFiles(
        tuple(entry for entry in new if entry.partition in wanted),
        tuple(entry for entry in old if entry.partition in wanted),
    )


def _hidden(table: PinnedTable, commits: Sequence[SnapshotInfo], scope: Scope) -> Collection[Partition]:
    """The partitions whose changes are passed over; a commit that has some can be read only by itself."""
    for commit in commits:
        if hidden := _untracked(table, commit, scope):
            if not scope.skips_untracked or len(commits) > 1:
                raise _cannot_be_read(table, commit, hidden)
            return hidden
    return ()


def _untracked(table: PinnedTable, commit: SnapshotInfo, scope: Scope) -> Collection[Partition]:
    """The partitions within the scope that a commit has changed without tracking."""
    if commit.is_shown:
        return ()
    hidden = commit.untracked
    if not commit.tracked:
        delta = table.published.delta(commit)
        hidden = tuple({entry.partition for entry in (*delta.added, *delta.removed)})
    return scope.wanted(hidden, table.layout.schema)


def check_all_tracked(table: PinnedTable, base: int, after: SnapshotInfo) -> None:
    """Refuse a range of which not all commits are left if one of them may not be shown."""
    if after.last_untracked > base:
        raise not_tracked(table, after.last_untracked, "")


def check_tracked(table: PinnedTable, commit: SnapshotInfo, scope: Scope) -> None:
    """Refuse a commit with changes that no change stream may show, unless the reader passes over them."""
    if not scope.skips_untracked and (hidden := _untracked(table, commit, scope)):
        raise _cannot_be_read(table, commit, hidden)


def _cannot_be_read(
    table: PinnedTable, commit: SnapshotInfo, hidden: Collection[Partition]
) -> UntrackedChangesError:
    where = ""
    if commit.tracked:
        where = f" for partition {partition_name(min(hidden, key=repr))}"
    return not_tracked(table, commit.id, where)


def not_tracked(table: PinnedTable, commit: int, where: str) -> UntrackedChangesError:
    """The error of a reader of changes that meets a commit without tracking."""
    return UntrackedChangesError(
        f"table {table.name!r}: changes must be tracked to be read, snapshot {commit} was committed with "
        f"change-tracking = false{where}; load what depends on it again: since=0, or a new checkpoint"
    )


def _oldest_first(files: FileSet) -> tuple[FileEntry, ...]:
    return tuple(reversed(files.entries))
