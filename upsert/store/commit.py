"""Publishing a change of the table: put-if-absent of the next snapshot, again until it succeeds or cannot.

A commit is a function from the latest snapshot to what should change. Each attempt asks it anew, checks the
store's rules against the files that are live now, and tries to create the next snapshot's file. If
another committer has the id, everything is looked at again. A published id is never used twice: after the
link the committer makes sure that its snapshot is part of the history, for a writer that stalled until
ids expired could create a long-gone one again.

An exception while publishing means *unknown*: nothing is cleaned up before the disk has been looked at.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final
from uuid import uuid4

from upsert.errors import CommitConflictError, SnapshotExpiredError, StaleWriterError, UnknownOutcomeError
from upsert.store import invariants, paths
from upsert.store.definition import why_unreadable
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.log_system import offsets_for
from upsert.store.manifest import fold, write_manifest
from upsert.store.publication import put_if_absent
from upsert.store.snapshot_info import Kind, ManifestRef, SnapshotInfo
from upsert.store.storage import storage_of
from upsert.store.tracking import Shown, shown

GIVE_UP_AFTER_S: Final = 300.0
"""Ten tries were too few for eight writers; a commit that loses for minutes has another problem."""
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True)
class Change:
    """What a commit does to the snapshot that it builds on."""

    kind: Kind
    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    transaction: tuple[str, int] | None = None
    tracked: bool | None = None
    oldest: int | None = None
    fence: int | None = None
    definition: int | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether the table holds other rows afterwards."""
        return self.kind in ("append", "overwrite", "delete") and bool(self.added or self.removed)


@dataclass(frozen=True)
class _Delta:
    """A manifest that an attempt has written, and the snapshot that was the latest then."""

    change: Change
    base: int
    ref: ManifestRef


Propose = Callable[[SnapshotInfo], Change | None]
"""From the latest snapshot to the change to publish on it, or None if there is nothing to do."""


