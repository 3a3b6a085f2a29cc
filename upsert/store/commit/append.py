"""Committing what tasks have staged: exactly once, and only if it fits the table as it is then.

In a table with a sequence or a merge engine, staged rows are combined with the table's rows of their keys in
the commit, on the very snapshot that it builds on: each attempt asks again. What an earlier attempt has
written is still right unless another commit has changed rows of its buckets since.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptTableError,
    LogNotPublishedError,
    SnapshotExpiredError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.commit import staging
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committed, Committer
from upsert.store.commit.constraints import CountCheck, KeyConflicts, UniqueCheck
from upsert.store.commit.rewrite import restaged
from upsert.store.commit.staging import RawFile, Rows, StagedFiles
from upsert.store.files.data_file import DataFile
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.partition_order import values_of
from upsert.store.metadata.snapshot import Kind, SnapshotInfo
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.paths import BucketId, Partition
from upsert.store.read.lookup import in_search_order, newest_by_key, prepare, table_of
from upsert.store.rows.conform import check_rows
from upsert.store.rows.layout import Layout
from upsert.store.rows.merge import SortedRows
from upsert.store.rows.merge_engines import Stored, combine
from upsert.store.rows.partitions import Overwrite, beginning_of, check_within
from upsert.store.storage.local import synced_together


class Resolution:
    """The data files that raw changes become on a snapshot, kept up to date while others commit."""

    def __init__(self, history: History, raw: Iterable[RawFile]) -> None:
        self._history = history
        self._parts = staging.parts_by_bucket(raw)
        self._files: tuple[FileEntry, ...] = ()
        self._seen: SnapshotInfo | None = None
        self.written: list[FileEntry] = []

    def at(self, latest: SnapshotInfo, left: FileSet) -> tuple[FileEntry, ...]:
        """The files to add to a snapshot, of whose files the commit leaves ``left``."""
        if self._seen is None or not self._still_holds(self._seen, latest):
            layout = self._history.definition_at(latest.definition).layout
            files: list[FileEntry] = []
            for bucket_id in self._parts:
                files += self._resolve(layout, latest.id, left.groups.get(bucket_id, ()), bucket_id)
            self._files = tuple(files)
            reach("resolve.after-write")
        self._seen = latest
        return self._files

    def _still_holds(self, seen: SnapshotInfo, latest: SnapshotInfo) -> bool:
        if seen.definition != latest.definition:
            return False
        if seen.data_version == latest.data_version:
            return True
        try:
            between = self._history.since(seen.id, latest)
            deltas = self._history.deltas([info for info in between if info.changes_rows])
        except SnapshotExpiredError:
            return False
        touched = {e.bucket_id for delta in deltas for e in (*delta.added, *delta.removed)}
        return touched.isdisjoint(self._parts)

    def _resolve(
        self, layout: Layout, base: int, runs: Sequence[Run], bucket_id: BucketId
    ) -> list[FileEntry]:
        root, parts = self._history.root, self._parts[bucket_id]
        opened = [[DataFile.open(root, layout, entry) for entry in run] for run in runs]
        find, order = partial(find_stored, layout, opened), parts[0].file.order
        ranges = staging.signed_rows(root, layout, parts)
        combined = (
            self._checked(layout, combine(layout, rows, weights, order, find)) for rows, weights in ranges
        )
        written = write_run(root, layout, combined, bucket_id, level=0, base=base)
        self.written += written
        return written

    def _checked(self, layout: Layout, run: SortedRows) -> SortedRows:
        check_rows(layout.schema, run.rows, run.is_there, f"table {paths.name_of(self._history.root)!r}")
        return run


def find_stored(
    layout: Layout, runs: Sequence[Sequence[DataFile]], keys: pa.Table, columns: tuple[str, ...]
) -> Stored:
    """The newest rows of distinct keys in one bucket's open files, newest run first; deletions too."""
    probe = in_search_order(layout, layout.indexes[0], prepare(layout, layout.key, keys))
    needed = list(dict.fromkeys((*columns, *layout.key)))
    found = list(newest_by_key(layout, runs, probe, needed))
    if not found:
        empty = layout.stored.empty_table().select(list(columns))
        return Stored(np.empty(0, np.int64), empty, np.empty(0, np.int8))
    kinds = [np.zeros(len(f.probes), np.int8) if f.kinds is None else f.kinds for f in found]
    return Stored(
        probe.origin[np.concatenate([f.probes for f in found])],
        table_of([f.rows for f in found], pa.schema([layout.stored.field(name) for name in columns])),
        np.concatenate(kinds),
    )


