"""Where the keys that a step touches are found: the files to read, and the commits that wrote them.

Three cases differ only in that:

- *load* (base 0): all rows of the target; there is nothing to look up;
- *delta*: the files that commits have added;
- *diff* (of a bucket from which a commit has removed files: its partition was overwritten or dropped; or of
  all, if commits have expired since the base was tagged): all keys that it has at the base and at the target.

Compaction, expiry and clean-up change no rows and are not seen here at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from upsert.errors import UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store.file_entry import FileEntry
from upsert.store.filters import Filter
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.partitions import EVERY_ROW, partition_name, remaining
from upsert.store.paths import Partition
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo


class VersionedTable(Protocol):
    """What reading at versions asks of a table."""

    @property
    def name(self) -> str:
        """Name of the table, for messages."""

    @property
    def path(self) -> str:
        """Where its files lie, or its folder."""

    @property
    def layout(self) -> Layout:
        """Its physical form."""

    @property
    def published(self) -> History:
        """Its snapshots."""

    def snapshot(self, id: int | None = None) -> Snapshot:
        """The latest snapshot, or one whose rows can still be read."""


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


@dataclass(frozen=True)
class Scope:
    """Which changes a reader wants.

    Attributes:
        where: only those of rows of which this is true.
        skips_untracked: pass over what was committed with ``change-tracking = false``, not stop there. Then
            the changes alone do not lead from state to state.
    """

    where: Filter = EVERY_ROW
    skips_untracked: bool = False

    def wanted(self, partitions: Iterable[Partition], schema: TableSchema) -> Collection[Partition]:
        """The partitions that may have such rows."""
        return remaining(self.where, partitions, schema).keys()


EVERYTHING: Final = Scope()


def change_files(table: VersionedTable, base: int, target: int, scope: Scope = EVERYTHING) -> ChangeFiles:
    """The files of all keys that may differ between two data versions.

    Raises:
        SnapshotExpiredError: base or target has expired.
        UntrackedChangesError: a commit in between was written with ``change-tracking = false``.
    """
    after = table.snapshot(target)
    if base == 0:
        return _within(table, scope, _oldest_first(after))
    before = table.snapshot(base)
    if has_gap(table, before, target):
        check_all_tracked(table, base, after.info)
        return _within(table, scope, _oldest_first(after), _oldest_first(before))
    commits = data_commits(table, base, target)
    hidden = _hidden(table, commits, scope)
    deltas = [table.published.delta(commit) for commit in commits]
    replaced = {_place(entry) for delta in deltas for entry in delta.removed}
    new = [entry for delta in deltas for entry in delta.added if _place(entry) not in replaced]
    new += [entry for entry in _oldest_first(after) if _place(entry) in replaced]
    old = [entry for entry in _oldest_first(before) if _place(entry) in replaced]
    return _within(table, scope, new, old, hidden)


def _within(
    table: VersionedTable,
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


def _hidden(table: VersionedTable, commits: Sequence[SnapshotInfo], scope: Scope) -> Collection[Partition]:
    """The partitions whose changes are passed over; a commit that has some can be read only by itself."""
    for commit in commits:
        if hidden := _untracked(table, commit, scope):
            if not scope.skips_untracked or len(commits) > 1:
                raise _cannot_be_read(table, commit, hidden)
            return hidden
    return ()


def _untracked(table: VersionedTable, commit: SnapshotInfo, scope: Scope) -> Collection[Partition]:
    """The partitions within the scope that a commit has changed without tracking."""
    if commit.is_shown:
        return ()
    hidden = commit.untracked
    if not commit.tracked:
        delta = table.published.delta(commit)
        hidden = tuple({entry.partition for entry in (*delta.added, *delta.removed)})
    return scope.wanted(hidden, table.layout.schema)


def data_commits(table: VersionedTable, after: int, until: int) -> Sequence[SnapshotInfo]:
    """Snapshots with ids in (after, until] that changed rows, oldest first.

    Raises:
        SnapshotExpiredError: one of them has expired.
    """
    head = table.published.latest()
    # ``after`` may be an expired id that a later snapshot with equal rows stands for
    first = max(after + 1, head.oldest)
    infos = (table.published.info(number, head) for number in range(first, until + 1))
    return [info for info in infos if info.changes_rows]


def has_gap(table: VersionedTable, before: Snapshot, target: int) -> bool:
    """Whether commits between a state, which a tag keeps, and a later one have expired."""
    oldest = table.published.latest().oldest
    return before.id < oldest and target > before.info.data_version


def check_all_tracked(table: VersionedTable, base: int, after: SnapshotInfo) -> None:
    """Refuse a range of which not all commits are left if one of them may not be shown.

    Raises:
        UntrackedChangesError: one was written with ``change-tracking = false``.
    """
    if after.last_untracked > base:
        raise not_tracked(table, after.last_untracked, "")


def check_tracked(table: VersionedTable, commit: SnapshotInfo, scope: Scope) -> None:
    """Refuse a commit with changes that no change stream may show, unless the reader passes over them.

    Raises:
        UntrackedChangesError: it was written with ``change-tracking = false``.
    """
    if not scope.skips_untracked and (hidden := _untracked(table, commit, scope)):
        raise _cannot_be_read(table, commit, hidden)


def _cannot_be_read(
    table: VersionedTable, commit: SnapshotInfo, hidden: Collection[Partition]
) -> UntrackedChangesError:
    where = ""
    if commit.tracked:
        where = f" for partition {partition_name(min(hidden, key=repr))}"
    return not_tracked(table, commit.id, where)


def not_tracked(table: VersionedTable, commit: int, where: str) -> UntrackedChangesError:
    """The error of a reader of changes that meets a commit without tracking."""
    return UntrackedChangesError(
        f"table {table.name!r}: changes must be tracked to be read, snapshot {commit} was committed with "
        f"change-tracking = false{where}; load what depends on it again: since=0, or a new checkpoint"
    )


def _place(entry: FileEntry) -> tuple[Partition, int]:
    return entry.partition, entry.bucket


def _oldest_first(snapshot: Snapshot) -> tuple[FileEntry, ...]:
    return tuple(reversed(snapshot.files.entries))
