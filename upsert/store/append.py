"""Committing what tasks have staged: exactly once, and only if it fits the table as it is then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from upsert.errors import (
    ConfigurationError,
    LogNotPublishedError,
    StaleWriterError,
    UnknownOutcomeError,
)
from upsert.store import paths, staging
from upsert.store.commit import Committer
from upsert.store.counts import CountCheck
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet
from upsert.store.key_conflicts import KeyConflicts
from upsert.store.log_system import Announce
from upsert.store.partitions import Overwrite, check_within
from upsert.store.paths import Partition
from upsert.store.proposal import Change
from upsert.store.resolution import Resolution
from upsert.store.snapshot_info import Kind, SnapshotInfo
from upsert.store.staging import StagedFiles
from upsert.store.unique import UniqueCheck


class LeftoverWarning(UserWarning):
    """Files that nobody needs could not be deleted. The table is right and complete."""


Transaction = tuple[str, int]
"""A writer's id and the number of its transaction."""


@dataclass(frozen=True)
class Committed:
    """The snapshot after a commit, and the files that it has added itself (none if it changed nothing)."""

    info: SnapshotInfo
    added: tuple[FileEntry, ...] = ()


def transaction_of(writer_id: str | None, transaction: int | None) -> Transaction | None:
    """Both together, or None.

    Raises:
        ConfigurationError: one of them is missing or no transaction.
    """
    if writer_id is None and transaction is None:
        return None
    if not writer_id or not isinstance(transaction, int) or transaction < 0:
        raise ConfigurationError(
            "a commit must have both writer_id, not empty, and transaction, at least 0, or neither; got "
            f"writer_id={writer_id!r}, transaction={transaction!r}"
        )
    return writer_id, transaction


def is_recorded(info: SnapshotInfo, transaction: Transaction | None) -> bool:
    """Whether the writer has committed this transaction, or a later one, in ``info`` or before it."""
    return transaction is not None and info.writers.get(transaction[0], -1) >= transaction[1]


def commit_staged(
    committer: Committer,
    uuid: str,
    staged: Iterable[StagedFiles],
    transaction: Transaction | None,
    *,
    overwrite: Overwrite | None,
    tracked: bool | None,
    announce: Announce | None = None,
    unchanged_since: int | None = None,
) -> Committed:
    """Publish staged files as one snapshot; nothing if the transaction is recorded or there is nothing to do.

    An overwrite replaces what is there when it is published: it cannot conflict with what others committed
    while its rows were written, and goes after it. When it raises, the staged files are as they were; only
    ``StaleWriterError`` means that they are lost. ``announce`` is told of the files before they are
    published, when they fit the latest snapshot. Rows whose keys others have changed after the snapshot
    ``unchanged_since`` are a ``CommitConflictError``.
    """
    history = committer.history
    given = staging.join(uuid, staged)
    head = history.latest()
    if is_recorded(head, transaction):
        _remove_left(history.root, StagedFiles(uuid, raw=given.raw))
        return Committed(head)
    _check_raw_is_fresh(committer, given, head)
    if overwrite is not None:
        check_within(given.partitions, overwrite.spec, of=f"table {paths.name_of(history.root)!r}")
    rows = _Rows(committer, uuid, given, head)
    conflicts = None if unchanged_since is None else KeyConflicts(history, rows.files, unchanged_since)
    last: list[Change | None] = [None]

    def propose(latest: SnapshotInfo) -> Change | None:
        last[0] = None
        if is_recorded(latest, transaction):
            return None
        if conflicts is not None:
            conflicts.check(latest)
        removed, left = _replaced(history.files(latest), overwrite, given.partitions)
        files = rows.at(latest, left)
        if files or removed or transaction is not None:
            kind: Kind = "overwrite" if overwrite else "append"
            last[0] = Change(kind, files, removed, transaction, tracked)
        return last[0]

    with discarded_if_failed(committer, lambda: [StagedFiles(uuid, rows.written)], uuid):
        if conflicts is not None:
            conflicts.check(head)
        if announce is not None:
            announce(rows.at(head, history.files(head)))
            reach("commit.after-announcement")
        info = committer.commit(propose)
    added = last[0].added if last[0] else ()
    published = {entry.file for entry in added}
    # raw changes are in the folded files now, or were committed by another attempt: nobody needs them
    left = tuple(entry for entry in rows.written if entry.file not in published)
    _remove_left(history.root, StagedFiles(uuid, left, given.raw))
    return Committed(info, added)


