"""A table at one of its snapshots, or at a version between two: scans, and lookups of many keys."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions, one_array
from upsert.errors import CorruptTableError, SchemaError
from upsert.schema import listed
from upsert.store.files.data_file import DataFile, FileRange, damage_named
from upsert.store.files.lookup_index import hits_of
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId
from upsert.store.predicate import (
    EVERY_ROW,
    Filter,
    NamedKeys,
    Where,
    may_hold_between,
    named_buckets,
    named_keys,
    parse_where,
    remaining,
)
from upsert.store.read import counting, statistics
from upsert.store.read.lookup import (
    Columns,
    Matches,
    Probe,
    buckets_for,
    columns_to_compare,
    in_search_order,
    matches_by_index,
    matches_by_key,
    newest_by_key,
    prepare,
    signed_matches,
    table_of,
)
from upsert.store.read.splits import Split
from upsert.store.rows.conform import ArrowStream
from upsert.store.rows.keys import key_bytes, order_by
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN, Layout, LookupIndex
from upsert.store.rows.merge import SortedRows, check_counts, key_ranges, merge_runs, present
from upsert.store.storage import of_each, storage_of
from upsert.store.version import Version, has_arrived


class Place(NamedTuple):
    """Rows of one file, by their numbers: row ``numbers[i]`` has key ``of_key[i]`` of those asked for."""

    entry: FileEntry
    numbers: Positions
    of_key: Positions


PIECE_BYTES: Final = 32 << 20
"""Of the files of a bucket so much is merged, or read without merging, at a time."""

_ROWS_OF_KEY: Final = 16
"""So many rows are read in less time than a key is looked up."""

_DECODED: Final = 4
"""So many times as much where files are compressed: their parts are decoded again for each range of keys."""


class Snapshot:
    """The rows of a table at one published version; later commits do not change them.

    It holds no lock and no open file. Reading a snapshot that has expired may find missing files, which is
    a ``CorruptTableError`` that names them.

    Attributes:
        id: the version's number, 0 for a table before its first commit.
        info: what the snapshot's file says.
        layout: physical form of the table.
        files: the live data files.
        committed_rows: how many rows the commit was given, or has deleted, that returned this snapshot; None
            if that is not known, as where large files are deleted whole, or if it was only read.

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
    >>> snapshot.match_few(["hub"], pa.table({"hub": ["JFK"]}), most=1) is None
    True
    """

    def __init__(
        self,
        root: str | Path,
        layout: Layout,
        files: FileSet,
        info: SnapshotInfo,
        history: History | None = None,
    ) -> None:
        self.id = info.id
        self.committed_rows: int | None = None
        self.info = info
        self.layout = layout
        self.files = files
        self._root = root
        self._history = history

    @classmethod
    def retained(cls, history: History, info: SnapshotInfo, layout: Layout) -> Self:
        """One that may expire while it is read, and says so then instead of calling a file damaged.

        Its rows have the columns of ``layout``, and lie in the buckets that the table had then.
        """
        if info.definition != layout.version:
            layout = layout.with_buckets(history.buckets_of(info))
        return cls(history.root, layout, history.files(info), info, history)

    def __repr__(self) -> str:
        return f"Snapshot(id={self.id})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Another process reads it from the table, if it has not expired, with the table's columns there."""
        history = self._history
        return super().__reduce__() if history is None else (_read, (history.folder, history.uuid, self.id))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        buckets: Collection[BucketId] | None = None,
    ) -> pa.Table:
        """All current rows, in no particular order.

        Files of partitions that have no row of which ``where`` is true, and files whose bounds exclude it,
        are not read; where it names few keys of an index, their rows are looked up. Columns of a bucket with
        a single sorted run are views of the mapped file; others are merged in memory, a bucket at a time.

        Args:
            columns: names of the columns to return, in this order; None for all.
            where: which rows, see ``upsert.store.predicate``; None for all.
            buckets: only rows of these buckets of these partitions; None for all.

        Raises:
            SchemaError: a column is unknown or ``where`` does not fit the table.
            ChangelogError: a row of a table without primary key has a count below zero.
            CorruptTableError: a file is missing or damaged.
        """
        selected = self._selected(columns)
        splits = None if buckets is None else map(Split, dict.fromkeys(buckets))
        return self._assembled(list(self._pieces(selected, where, splits, sys.maxsize)), selected)

    def pieces(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        splits: Iterable[Split] | None = None,
    ) -> Iterator[pa.Table]:
        """The rows of some splits, see ``scan``, of which no more are in memory than of one piece.

        A piece is of ``PIECE_BYTES`` of files, or of a few times as much where these are compressed, and may
        have no row.
        """
        selected = self._selected(columns)
        for piece in self._pieces(selected, where, splits, PIECE_BYTES):
            yield self._assembled([piece], selected)

    def fetch(self, where: Filter) -> None:
        """Open the files in which a filter is looked for, several at once where each is a request.

        Who reads them takes one after the other. None is opened where it names keys, which are looked up.
        """
        if not self._is_local and self.named_keys(where) is None:
            with damage_named(self._root, lambda: self.files.entries):
                groups = self._within_bounds(self.files.within(self.bucket_filters(where)).groups, where)
                self._fetch([entry for runs in groups.values() for run in runs for entry in run])

    def _fetch(self, entries: Sequence[FileEntry]) -> None:
        deque(of_each(storage_of(os.fspath(self._root)), self.open, entries), maxlen=0)

    @property
    def _is_local(self) -> bool:
        return storage_of(os.fspath(self._root)).is_local

    def _pieces(
        self, selected: Sequence[str], where: Where | None, splits: Iterable[Split] | None, most: int
    ) -> Iterator[pa.Table]:
        asked = parse_where(where, self.layout.schema)
        left = self.bucket_filters(asked)
        wanted = [*map(Split, left)] if splits is None else [one for one in splits if one.bucket_id in left]
        with damage_named(self._root, lambda: self.files.entries):
            are_whole = all(split.is_whole for split in wanted)
            if are_whole and (found := self._looked_up(wanted, asked, selected, most)) is not None:
                yield found
                return
            # what is not looked up in all of them is in none: to ask takes as long as to read a small one
            rows_of = self._read_rows if are_whole else self.stored_rows
            for split in wanted:
                for rows in rows_of(split, left[split.bucket_id], selected, most):
                    yield self._repeated(rows).select(selected)

    def bucket_filters(self, where: Filter) -> dict[BucketId, Filter]:
        """The buckets that may have a row of which a filter is true, and what is left to ask of its rows."""
        schema = self.layout.schema
        buckets = self.files.buckets(lambda ends: may_hold_between(where, ends, schema))
        if (named := named_buckets(where, self.layout)) is not None:
            buckets = [one for one in buckets if one[1] in named]
        left = remaining(where, (partition for partition, _ in buckets), schema)
        return {one: left[one[0]] for one in buckets if one[0] in left}

    def stored_rows(
        self, split: Split, where: Filter, columns: Sequence[str], most: int = sys.maxsize
    ) -> Iterator[pa.Table]:
        """The rows of a split of which a filter is true, in pieces that need no merging with each other.

        The pieces, and the rows of each, ascend by key. Equal rows of a table without primary key come once,
        with their count. What needs no merging is cut where it has more than ``most`` bytes.
        """
        names = self._with_counts(columns)
        if not self.layout.is_counted:
            needed = list(dict.fromkeys((*names, *self.layout.key)))
            if (found := self._looked_up([split], where, needed, PIECE_BYTES)) is not None:
                own = self._in_split(found, split).select(names).columns
                yield pa.Table.from_arrays(own, schema=pa.schema(map(self.layout.stored.field, names)))
                return
        yield from self._read_rows(split, where, names, most)

    def _read_rows(
        self, split: Split, where: Filter, columns: Sequence[str], most: int
    ) -> Iterator[pa.Table]:
        """As ``stored_rows``, but none of them is looked up."""
        names = self._with_counts(columns)
        for run in self._merged(split, names, where, most):
            if self.layout.is_counted:
                # counts of rows that are not wanted may be incomplete: a file that has only such is skipped
                rows = present(self.layout, SortedRows(where.apply(run.rows), None))
            else:
                rows = where.apply(present(self.layout, run))
            yield rows.select(names)

    def named_keys(self, where: Filter) -> NamedKeys | None:
        """The keys that a filter names, if so many are looked up sooner than the rows are read."""
        found = named_keys(where, self.layout, self.info.rows // _ROWS_OF_KEY)
        return None if found is None else replace(found, index=self._as_promised(found.index))

    def _looked_up(
        self, splits: Sequence[Split], where: Filter, columns: Sequence[str], most: int
    ) -> pa.Table | None:
        """The rows of splits of which a filter is true, if it names keys that few rows have.

        None also if these may have more than ``most`` bytes, or if bounds let few rows be read anyway. With
        those of a part of a bucket come others, whose keys are not in the part.
        """
        if (named := self.named_keys(where)) is None:
            return None
        groups = self.files.within(split.bucket_id for split in splits).groups
        files = FileSet({split.bucket_id: split.runs(groups[split.bucket_id]) for split in splits})
        rows, size = (sum(map(attrgetter(of), files.entries)) for of in ("rows", "size"))
        files = FileSet(self._within_bounds(files.groups, where))
        if (left := self._rows_left(files, where, named.index)) is None or left * _ROWS_OF_KEY < rows:
            return None
        probe = prepare(self.layout, named.index.columns, named.values).distinct(named.index.columns)
        few = min(rows // _ROWS_OF_KEY, most * rows // max(1, size))
        try:
            return self._match(named.index, probe, tuple(columns), where, few, files)[1]
        except _MoreRowsError:
            return None

    def _in_split(self, rows: pa.Table, split: Split) -> pa.Table:
        """Those of some rows that belong to a split, ascending by key."""
        order = order_by([one_array(rows.column(name)) for name in self.layout.key])
        ordered = rows.take(pa.array(order.rows))
        if split.is_whole:
            return ordered
        keys = pa.record_batch({name: one_array(ordered.column(name)) for name in self.layout.key})
        start, stop = split.between(rows.num_rows, lambda row: key_bytes(keys.slice(row, 1).columns))
        return ordered.slice(start, stop - start)

    def _within_bounds(
        self, groups: Mapping[BucketId, tuple[Run, ...]], where: Filter
    ) -> dict[BucketId, tuple[Run, ...]]:
        """The files that may have rows of which a filter is true, or newer versions of such rows."""
        every = self.layout.schema.names
        kept = self._kept_groups(groups, where, every if self.layout.is_counted else self.layout.key)
        # nothing newer can hide a row of a single run, so bounds of all columns may skip its files
        single = {bucket_id: runs for bucket_id, runs in kept.items() if len(runs) == 1}
        return {**kept, **self._kept_groups(single, where, every)} if single else kept

    def _kept_groups(
        self, groups: Mapping[BucketId, tuple[Run, ...]], where: Filter, columns: Collection[str]
    ) -> dict[BucketId, tuple[Run, ...]]:
        entries = [entry for runs in groups.values() for run in runs for entry in run]
        kept = iter(where.keep(entries, columns, self.layout.schema).tolist())
        found = {}
        for bucket_id, runs in groups.items():
            pruned = [tuple(entry for entry in run if next(kept)) for run in runs]
            found[bucket_id] = tuple(filter(None, pruned))
        return found

    def _rows_left(self, files: FileSet, where: Filter, index: LookupIndex) -> int | None:
        """How many rows lie in parts of files of which a filter may be true, by the bounds of the key.

        None if a file lacks the index, which takes longer to build than its rows to be read.
        """
        found = 0
        for entry in files.entries:
            file = self.open(entry)
            if not file.has_index(index.name):
                return None
            found += sum(stop - start for start, stop in file.stretches(where, self.layout.key))
        return found

    def _with_counts(self, columns: Iterable[str]) -> list[str]:
        counts = (COUNT_COLUMN,) if self.layout.is_counted else ()
        return list(dict.fromkeys((*columns, *counts)))

    def _merged(self, split: Split, names: Sequence[str], where: Filter, most: int) -> Iterator[SortedRows]:
        """The rows of a split, and with them others of which the filter is not true."""
        groups = {split.bucket_id: split.runs(self.files.groups[split.bucket_id])}
        kept = self._within_bounds(groups, where)[split.bucket_id]
        keys = self.layout.key if len(kept) > 1 else ()
        judged = keys if keys and not self.layout.is_counted else self.layout.schema.names
        needed = self._with_counts((*names, *where.columns, *keys))
        files = (self.open(entry) for run in reversed(kept) for entry in run)
        inputs = (one for file in files for one in self._inputs(file, split, needed, where, judged))
        if len(kept) > 1:
            cut = list(inputs)
            a_range = PIECE_BYTES if all(one.file.is_in_one_part for one in cut) else _DECODED * most
            for within in key_ranges(self.layout, cut, a_range):
                yield merge_runs(self.layout, within)
            return
        for rows in inputs:
            a_piece = max(1, most * len(rows) // max(1, rows.size))
            for start in range(0, len(rows), a_piece):
                yield rows.slice(start, min(a_piece, len(rows) - start)).load()

    def _inputs(
        self, file: DataFile, split: Split, needed: Sequence[str], where: Filter, judged: Collection[str]
    ) -> Iterator[FileRange]:
        """The rows of a file that belong to a split, without parts that cannot have wanted ones."""
        whole = FileRange(file, self.layout, 0, file.rows, needed)
        low, high = split.between(file.rows, whole.key)
        for start, stop in file.stretches(where, judged):
            if (first := max(start, low)) < (end := min(stop, high)):
                yield whole.slice(first, end - first)

    def lookup(
        self, columns: Sequence[str], keys: pa.Table | ArrowStream, *, select: Sequence[str] | None = None
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
            return self._match(index, probe, self._selected(select), EVERY_ROW)[1]

    def match(
        self,
        columns: Sequence[str],
        keys: pa.Table | ArrowStream,
        *,
        select: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Every pair of a key and a current row that equals it.

        As ``lookup``, but a key that occurs twice in ``keys`` has its rows twice.

        Returns:
            ``positions`` and rows: ``rows[i]`` equals row ``positions[i]`` of ``keys``. Pairs have no
            particular order.
        """
        index = self._index(columns)
        probe = prepare(self.layout, columns, keys)
        selected, wanted = self._selected(select), parse_where(where, self.layout.schema)
        with damage_named(self._root, lambda: self.files.entries):
            return self._match(index, probe, selected, wanted)

    def match_few(
        self,
        columns: Sequence[str],
        keys: pa.Table | ArrowStream,
        most: int,
        *,
        select: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table | None:
        """The rows that ``match`` gives; None if more than ``most`` are there, or stored.

        The stored ones are counted by the index, older versions of rows too: where there are many, none of
        them is read.
        """
        index = self._index(columns)
        probe = prepare(self.layout, columns, keys)
        selected, wanted = self._selected(select), parse_where(where, self.layout.schema)
        try:
            with damage_named(self._root, lambda: self.files.entries):
                return self._match(index, probe, selected, wanted, most)[1]
        except _MoreRowsError:
            return None

    def places(self, keys: pa.Table | ArrowStream) -> list[Place]:
        """Where the rows of some primary keys lie; of a table with a primary key."""
        index = self._index(self.layout.key)
        probe = in_search_order(self.layout, index, prepare(self.layout, self.layout.key, keys))
        found: list[Place] = []
        with damage_named(self._root, lambda: self.files.entries):
            for runs, part in buckets_for(self.layout, self.files, probe):
                opened = [[self.open(entry) for entry in run] for run in runs]
                for newest in newest_by_key(self.layout, opened, part, self.layout.key):
                    of_key, numbers = part.origin[newest.probes], newest.numbers
                    if newest.kinds is not None:
                        is_there = newest.kinds == 0
                        of_key, numbers = of_key[is_there], numbers[is_there]
                    if len(numbers):
                        found.append(Place(newest.file.entry, numbers, of_key))
        return found

    def rows_at(self, places: Sequence[Place], columns: Sequence[str]) -> pa.Table:
        """Some columns of the rows at some places, in their order."""
        with damage_named(self._root, lambda: self.files.entries):
            batches = [self.open(place.entry).take(columns, place.numbers) for place in places]
        if not batches:
            return pa.schema([self.layout.stored.field(name) for name in columns]).empty_table()
        return pa.Table.from_batches(batches)

    def index_for(self, columns: Sequence[str]) -> str | None:
        """What serves a lookup: ``PRIMARY KEY``, ``PRIMARY KEY prefix (a)``, an index, or None."""
        index = self.layout.best_index(columns)
        return index.label if index else None

    @property
    def row_count(self) -> int:
        """About how many rows there are; exactly where each bucket has one sorted run. No row is read."""

        def count() -> int:
            return round(statistics.row_count(self.layout, self.files, self.open))

        return count() if self._history is None else self._history.row_count(self.info, count)

    def counted(self) -> int | None:
        """How many rows there are, exactly; None where all keys must be read for it, or there is no key.

        None, too, where more than 64 MB of files would be fetched from an object store.

        Raises:
            CorruptTableError: a file is missing or damaged.
        """
        if self.layout.is_counted:
            return None
        with damage_named(self._root, lambda: self.files.entries):
            if (searched := counting.searched(self.files)) is None:
                return None
            if not self._is_local:
                if sum(entry.bytes for entry in searched) > counting.MOST_FETCHED:
                    return None
                self._fetch(searched)
            return counting.counted(self.layout, self.files, self.open)

    @property
    def bytes_in_memory(self) -> int:
        """About what all rows take in memory, with all of their columns. No file is opened."""
        return sum(entry.size for entry in self.files.entries)

    def rows_per_key(self, columns: Sequence[str]) -> float:
        """About how many rows one key finds by the index that serves a lookup by these columns.

        1 for a primary key, 0 in an empty table. Only a few pages of the indexes are read.

        Raises:
            SchemaError: no index serves these columns.
            CorruptTableError: a file is missing or damaged.
        """
        return statistics.rows_per_key(self.layout, self._index(columns), self.files, self.open)

    def _index(self, columns: Sequence[str]) -> LookupIndex:
        index = self.layout.best_index(listed(columns, "lookup: columns"))
        if index is None:
            there = ", ".join(f"{i.label} ({', '.join(i.columns)})" for i in self.layout.indexes)
            raise SchemaError(
                f"lookup by ({', '.join(columns)}) needs an index within these columns; the table has "
                f"{there}; create it with INDEX ({', '.join(columns)})"
            )
        return self._as_promised(index)

    def has_one_row(self, columns: Sequence[str]) -> bool:
        """Whether a value of some columns has one row at most, by the primary key or a UNIQUE INDEX."""
        index = self.layout.best_index(columns)
        return index is not None and self._as_promised(index).is_unique

    def _as_promised(self, index: LookupIndex) -> LookupIndex:
        """An index, as unique only if it was when the snapshot was published: before, nothing was checked."""
        if index.name == "pk" or not index.is_unique or self._history is None:
            return index
        if self.info.definition == self.layout.version:
            return index
        then = self._history.definition_at(self.info.definition).layout.indexes
        was_unique = any(one.is_unique and one.name == index.name for one in then)
        return replace(index, is_unique=was_unique)

    def _selected(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self.layout.schema.names
        names = listed(columns, "columns")
        for name in names:
            if name != ROW_HASH_COLUMN or not self.layout.is_counted:
                self.layout.schema.type_of(name, "select")
        return names

    def _repeated(self, rows: pa.Table) -> pa.Table:
        """Each row as many times as its count says, where rows have one."""
        if not self.layout.is_counted:
            return rows
        counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
        if (counts == 1).all():
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))

    def open(self, entry: FileEntry) -> DataFile:
        """One of the snapshot's files; ``SnapshotExpiredError`` if it is gone because the snapshot is."""
        try:
            return DataFile.open(self._root, self.layout, entry)
        except CorruptTableError as cause:
            if self._history is None or self._history.is_readable(self.info):
                raise
            raise self._history.expired(self.id, self._history.latest()) from cause

    def _match(
        self,
        index: LookupIndex,
        probe: Probe,
        selected: tuple[str, ...],
        wanted: Filter,
        most: int = sys.maxsize,
        files: FileSet | None = None,
    ) -> tuple[npt.NDArray[np.int64], pa.Table]:
        probe = in_search_order(self.layout, index, probe)
        own = self.layout.key if self.layout.is_counted else ()
        needed = self._with_counts((*selected, *wanted.columns, *own))
        if files is None:
            files = self.files.within(self.bucket_filters(wanted)) if wanted.alternatives else self.files
        positions: list[Positions] = [np.empty(0, np.int64)]
        matched: list[Columns] = []
        stored = 0
        for runs, part in buckets_for(self.layout, files, probe):
            if most < sys.maxsize:
                stored += self._most_stored(index, runs, part)
                _check_few(stored, most)
            for matches in self._search(index, runs, part, needed):
                positions.append(part.origin[matches.probes])
                matched.append(matches.rows)
        found = np.concatenate(positions)
        if not matched:
            return found, self._assembled([], selected)
        if not self.layout.is_counted and not wanted.alternatives:
            return found, table_of(matched, self.layout.declared(selected))
        rows = table_of(matched, self.layout.declared(needed))
        if wanted.alternatives:
            mask = wanted.mask(rows)
            found, rows = found[mask.to_numpy()], rows.filter(mask)
        if self.layout.is_counted:
            # counts of other rows may be incomplete: a file that has only such is skipped
            found, rows = self._counted(found, rows, most)
        return found, self._assembled([rows.select(list(selected))], selected)

    def _search(
        self, index: LookupIndex, runs: Sequence[Run], probe: Probe, needed: Sequence[str]
    ) -> list[Matches]:
        files = [[self.open(entry) for entry in run] for run in runs]
        compared = columns_to_compare(self.layout, index, len(runs), probe)
        read = list(dict.fromkeys((*needed, *compared)))
        if self.layout.is_counted:
            return signed_matches(index, files, probe, read)
        if index.name == "pk":
            return matches_by_key(self.layout, files, probe, read)
        return matches_by_index(self.layout, index, files, probe, read)

    def _most_stored(self, index: LookupIndex, runs: Sequence[Run], probe: Probe) -> int:
        """At most how many rows of a bucket have a key, in all files; none of them is read."""
        if index.name == "pk" and not self.layout.is_counted:
            return len(probe)
        hashes = probe.hashes(index.columns)
        return sum(hits_of(self.open(entry).index(index.name), hashes) for run in runs for entry in run)

    def _counted(self, positions: Positions, rows: pa.Table, most: int) -> tuple[Positions, pa.Table]:
        """Counts of equal rows of all runs added up for each key, and each row repeated that often."""
        order = order_by([pa.array(positions), rows.column(ROW_HASH_COLUMN)])
        counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
        sums = np.add.reduceat(counts[order.rows], order.starts)
        check_counts(rows.take(pa.array(order.firsts)), sums)
        _check_few(int(sums.sum()), most)
        repeated = np.repeat(order.firsts, sums)
        return positions[repeated], rows.take(pa.array(repeated))

    def _assembled(self, pieces: Sequence[pa.Table], selected: Sequence[str]) -> pa.Table:
        """The pieces as one table, with the schema that the table declares."""
        schema = self.layout.declared(selected)
        if not pieces:
            return schema.empty_table()
        return pa.Table.from_arrays(pa.concat_tables(pieces).columns, schema=schema)


def _read(folder: str, uuid: str, id: int) -> Snapshot:
    """A snapshot that another process had."""
    history = History.opened(folder, uuid)
    return Snapshot.retained(history, history.equal_to(id), history.layout)


class _MoreRowsError(Exception):
    """There are more rows than are wanted at most."""


def _check_few(rows: int, most: int) -> None:
    if rows > most:
        raise _MoreRowsError


@dataclass(frozen=True)
class PinnedTable:
    """A table whose columns stay as they are, whatever ``ALTER TABLE`` does meanwhile, for several steps."""

    name: str
    path: str
    layout: Layout
    published: History

    def snapshot(self, id: int | None = None) -> Snapshot:
        """The latest snapshot, or one whose rows can still be read, see ``Table.snapshot``."""
        published = self.published
        info = published.latest() if id is None else published.equal_to(id, published.seen_from(id))
        return Snapshot.retained(published, info, self.layout)

    def at(self, version: Version) -> AtVersion:
        """The table at a version."""
        target = self.snapshot(version.target)
        if version.is_complete:
            return AtVersion(version, self.layout, target, target)
        self.check_cursor(version)
        layout = self.layout.with_buckets(self.buckets_between(version.base, version.target))
        return AtVersion(version, layout, self.before_commits(version.base), target)

    def buckets_between(self, base: int, target: int) -> int:
        """In how many buckets the keys lie that changed between two data versions, for readers and cursors.

        One, for all keys, where ALTER TABLE has changed the number of buckets in between.
        """
        published, after = self.published, self.snapshot(target)
        if not base or base == target:
            return after.layout.buckets
        before = self.snapshot(base)
        first, last = before.info.definition, after.info.definition
        if len({published.definition_at(one).options.bucket for one in range(first, last + 1)}) == 1:
            return after.layout.buckets
        if not self.has_gap(before, target):
            found = {published.buckets_of(commit) for commit in self.data_commits(base, target)}
            if len(found) == 1:
                return found.pop()
        return after.layout.buckets if before.layout.buckets == after.layout.buckets else 1

    def check_cursor(self, version: Version) -> None:
        """Refuse a place among the keys of a snapshot that has expired, if it may be another one by now."""
        published, target = self.published, version.target
        if version.is_complete or target >= (head := published.seen_from(target)).oldest:
            return
        if published.may_have_moved(self.snapshot(target).info):
            raise published.expired(target, head)

    def data_commits(self, after: int, until: int) -> Iterator[SnapshotInfo]:
        """Snapshots with ids in (after, until] that changed rows, oldest first; read one by one."""
        head = self.published.seen_from(until)
        # ``after`` may be an expired id whose rows a later snapshot has
        first = max(after + 1, head.oldest)
        return (info for info in self.published.infos_in_turn(first, until, head) if info.changes_rows)

    def has_gap(self, before: Snapshot, target: int) -> bool:
        """Whether commits between a state, which a tag keeps, and a later one have expired."""
        oldest = self.published.seen_from(target).oldest
        return before.id < oldest and target > before.info.data_version

    def before_commits(self, data_version: int) -> Snapshot:
        """The rows of a data version as they lie where the next commit that changes rows finds them."""
        published = self.published
        info = published.equal_to(data_version, head := published.seen_from(data_version))
        while head.oldest <= info.id < head.id:
            following = published.info(info.id + 1, head)
            if following.changes_rows:
                break
            info = following
        return Snapshot.retained(published, info, self.layout)


@dataclass(frozen=True)
class AtVersion:
    """The rows of a table at one version; reads like a ``Snapshot``.

    A row is looked up in both snapshots, and the one counts that its own key says: below the cursor the
    target, else the base.
    """

    version: Version
    _layout: Layout
    _base: Snapshot
    _target: Snapshot

    def scan(self, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """The rows, as ``Snapshot.scan`` gives them."""
        if self.version.is_complete:
            return self._target.scan(columns, where)
        names = list(self._layout.schema.names if columns is None else columns)
        return self._from_both(lambda snapshot: snapshot.scan(self._with_key(names), where)).select(names)

    def lookup(
        self, columns: Sequence[str], keys: pa.Table | ArrowStream, *, select: Sequence[str] | None = None
    ) -> pa.Table:
        """Each row that equals any of the keys once, as ``Snapshot.lookup`` gives them."""
        if self.version.is_complete:
            return self._target.lookup(columns, keys, select=select)
        names = list(self._layout.schema.names if select is None else select)
        read = self._with_key(names)
        return self._from_both(lambda snapshot: snapshot.lookup(columns, keys, select=read)).select(names)

    def match(
        self,
        columns: Sequence[str],
        keys: pa.Table | ArrowStream,
        *,
        select: Sequence[str] | None = None,
        where: Any = None,
    ) -> tuple[Positions, pa.Table]:
        """Pairs of a key and a row that matches it, as ``Snapshot.match`` gives them."""
        if self.version.is_complete:
            return self._target.match(columns, keys, select=select, where=where)
        names = list(self._layout.schema.names if select is None else select)
        read = self._with_key(names)
        positions, tables = [], []
        for snapshot, arrived in ((self._target, True), (self._base, False)):
            found, rows = snapshot.match(columns, keys, select=read, where=where)
            wanted = np.flatnonzero(self._has_arrived(rows) == arrived)
            positions.append(found[wanted])
            tables.append(rows.select(names).take(pa.array(wanted)))
        return np.concatenate(positions), pa.concat_tables(tables)

    def rows_per_key(self, columns: Sequence[str]) -> float:
        """About how many rows one key finds, as ``Snapshot.rows_per_key`` says of the target."""
        return self._target.rows_per_key(columns)

    def _from_both(self, read: Callable[[Snapshot], pa.Table]) -> pa.Table:
        new, old = read(self._target), read(self._base)
        arrived = new.filter(pa.array(self._has_arrived(new)))
        return pa.concat_tables([arrived, old.filter(pa.array(~self._has_arrived(old)))])

    def _with_key(self, names: Sequence[str]) -> list[str]:
        """The columns and those that say where a row is: its key or the hash of all of it, its bucket."""
        return list(dict.fromkeys([*names, *self._layout.key, *self._layout.bucket_key]))

    def _has_arrived(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        layout, cursor = self._layout, self.version.cursor
        assert cursor is not None
        return has_arrived(cursor, layout.buckets_of(rows), layout.key_hashes(rows))
