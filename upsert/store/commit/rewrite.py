"""All rows of a table in other files: in another number of buckets, or as rows with another identity.

The latter are those of a table without primary key whose columns change, for these are their keys. Rows that
one commit has added on level 0, or that are on one higher level, stay together: each new bucket has its part
of them as a sorted run of the same age. So deletions, the order of commits, and what a merge engine has made
of rows stay as they are, and no rows are merged with older or newer ones.

While others commit, only what they have added has to be written again.
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
from upsert.store.metadata.definition import has_same_values
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import Partition
from upsert.store.rows.fold import fold
from upsert.store.rows.hashing import row_hashes
from upsert.store.rows.layout import (
    COUNT_COLUMN,
    KIND_COLUMN,
    ROW_HASH_COLUMN,
    Layout,
    Projection,
    with_ids,
)
from upsert.store.rows.merge import SortedRows, key_ranges, merge_runs
from upsert.store.rows.partitions import split


class Rewrite:
    """The files of a table in the form ``new``; ``written`` gets every file that is written.

    Some of these only serve to make others, or are not needed any more after another commit.
    """

    def __init__(self, root: str, old: Layout, new: Layout, written: list[FileEntry]) -> None:
        self._root = root
        self._old = old
        self._new = new
        self._written = written
        self._has_other_keys = new.is_counted and not has_same_values(old.schema, new.schema)
        self._known: dict[tuple[str, ...], list[FileEntry]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether rows cannot stay where they are, or be the same."""
        return self._has_other_keys or self._old.buckets != self._new.buckets

    def at(self, live: FileSet, head: SnapshotInfo) -> tuple[FileEntry, ...]:
        """The files that take the place of those that are live in a snapshot."""
        added: list[FileEntry] = []
        for runs in _of_one_age(live):
            files = tuple(entry.file for run in runs for entry in run)
            found = self._known.get(files)
            if found is None or file_below_fence(head.fence, found):
                found = self._known[files] = self._rewritten(runs, head.id)
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
        return tuple(entry for runs in found.values() for entry in self._rewritten(runs, base))

    def _rewritten(self, runs: Sequence[Run], base: int) -> list[FileEntry]:
        """The runs of some buckets of a partition, which are of one age, as runs of the new buckets."""
        found: dict[int, list[list[FileEntry]]] = defaultdict(list)
        for run in runs:
            parts = self._with_other_keys(run, base) if self._has_other_keys else self._cut(run, base)
            for bucket, files in parts:
                found[bucket].append(files)
        newest = max((entry for run in runs for entry in run), key=lambda entry: entry.sequence)
        added: list[FileEntry] = []
        for bucket, of_bucket in found.items():
            is_run = len(of_bucket) == 1
            added += of_bucket[0] if is_run else self._merged(of_bucket, newest, bucket, base)
        return added

    def _cut(self, run: Run, base: int) -> Iterable[tuple[int, list[FileEntry]]]:
        """A run's part of each new bucket, which is a run too."""
        found: dict[int, list[FileEntry]] = defaultdict(list)
        for entry in run:
            for bucket, pieces in self._pieces(entry).items():
                bounds = entry.first_key, entry.last_key
                found[bucket] += self._write(pieces, entry, bucket, base, bounds)
        return found.items()

    def _pieces(self, entry: FileEntry) -> Mapping[int, Sequence[SortedRows]]:
        """The rows of a file by their new bucket, ascending by key."""
        found: dict[int, list[SortedRows]] = defaultdict(list)
        rows_of = rows_of_file(self._root, self._new, entry)
        for (piece,) in key_ranges(self._new, [rows_of], PIECE_BYTES):
            rows, numbers = piece.rows, self._new.buckets_of(piece.rows)
            if piece.kinds is not None:
                rows = rows.append_column(KIND_COLUMN, pa.array(piece.kinds, pa.int8()))
            for bucket, part in by_number(rows, numbers, self._new.buckets):
                kinds = None
                if piece.kinds is not None:
                    kinds = np.asarray(part.column(KIND_COLUMN).combine_chunks())
                    part = part.drop_columns([KIND_COLUMN])
                found[bucket].append(SortedRows(part, kinds))
        return found

    def _with_other_keys(self, run: Run, base: int) -> Iterator[tuple[int, list[FileEntry]]]:
        """What the rows of a run become, whose order is another one: pieces, each of them a run."""
        for entry in run:
            rows_of = rows_of_file(self._root, self._old, entry)
            for (piece,) in key_ranges(self._old, [rows_of], PIECE_BYTES):
                for portion in split(self._new, self._converted(piece.rows), None):
                    counts = portion.rows.column(COUNT_COLUMN).to_numpy()
                    columns = portion.rows.select([*self._new.schema.names, ROW_HASH_COLUMN])
                    bucket, rows = portion.bucket_id[1], fold(self._new, columns, counts, "rows")
                    yield bucket, self._write([rows], entry, bucket, base, None)

    def _converted(self, rows: pa.Table) -> pa.Table:
        """Rows without primary key in the new form, with the counts that they have."""
        (named,) = (
            pa.Table.from_arrays(rows.columns, schema=with_ids(self._old)).combine_chunks().to_batches()
        )
        projection = Projection.of(named.schema, self._new, f"table {self._root!r}")
        columns = projection.apply(named, self._new.schema.names).columns
        hashes = row_hashes(columns, named.num_rows)
        return pa.table([*columns, hashes, named.column(COUNT_COLUMN)], schema=self._new.stored)

    def _merged(
        self, parts: Iterable[Sequence[FileEntry]], newest: FileEntry, bucket: int, base: int
    ) -> list[FileEntry]:
        """One run of several."""
        inputs = [rows_of_file(self._root, self._new, entry) for files in parts for entry in files]
        merged: Iterator[SortedRows] = (
            merge_runs(self._new, within) for within in key_ranges(self._new, inputs, PIECE_BYTES)
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
            self._root, self._new, pieces, bucket_id, level=like.level, base=base, within=within
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
        files = Rewrite(root, layout, layout, written).staged(history, given.files, head.id)
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
