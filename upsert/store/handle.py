"""A table that is open: where it lies, what it is, and its snapshots; what reading and writing share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from upsert.errors import CorruptTableError, SnapshotExpiredError
from upsert.schema import TableSchema
from upsert.store.commit import Committer
from upsert.store.definition import Definition
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.log_system import LoggedTable
from upsert.store.pinned_table import PinnedTable
from upsert.store.retained_snapshot import RetainedSnapshot
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.table_file import TableFile
from upsert.store.table_options import TableOptions

_T = TypeVar("_T")


class Handle:
    """An existing table; use ``Table.open``."""

    def __init__(self, file: TableFile) -> None:
        """Of an existing table; use ``Table.open`` or ``Table.create``."""
        self.path = file.folder
        self.root = file.root
        self.name = os.path.basename(file.folder)
        self.uuid = file.uuid
        self.published = History.shared(file)
        self._committer = Committer(self.published)

    def __repr__(self) -> str:
        return f"Table({self.path!r})"

    @property
    def definition(self) -> Definition:
        """What the table is, as of the last time that this process looked at its latest snapshot.

        Every write looks, and every read of the latest rows or of changes.
        """
        return self.published.definition

    @property
    def schema(self) -> TableSchema:
        """Its columns, keys and indexes; of ``definition``."""
        return self.definition.schema

    @property
    def options(self) -> TableOptions:
        """Its options; of ``definition``."""
        return self.definition.options

    @property
    def layout(self) -> Layout:
        """Its physical form; of ``definition``."""
        return self.definition.layout

    def _pinned(self) -> PinnedTable:
        """The table with its present columns, for an operation of several steps."""
        return PinnedTable(self.name, self.root, self.layout, self.published)

    def as_logged(self) -> LoggedTable:
        """The table as its log sees it, with its present columns."""
        definition = self.definition  # one look: columns and rows must be of the same
        rows = PinnedTable(self.name, self.root, definition.layout, self.published)
        return LoggedTable(self.uuid, definition, rows)

    def _snapshot_of(self, info: SnapshotInfo) -> Snapshot:
        return RetainedSnapshot(self.published, info, self.layout)

    def _unless_expiring(self, read: Callable[[], _T]) -> _T:
        """What ``read`` returns; again after an expiry in between, for a newer snapshot may hold the same."""
        while True:
            oldest = self.published.latest().oldest
            try:
                return read()
            except (CorruptTableError, SnapshotExpiredError):
                if self.published.latest().oldest == oldest:
                    raise
