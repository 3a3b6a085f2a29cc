"""How far a reader of changes goes in one step, and the table at a version in the middle of one.

A step is whole commits if they fit, else a range of keys. A lookup at a version looks a row up in both of its
snapshots and believes the one that the row's own key says: below the cursor the target, else the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Positions
from upsert.store.files.data_file import DataFile
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.read.changes import (
    EVERYTHING,
    Scope,
    change_files,
    check_all_tracked,
    check_tracked,
    data_commits,
    has_gap,
)
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.rows.layout import Layout
from upsert.store.version import MAX_HASH, Cursor, Version, has_arrived, step_between


def advance(
    table: PinnedTable,
    version: Version,
    *,
    max_rows: int | None = None,
    until: int | None = None,
    scope: Scope = EVERYTHING,
) -> Version:
    """The version at the end of a reader's next step; ``version`` itself when nothing is new.

    Whole commits as far as ``max_rows`` allows; the first load, or a single larger commit, is cut between
    keys. An overwrite or a deletion is a step of its own. A step has at least one key, so a reader always
    gets on.

    Args:
        table: the table.
        version: where the reader is.
        max_rows: stored rows, so changed keys, that the step may touch at most; None for no limit.
        until: id of the snapshot beyond which the reader must not go; None for the latest.
        scope: which changes the reader wants; the same as when it reads the step.
    """
    if version.cursor is not None:
        return cut(table, version.base, version.target, version.cursor, max_rows, scope)
    latest = table.snapshot(until).info.data_version
    if latest <= version.base:
        return version
    target = latest
    if version.base:
        target = _last_commit_within(table, version.base, latest, max_rows, scope)
    return cut(table, version.base, target, (0, 0), max_rows, scope)


def touched_rows(table: PinnedTable, start: Version, end: Version) -> int:
    """How many stored rows a step touches at most, without opening a file; a key may count several times."""
    step = step_between(start, end)
    if step.is_empty:
        return 0
    files = change_files(table, step.base, step.target).all
    return sum(entry.rows for entry in files if step.hashes_of(entry.bucket) is not None)


def _last_commit_within(
    table: PinnedTable, base: int, latest: int, max_rows: int | None, scope: Scope
) -> int:
    before = table.snapshot(base)  # tells a reader whose base has expired
    if has_gap(table, before, latest):
        return _oldest_state_after(table, base, latest)
    reached, rows = base, 0
    for commit in data_commits(table, base, latest):
        is_alone = commit.kind in ("overwrite", "delete") or not commit.is_shown
        rows += commit.delta_rows
        if reached > base and (is_alone or (max_rows is not None and rows > max_rows)):
            break
        check_tracked(table, commit, scope)
        reached = commit.id
        if is_alone:
            break
    return reached


def _oldest_state_after(table: PinnedTable, base: int, latest: int) -> int:
    """From where on commits exist for a reader that begins at a tag; it reads one difference till then."""
    head = table.published.latest()
    found = table.published.info(head.oldest, head)
    state = min(found.data_version, latest)
    check_all_tracked(table, base, table.snapshot(state).info)
    return state


def cut(
    table: PinnedTable, base: int, target: int, low: Cursor, max_rows: int | None, scope: Scope
) -> Version:
    """The version between a base and a target after at most ``max_rows`` rows from ``low`` on."""
    if max_rows is None:
        return Version.complete(target)
    files = change_files(table, base, target, scope).all
    if sum(entry.rows for entry in files) <= max_rows:
        return Version.complete(target)
    room = max_rows
    for bucket in range(low[0], table.layout.buckets):
        inside = [entry for entry in files if entry.bucket == bucket]
        smallest = low[1] if bucket == low[0] else 0
        if smallest == 0 and (whole := sum(entry.rows for entry in inside)) <= room:
            room -= whole  # known without opening the files
            continue
        hashes = _Hashes.of(table, inside, smallest)
        if (rows := hashes.below(MAX_HASH + 1)) <= room:
            room -= rows
            continue
        first = hashes.cut(room, must_take=room == max_rows)
        at = (bucket, first) if first <= MAX_HASH else (bucket + 1, 0)
        return Version(base, target, at) if at[0] < table.layout.buckets else Version.complete(target)
    return Version.complete(target)


@dataclass(frozen=True)
class _Hashes:
    """Sorted key hashes of some files, from ``smallest`` on."""

    arrays: tuple[npt.NDArray[np.uint64], ...]
    smallest: int

    @classmethod
    def of(cls, table: PinnedTable, files: Iterable[FileEntry], smallest: int) -> _Hashes:
        root = table.published.root
        opened = (DataFile.open(root, table.layout, entry).index("pk").hashes for entry in files)
        return cls(tuple(h[np.searchsorted(h, np.uint64(smallest)) :] for h in opened), smallest)

    def below(self, limit: int) -> int:
        """How many rows have a hash below ``limit``."""
        if limit > MAX_HASH:
            return sum(len(hashes) for hashes in self.arrays)
        return sum(int(np.searchsorted(hashes, np.uint64(limit))) for hashes in self.arrays)

    def cut(self, room: int, *, must_take: bool) -> int:
        """The largest limit with at most ``room`` rows below it, by bisection.

        Rows of one hash stay together. If already the first ones are too many, the limit is just above them
        where ``must_take`` says so.
        """
        fits, exceeds = self.smallest, MAX_HASH + 1
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self.below(middle) <= room:
                fits = middle
            else:
                exceeds = middle
        return exceeds if must_take and not self.below(fits) else fits


@dataclass(frozen=True)
class View:
    """The rows of a table at one version; reads like a ``Snapshot``."""

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
        self, columns: Sequence[str], keys: pa.Table, *, select: Sequence[str] | None = None
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
        keys: pa.Table,
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
        for snapshot, is_wanted in ((self._target, self._has_arrived), (self._base, self._is_left)):
            found, rows = snapshot.match(columns, keys, select=read, where=where)
            wanted = np.flatnonzero(is_wanted(rows))
            positions.append(found[wanted])
            tables.append(rows.select(names).take(pa.array(wanted)))
        return np.concatenate(positions), pa.concat_tables(tables)

    def rows_per_key(self, columns: Sequence[str]) -> float:
        """About how many rows one key finds, as ``Snapshot.rows_per_key`` says of the target."""
        return self._target.rows_per_key(columns)

    def _from_both(self, read: Callable[[Snapshot], pa.Table]) -> pa.Table:
        new, old = read(self._target), read(self._base)
        arrived, left = new.filter(pa.array(self._has_arrived(new))), old.filter(pa.array(self._is_left(old)))
        return pa.concat_tables([arrived, left])

    def _with_key(self, names: Sequence[str]) -> list[str]:
        """The columns and those that say where a row is: its key or the hash of all of it, its bucket."""
        return list(dict.fromkeys([*names, *self._layout.key, *self._layout.bucket_key]))

    def _has_arrived(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        layout, cursor = self._layout, self.version.cursor
        assert cursor is not None
        return has_arrived(cursor, layout.buckets_of(rows), layout.key_hashes(rows))

    def _is_left(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        return ~self._has_arrived(rows)


def view_at(table: PinnedTable, version: Version) -> View:
    """The table at a version."""
    target = table.snapshot(version.target)
    base = target if version.is_complete else table.snapshot(version.base)
    return View(version, table.layout, base, target)
