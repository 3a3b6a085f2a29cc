"""Whether a change may be published on a snapshot: the store's rules, asked of what others have committed.

The rules themselves are ``upsert.store.invariants``; here is what they are asked of, and the message that
names both sides of a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from upsert.errors import CommitConflictError, StaleWriterError
from upsert.store import invariants, paths
from upsert.store.definition import why_unreadable
from upsert.store.file_entry import FileEntry
from upsert.store.history import History
from upsert.store.proposal import Change
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.storage import storage_of


class CommitRules:
    """The rules that a change of one table must keep to be published."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._root = history.root
        self._storage = storage_of(history.root)

    def check(self, change: Change, head: SnapshotInfo) -> None:
        """Refuse a change that breaks a rule of the store on the files that are live in ``head``.

        Raises:
            StaleWriterError: its files were begun before a clean-up, or under a definition whose rows the
                present one cannot have.
            CommitConflictError: it does not fit what others committed; the message names their commit.
            SnapshotExpiredError: an expiry took away what belongs to ``head`` alone.
        """
        added, removed = change.added, change.removed
        if stale := invariants.file_below_fence(head.fence, added):
            raise StaleWriterError(
                f"table {self._root!r}: a writer must commit before a clean-up that may remove its files; it "
                f"began at snapshot {stale.base}, files begun before snapshot {head.fence} were cleaned; "
                "write the rows again"
            )
        if lost := invariants.added_file_of_unknown_bucket(self._history.layout.buckets, added):
            raise CommitConflictError(
                f"table {self._root!r}: a bucket must be below {self._history.layout.buckets}, got "
                f"{lost.bucket}; open the table again and write the rows again"
            )
        if not added and not removed:
            return
        self._check_definitions(added, head.definition if change.definition is None else change.definition)
        live = self._history.live(head)
        if gone := invariants.removed_file_that_is_not_live(live, removed):
            raise self._conflict(change, head, gone, "has already removed")
        if there := invariants.added_file_that_is_live(live, added, removed):
            raise self._conflict(change, head, there, "has already added")
        if change.kind == "compact":
            self._check_compaction(change, head, live)
        else:
            self._check_first_publication(change, head)

    def _check_first_publication(self, change: Change, head: SnapshotInfo) -> None:
        """Files of a commit that seemed to have failed may have been published, and be gone since then."""
        base = min((entry.base for entry in change.added), default=head.id)
        for id in range(max(base + 1, head.oldest), head.id + 1):
            removed = {entry.file for entry in self._history.delta(self._history.info(id, head)).removed}
            if gone := invariants.added_file_that_was_removed(removed, change.added):
                raise self._conflict(change, head, gone, "has already removed")
        if base + 1 < head.oldest:  # who removed them has expired
            missing = (f for f in change.added if not self._exists(f))
            if gone := next(missing, None):
                raise self._conflict(change, head, gone, "removed")

    def _exists(self, entry: FileEntry) -> bool:
        return self._storage.exists(paths.resolve(self._root, entry.file))

    def _check_definitions(self, added: Iterable[FileEntry], present: int) -> None:
        """Refuse files that were written under a definition whose rows the present one cannot hold."""
        for version in sorted({entry.definition for entry in added} - {present}):
            self.check_definition(version, present)

    def check_definition(self, version: int, present: int) -> None:
        """Refuse rows that were written under a definition where another one holds that cannot have them.

        Raises:
            CommitConflictError: theirs was never published.
            StaleWriterError: the present one cannot have them.
        """
        if version > present:
            raise CommitConflictError(
                f"table {self._root!r}: files must be of a definition up to version {present}, got version "
                f"{version}, which was not published; write the rows again"
            )
        old, new = self._history.definition_at(version), self._history.definition_at(present)
        if reason := why_unreadable(old, new):
            raise StaleWriterError(
                f"table {self._root!r}: rows staged under version {version} of its definition must fit "
                f"version {present}, but {reason}; write the rows again"
            )

    def _check_compaction(self, change: Change, head: SnapshotInfo, live: Mapping[str, FileEntry]) -> None:
        clash = invariants.second_run_of_level(live, change.added, change.removed)
        clash = clash or invariants.run_between_inputs(live, change.added, change.removed)
        if clash:
            raise self._conflict(change, head, clash, "put a run in the way:")

    def _conflict(
        self, change: Change, head: SnapshotInfo, entry: FileEntry, what: str
    ) -> CommitConflictError:
        other = self._commit_that_touched(entry, head)
        by = f"snapshot {other.id} ({other.kind})" if other else "a commit before the earliest retained one"
        bases = {file.base for file in change.added}
        own = f"this {change.kind}" + (f", begun at snapshot {min(bases)}," if bases else "")
        return CommitConflictError(
            f"table {self._root!r}: {own} cannot be committed on snapshot {head.id}: {by} {what} "
            f"{entry.file!r}; run the command again"
        )

    def _commit_that_touched(self, entry: FileEntry, head: SnapshotInfo) -> SnapshotInfo | None:
        for info in reversed(self._history.retained(head)):
            delta = self._history.delta(info)
            if any(entry.file == file.file for file in (*delta.added, *delta.removed)):
                return info
        return None