Announce = Callable[[Sequence[FileEntry]], None]
"""Tells a log of files that are about to be committed; an error means that they must not be."""


class LeftoverWarning(UserWarning):
    """Files that no snapshot needs, or a log that no table has, could not be deleted. Tables are complete."""


Transaction = tuple[str, int]
"""A writer's id and the number of its transaction."""


@dataclass(frozen=True)
class Terms:
    """How rows are committed.

    Attributes:
        transaction: of the writer; a commit that has it already is not made again.
        overwrite: the partitions that the rows replace; None for none.
        tracked: whether the commit shows in change streams; None: as partitions and table say.
        announce: gets the files before they are published, when they fit the latest snapshot.
        unchanged_since: id of the snapshot after which no other commit may have changed a row of their keys.
        stands_for: what the table is then as a view, which may need no rows; None for other tables.
    """

    transaction: Transaction | None = None
    overwrite: Overwrite | None = None
    tracked: bool | None = None
    announce: Announce | None = None
    unchanged_since: int | None = None
    stands_for: StandsFor | None = None


def transaction_of(writer_id: str | None, transaction: int | None) -> Transaction | None:
    """Both together, or None."""
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


def write(committer: Committer, rows: Rows, terms: Terms) -> Committed:
    """Commit rows in their order, as one snapshot; what was written for them goes where that fails."""
    history = committer.history
    with synced_together(), history.writing():
        staged = [staging.stage_folded(history, rows, "rows", is_committed_here=True)]
        with discarded_if_failed(committer, lambda: staged):
            if isinstance(rows, pa.RecordBatchReader):
                history.latest()  # to read them may have taken hours
            return commit_staged(committer, staged, terms)


def commit_staged(committer: Committer, staged: Iterable[StagedFiles], terms: Terms) -> Committed:
    """Publish staged files as one snapshot; nothing if the transaction is recorded or there is nothing to do.

    The caller has just looked at the table's latest snapshot.

    An overwrite replaces what is there when it is published: it cannot conflict with what others committed
    while its rows were written, and goes after it. When it raises, the staged files are as they were; only
    ``StaleWriterError`` means that they are lost. Rows whose keys others have changed after the snapshot
    ``unchanged_since`` are a ``CommitConflictError``.
    """
    history = committer.history
    given = staging.join(history.uuid, staged)
    head = history.seen_just_now()
    if is_recorded(head, terms.transaction):
        _remove_left(history, (), (*given.raw, *given.folded))
        return Committed(head, rows=0)
    if terms.overwrite is not None:
        check_within(given.partitions, terms.overwrite.spec, of=f"table {paths.name_of(history.root)!r}")
    done = _in_present_buckets(committer, given, terms, head)
    # rows may leave nothing to add; where a writer says which transaction it is, they may have been there
    is_done = done.added or terms.transaction is None
    return replace(done, rows=given.rows if is_done else 0)


class _ElsewhereError(CommitConflictError):
    """Staged rows lie in other buckets than those that the table has by now."""


def _in_present_buckets(
    committer: Committer, given: StagedFiles, terms: Terms, head: SnapshotInfo
) -> Committed:
    """Publish staged files, brought into other buckets as often as ALTER TABLE changes their number."""
    try:
        return _commit_joined(committer, given, terms, head)
    except _ElsewhereError:
        head = committer.history.latest()
    with _stale_if_cleaned(committer, given):
        moved = restaged(committer.history, given, head)
    reach("move.after-write")
    with discarded_if_failed(committer, lambda: [moved]):
        done = _in_present_buckets(committer, moved, terms, head)
    discard_left(committer, [given, moved])
    return done


