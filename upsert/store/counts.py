"""Tables without primary key: no commit may take away rows that are not there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet
from upsert.store.hashing import one_array
from upsert.store.history import History
from upsert.store.layout import COUNT_COLUMN, ROW_HASH_COLUMN
from upsert.store.lookup_index import search
from upsert.store.merge import check_counts
from upsert.store.snapshot_info import SnapshotInfo

Counts = npt.NDArray[np.int64]


class CountCheck:
    """Whether some new files leave every count at 0 or more; asked again for each snapshot they build on."""

    def __init__(self, history: History, files: Iterable[FileEntry], retracting: frozenset[str]) -> None:
        self._history = history
        self._files = [entry for entry in files if entry.file in retracting]
        self._passed: int | None = None

    def check(self, head: SnapshotInfo, left: FileSet) -> None:
        """Refuse the files if they would make a count negative beside what the commit leaves of ``head``.

        Raises:
            ChangelogError: they would; the message shows the row.
        """
        if self._passed == head.data_version:
            return
        for entry in self._files:
            self._check_file(entry, left)
        self._passed = head.data_version

    def _check_file(self, entry: FileEntry, live: FileSet) -> None:
        table = DataFile.open(self._history.root, self._history.layout, entry).table
        counts = one_array(table.column(COUNT_COLUMN)).to_numpy()
        lowered = np.flatnonzero(counts < 0)
        rows = table.take(pa.array(lowered))
        there = np.zeros(len(lowered), np.int64)
        for run in live.groups.get((entry.partition, entry.bucket), ()):
            for file in run:
                there += self._counts_in(file, rows)
        check_counts(rows, there + counts[lowered])

    def _counts_in(self, entry: FileEntry, rows: pa.Table) -> Counts:
        """The count of each row in one live file; 0 where it is not."""
        file = DataFile.open(self._history.root, self._history.layout, entry)
        hits = search(file.index("pk"), self._history.layout.key_hashes(rows))
        found = file.column(ROW_HASH_COLUMN).take(pa.array(hits.rows))
        wanted = one_array(rows.column(ROW_HASH_COLUMN)).take(pa.array(hits.probes))
        is_same = np.array([one == other for one, other in zip(_raw(found), _raw(wanted), strict=True)], bool)
        counts = np.zeros(rows.num_rows, np.int64)
        counts[hits.probes[is_same]] = file.column(COUNT_COLUMN).to_numpy()[hits.rows[is_same]]
        return counts


def _raw(hashes: pa.Array) -> list[bytes]:
    raw: list[bytes] = hashes.to_pylist()
    return raw
