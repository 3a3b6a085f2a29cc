"""What a commit must not do to the rows of a table, checked in every attempt.

UNIQUE INDEX (FLIP-486 names it as future work): no commit may leave two rows with one key. What counts is the
table after the commit: rows may exchange their values within one. A key with a NULL is compared with none, as
in SQL. Of two writers that give one key to different rows at the same time the second is refused. In tables
without primary key no commit may take away rows that the table does not have. And rows that were computed
from a snapshot are committed only if no other commit has changed their keys since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import one_array
from upsert.errors import CommitConflictError, DuplicateKeyError, SnapshotExpiredError
from upsert.store import paths
from upsert.store.files.data_file import DataFile
from upsert.store.files.lookup_index import search
from upsert.store.metadata.file_entry import FileEntry, by_bucket
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.manifest import Manifest
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.lookup import Probe, buckets_for, current_candidates, prepare
from upsert.store.rows.keys import equal_rows, order_by
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout, LookupIndex
from upsert.store.rows.merge import check_counts

Counts = npt.NDArray[np.int64]


class CountCheck:
    """Whether some new files leave every count at 0 or more; asked again for each snapshot they build on."""

    def __init__(self, history: History, files: Iterable[FileEntry], retracting: frozenset[str]) -> None:
        self._history = history
        self._files = [entry for entry in files if entry.file in retracting]
        self._passed: int | None = None

    def check(self, head: SnapshotInfo, left: FileSet) -> None:
        """Refuse the files if they would make a count negative beside what the commit leaves of ``head``."""
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
        for run in live.groups.get(entry.bucket_id, ()):
            for file in run:
                there += self._counts_in(file, rows)
        check_counts(rows, there + counts[lowered])

    def _counts_in(self, entry: FileEntry, rows: pa.Table) -> Counts:
        """The count of each row in one live file; 0 where it is not."""
        file = DataFile.open(self._history.root, self._history.layout, entry)
        hits = search(file.index("pk"), self._history.layout.key_hashes(rows))
        found = file.column(ROW_HASH_COLUMN).take(pa.array(hits.rows))
        wanted = one_array(rows.column(ROW_HASH_COLUMN)).take(pa.array(hits.probes))
        is_same = equal_rows([found], [wanted])
        counts = np.zeros(rows.num_rows, np.int64)
        counts[hits.probes[is_same]] = file.column(COUNT_COLUMN).to_numpy()[hits.rows[is_same]]
        return counts


_ROWS_AT_ONCE: Final = 1_000_000
"""Some hundred megabytes; a larger commit has its keys read as many times as it has such shares."""


class _NewKeys(NamedTuple):
    """New rows without NULL in an index: their keys in the order of a search, and columns to tell of them."""

    probe: Probe
    rows: pa.Table


class UniqueCheck:
    """Whether some new files fit the unique indexes; asked again for each snapshot they build on.

    It holds the new rows' columns of the index and of the primary key, some hundred bytes a row. Of more than
    ``_ROWS_AT_ONCE`` rows it takes a share by the hash of their keys after another, and reads the files again
    for each share: equal keys are in the same one.
    """

    def __init__(self, history: History, files: Iterable[FileEntry]) -> None:
        self._history = history
        self._layout = history.layout
        self._table = f"table {paths.name_of(history.root)!r}"
        self._indexes = _to_check(self._layout, self._layout.indexes[1:])
        self._files = by_bucket(files if self._indexes else ())
        rows = sum(entry.rows for entries in self._files.values() for entry in entries)
        self._shares = _shares(rows)
        self._keys: dict[str, _NewKeys] = {}
        self._passed = -1

    def check(self, head: SnapshotInfo, left: FileSet) -> None:
        """Refuse the files if two rows had one key beside what their commit leaves of ``head``."""
        if not self._files:
            return
        if head.data_version > self._passed:
            for index in self._indexes:
                for share in range(self._shares):
                    self._check_against(index, self._new_keys(index, share), left)
            self._passed = head.data_version

    def _new_keys(self, index: LookupIndex, share: int) -> _NewKeys:
        if (found := self._keys.get(index.name)) is None:
            found = self._read_keys(index, share)
            if self._shares == 1:  # all keys: the next attempt to commit needs them too
                self._keys[index.name] = found
        return found

    def _read_keys(self, index: LookupIndex, share: int) -> _NewKeys:
        columns = _needed(self._layout, index)
        entries = [entry for files in self._files.values() for entry in files]
        pieces = (piece for entry in entries for piece in self._present(entry, columns))
        return _distinct_keys(self._layout, index, pieces, (share, self._shares), self._table)

    def _present(self, entry: FileEntry, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of a file that are no deletions; where they are many, in pieces that are small."""
        file = self._open(entry)
        length = file.rows if self._shares == 1 else _ROWS_AT_ONCE // 4 + 1
        for start in range(0, file.rows, length):
            rows = pa.Table.from_batches([file.slice(columns, start, min(length, file.rows - start))])
            kinds = file.kinds
            yield rows if kinds is None else rows.filter(pa.array(kinds[start : start + length] == 0))

    def _check_against(self, index: LookupIndex, keys: _NewKeys, live: FileSet) -> None:
        """Look the new keys up in the rows that stay as they are: no newer run or new file holds their key.

        Where the check has passed on an earlier snapshot, only what was committed since then can clash.
        """
        probe, rows = keys
        for runs, part in buckets_for(self._layout, live, probe):
            newer = [self._open(entry) for entry in self._files.get(runs[0][0].bucket_id, ())]
            for run in runs:
                files = [self._open(entry) for entry in run]
                # the sequence is the entry's: an open file may have been opened before it had one
                searched = files if max(entry.sequence for entry in run) > self._passed else ()
                for file in searched:
                    found = current_candidates(self._layout, index, file, newer, part, rows.column_names)
                    if len(found.probes):
                        there = pa.table({name: column[:1] for name, column in found.rows.items()})
                        new = int(part.origin[found.probes[0]])
                        raise _clash(self._layout, index, there, rows.slice(new, 1), self._table)
                newer += files

    def _open(self, entry: FileEntry) -> DataFile:
        return DataFile.open(self._history.root, self._layout, entry)


