"""Whether others have changed the rows that a commit was computed from, since it read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upsert.errors import CommitConflictError, SnapshotExpiredError
from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.history import History
from upsert.store.snapshot_info import SnapshotInfo


class KeyConflicts:
    """The keys of a commit's files against those of all commits after the snapshot that it was computed from.

    A table without primary key needs no such look: its counts say whether a row is still there.
    """

    def __init__(self, history: History, files: Sequence[FileEntry], since: int) -> None:
        """Of the files of a commit that was computed from snapshot ``since``."""
        self._history = history
        self._files = files
        self._seen = since

    def check(self, latest: SnapshotInfo) -> None:
        """Look at the commits that have come since the last look.

        Raises:
            CommitConflictError: one has changed a row of the same key, or replaced files in which it lay.
        """
        history = self._history
        if history.layout.is_counted:
            return
        for number in range(self._seen + 1, latest.id + 1):
            try:
                info = history.info(number, latest)
            except SnapshotExpiredError:
                raise self._conflict(f"snapshot {number}, which has expired") from None
            if info.changes_rows and self._meets(info):
                raise self._conflict(f"snapshot {number}, by {info.kind!r}")
        self._seen = latest.id

    def _meets(self, info: SnapshotInfo) -> bool:
        delta = self._history.delta(info)
        own = {(entry.partition, entry.bucket) for entry in self._files}
        if any((entry.partition, entry.bucket) in own for entry in delta.removed):
            return True
        return any(self._shares_key(entry, other) for entry in self._files for other in delta.added)

    def _shares_key(self, entry: FileEntry, other: FileEntry) -> bool:
        if (entry.partition, entry.bucket) != (other.partition, other.bucket) or not entry.overlaps(other):
            return False
        root, layout = self._history.root, self._history.layout
        own, theirs = (DataFile.open(root, layout, one).index("pk").hashes for one in (entry, other))
        # two keys of one hash are taken for one: then the statement is done again for nothing
        return bool(np.isin(own, theirs).any())

    def _conflict(self, by: str) -> CommitConflictError:
        return CommitConflictError(
            f"table {self._history.root!r}: rows must be as they were when the commit was computed, but "
            f"{by}, has changed one of them; do it again"
        )
