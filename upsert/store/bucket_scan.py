"""The rows of one bucket that a scan wants: files that cannot have any are skipped, runs are merged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import Run
from upsert.store.filters import Filter
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows, merge_runs, present


@dataclass(frozen=True)
class BucketScan:
    """How rows of a table's buckets are read.

    Attributes:
        layout: physical form of the table.
        open: opens one of its data files.
    """

    layout: Layout
    open: Callable[[FileEntry], DataFile]

    def rows(self, runs: Sequence[Run], names: Sequence[str], where: Filter) -> Iterator[pa.Table]:
        """Some stored columns of the rows of which a filter is true, in pieces.

        Pieces need no merging with each other, and ascend by key. Equal rows of a table without primary key
        come once, with their count, which must be among the names.

        Raises:
            ChangelogError: a row of a table without primary key has a count below zero.
            CorruptTableError: a file is missing or damaged.
        """
        for run in self._merged(runs, names, where):
            yield self._current(run, where).select(names)

    def _merged(self, runs: Sequence[Run], names: Sequence[str], where: Filter) -> Iterator[SortedRows]:
        """The bucket's rows, and with them others of which the filter is not true."""
        every = self.layout.schema.names
        judged = every if self.layout.is_counted else self.layout.key
        kept = self._pruned(runs, where, judged)
        if len(kept) == 1:
            # nothing newer can hide a row, so bounds of all columns may skip files
            judged = every
            kept = self._pruned(kept, where, judged)
        needed = self._needed((*names, *where.columns), keys=len(kept) > 1)
        if len(kept) > 1:
            found = (self._sorted_rows(run, needed, where, judged) for run in reversed(kept))
            if pieces := [rows for rows in found if rows is not None]:
                yield merge_runs(self.layout, pieces)
            return
        for run in kept:
            for entry in run:
                if (rows := self._sorted_rows([entry], needed, where, judged)) is not None:
                    yield rows

    def _needed(self, columns: Sequence[str], *, keys: bool) -> list[str]:
        extra = self.layout.key if keys else ()
        counts = (COUNT_COLUMN,) if self.layout.is_counted else ()
        return list(dict.fromkeys((*columns, *extra, *counts)))

    def _current(self, run: SortedRows, where: Filter) -> pa.Table:
        if not self.layout.is_counted:
            return where.apply(present(self.layout, run))
        # counts of rows that are not wanted may be incomplete, for a file that has only such rows was skipped
        return present(self.layout, SortedRows(where.apply(run.rows), None))

    def _pruned(self, runs: Sequence[Run], where: Filter, columns: Collection[str]) -> list[Run]:
        entries = [entry for run in runs for entry in run]
        kept = iter(where.keep(entries, columns, self.layout.schema).tolist())
        pruned = [tuple(entry for entry in run if next(kept)) for run in runs]
        return [run for run in pruned if run]

    def _sorted_rows(
        self, entries: Sequence[FileEntry], needed: Sequence[str], where: Filter, judged: Collection[str]
    ) -> SortedRows | None:
        """Rows of files of one run, without parts that cannot have wanted ones; None if nothing is left."""
        files = [self.open(entry) for entry in entries]
        stretches = [(f, start, stop) for f in files for start, stop in f.stretches(where, judged)]
        if not stretches:
            return None
        rows = pa.Table.from_batches([f.slice(needed, start, stop - start) for f, start, stop in stretches])
        if all(file.kinds is None for file in files):
            return SortedRows(rows, None)
        kinds = [
            np.zeros(stop - start, np.int8) if f.kinds is None else f.kinds[start:stop]
            for f, start, stop in stretches
        ]
        return SortedRows(rows, np.concatenate(kinds))