def _remove_left(root: str, left: StagedFiles) -> None:
    """Delete what a commit has left over; it is published, which nothing that happens here may deny."""
    try:
        staging.remove(root, left)
    except Exception as failure:
        warnings.warn(
            f"table {root!r}: files that nobody needs could not be deleted after a commit — {failure!r}; "
            "clean() deletes them",
            LeftoverWarning,
            stacklevel=4,
        )


class _Rows:
    """The data files of a commit on a snapshot, checked against the rows that are there."""

    def __init__(self, committer: Committer, uuid: str, given: StagedFiles, head: SnapshotInfo) -> None:
        history = self._history = committer.history
        self._resolution: Resolution | None = None
        self._folded = StagedFiles(uuid)
        if history.layout.merge.needs_present_rows:
            self._resolution = Resolution(history, given.raw)
        else:
            self._folded = staging.fold_raw(history.root, history.layout, uuid, head.id, given.raw)
        self._files = (*given.files, *self._folded.files)
        self._counts = CountCheck(history, self._files, given.retracting | self._folded.retracting)
        self._unique = UniqueCheck(history, self._files)
        self._checked = self._files

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The files whose rows do not depend on those that are there."""
        return self._files

    @property
    def written(self) -> tuple[FileEntry, ...]:
        """Files that this commit itself has written."""
        resolved = self._resolution.written if self._resolution else ()
        return (*self._folded.files, *resolved)

    def at(self, latest: SnapshotInfo, left: FileSet) -> tuple[FileEntry, ...]:
        """The files to add to a snapshot, of whose files the commit leaves some."""
        files = self._files
        if self._resolution is not None:
            files = (*files, *self._resolution.at(latest, left))
            if files != self._checked:
                self._unique, self._checked = UniqueCheck(self._history, files), files
        self._counts.check(latest, left)
        self._unique.check(latest, left)
        return files


def _replaced(
    live: FileSet, overwrite: Overwrite | None, written: Collection[Partition]
) -> tuple[tuple[FileEntry, ...], FileSet]:
    """The files that a commit replaces, and those that it leaves."""
    if overwrite is None:
        return (), live
    replaced = live.only(lambda partition: overwrite.replaces(partition, written))
    return replaced.entries, live.only(lambda partition: not overwrite.replaces(partition, written))


def _check_raw_is_fresh(committer: Committer, staged: StagedFiles, head: SnapshotInfo) -> None:
    """Raw changes are no data files, so the commit itself does not see what they were based on."""
    base = min((raw.base for raw in staged.raw), default=head.fence)
    if base < head.fence:
        raise StaleWriterError(
            f"table {committer.root!r}: a writer must commit before a clean-up that may remove its files; it "
            f"began at snapshot {base}, files begun before snapshot {head.fence} were cleaned; write the "
            "rows again"
        )
    for version in sorted({raw.definition for raw in staged.raw} - {head.definition}):
        committer.rules.check_definition(version, head.definition)


@contextmanager
def discarded_if_failed(
    committer: Committer, staged: Callable[[], Iterable[StagedFiles]], uuid: str
) -> Iterator[None]:
    """Delete what was staged for a commit when the block fails, as ``discard`` does.

    Where nobody knows whether the commit has happened, or it has, the files stay: they may be needed.
    """
    try:
        yield
    except (UnknownOutcomeError, LogNotPublishedError):
        raise
    except Exception:
        discard(committer, staged(), uuid)
        raise


def discard(committer: Committer, staged: Iterable[StagedFiles], uuid: str) -> None:
    """Delete staged files, except those that a commit has published after all."""
    history = committer.history
    head = history.latest()
    for one in staged:
        if one.table != uuid:
            continue
        published = history.files_since(min((entry.base for entry in one.files), default=head.id), head)
        unpublished = tuple(entry for entry in one.files if entry.file not in published)
        staging.remove(history.root, StagedFiles(uuid, unpublished, one.raw))