@dataclass(frozen=True)
class Surroundings:
    """What a committer takes from the world, so that tests can give it another one."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = field(default=random.uniform)
    put_if_absent: Callable[[str, bytes], bool] = put_if_absent


REAL: Final = Surroundings()


class Committer:
    """Publishes changes of one table."""

    def __init__(
        self, history: History, around: Surroundings = REAL, give_up_after_s: float = GIVE_UP_AFTER_S
    ) -> None:
        self.history = history
        self.root = history.root
        self._storage = storage_of(history.root)
        self.around = around
        self.give_up_after_s = give_up_after_s

    @property
    def layout(self) -> Layout:
        """Physical form of the table as of the last look at its latest snapshot."""
        return self.history.layout

    def commit(self, propose: Propose) -> SnapshotInfo:
        """Publish what ``propose`` says; the snapshot that holds it, or the latest if it says None.

        Raises:
            UnknownOutcomeError: an object store has not said whether it was published; it may be yet.
            StaleWriterError: the files were begun before a clean-up, or the writer stalled past an expiry.
            CommitConflictError: the change does not fit what others committed; or every attempt for
                ``give_up_after_s`` seconds lost the race. Nothing was published.
            OSError: the disk refused. A look at it has shown that nothing was published.
        """
        deadline = self.around.monotonic() + self.give_up_after_s
        pause = _FIRST_PAUSE_S
        delta: _Delta | None = None
        while True:
            head = self.history.latest()
            try:
                change = propose(head)
                if change is None:
                    return head
                self._check(change, head)
                delta = self._delta(change, head, delta)
                info = self._successor(head, change, delta.ref)
            except (SnapshotExpiredError, FileNotFoundError):
                # an expiry took away what belongs to ``head`` alone, so there must be a newer one
                if self.history.latest().id == head.id:
                    raise
                continue
            if self._publish(info, change.transaction):
                return info
            self._check_time(deadline, head)
            self.around.sleep(self.around.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _check_time(self, deadline: float, head: SnapshotInfo) -> None:
        if self.around.monotonic() > deadline:
            raise CommitConflictError(
                f"table {self.root!r}: commit on snapshot {head.id} lost every race for the next id in "
                f"{self.give_up_after_s:g} s; let fewer processes commit at once, then run it again"
            )

    def _delta(self, change: Change, head: SnapshotInfo, earlier: _Delta | None) -> _Delta:
        """The manifest of a change; that of an earlier attempt if it still says the same and is safe."""
        if earlier is not None and earlier.change == change and earlier.base >= head.fence:
            return earlier
        if not change.added and not change.removed:
            return _Delta(change, head.id, ManifestRef("", 0, 0))
        reach("commit.before-manifest")
        ref = write_manifest(self.root, self.layout, head.id, change.added, change.removed)
        reach("commit.after-manifest")
        return _Delta(change, head.id, ref)

    def _successor(self, head: SnapshotInfo, change: Change, delta: ManifestRef) -> SnapshotInfo:
        own_id = head.id + 1
        own = (replace(delta, sequence=own_id),) if delta.entries else ()
        manifests = fold(self.root, self.layout, head.id, (*head.manifests, *own))
        added_rows = sum(entry.rows for entry in change.added)
        visible = self._shown(change, head)
        return SnapshotInfo(
            id=own_id,
            uuid=uuid4().hex,
            parent=head.uuid or None,
            kind=change.kind,
            # time never runs backwards in a history: readers start "from a time"
            time_ms=max(int(self.around.now() * 1000), head.time_ms),
            data_version=own_id if change.changes_rows else head.data_version,
            tracked=visible.is_tracked,
            untracked=visible.hidden,
            writers=_with_transaction(head.writers, change.transaction),
            watermark=head.watermark,
            log_offsets=offsets_for(self.history.uuid, head.log_offsets),
            manifests=manifests,
            delta=own[0] if own else None,
            oldest=max(head.oldest, change.oldest or 0),
            fence=max(head.fence, change.fence or 0),
            files=head.files + len(change.added) - len(change.removed),
            rows=head.rows + added_rows - sum(entry.rows for entry in change.removed),
            delta_rows=added_rows,
            states=head.states + change.changes_rows,
            last_untracked=head.last_untracked if visible.is_whole else own_id,
            definition=head.definition if change.definition is None else change.definition,
        )

    def _shown(self, change: Change, head: SnapshotInfo) -> Shown:
        if not change.changes_rows:
            return Shown(True, ())
        touched = {entry.partition for entry in (*change.added, *change.removed)}
        return shown(self.history.definition_at(head.definition), touched, change.tracked)

    def _check(self, change: Change, head: SnapshotInfo) -> None:
        """Every rule of the store, on the files that are live in ``head``."""
        added, removed = change.added, change.removed
        if stale := invariants.file_below_fence(head.fence, added):
            raise StaleWriterError(
                f"table {self.root!r}: a writer must commit before a clean-up that may remove its files; it "
                f"began at snapshot {stale.base}, files begun before snapshot {head.fence} were cleaned; "
                "write the rows again"
            )
        if lost := invariants.added_file_of_unknown_bucket(self.layout.buckets, added):
            raise CommitConflictError(
                f"table {self.root!r}: a bucket must be below {self.layout.buckets}, got {lost.bucket}; open "
                "the table again and write the rows again"
            )
        if not added and not removed:
            return
        self._check_definitions(added, head.definition if change.definition is None else change.definition)
        live = self.history.live(head)
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
            removed = {entry.file for entry in self.history.delta(self.history.info(id, head)).removed}
            if gone := invariants.added_file_that_was_removed(removed, change.added):
                raise self._conflict(change, head, gone, "has already removed")
        if base + 1 < head.oldest:  # who removed them has expired
            missing = (f for f in change.added if not self._exists(f))
            if gone := next(missing, None):
                raise self._conflict(change, head, gone, "removed")

    def _exists(self, entry: FileEntry) -> bool:
        return self._storage.exists(paths.resolve(self.root, entry.file))

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
                f"table {self.root!r}: files must be of a definition up to version {present}, got version "
                f"{version}, which was not published; write the rows again"
            )
        old, new = self.history.definition_at(version), self.history.definition_at(present)
        if reason := why_unreadable(old, new):
            raise StaleWriterError(
                f"table {self.root!r}: rows staged under version {version} of its definition must fit "
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
            f"table {self.root!r}: {own} cannot be committed on snapshot {head.id}: {by} {what} "
            f"{entry.file!r}; run the command again"
        )

    def _commit_that_touched(self, entry: FileEntry, head: SnapshotInfo) -> SnapshotInfo | None:
        for info in reversed(self.history.retained(head)):
            delta = self.history.delta(info)
            if any(entry.file == file.file for file in (*delta.added, *delta.removed)):
                return info
        return None

    def _publish(self, info: SnapshotInfo, transaction: tuple[str, int] | None) -> bool:
        """Whether ``info`` is now part of the history; False if another snapshot has its id."""
        path = os.path.join(self.root, paths.snapshot_file(info.id))
        try:
            won = self.around.put_if_absent(path, info.to_json())
        except UnknownOutcomeError:
            raise
        except Exception as cause:
            # unknown: the name may exist although an error was reported
            found = self.history.content(info.id)
            if found is None or found.uuid != info.uuid:
                if isinstance(cause, FileNotFoundError) and self.history.is_there:
                    return False  # a clean-up without mercy took the temporary file
                raise
            self._storage.settle(os.path.dirname(path))
            won = True
        if won:
            self._check_lineage(info, path, transaction)
        return won

    def _check_lineage(self, info: SnapshotInfo, path: str, transaction: tuple[str, int] | None) -> None:
        """Make sure that the history goes on from ``info``, not past it.

        If the id had been used before and had expired, newer snapshots exist that do not descend from ours.
        They are found whatever expiry is doing: it deletes in ascending order, so if ours is legitimate and
        still there, so is its successor, if it has one.
        """
        newest = self.history.latest()
        if newest.id <= info.id:
            return
        successor = self.history.content(info.id + 1)
        own = self.history.content(info.id)
        if successor is not None and successor.parent == info.uuid:
            return
        if own is not None and own.uuid == info.uuid:
            self._storage.delete(path)
            self.history.forget(info.id)
            raise StaleWriterError(
                f"table {self.root!r}: a writer must commit before the snapshot that it builds on expires; "
                f"snapshot {info.id - 1} has expired, the latest is {newest.id}; write the rows again"
            )
        # expired between the link and this look, or taken away as a leftover: only the writers' map can tell
        if transaction is None or newest.writers.get(transaction[0], -1) < transaction[1]:
            raise StaleWriterError(
                f"table {self.root!r}: snapshot {info.id} expired while it was being published, so it cannot "
                "be told whether it was part of the history; compare the rows with snapshot "
                f"{newest.id} and write what is missing"
            )


def _with_transaction(writers: Mapping[str, int], transaction: tuple[str, int] | None) -> Mapping[str, int]:
    if transaction is None:
        return writers
    return MappingProxyType({**writers, transaction[0]: transaction[1]})
