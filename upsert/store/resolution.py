"""What staged rows become in a table with a sequence or a merge engine: looked up, combined, written.

This happens in the commit, on the very snapshot that it builds on: each attempt asks anew. What an earlier
attempt has written is still right unless somebody else has changed rows of its buckets since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from upsert.errors import SnapshotExpiredError
from upsert.store import raw_changes
from upsert.store.combine import Stored, combine
from upsert.store.data_file import DataFile
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet, Run
from upsert.store.history import History
from upsert.store.layout import Layout
from upsert.store.lookup import newest_by_key, search_order
from upsert.store.merge import SortedRows
from upsert.store.paths import BucketId
from upsert.store.probe import prepare
from upsert.store.raw_changes import PlacedPart, RawFile
from upsert.store.run_files import write_run
from upsert.store.snapshot_info import SnapshotInfo


class Resolution:
    """The data files that raw changes become on a snapshot, kept up to date while others commit."""

    def __init__(self, history: History, raw: Iterable[RawFile]) -> None:
        self._history = history
        self._places = raw_changes.places_of(raw)
        self._written: list[FileEntry] = []
        self._files: tuple[FileEntry, ...] = ()
        self._seen: SnapshotInfo | None = None

    @property
    def written(self) -> tuple[FileEntry, ...]:
        """All files that were written."""
        return tuple(self._written)

    def at(self, latest: SnapshotInfo, left: FileSet) -> tuple[FileEntry, ...]:
        """The files to add to a snapshot.

        Args:
            latest: the snapshot that the commit builds on.
            left: its files that the commit leaves.

        Raises:
            ChangelogError: the rows cannot be combined, see ``combine``.
            SchemaError: a NOT NULL column would be NULL.
            CorruptTableError: a file is missing or damaged.
        """
        if self._seen is None or not self._still_holds(self._seen, latest):
            layout = self._history.definition_at(latest.definition).layout
            files: list[FileEntry] = []
            for place, parts in self._places.items():
                files += self._resolve(layout, latest, left.groups.get(place, ()), place, parts)
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
            between = [self._history.info(number, latest) for number in range(seen.id + 1, latest.id + 1)]
            deltas = [self._history.delta(info) for info in between if info.changes_rows]
        except SnapshotExpiredError:
            return False
        touched = {(e.partition, e.bucket) for delta in deltas for e in (*delta.added, *delta.removed)}
        return touched.isdisjoint(self._places)

    def _resolve(
        self,
        layout: Layout,
        latest: SnapshotInfo,
        runs: Sequence[Run],
        place: BucketId,
        parts: Sequence[PlacedPart],
    ) -> list[FileEntry]:
        root = self._history.root
        partition, bucket = place
        opened = [[DataFile.open(root, layout, entry) for entry in run] for run in runs]
        written = write_run(
            root,
            layout,
            _combined(root, layout, opened, parts),
            partition=partition,
            bucket=bucket,
            level=0,
            base=latest.id,
        )
        self._written += written
        return written


def _combined(
    root: str, layout: Layout, runs: Sequence[Sequence[DataFile]], parts: Sequence[PlacedPart]
) -> Iterator[SortedRows]:
    """The rows to store for those of some parts of one bucket, a range of keys at a time."""

    def find(keys: pa.Table, columns: tuple[str, ...]) -> Stored:
        return find_stored(layout, runs, keys, columns)

    for rows, weights in raw_changes.signed_rows(root, layout, parts):
        yield combine(layout, rows, weights, parts[0].file.order, find)


def find_stored(
    layout: Layout, runs: Sequence[Sequence[DataFile]], keys: pa.Table, columns: tuple[str, ...]
) -> Stored:
    """The newest rows of some keys in one bucket of a keyed table, deletions too.

    Args:
        layout: the table's layout.
        runs: open files of the bucket's runs, newest run first.
        keys: distinct keys.
        columns: the columns of the rows to return.
    """
    probe = prepare(layout, layout.key, keys)
    if len(probe):
        probe = probe.take(search_order(layout, layout.indexes[0], probe))
    needed = list(dict.fromkeys((*columns, *layout.key)))
    found = list(newest_by_key(layout, runs, probe, needed))
    if not found:
        empty = layout.stored.empty_table().select(list(columns))
        return Stored(np.empty(0, np.int64), empty, np.empty(0, np.int8))
    kinds = [np.zeros(len(f.probes), np.int8) if f.kinds is None else f.kinds for f in found]
    return Stored(
        probe.origin[np.concatenate([f.probes for f in found])],
        pa.Table.from_batches([f.rows for f in found]).select(list(columns)),
        np.concatenate(kinds),
    )
