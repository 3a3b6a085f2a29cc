"""Bringing all rows of a table into another number of buckets, file by file.

Rows that one commit has added on level 0, or that are on one higher level, stay together: each new bucket has
its part of them as a sorted run of the same age. So deletions, the order of commits, and what a merge engine
has made of rows stay as they are, and no rows are merged with older or newer ones.

While others commit, only what they have added has to be brought over again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from upsert.blobs import by_number
from upsert.store.commit.change import file_below_fence
from upsert.store.commit.staging import PIECE_BYTES, RawFile, StagedFiles, cut_again, remove
from upsert.store.files.data_file import rows_of_file
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import Partition
from upsert.store.rows.layout import KIND_COLUMN, Layout
from upsert.store.rows.merge import SortedRows, key_ranges, merge_runs


class Rescale:
    """The files of a table with the buckets of ``layout``; ``written`` gets every file that is written.

    Some of these only serve to make others, or are not needed any more after another commit.
    """

    def __init__(self, root: str, layout: Layout, written: list[FileEntry]) -> None:
        self._root = root
        self._layout = layout
        self._written = written
        self._known: dict[tuple[str, ...], list[FileEntry]] = {}

    def at(self, live: FileSet, head: SnapshotInfo) -> tuple[FileEntry, ...]:
        """The files that take the place of those that are live in a snapshot."""
        added: list[FileEntry] = []
        for runs in _of_one_age(live):
            files = tuple(entry.file for run in runs for entry in run)
            found = self._known.get(files)
            if found is None or file_below_fence(head.fence, found):
                found = self._known[files] = self._rescaled(runs, head.id)
            added += found
        return tuple(added)

    def staged(self, history: History, files: Iterable[FileEntry], base: int) -> tuple[FileEntry, ...]:
        """The files that take the place of those that are staged for one commit."""
        of_count: dict[int, list[FileEntry]] = defaultdict(list)
        for entry in files:
            of_count[history.definition_at(entry.definition).options.bucket].append(entry)
        found: dict[Partition, list[Run]] = defaultdict(list)
        for entries in of_count.values():
            for (partition, _), runs in FileSet.of(entries).groups.items():
                found[partition] += runs
        return tuple(entry for runs in found.values() for entry in self._rescaled(runs, base))

    def _rescaled(self, runs: Sequence[Run], base: int) -> list[FileEntry]:
        """The runs of some buckets of a partition, which are of one age, as runs of the new buckets."""
        found: dict[int, list[list[FileEntry]]] = defaultdict(list)
        for run in runs:
            own: dict[int, list[FileEntry]] = defaultdict(list)
            for entry in run:
                for bucket, pieces in self._cut(entry).items():
                    own[bucket] += self._write(pieces, entry, bucket, base, (entry.first_key, entry.last_key))
            for bucket, files in own.items():
                found[bucket].append(files)
        newest = max((entry for run in runs for entry in run), key=lambda entry: entry.sequence)
        added: list[FileEntry] = []
        for bucket, parts in found.items():
            added += parts[0] if len(parts) == 1 else self._merged(parts, newest, bucket, base)
        return added

    def _cut(self, entry: FileEntry) -> Mapping[int, Sequence[SortedRows]]:
        """The rows of a file by their new bucket, ascending by key."""
        found: dict[int, list[SortedRows]] = defaultdict(list)
        rows_of = rows_of_file(self._root, self._layout, entry)
        for (piece,) in key_ranges(self._layout, [rows_of], PIECE_BYTES):
            rows, numbers = piece.rows, self._layout.buckets_of(piece.rows)
            if piece.kinds is not None:
                rows = rows.append_column(KIND_COLUMN, pa.array(piece.kinds, pa.int8()))
            for bucket, part in by_number(rows, numbers, self._layout.buckets):
                kinds = None
                if piece.kinds is not None:
                    kinds = np.asarray(part.column(KIND_COLUMN).combine_chunks())
                    part = part.drop_columns([KIND_COLUMN])
                found[bucket].append(SortedRows(part, kinds))
        return found

    def _merged(
        self, parts: Iterable[Sequence[FileEntry]], newest: FileEntry, bucket: int, base: int
    ) -> list[FileEntry]:
        """One run of what came from several buckets, none of which has a key of another."""
        inputs = [rows_of_file(self._root, self._layout, entry) for files in parts for entry in files]
        merged: Iterator[SortedRows] = (
            merge_runs(self._layout, within) for within in key_ranges(self._layout, inputs, PIECE_BYTES)
        )
        return self._write(merged, newest, bucket, base, None)

    def _write(
        self,
        pieces: Iterable[SortedRows],
        like: FileEntry,
        bucket: int,
        base: int,
        within: tuple[bytes, bytes] | None,
    ) -> list[FileEntry]:
        """Write a run, or a part of it, of the partition and the age that a file has."""
        bucket_id = like.partition, bucket
        files = write_run(
            self._root, self._layout, pieces, bucket_id, level=like.level, base=base, within=within
        )
        found = [replace(entry, sequence=like.sequence) for entry in files]
        self._written += found
        return found


def restaged(history: History, given: StagedFiles, head: SnapshotInfo) -> StagedFiles:
    """What tasks have staged for a commit, in the buckets that a snapshot has; the given files stay.

    They must be of definitions whose rows the snapshot's can have.
    """
    root, layout = history.root, history.definition_at(head.definition).layout
    written: list[FileEntry] = []
    raw: list[RawFile] = []
    try:
        raw.extend(filter(None, (cut_again(root, layout, head.id, one) for one in given.raw)))
        files = Rescale(root, layout, written).staged(history, given.files, head.id)
    except BaseException:
        remove(root, StagedFiles(history.uuid, tuple(written), tuple(raw)))
        raise
    needed = {entry.file for entry in files}
    remove(root, StagedFiles(history.uuid, tuple(entry for entry in written if entry.file not in needed)))
    # which of a table's rows lower a count is asked of each file that may have some
    retracting = frozenset(entry.file for entry in files) if given.retracting else frozenset()
    return replace(given, files=files, raw=tuple(raw), retracting=retracting, folded=())


def _of_one_age(live: FileSet) -> Iterable[Sequence[Run]]:
    """The runs of a partition's buckets that one commit has made on level 0, or that are on one level."""
    found: dict[tuple[Partition, tuple[int, int]], list[Run]] = defaultdict(list)
    for (partition, _), runs in live.groups.items():
        for run in runs:
            found[partition, run[0].age].append(run)
    return found.values()