def check_unique(
    layout: Layout,
    indexes: Iterable[LookupIndex],
    pieces: Callable[[list[str]], Iterable[pa.Table]],
    rows: int,
    table: str,
) -> None:
    """Refuse unique indexes in which two of a table's rows, about so many, have one key.

    ``pieces`` gives some columns of all rows. It is asked once for each share of them.
    """
    shares = _shares(rows)
    for index in _to_check(layout, indexes):
        for share in range(shares):
            _distinct_keys(layout, index, pieces(_needed(layout, index)), (share, shares), table)


def _shares(rows: int) -> int:
    return max(1, -(-rows // _ROWS_AT_ONCE))


def _to_check(layout: Layout, indexes: Iterable[LookupIndex]) -> list[LookupIndex]:
    """The unique ones, but for those that contain the primary key, which are unique anyway."""
    key = set(layout.key)
    return [index for index in indexes if index.is_unique and not key.issubset(index.columns)]


def _needed(layout: Layout, index: LookupIndex) -> list[str]:
    return list(dict.fromkeys((*index.columns, *layout.key)))


def _distinct_keys(
    layout: Layout, index: LookupIndex, pieces: Iterable[pa.Table], share: tuple[int, int], table: str
) -> _NewKeys:
    """The keys of a share of some rows, which must differ."""
    rows = pa.concat_tables([_shared(layout, index, rows, share) for rows in pieces]).combine_chunks()
    probe = prepare(layout, index.columns, rows)
    in_order = np.argsort(probe.hashes(index.columns))
    hashes = probe.hashes(index.columns)[in_order]
    if (hashes[1:] == hashes[:-1]).any():
        order = order_by(probe.values)
        if len(repeated := np.flatnonzero(~order.is_first)):
            first, second = probe.origin[order.rows[repeated[0] - 1 : repeated[0] + 1]].tolist()
            raise _clash(layout, index, rows.slice(first, 1), rows.slice(second, 1), table)
    return _NewKeys(probe.take(in_order), rows)


def _shared(layout: Layout, index: LookupIndex, rows: pa.Table, share: tuple[int, int]) -> pa.Table:
    """The rows whose keys belong to a share; if there are several, without those that have a NULL."""
    number, of = share
    if of == 1:
        return rows
    probe = prepare(layout, index.columns, rows)
    return rows.take(pa.array(probe.origin[probe.hashes(index.columns) % of == number]))


def _clash(
    layout: Layout, index: LookupIndex, one: pa.Table, other: pa.Table, table: str
) -> DuplicateKeyError:
    key = one.select(list(index.columns)).to_pylist()[0]
    first, second = (rows.select(list(layout.key)).to_pylist()[0] for rows in (one, other))
    return DuplicateKeyError(
        f"{table}: {index.label} ({', '.join(index.columns)}) must have one row a key, got {key!r} in the "
        f"rows with primary keys {first!r} and {second!r}; correct one of them and do it again, nothing was "
        "committed"
    )


class KeyConflicts:
    """The keys of a commit's files against those of all commits after the snapshot that it was computed from.

    In a table without primary key all of a row is its key.
    """

    def __init__(self, history: History, files: Sequence[FileEntry], since: int) -> None:
        self._history = history
        self._files = files
        self._seen = since

    def check(self, latest: SnapshotInfo) -> None:
        """Refuse if a commit since the last look has changed such a row, or replaced files where it lay.

        Of one whose rows lay in other buckets it is not told which they were.
        """
        history = self._history
        try:
            commits = [info for info in history.since(self._seen, latest) if info.changes_rows]
            deltas = history.deltas(commits)
        except SnapshotExpiredError:
            raise self._conflict(f"snapshot {self._seen + 1}, which has expired") from None
        for info, delta in zip(commits, deltas, strict=True):
            if not history.lie_alike(info, latest) or self._meets(delta):
                raise self._conflict(f"snapshot {info.id}, by {info.kind!r}")
        self._seen = latest.id

    def _meets(self, delta: Manifest) -> bool:
        own = {entry.bucket_id for entry in self._files}
        if any(entry.bucket_id in own for entry in delta.removed):
            return True
        return any(self._shares_key(entry, other) for entry in self._files for other in delta.added)

    def _shares_key(self, entry: FileEntry, other: FileEntry) -> bool:
        if entry.bucket_id != other.bucket_id or not entry.overlaps(other):
            return False
        root, layout = self._history.root, self._history.layout
        own, theirs = (DataFile.open(root, layout, one).key_hashes() for one in (entry, other))
        # two keys of one hash are taken for one: then the statement is done again for nothing
        return bool(np.isin(own, theirs).any())

    def _conflict(self, by: str) -> CommitConflictError:
        return CommitConflictError(
            f"table {self._history.root!r}: rows must be as they were when the commit was computed, but "
            f"{by}, has changed one of them; do it again"
        )