def _commit_joined(committer: Committer, given: StagedFiles, terms: Terms, head: SnapshotInfo) -> Committed:
    """Publish what lies in the table's buckets.

    Raises:
        _ElsewhereError: it does not, or not any more; nothing was published.
    """
    history, overwrite, transaction = committer.history, terms.overwrite, terms.transaction
    # raw changes are no data files, so the commit itself does not see what they were based on
    _check_bases(committer, (each.base for each in given.raw if each.file), head)
    _check_definitions(committer, (*given.files, *given.raw), head)
    with _stale_if_cleaned(committer, given):
        rows = _Rows(history, given, head)
    since, stands_for = terms.unchanged_since, terms.stands_for
    conflicts = None if since is None else KeyConflicts(history, rows.files, since)

    def propose(latest: SnapshotInfo) -> Change | None:
        if is_recorded(latest, transaction):
            return None
        if conflicts is not None:
            conflicts.check(latest)
        if stands_for is not None:
            is_there = latest.base_uuids is None or latest.base_uuids == stands_for.uuids
            if latest.base_versions == stands_for.versions and is_there:
                return None  # an earlier attempt was published after all
            _check_state(history, stands_for, latest)
        live, names = history.files(latest), history.layout.schema.partitioned_by
        removed, left = _replaced(live, overwrite, given.partitions, names)
        # by their definition rows are found among the existing ones: first of all it must be one that can be
        _check_definitions(committer, (*rows.files, *given.raw), latest)
        files = rows.at(latest, left)
        if not files and not removed and transaction is None and stands_for is None:
            return None
        kind: Kind = "overwrite" if overwrite else "append"
        return Change(kind, files, removed, transaction, terms.tracked, stands_for=stands_for)

    written = discarded_if_failed(committer, lambda: [StagedFiles(history.uuid, rows.written)])
    with written, _stale_if_cleaned(committer, given):
        if terms.announce is not None:
            if conflicts is not None:
                conflicts.check(head)
            terms.announce(rows.at(head, history.files(head)))
            reach("commit.after-announcement")
        done = committer.commit(propose, has_just_looked=True)
    published = {entry.file for entry in done.added}
    # raw changes are in the folded files now, or were committed by another attempt: they are not needed
    left = tuple(entry for entry in rows.written if entry.file not in published)
    _remove_left(history, left, (*given.raw, *given.folded))
    return done


def _check_state(history: History, stands_for: StandsFor, latest: SnapshotInfo) -> None:
    if latest.data_version != stands_for.state:
        raise CommitConflictError(
            f"view {paths.name_of(history.root)!r}: its changes were computed from snapshot "
            f"{stands_for.state}, and snapshot {latest.data_version} was committed since; let one process "
            "refresh it, or try again"
        )


def _remove_left(history: History, files: tuple[FileEntry, ...], raw: tuple[RawFile, ...]) -> None:
    """Delete what a commit has left over; where that fails, a warning says so."""
    with _only_warned_of(history.root):
        staging.remove(history.root, StagedFiles(history.uuid, files, raw))


@contextmanager
def _only_warned_of(root: str) -> Iterator[None]:
    """A block that deletes files when it is known what became of a commit: its failure may not hide that."""
    try:
        yield
    except TableNotFoundError:
        pass  # they went with the table, or by now
    except Exception as failure:
        warnings.warn(
            f"table {root!r}: files without use could not be deleted after a commit — {failure!r}; clean() "
            "deletes them",
            LeftoverWarning,
            stacklevel=5,
        )


