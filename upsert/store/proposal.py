"""What a commit wants to do to a table, as a value (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upsert.store.file_entry import FileEntry
from upsert.store.snapshot_info import Kind, SnapshotInfo


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


Propose = Callable[[SnapshotInfo], Change | None]
"""From the latest snapshot to the change to publish on it, or None if there is nothing to do."""
