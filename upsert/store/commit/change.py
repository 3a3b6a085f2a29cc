"""What a commit does to a table, as a value, and the rules of the store that it must keep.

Each rule is one named function that returns what breaks it, or None. They run on the live files of the very
snapshot that a commit builds on, so together with put-if-absent they hold for the published history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from upsert.errors import CommitConflictError, ConfigurationError, StaleWriterError
from upsert.store import paths
from upsert.store.metadata.definition import Definition, why_unreadable
from upsert.store.metadata.file_entry import FileEntry, by_bucket
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import Kind, SnapshotInfo
from upsert.store.metadata.stands_for import StandsFor
from upsert.store.paths import BucketId
from upsert.store.storage import storage_of
from upsert.store.table_options import MATERIALIZED_VIEW


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
    stands_for: StandsFor | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether the table holds other rows afterwards."""
        return self.kind in ("append", "overwrite", "delete") and bool(self.added or self.removed)


Propose = Callable[[SnapshotInfo], Change | None]
"""From the latest snapshot to the change to publish on it, or None if there is nothing to do."""

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
    """Buckets are numbered from 0 to the table's number of buckets."""
    return next((entry for entry in added if not 0 <= entry.bucket < buckets), None)


def file_below_fence(fence: int, added: Collection[FileEntry]) -> FileEntry | None:
    """A file that was begun before the last clean-up may have been taken for waste."""
    return next((entry for entry in added if entry.base < fence), None)


def second_run_of_level(
    live: Iterable[FileEntry], added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """Above level 0 a level of a bucket is one sorted run: no key lies in two of its files.

    ``live`` has at least the files of the buckets of ``added``.

    Equality of one file's last and another's first key counts as overlap: each key is stored once a run.
    """
    of_level = by_bucket([entry for entry in added if entry.level > 0])
    for entry in _left_in(live, of_level, removed):
        for new in of_level[entry.bucket_id]:
            if new.level == entry.level and new.overlaps(entry):
                return entry
    return None


def run_between_inputs(
    live: Iterable[FileEntry], added: Sequence[FileEntry], removed: Collection[FileEntry]
) -> FileEntry | None:
    """What is merged sinks to the level of its result and may not pass an older file with the same keys.

    ``live`` has at least the files of the buckets of ``added``.

    A file that stays above that level must be newer than every input whose keys it may hold.
    """
    lowest = {bucket_id: max(new.level for new in files) for bucket_id, files in by_bucket(added).items()}
    inputs = by_bucket(removed)
    for entry in _left_in(live, lowest, removed):
        if entry.level < lowest[entry.bucket_id]:
            for sunk in inputs.get(entry.bucket_id, ()):
                if sunk.age < entry.age and sunk.overlaps(entry):
                    return entry
    return None


def _left_in(
    live: Iterable[FileEntry], buckets: Collection[BucketId], removed: Collection[FileEntry]
) -> Iterator[FileEntry]:
    gone = {entry.file for entry in removed}
    return (entry for entry in live if entry.bucket_id in buckets and entry.file not in gone)


def check_is_no_view(definition: Definition, name: str) -> None:
    """Refuse to change the rows of a materialized view by anything but a refresh."""
    if MATERIALIZED_VIEW.key in definition.given:
        raise ConfigurationError(
            f"{name!r} is a materialized view, whose rows are those of its query; change the tables that it "
            "reads, and refresh it"
        )


class CommitRules:
    """The rules that a change of one table must keep to be published.

    ``refusal`` is why its rows may not be changed here at all; empty if they may.
    """

    refusal: str = ""

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
            ConfigurationError: it changes rows of a materialized view, and is no refresh, or rows of a table
                that was opened to be read.
        """
        added, removed = change.added, change.removed
        if stale := file_below_fence(head.fence, added):
            raise self.stale(stale.base, head)
        present = head.definition if change.definition is None else change.definition
        buckets = self._history.definition_at(present).options.bucket
        if lost := added_file_of_unknown_bucket(buckets, added):
            raise CommitConflictError(
                f"table {self._root!r}: a bucket must be below {buckets}, got {lost.bucket}; open the table "
                "again and write the rows again"
            )
        if not added and not removed:
            return
        if change.changes_rows and change.stands_for is None:
            if self.refusal:
                raise ConfigurationError(self.refusal)
            check_is_no_view(self._history.definition_at(head.definition), paths.name_of(self._root))
        for version in sorted({entry.definition for entry in added} - {present}):
            self.check_definition(version, present)
            if (before := self._history.definition_at(version).options.bucket) != buckets:
                raise StaleWriterError(
                    f"table {self._root!r}: rows must lie in its {buckets} buckets, they were written when "
                    f"it had {before}; write the rows again"
                )
        bucket_ids = {entry.bucket_id for entry in (*added, *removed)}
        touched = self._history.files(head).within(bucket_ids).entries
        live = {entry.file: entry for entry in touched}
        if gone := removed_file_that_is_not_live(live, removed):
            raise self._conflict(change, head, gone, "has already removed")
        if there := added_file_that_is_live(live, added, removed):
            raise self._conflict(change, head, there, "has already added")
        if change.kind == "compact":
            clash = second_run_of_level(touched, added, removed)
            if clash := clash or run_between_inputs(touched, added, removed):
                raise self._conflict(change, head, clash, "put a run in the way:")
        else:
            self._check_first_publication(change, head)

    def stale(self, base: int, head: SnapshotInfo) -> StaleWriterError:
        """The error about files begun at a snapshot below the fence."""
        return StaleWriterError(
            f"table {self._root!r}: a writer must commit before a clean-up that may remove its files; it "
            f"began at snapshot {base}, files begun before snapshot {head.fence} were cleaned; write the "
            "rows again"
        )

    def _check_first_publication(self, change: Change, head: SnapshotInfo) -> None:
        """Files of a commit that seemed to have failed may have been published, and be gone since then."""
        base = min((entry.base for entry in change.added), default=head.id)
        removed = self._history.removed_since(base, head)
        if gone := added_file_that_was_removed(removed, change.added):
            raise self._conflict(change, head, gone, "has already removed")
        if base + 1 < head.oldest:  # who removed them has expired
            for entry in change.added:
                if not self._storage.exists(paths.resolve(self._root, entry.file)):
                    raise self._conflict(change, head, entry, "removed")

    def check_definition(self, version: int, present: int) -> None:
        """Refuse rows that were written under a definition where another one holds that cannot have them."""
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
        for info in self._history.backwards(head):
            delta = self._history.delta(info)
            if any(entry.file == file.file for file in (*delta.added, *delta.removed)):
                return info
        return None
