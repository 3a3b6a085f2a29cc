"""Reading a table: snapshots of it, and what has changed between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from upsert.store import changes as _changes
from upsert.store import (
    steps,
    view,
)
from upsert.store.change_files import Scope
from upsert.store.filters import Where, parse_where
from upsert.store.handle import Handle
from upsert.store.partition_info import PartitionInfo, partition_infos
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.version import Version
from upsert.store.view import View


class TableReading(Handle):
    """The methods of a table that read it."""

    def snapshot(self, id: int | str | None = None) -> Snapshot:
        """The latest snapshot, or an older one; compaction does not change what it holds.

        Args:
            id: None for the latest; 0 for the empty table before the first commit; or the name of a tag.

        Raises:
            ConfigurationError: there is no such snapshot yet, or no such tag.
            SnapshotExpiredError: it has expired.
        """
        return self._unless_expiring(lambda: self._snapshot_of(self._info(id)))

    def _info(self, id: int | str | None) -> SnapshotInfo:
        if isinstance(id, str):
            return self.published.tag(id).snapshot
        return self.published.latest() if id is None else self.published.equal_to(id)

    def history(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots that can be read, oldest first."""
        return self.published.retained()

    def partitions(self) -> tuple[PartitionInfo, ...]:
        """What there is to know of each partition that has files; nothing is read but manifests."""
        files = self._unless_expiring(lambda: self.published.files(self.published.latest()))
        return partition_infos(self.root, self.definition, files)

    def at(self, version: Version) -> View:
        """The table at a reader's version, also in the middle of a step.

        Raises:
            SnapshotExpiredError: its base or its target has expired.
        """
        self.published.latest()
        return view.view_at(self._pinned(), version)

    def changes(
        self,
        since: int,
        until: int | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table:
        """The net changes between two snapshots, ``_row_kind`` last; see ``upsert.store.changes``.

        Args:
            since: id of a snapshot; 0 for the empty table.
            until: id of the same or a later one; None for the latest.
            columns: the columns to return; None for all.
            where: only changes of rows of which this is true, see ``upsert.store.filters``; None for all.

        Raises:
            SnapshotExpiredError: one of them has expired.
            UntrackedChangesError: a commit in between was written with ``change-tracking = false``.
        """
        scope = self._scope(where)
        return self._unless_expiring(lambda: _changes.changes(self._pinned(), since, until, columns, scope))

    def _scope(self, where: Where | None, skip_untracked: bool = False) -> Scope:
        return Scope(parse_where(where, self.schema), skip_untracked)

    def advance(
        self,
        version: Version,
        *,
        max_rows: int | None = None,
        until: int | None = None,
        where: Where | None = None,
        skip_untracked: bool = False,
    ) -> Version:
        """The end of a reader's next step; ``version`` itself when nothing is new."""
        scope = self._scope(where, skip_untracked)
        return self._unless_expiring(
            lambda: steps.advance(self._pinned(), version, max_rows=max_rows, until=until, scope=scope)
        )

    def changes_between(
        self,
        start: Version,
        end: Version,
        *,
        columns: Sequence[str] | None = None,
        buckets: Collection[int] | None = None,
        where: Where | None = None,
        skip_untracked: bool = False,
    ) -> pa.Table:
        """The net changes of one step, of all buckets or some. See ``upsert.store.changes``.

        With ``skip_untracked``, commits without tracking are passed over: no state of the table follows.
        """
        scope = self._scope(where, skip_untracked)
        return self._unless_expiring(
            lambda: _changes.changes_between(
                self._pinned(), start, end, columns=columns, buckets=buckets, scope=scope
            )
        )
