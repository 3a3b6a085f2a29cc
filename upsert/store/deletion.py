"""Deleting rows by a condition, and dropping partitions: computed from the very snapshot it is committed on.

A partition of which the condition is true as a whole goes by its files' names alone. In the others the rows
are looked for, one bucket at a time, and deletions written for them like those of any other commit. When
another commit comes first, only the buckets that it has touched are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store import append, staging
from upsert.store.append import Committed
from upsert.store.commit import Change, Committer
from upsert.store.data_file import FileEntry
from upsert.store.failpoints import reach
from upsert.store.filters import Filter
from upsert.store.history import History
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows
from upsert.store.partitions import EVERY_ROW, is_within, specified
from upsert.store.paths import Partition
from upsert.store.raw_changes import Place
from upsert.store.run_files import write_run
from upsert.store.snapshot import Snapshot
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.staging import StagedFiles

SnapshotOf = Callable[[SnapshotInfo], Snapshot]
"""How a table reads one of its snapshots."""


def delete(
    committer: Committer, uuid: str, snapshot_of: SnapshotOf, where: Filter, *, tracked: bool | None
) -> Committed:
    """Commit the deletion of all rows of which a filter is true in the snapshot before.

    Nothing is committed if there are none.

    Raises:
        StaleWriterError: a clean-up took place meanwhile that may have met the files; delete again.
        CommitConflictError: every attempt of minutes lost the race.
    """
    deletion = _Deletion(committer.history, snapshot_of, where)
    last: list[Change | None] = [None]

    def propose(latest: SnapshotInfo) -> Change | None:
        added, removed = deletion.at(latest)
        reach("delete.after-write")
        last[0] = Change("delete", added, removed, tracked=tracked) if added or removed else None
        return last[0]

    try:
        info = committer.commit(propose)
    except Exception:
        append.discard(committer, [StagedFiles(uuid, deletion.files)], uuid)
        raise
    return Committed(info, last[0].added if last[0] else ())


def drop(committer: Committer, spec: Partition, *, tracked: bool | None) -> Committed:
    """Commit the removal of all partitions that have some values; nothing if there are none."""
    history = committer.history

    def propose(latest: SnapshotInfo) -> Change | None:
        removed = history.files(latest).only(lambda partition: is_within(partition, spec)).entries
        return Change("delete", removed=removed, tracked=tracked) if removed else None

    return Committed(committer.commit(propose))


def to_drop(schema: TableSchema, spec: Mapping[str, object], of: str) -> Partition:
    """The partition values that ``DROP PARTITION`` names.

    Raises:
        SchemaError: they do not fit the table, or there are none: that would be the whole table.
    """
    found = specified(schema, spec, of)
    if not found:
        raise SchemaError(
            f"{of}: a partition to drop must be given by partition columns "
            f"({', '.join(schema.partitioned_by) or 'there are none'}), got {dict(spec)!r}; delete([]) "
            "deletes all rows"
        )
    return found


class _Deletion:
    """The deletions of rows that a filter wants gone, kept up to date while others commit."""

    def __init__(self, history: History, snapshot_of: SnapshotOf, where: Filter) -> None:
        self._history = history
        self._snapshot_of = snapshot_of
        self._where = where
        self._files: dict[Place, tuple[FileEntry, ...]] = {}
        self._seen: SnapshotInfo | None = None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The files of deletions that have been written and are still right."""
        return tuple(entry for files in self._files.values() for entry in files)

    def at(self, latest: SnapshotInfo) -> tuple[tuple[FileEntry, ...], tuple[FileEntry, ...]]:
        """Files to add to a snapshot and files to remove from it, so that the rows are gone."""
        snapshot = self._snapshot_of(latest)
        left = snapshot.places(self._where)
        whole = {place for place, where in left.items() if where == EVERY_ROW}
        touched = self._touched_until(latest)
        self._forget(
            [p for p in self._files if p not in left or p in whole or touched is None or p in touched]
        )
        for place in left.keys() - whole - self._files.keys():
            self._files[place] = self._write(snapshot, place, left[place])
        self._seen = latest
        return self.files, tuple(e for place in whole for run in snapshot.files.groups[place] for e in run)

    def _touched_until(self, latest: SnapshotInfo) -> set[Place] | None:
        """Buckets whose rows have changed since the last look at them; None if that is not known."""
        history, seen = self._history, self._seen
        if seen is None or seen.id < latest.oldest:
            return None
        infos = [history.info(number, latest) for number in range(seen.id + 1, latest.id + 1)]
        deltas = [history.delta(info) for info in infos if info.changes_rows]
        return {(e.partition, e.bucket) for delta in deltas for e in (*delta.added, *delta.removed)}

    def _forget(self, places: Iterable[Place]) -> None:
        """Delete files that are no longer right; no attempt to publish them has succeeded."""
        for place in places:
            staging.remove(self._history.root, StagedFiles("", self._files.pop(place)))

    def _write(self, snapshot: Snapshot, place: Place, where: Filter) -> tuple[FileEntry, ...]:
        layout = snapshot.layout
        found = snapshot.stored_rows(place, where, layout.stored.names)
        gone = (_deletions(layout, rows) for rows in found if rows.num_rows)
        partition, bucket = place
        written = write_run(
            self._history.root, layout, gone, partition=partition, bucket=bucket, level=0, base=snapshot.id
        )
        return tuple(written)


def _deletions(layout: Layout, rows: pa.Table) -> SortedRows:
    """What takes rows away: whole rows, for whoever reads deletions wants to know what is gone."""
    if not layout.is_counted:
        return SortedRows(rows, np.ones(rows.num_rows, np.int8))
    position = rows.column_names.index(COUNT_COLUMN)
    counts = pc.negate(rows.column(position))
    return SortedRows(rows.set_column(position, rows.field(position), counts), None)
