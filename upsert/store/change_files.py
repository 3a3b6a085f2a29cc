"""Where the keys that a step touches are found: the files to read, and the commits that wrote them.

Three cases differ only in that:

- *load* (base 0): all rows of the target; there is nothing to look up;
- *delta*: the files that commits have added;
- *diff* (of a bucket from which a commit has removed files: its partition was overwritten or dropped; or of
  all, if commits have expired since the base was tagged): all keys that it has at the base and at the target.

Compaction, expiry and clean-up change no rows and are not seen here at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from upsert.errors import UntrackedChangesError
from upsert.store.data_file import FileEntry
from upsert.store.history import History
from upsert.store.layout import Layout
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
        """Folder of the table."""

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


def change_files(table: VersionedTable, base: int, target: int) -> ChangeFiles:
    """The files of all keys that may differ between two data versions.

    Raises:
        SnapshotExpiredError: base or target has expired.
        UntrackedChangesError: a commit in between was written with ``change-tracking = false``.
    """
    if base == 0:
        return ChangeFiles(_oldest_first(table.snapshot(target)))
    before = table.snapshot(base)
    if has_gap(table, before, target):
        after = table.snapshot(target)
        check_all_tracked(table, base, after.info)
        return ChangeFiles(_oldest_first(after), _oldest_first(before))
    commits = data_commits(table, base, target)
    for commit in commits:
        check_tracked(table, commit)
    deltas = [table.published.delta(commit) for commit in commits]
    replaced = {_place(entry) for delta in deltas for entry in delta.removed}
    new = [entry for delta in deltas for entry in delta.added if _place(entry) not in replaced]
    if not replaced:
        return ChangeFiles(tuple(new))
    new += [entry for entry in _oldest_first(table.snapshot(target)) if _place(entry) in replaced]
    old = [entry for entry in _oldest_first(before) if _place(entry) in replaced]
    return ChangeFiles(tuple(new), tuple(old))


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
        raise UntrackedChangesError(
            f"table {table.name!r}: changes must be tracked to be read, snapshot {after.last_untracked} was "
            "committed "
            "with change-tracking = false; load what depends on it again: since=0, or a new checkpoint"
        )


def check_tracked(table: VersionedTable, commit: SnapshotInfo) -> None:
    """Refuse a commit whose rows no change stream may show.

    Raises:
        UntrackedChangesError: it was written with ``change-tracking = false``.
    """
    if not commit.tracked:
        raise UntrackedChangesError(
            f"table {table.name!r}: changes must be tracked to be read, snapshot {commit.id} was committed "
            "with change-tracking = false; load what depends on it again: since=0, or a new checkpoint"
        )


def _place(entry: FileEntry) -> tuple[Partition, int]:
    return entry.partition, entry.bucket


def _oldest_first(snapshot: Snapshot) -> tuple[FileEntry, ...]:
    return tuple(reversed(snapshot.files.entries))