class _Rows:
    """The data files of a commit on a snapshot, checked against existing rows."""

    def __init__(self, history: History, given: StagedFiles, head: SnapshotInfo) -> None:
        self._history = history
        self._resolution: Resolution | None = None
        self._folded = StagedFiles(history.uuid)
        if history.layout.merge.needs_present_rows:
            self._resolution = Resolution(history, given.raw)
        else:
            self._folded = staging.fold_raw(history, history.layout, head.id, given.raw)
        # those whose rows do not depend on the existing ones
        self.files = (*given.files, *self._folded.files)
        self._counts = CountCheck(history, self.files, given.retracting | self._folded.retracting)
        self._unique = UniqueCheck(history, self.files)
        self._checked = self.files, head.definition

    @property
    def written(self) -> tuple[FileEntry, ...]:
        resolved = self._resolution.written if self._resolution else ()
        return (*self._folded.files, *resolved)

    def at(self, latest: SnapshotInfo, left: FileSet) -> tuple[FileEntry, ...]:
        """The files to add to a snapshot, of whose files the commit leaves some."""
        files = self.files
        if self._resolution is not None:
            files = (*files, *self._resolution.at(latest, left))
        if (asked := (files, latest.definition)) != self._checked:
            # an index may have been declared meanwhile, which was not asked of these files
            self._unique, self._checked = UniqueCheck(self._history, files), asked
        self._counts.check(latest, left)
        self._unique.check(latest, left)
        return files


def _replaced(
    live: FileSet, overwrite: Overwrite | None, written: Collection[Partition], names: Sequence[str]
) -> tuple[tuple[FileEntry, ...], FileSet]:
    """The files that a commit replaces, and those that it leaves."""
    if overwrite is None:
        return (), live
    beginnings = [beginning_of(overwrite.spec, names)]
    if overwrite.is_dynamic:
        beginnings = [values_of(partition) for partition in written]
    replaced = live.only(lambda partition: overwrite.replaces(partition, written), beginnings)
    return replaced.entries, live.without(replaced.groups)


def _check_definitions(
    committer: Committer, staged: Iterable[RawFile | FileEntry], latest: SnapshotInfo
) -> None:
    history = committer.history
    versions = sorted({each.definition for each in staged} - {latest.definition})
    for version in versions:
        committer.rules.check_definition(version, latest.definition)
    if any(history.definition_at(one).options.bucket != history.buckets_of(latest) for one in versions):
        raise _ElsewhereError


def _check_bases(committer: Committer, bases: Iterable[int], head: SnapshotInfo) -> None:
    base = min(bases, default=head.fence)
    if base < head.fence:
        raise committer.rules.stale(base, head)


@contextmanager
def _stale_if_cleaned(committer: Committer, given: StagedFiles) -> Iterator[None]:
    """Say of a staged file that cannot be read that a clean-up took it, if one may have."""
    try:
        yield
    except CorruptTableError:
        bases = [entry.base for entry in given.files] + [raw.base for raw in given.raw if raw.file]
        _check_bases(committer, bases, committer.history.latest())
        raise


@contextmanager
def discarded_if_failed(committer: Committer, staged: Callable[[], Iterable[StagedFiles]]) -> Iterator[None]:
    """Delete what was staged for a commit when the block fails, as ``discard`` does.

    Where it is unknown whether the commit has happened, or it has, the files stay: they may be needed.
    """
    try:
        yield
    except (UnknownOutcomeError, LogNotPublishedError):
        raise
    except Exception:  # whatever it is, the commit has not happened
        discard_left(committer, staged())
        raise


def discard_left(committer: Committer, staged: Iterable[StagedFiles]) -> None:
    """As ``discard``, when it is known what became of the commit: where it fails, a warning says so."""
    with _only_warned_of(committer.root):
        discard(committer, staged)


def discard(committer: Committer, staged: Iterable[StagedFiles]) -> None:
    """Delete staged files, except those that a commit has published after all."""
    history = committer.history
    own = [one for one in staged if one.table == history.uuid]
    try:
        head = history.latest()
    except TableNotFoundError:
        for one in own:  # what was written after the table was dropped lies where it was
            staging.remove(history.root, one)
        raise
    for one in own:
        published = history.files_since(min((entry.base for entry in one.files), default=head.id), head)
        unpublished = tuple(entry for entry in one.files if entry.file not in published)
        staging.remove(history.root, StagedFiles(history.uuid, unpublished, one.raw, folded=one.folded))
