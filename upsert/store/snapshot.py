"""A table at one of its versions: scans, and lookups of thousands of keys at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions
from upsert.errors import SchemaError
from upsert.store import statistics
from upsert.store.bucket_scan import BucketScan
from upsert.store.data_file import DataFile, damage_named
from upsert.store.file_entry import FileEntry
from upsert.store.file_set import FileSet, Run
from upsert.store.filters import Filter, Where, parse_where
from upsert.store.hashing import one_array
from upsert.store.layout import COUNT_COLUMN, PRIMARY_KEY, ROW_HASH_COLUMN, Layout, LookupIndex
from upsert.store.lookup import (
    Matches,
    columns_to_compare,
    matches_by_index,
    matches_by_key,
    search_order,
    signed_matches,
)
from upsert.store.merge import check_counts
from upsert.store.partitions import remaining
from upsert.store.paths import BucketId
from upsert.store.probe import Probe, prepare
from upsert.store.routing import buckets_for
from upsert.store.row_keys import order_by
from upsert.store.snapshot_info import SnapshotInfo


class Snapshot:
    """The rows of a table at one published version; later commits do not change what it answers.

    It holds no lock and no open file. A snapshot that has been expired may meet missing files, which is a
    ``CorruptTableError`` that names them.

    Attributes:
        id: the version's number, 0 for a table before its first commit.
        info: what the snapshot's file says.
        layout: physical form of the table.
        files: the live data files.

    >>> import tempfile
    >>> from upsert.schema import TableSchema
    >>> from upsert.store.table import Table
    >>> schema = TableSchema.of({"id": pa.int64(), "hub": pa.string()}, primary_key=["id"]).index("hub")
    >>> table = Table.create(tempfile.mkdtemp() + "/planes", schema)
    >>> snapshot = table.write(pa.table({"id": [1, 2, 3], "hub": ["JFK", "EWR", "JFK"]}))
    >>> snapshot.lookup(["hub"], pa.table({"hub": ["JFK", None, "LGA"]}))["id"].to_pylist()
    [1, 3]
    >>> positions, rows = snapshot.match(["id"], pa.table({"id": [3, 9, 3]}), select=["hub"])
    >>> positions.tolist(), rows.num_rows
    ([0, 2], 2)
    """

    def __init__(self, root: str | Path, layout: Layout, files: FileSet, info: SnapshotInfo) -> None:
        self.id = info.id
        self.info = info
        self.layout = layout
        self.files = files
        self._root = root

    def __repr__(self) -> str:
        return f"Snapshot(id={self.id})"

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        places: Collection[BucketId] | None = None,
    ) -> pa.Table:
        """All current rows, in no particular order.

        Files of partitions that have no row of which ``where`` is true, and files whose bounds exclude it,
        are not read. Columns of a bucket with a single sorted run are views of the mapped file; others are
        merged in memory, a bucket at a time.

        Args:
            columns: names of the columns to return, in this order; None for all.
            where: which rows, see ``upsert.store.filters``; None for all.
            places: only rows of these buckets of these partitions; None for all.

        Raises:
            SchemaError: a column is unknown or ``where`` does not fit the table.
            ChangelogError: a row of a table without primary key has a count below zero.
            CorruptTableError: a file is missing or damaged.
        """
        selected = self._selected(columns)
        wanted = parse_where(where, self.layout.schema)
        with damage_named(self._root, lambda: self.files.entries):
            pieces = [
                self._repeated(rows).select(selected)
                for place, left in self.places(wanted).items()
                if places is None or place in places
                for rows in self.stored_rows(place, left, selected)
            ]
            return self._assembled(pieces, selected)

    def places(self, where: Filter) -> dict[BucketId, Filter]:
        """The buckets that may have a row of which a filter is true, and what is left to ask of its rows."""
        left = remaining(where, (partition for partition, _ in self.files.groups), self.layout.schema)
        return {place: left[place[0]] for place in self.files.groups if place[0] in left}

    def stored_rows(self, place: BucketId, where: Filter, columns: Sequence[str]) -> Iterable[pa.Table]:
        """The rows of a bucket of which a filter is true, in pieces that need no merging with each other.

        Each piece ascends by key. Equal rows of a table without primary key come once, with their count.
        """
        counts = [COUNT_COLUMN] if self.layout.is_counted else []
        names = list(dict.fromkeys([*columns, *counts]))
        return BucketScan(self.layout, self.open).rows(self.files.groups[place], names, where)

    def lookup(
        self, columns: Sequence[str], keys: pa.Table, *, select: Sequence[str] | None = None
    ) -> pa.Table:
        """The current rows that equal any of the keys, each once, in no particular order.

        Args:
            columns: what to look up by: the primary key, its first columns or an index, and any others.
            keys: values of these columns; a key with a NULL matches nothing.
            select: columns to return; None for all.

        Raises:
            SchemaError: no index serves these columns (the message names the one to add), or the keys do not
                fit them.
            ChangelogError: a row of a table without primary key has a count below zero.
            CorruptTableError: a file is missing or damaged.
        """
        index = self._index(columns)
        probe = prepare(self.layout, columns, keys).distinct(index.columns)
        with damage_named(self._root, lambda: self.files.entries):
            return self._match(index, probe, self._selected(select), Filter(()))[1]

    def match(
        self,
        columns: Sequence[str],
        keys: pa.Table,
        *,
        select: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Every pair of a key and a current row that equals it.

        As ``lookup``, but a key that is given twice is answered twice.

        Returns:
            ``positions`` and rows: ``rows[i]`` equals row ``positions[i]`` of ``keys``. Pairs have no
            particular order.
        """
        index = self._index(columns)
        probe = prepare(self.layout, columns, keys)
        selected, wanted = self._selected(select), parse_where(where, self.layout.schema)
        with damage_named(self._root, lambda: self.files.entries):
            return self._match(index, probe, selected, wanted)

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns: ``PRIMARY KEY``, ``PRIMARY KEY prefix (a)`` or an index.

        None if nothing does.
        """
        index = self.layout.best_index(columns)
        return index.label if index else None

    @property
    def row_count(self) -> int:
        """About how many rows there are; exactly where each bucket has one sorted run. No row is read."""
        return round(statistics.row_count(self.layout, self.files, self.open))

    def rows_per_key(self, columns: Sequence[str]) -> float:
        """About how many rows one key finds by the index that serves a lookup by these columns.

        1 for a primary key, 0 in an empty table. Only a few pages of the indexes are read.

        Raises:
            SchemaError: no index serves these columns.
            CorruptTableError: a file is missing or damaged.
        """
        return statistics.rows_per_key(self.layout, self._index(columns), self.files, self.open)

    def _index(self, columns: Sequence[str]) -> LookupIndex:
        if isinstance(columns, str):
            raise SchemaError(
                f"lookup: columns must be a list of names, got {columns!r}; write [{columns!r}]"
            )
        index = self.layout.best_index(columns)
        if index is None:
            there = ", ".join(f"{i.label} ({', '.join(i.columns)})" for i in self.layout.indexes)
            raise SchemaError(
                f"lookup by ({', '.join(columns)}) needs an index within these columns; the table has "
                f"{there}; create it with INDEX ({', '.join(columns)})"
            )
        return index

    def _selected(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self.layout.schema.names
        for name in columns:
            if name != ROW_HASH_COLUMN or not self.layout.is_counted:
                self.layout.schema.type_of(name, "select")
        return tuple(columns)

    def _repeated(self, rows: pa.Table) -> pa.Table:
        """Each row as many times as its count says, where rows have one."""
        if not self.layout.is_counted:
            return rows
        counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
        if (counts == 1).all():
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))

    def open(self, entry: FileEntry) -> DataFile:
        """One of the snapshot's files.

        Raises:
            CorruptTableError: it is missing or damaged.
        """
        return DataFile.open(self._root, self.layout, entry)

    def _match(
        self, index: LookupIndex, probe: Probe, selected: tuple[str, ...], wanted: Filter
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        if len(probe):
            probe = probe.take(search_order(self.layout, index, probe))
        own = (*self.layout.key, COUNT_COLUMN) if self.layout.is_counted else ()
        needed = list(dict.fromkeys((*selected, *wanted.columns, *own)))
        files = self.files
        if wanted.alternatives:
            files = files.only({partition for partition, _ in self.places(wanted)}.__contains__)
        positions: list[Positions] = [np.empty(0, np.int64)]
        batches: list[pa.RecordBatch] = []
        for runs, part in buckets_for(self.layout, files, probe):
            for matches in self._search(index, runs, part, needed):
                positions.append(part.origin[matches.probes])
                batches.append(matches.rows)
        found = np.concatenate(positions)
        if not batches:
            return found, self._assembled([], selected)
        rows = pa.Table.from_batches(batches)
        if self.layout.is_counted:
            found, rows = self._counted(found, rows)
        if wanted.alternatives:
            mask = wanted.mask(rows)
            found, rows = found[mask.to_numpy()], rows.filter(mask)
        return found, self._assembled([rows.select(list(selected))], selected)

    def _search(
        self, index: LookupIndex, runs: Sequence[Run], probe: Probe, needed: Sequence[str]
    ) -> list[Matches]:
        files = [[self.open(entry) for entry in run] for run in runs]
        compared = columns_to_compare(self.layout, index, len(runs), probe)
        found = self._search_files(index, files, probe, list(dict.fromkeys((*needed, *compared))))
        return [Matches(matches.probes, matches.rows.select(needed)) for matches in found]

    def _search_files(
        self, index: LookupIndex, files: Sequence[Sequence[DataFile]], probe: Probe, needed: Sequence[str]
    ) -> list[Matches]:
        if self.layout.is_counted:
            return signed_matches(index, files, probe, needed)
        if index.label == PRIMARY_KEY:
            return matches_by_key(self.layout, files, probe, needed)
        return matches_by_index(self.layout, index, files, probe, needed)

    def _counted(self, positions: Positions, rows: pa.Table) -> tuple[Positions, pa.Table]:
        """Counts of equal rows of all runs added up for each key, and each row repeated that often."""
        order = order_by([pa.array(positions), rows.column(ROW_HASH_COLUMN)])
        counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
        sums = np.add.reduceat(counts[order.rows], order.starts)
        check_counts(rows.take(pa.array(order.firsts)), sums)
        repeated = np.repeat(order.firsts, sums)
        return positions[repeated], rows.take(pa.array(repeated))

    def _assembled(self, pieces: Sequence[pa.Table], selected: Sequence[str]) -> pa.Table:
        """The pieces as one table, with the schema that the table declares."""
        by_name = {field.name: field for field in (*self.layout.stored, *self.layout.schema.arrow)}
        schema = pa.schema([by_name[name] for name in selected])
        if not pieces:
            return schema.empty_table()
        table = pa.concat_tables(pieces)
        return pa.Table.from_arrays(table.columns, schema=schema)
