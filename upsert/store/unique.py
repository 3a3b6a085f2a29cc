"""UNIQUE INDEX: no commit may leave two rows with one key (FLIP-486 names it as future work).

What counts is the table after the commit: rows may exchange their values within one. A key with a NULL is
compared with none, as in SQL. The check is part of every attempt to commit, so of two writers that give one
key to different rows at the same time the second is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from upsert.errors import DuplicateKeyError
from upsert.store import paths
from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet
from upsert.store.history import History
from upsert.store.layout import LookupIndex
from upsert.store.lookup import current_candidates
from upsert.store.paths import BucketId
from upsert.store.probe import Probe, prepare
from upsert.store.routing import buckets_for
from upsert.store.row_keys import order_by
from upsert.store.snapshot_info import SnapshotInfo

_ROWS_AT_ONCE: Final = 1_000_000
"""Some hundred megabytes; a larger commit has its keys read as many times as it has such shares."""


class _NewKeys(NamedTuple):
    """New rows without NULL in an index: their keys in the order of a search, and columns to tell of them."""

    probe: Probe
    rows: pa.Table


class UniqueCheck:
    """Whether some new files fit the unique indexes; asked again for each snapshot they build on.

    It holds the new rows' columns of the index and of the primary key, some hundred bytes a row. Of more than
    ``_ROWS_AT_ONCE`` rows it takes a share by the hash of their keys after another, and reads the files anew
    for each share: equal keys are in the same one.
    """

    def __init__(self, history: History, files: Iterable[FileEntry]) -> None:
        self._history = history
        self._layout = history.layout
        key = set(self._layout.key)
        # an index that contains the primary key is unique anyway
        self._indexes = [
            index for index in self._layout.indexes[1:] if index.is_unique and not key.issubset(index.columns)
        ]
        self._files: dict[BucketId, list[FileEntry]] = {}
        for entry in files if self._indexes else ():
            self._files.setdefault((entry.partition, entry.bucket), []).append(entry)
        rows = sum(entry.rows for entries in self._files.values() for entry in entries)
        self._shares = max(1, -(-rows // _ROWS_AT_ONCE))
        self._keys: dict[str, _NewKeys] = {}
        self._passed = -1

    def check(self, head: SnapshotInfo, left: FileSet) -> None:
        """Refuse the files if two rows had one key beside what their commit leaves of ``head``.

        Raises:
            DuplicateKeyError: they would; the message names the index, the key and both rows.
        """
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
        columns = list(dict.fromkeys((*index.columns, *self._layout.key)))
        entries = [entry for files in self._files.values() for entry in files]
        pieces = (piece for entry in entries for piece in self._present(entry, columns))
        rows = pa.concat_tables([self._shared(index, rows, share) for rows in pieces]).combine_chunks()
        probe = prepare(self._layout, index.columns, rows)
        in_order = np.argsort(probe.hashes(index.columns))
        hashes = probe.hashes(index.columns)[in_order]
        if (hashes[1:] == hashes[:-1]).any():
            order = order_by(probe.values)
            if len(repeated := np.flatnonzero(~order.is_first)):
                first, second = probe.origin[order.rows[repeated[0] - 1 : repeated[0] + 1]].tolist()
                raise self._clash(index, rows.slice(first, 1), rows.slice(second, 1))
        return _NewKeys(probe.take(in_order), rows)

    def _shared(self, index: LookupIndex, rows: pa.Table, share: int) -> pa.Table:
        """The rows whose keys belong to a share; if there are several, without those that have a NULL."""
        if self._shares == 1:
            return rows
        probe = prepare(self._layout, index.columns, rows)
        return rows.take(pa.array(probe.origin[probe.hashes(index.columns) % self._shares == share]))

    def _present(self, entry: FileEntry, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of a file that are no deletions; where they are many, in pieces that are small."""
        file = self._open(entry)
        length = file.rows if self._shares == 1 else _ROWS_AT_ONCE // 4 + 1
        for start in range(0, file.rows, length):
            rows = pa.Table.from_batches([file.slice(columns, start, min(length, file.rows - start))])
            kinds = None if file.kinds is None else file.kinds[start : start + length]
            yield rows if kinds is None else rows.filter(pa.array(kinds == 0))

    def _check_against(self, index: LookupIndex, keys: _NewKeys, live: FileSet) -> None:
        """Look the new keys up in the rows that stay as they are: no newer run or new file holds their key.

        Where the check has passed on an earlier snapshot, only what was committed since then can clash.
        """
        probe, rows = keys
        for runs, part in buckets_for(self._layout, live, probe):
            place = runs[0][0].partition, runs[0][0].bucket
            newer = [self._open(entry) for entry in self._files.get(place, ())]
            for run in runs:
                files = [self._open(entry) for entry in run]
                # the sequence is the entry's: an open file may have been opened before it had one
                searched = files if max(entry.sequence for entry in run) > self._passed else ()
                for file in searched:
                    found = current_candidates(self._layout, index, file, newer, part, rows.column_names)
                    if len(found.probes):
                        there = pa.Table.from_batches([found.rows.slice(0, 1)])
                        new = int(part.origin[found.probes[0]])
                        raise self._clash(index, there, rows.slice(new, 1))
                newer += files

    def _open(self, entry: FileEntry) -> DataFile:
        return DataFile.open(self._history.root, self._layout, entry)

    def _clash(self, index: LookupIndex, one: pa.Table, other: pa.Table) -> DuplicateKeyError:
        """The error about two rows, given with the columns of the index and the primary key."""
        key = one.select(list(index.columns)).to_pylist()[0]
        first, second = (rows.select(list(self._layout.key)).to_pylist()[0] for rows in (one, other))
        table = paths.name_of(self._history.root)
        return DuplicateKeyError(
            f"table {table!r}: {index.label} ({', '.join(index.columns)}) must have one row a key, got "
            f"{key!r} in the rows with primary keys {first!r} and {second!r}; correct one of them and write "
            "again, nothing was committed"
        )
