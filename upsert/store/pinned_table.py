"""A table in the form that it has at one moment: what an operation of several steps reads."""

from __future__ import annotations

from dataclasses import dataclass

from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.retained_snapshot import RetainedSnapshot


@dataclass(frozen=True)
class PinnedTable:
    """A table whose columns stay as they are, whatever ``ALTER TABLE`` does meanwhile.

    Attributes:
        name: name of the table, for messages.
        path: where its files lie.
        layout: the form in which rows are read.
        published: its snapshots.
    """

    name: str
    path: str
    layout: Layout
    published: History

    def snapshot(self, id: int | None = None) -> RetainedSnapshot:
        """The latest snapshot, or one whose rows can still be read, see ``Table.snapshot``."""
        info = self.published.latest() if id is None else self.published.equal_to(id)
        return RetainedSnapshot(self.published, info, self.layout)
