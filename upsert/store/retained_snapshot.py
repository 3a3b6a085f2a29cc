"""A snapshot as its table hands it out: it knows what it means when its files are gone."""

from __future__ import annotations

from upsert.errors import CorruptTableError
from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo


class RetainedSnapshot(Snapshot):
    """A snapshot of a table in which snapshots may expire, also while this one is being read."""

    def __init__(self, history: History, info: SnapshotInfo, layout: Layout) -> None:
        """Of a snapshot that is or was retained, its rows in the form of ``layout``."""
        super().__init__(history.root, layout, history.files(info), info)
        self._history = history

    def open(self, entry: FileEntry) -> DataFile:
        """Open a data file.

        Raises:
            SnapshotExpiredError: the file is gone because the snapshot has expired.
            CorruptTableError: it is missing or damaged for another reason.
        """
        try:
            return super().open(entry)
        except CorruptTableError as cause:
            if not self._history.is_readable(self.info):
                raise self._history.expired(self.id, self._history.latest()) from cause
            raise
