"""The consolidated changes of a table between two versions, and how far a reader of them goes in one step.

The keys to look at come from files, cut to a range of hashes by their sidecars, so nothing outside of the
range is read. The newest row of each key there is its value at the target; the value at the base is looked up
in the base's snapshot. Hence exact images of updates and deletions with no files of their own, and what one
key did in between is folded to one change. Three cases differ only in where the keys are found:

- *load* (base 0): all rows of the target; there is nothing to look up;
- *delta*: the files that commits have added;
- *diff* (of a bucket from which a commit has removed files: its partition was overwritten or dropped; or of
  all, if commits have expired since the base was tagged): all keys that it has at the base and at the target.

Compaction, expiry and clean-up change no rows and are not seen here at all. A step is whole commits if they
fit, else a range of keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions, one_array
from upsert.errors import ConfigurationError, UntrackedChangesError
from upsert.rowkind import (
    DELETE,
    INSERT,
    KIND_FIELD,
    ROW_KIND_COLUMN,
    RowKind,
    with_row_kind,
)
from upsert.schema import TableSchema
from upsert.store.files.data_file import DataFile
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import Partition
from upsert.store.predicate import EVERY_ROW, Filter, remaining
from upsert.store.read.images import KeptStep, net
from upsert.store.read.shares import (
    PIECE_BYTES,
    KeyShare,
    Limits,
    TouchedFile,
    rows_within,
    shared_rows,
)
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.rows.hashing import Hashes
from upsert.store.rows.layout import COUNT_COLUMN, Layout
from upsert.store.rows.merge import (
    SortedRows,
    check_counts,
    deletions,
    gather,
    key_ranges,
    merge_runs,
    present,
)
from upsert.store.rows.partitions import partition_name
from upsert.store.version import MAX_HASH, Cursor, Step, Version, step_between


@dataclass(frozen=True)
class ChangeFiles:
    """The files in which the touched keys are found, oldest first within each bucket.

    ``new`` hold what is there at the target or was added on the way, ``old`` what was replaced or dropped.
    """

    new: tuple[FileEntry, ...]
    old: tuple[FileEntry, ...] = ()

    @property
    def all(self) -> tuple[FileEntry, ...]:
        """Both."""
        return (*self.old, *self.new)

    def within(self, bucket: int) -> list[TouchedFile]:
        """Those of a bucket."""
        return [
            TouchedFile(entry, is_old)
            for files, is_old in ((self.old, True), (self.new, False))
            for entry in files
            if entry.bucket == bucket
        ]


@dataclass(frozen=True)
class Scope:
    """Which changes a reader wants: of rows of which ``where`` is true.

    ``skips_untracked`` passes over what was committed with ``change-tracking = false``, instead of stopping
    there; then the changes alone do not lead from state to state.
    """

    where: Filter = EVERY_ROW
    skips_untracked: bool = False

    def wanted(self, partitions: Iterable[Partition], schema: TableSchema) -> Collection[Partition]:
        """The partitions that may have such rows."""
        return remaining(self.where, partitions, schema).keys()


EVERYTHING: Final = Scope()


def _change_files(table: PinnedTable, base: int, target: int, scope: Scope = EVERYTHING) -> ChangeFiles:
    """The files of all keys that may differ between two data versions."""
    after = table.snapshot(target)
    if base == 0:
        return _within(table, scope, _oldest_first(after.files))
    before = table.snapshot(base)
    if has_gap(table, before, target):
        _check_all_tracked(table, base, after.info)
        return _within(table, scope, _oldest_first(after.files), _oldest_first(before.files))
    commits = data_commits(table, base, target)
    hidden = _hidden(table, commits, scope)
    deltas = [table.published.delta(commit) for commit in commits]
    replaced = dict.fromkeys(entry.bucket_id for delta in deltas for entry in delta.removed)
    new = [entry for delta in deltas for entry in delta.added if entry.bucket_id not in replaced]
    new += _oldest_first(after.files.within(replaced))
    old = _oldest_first(before.files.within(replaced))
    return _within(table, scope, new, old, hidden)


def _within(
    table: PinnedTable,
    scope: Scope,
    new: Sequence[FileEntry],
    old: Sequence[FileEntry] = (),
    hidden: Collection[Partition] = (),
) -> ChangeFiles:
    partitions = {entry.partition for entry in (*new, *old)}.difference(hidden)
    wanted = scope.wanted(partitions, table.layout.schema)
    return ChangeFiles(
        tuple(entry for entry in new if entry.partition in wanted),
        tuple(entry for entry in old if entry.partition in wanted),
    )


def _hidden(table: PinnedTable, commits: Sequence[SnapshotInfo], scope: Scope) -> Collection[Partition]:
    """The partitions whose changes are passed over; a commit that has some can be read only by itself."""
    for commit in commits:
        if hidden := _untracked(table, commit, scope):
            if not scope.skips_untracked or len(commits) > 1:
                raise _cannot_be_read(table, commit, hidden)
            return hidden
    return ()


def _untracked(table: PinnedTable, commit: SnapshotInfo, scope: Scope) -> Collection[Partition]:
    """The partitions within the scope that a commit has changed without tracking."""
    if commit.is_shown:
        return ()
    hidden = commit.untracked
    if not commit.tracked:
        delta = table.published.delta(commit)
        hidden = tuple({entry.partition for entry in (*delta.added, *delta.removed)})
    return scope.wanted(hidden, table.layout.schema)


def data_commits(table: PinnedTable, after: int, until: int) -> Sequence[SnapshotInfo]:
    """Snapshots with ids in (after, until] that changed rows, oldest first."""
    head = table.published.seen_from(until)
    # ``after`` may be an expired id whose rows a later snapshot has
    first = max(after + 1, head.oldest)
    infos = (table.published.info(number, head) for number in range(first, until + 1))
    return [info for info in infos if info.changes_rows]


def has_gap(table: PinnedTable, before: Snapshot, target: int) -> bool:
    """Whether commits between a state, which a tag keeps, and a later one have expired."""
    oldest = table.published.seen_from(target).oldest
    return before.id < oldest and target > before.info.data_version


def _check_all_tracked(table: PinnedTable, base: int, after: SnapshotInfo) -> None:
    """Refuse a range of which not all commits are left if one of them may not be shown."""
    if after.last_untracked > base:
        raise not_tracked(table, after.last_untracked, "")


def check_tracked(table: PinnedTable, commit: SnapshotInfo, scope: Scope) -> None:
    """Refuse a commit with changes that no change stream may show, unless the reader passes over them."""
    if not scope.skips_untracked and (hidden := _untracked(table, commit, scope)):
        raise _cannot_be_read(table, commit, hidden)


def _cannot_be_read(
    table: PinnedTable, commit: SnapshotInfo, hidden: Collection[Partition]
) -> UntrackedChangesError:
    where = ""
    if commit.tracked:
        where = f" for partition {partition_name(min(hidden, key=repr))}"
    return not_tracked(table, commit.id, where)


def not_tracked(table: PinnedTable, commit: int, where: str) -> UntrackedChangesError:
    """The error of a reader of changes that meets a commit without tracking."""
    return UntrackedChangesError(
        f"table {table.name!r}: changes must be tracked to be read, snapshot {commit} was committed with "
        f"change-tracking = false{where}; load what depends on it again: since=0, or a new checkpoint"
    )


def _oldest_first(files: FileSet) -> tuple[FileEntry, ...]:
    return tuple(reversed(files.entries))


def changes(
    table: PinnedTable,
    since: int,
    until: int | None = None,
    columns: Sequence[str] | None = None,
    scope: Scope = EVERYTHING,
) -> pa.Table:
    """The net changes between two snapshots; see ``changes_between`` and ``Table.changes``."""
    target = table.snapshot(until).info.data_version
    base = 0 if since == 0 else table.snapshot(since).info.data_version
    if until is not None and until < since:
        raise ConfigurationError(
            f"changes must be read forwards, got since {since} and until {until}; swap them"
        )
    start, end = Version.complete(base), Version.complete(max(base, target))
    return changes_between(table, start, end, columns=columns, scope=scope)


def changes_between(
    table: PinnedTable,
    start: Version,
    end: Version,
    *,
    columns: Sequence[str] | None = None,
    buckets: Collection[int] | None = None,
    scope: Scope = EVERYTHING,
    share: KeyShare | None = None,
) -> pa.Table:
    """The net changes of one step: at most one per key, ``-U`` just before its ``+U``.

    A key whose images are equal in ``columns`` has not changed. In a table without primary key the counts of
    equal rows are consolidated, and a row that exists n times more or less comes n times.

    Several tasks can share a step, each with its ``buckets``, or its ``share`` of their keys. A row that
    begins to meet the filter of the ``scope`` is an insertion, one that ceases to is a deletion; files of
    partitions that never do are not opened.

    Returns:
        The columns, then ``_row_kind``. Rows are in no particular order but for the two halves of an update.
    """
    step = step_between(start, end)
    names = _checked(table.layout, columns)
    read = list(dict.fromkeys([*names, *scope.where.columns]))
    parts = []
    if not step.is_empty:
        source = _change_files(table, step.base, step.target, scope)
        every = sorted(range(table.layout.buckets) if buckets is None else buckets)
        within = [(bucket, limits) for bucket in every if (limits := step.hashes_of(bucket)) is not None]
        # of a share each bucket has few keys, and looking them up costs about as much as looking up one
        for some in [within] if share is not None and within else [[one] for one in within]:
            found = _bucket_changes(table, source, step, Wanted(tuple(some), share), read)
            parts += [halves_where(part, scope.where).select([*names, ROW_KIND_COLUMN]) for part in found]
    declared = table.layout.schema.arrow
    schema = pa.schema([*(declared.field(name) for name in names), KIND_FIELD])
    # files keep every column nullable, for deletions; signed rows are whole rows again
    whole = [pa.Table.from_arrays(part.columns, schema=schema) for part in parts]
    return pa.concat_tables([schema.empty_table(), *whole])


_OPPOSITES: Final = {"+I": "-D", "-U": "+U", "+U": "-U", "-D": "+I"}


def inverted(changes: pa.Table) -> pa.Table:
    """The changes that take these back.

    >>> inverted(pa.table({"id": [1, 1, 2], "_row_kind": ["-U", "+U", "-D"]})).to_pydict()
    {'id': [1, 1, 2], '_row_kind': ['+U', '-U', '+I']}
    """
    # arrays of a list load pandas: not when this file is imported
    known, opposites = pa.array(_OPPOSITES.keys()), pa.array(_OPPOSITES.values())
    kinds = opposites.take(pc.index_in(one_array(changes.column(ROW_KIND_COLUMN)), known))
    position = changes.column_names.index(ROW_KIND_COLUMN)
    return changes.set_column(position, KIND_FIELD, kinds)


def halves_where(changes: pa.Table, where: Filter) -> pa.Table:
    """Those halves of changes of which a filter is true, and what they are without the other half."""
    if not where.alternatives or not changes.num_rows:
        return changes
    kept = where.mask(changes).to_numpy()
    kinds = changes.column(ROW_KIND_COLUMN)
    is_before = pc.equal(kinds, RowKind.UPDATE_BEFORE.value).to_numpy()
    is_after = pc.equal(kinds, RowKind.UPDATE_AFTER.value).to_numpy()
    # the halves of an update are neighbours: each ``-U`` stands just before its ``+U``
    leaves = is_before & ~np.append(kept[1:], False)
    enters = is_after & ~np.append(False, kept[:-1])
    alone = pc.if_else(pa.array(leaves), RowKind.DELETE.value, kinds)
    alone = pc.if_else(pa.array(enters), RowKind.INSERT.value, alone)
    position = changes.column_names.index(ROW_KIND_COLUMN)
    return changes.set_column(position, KIND_FIELD, alone).filter(pa.array(kept))


def _checked(layout: Layout, columns: Sequence[str] | None) -> list[str]:
    names = list(layout.schema.names if columns is None else columns)
    for name in names:
        layout.schema.type_of(name, "changes")
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"changes must be of one or more different columns, got {names!r}")
    return names


class Wanted(NamedTuple):
    """Which keys a reader wants: of some buckets those of a range of hashes each, and which share of them."""

    buckets: tuple[tuple[int, Limits], ...]
    share: KeyShare | None


def _bucket_changes(
    table: PinnedTable, source: ChangeFiles, step: Step, wanted: Wanted, names: list[str]
) -> Iterator[pa.Table]:
    """The signed rows of a bucket, or of a share of the keys of several ones.

    What a small step takes stays in the process, for other readers of it.
    """
    layout = table.layout
    counts = [COUNT_COLUMN] if layout.is_counted else []
    stored = list(dict.fromkeys([*layout.key, *names, *counts]))
    base = table.snapshot(step.base) if step.base and not layout.is_counted else None
    if wanted.share is not None:
        for runs, are_new in _shared_runs(table, base, source, wanted.buckets, wanted.share, stored):
            yield from _of_runs(layout, None if are_new else base, runs, names, is_load=step.base == 0)
        return
    for bucket, limits in wanted.buckets:
        for files in _by_partition(source.within(bucket)):
            if base is not None and limits == (0, MAX_HASH) and _bytes_of(files) <= PIECE_BYTES:
                old, new = (tuple(f.entry for f in files if f.is_old == is_old) for is_old in (True, False))
                yield KeptStep(base, table.published.root, old, new).changes(names)
                continue
            runs = [_run(table, file, None, limits, stored) for file in files]
            yield from _of_runs(layout, base, runs, names, is_load=step.base == 0)


def _of_runs(
    layout: Layout, base: Snapshot | None, runs: list[SortedRows], names: list[str], *, is_load: bool
) -> Iterator[pa.Table]:
    """The signed rows of some runs, range of keys by range of keys: what a range takes stays in the cache."""
    for within in key_ranges(layout, runs, PIECE_BYTES):
        if layout.is_counted:
            yield _repeated(merge_runs(layout, within).rows, names, is_load=is_load)
        elif base is None:
            yield with_row_kind(present(layout, merge_runs(layout, within)).select(names), INSERT)
        else:
            yield net(base, within, names)


def _by_partition(files: Sequence[TouchedFile]) -> Iterable[list[TouchedFile]]:
    """The files for each partition apart."""
    found: dict[Partition, list[TouchedFile]] = defaultdict(list)
    for file in files:
        found[file.entry.partition].append(file)
    return found.values()


def _bytes_of(files: Sequence[TouchedFile]) -> int:
    return sum(file.entry.size for file in files)


def _shared_runs(
    table: PinnedTable,
    base: Snapshot | None,
    source: ChangeFiles,
    buckets: Sequence[tuple[int, Limits]],
    share: KeyShare,
    stored: list[str],
) -> Iterable[tuple[list[SortedRows], bool]]:
    """The rows of a share of some buckets, oldest first, for each partition apart; and whether all are new.

    A key is in one bucket, so what is said of the rows of a key may be said of several buckets together.
    """
    runs: dict[Partition, list[SortedRows]] = defaultdict(list)
    are_new = True
    for bucket, limits in buckets:
        if not (files := source.within(bucket)):
            continue
        shared = shared_rows(table, base, files, limits, share)
        are_new = are_new and shared.are_new
        for file, chosen in zip(files, shared.of_files, strict=True):
            if len(chosen):
                runs[file.entry.partition].append(_run(table, file, chosen, limits, stored))
    return [(of_partition, are_new) for of_partition in runs.values()]


def _run(
    table: PinnedTable, file: TouchedFile, chosen: Positions | None, limits: Limits, stored: list[str]
) -> SortedRows:
    """Some rows of a file, in its order; those of a range of keys where none are chosen."""
    opened = DataFile.open(table.published.root, table.layout, file.entry)
    rows = _some_rows(opened, rows_within(opened, limits) if chosen is None else chosen, stored)
    return deletions(table.layout, rows.rows) if file.is_old else rows


def _some_rows(file: DataFile, chosen: Positions | None, stored: list[str]) -> SortedRows:
    """The rows of a file that a reader wants, in the file's order."""
    if chosen is None:
        return SortedRows(pa.Table.from_batches([file.select(stored)]), file.kinds)
    rows = pa.Table.from_batches([file.take(stored, chosen)])
    return SortedRows(rows, None if file.kinds is None else file.kinds[chosen])


def _repeated(rows: pa.Table, names: list[str], *, is_load: bool) -> pa.Table:
    """Rows of a table without primary key, each as often as its net count says."""
    counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
    if is_load:
        check_counts(rows, counts)
    repeated = np.repeat(np.arange(len(counts)), np.abs(counts))
    kinds = np.where(counts > 0, INSERT, DELETE)
    return with_row_kind(gather(rows.select(names), repeated), kinds[repeated])


@dataclass(frozen=True)
class StepLimit:
    """How much a step may touch at most; None: as much as there is.

    Attributes:
        rows: stored rows, so changed keys; a key may count several times.
        bytes: what they take in memory, as their files tell.
        bucket_bytes: what those of one bucket take, where a task reads a bucket.
    """

    rows: int | None = None
    bytes: int | None = None
    bucket_bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether it limits nothing."""
        return self == NO_LIMIT


NO_LIMIT: Final = StepLimit()


class _Room:
    """What is left of a limit while files are added to a step, and how much of that each of them takes.

    A row counts as the largest part of what is left: of the rows, of the bytes or of those of its bucket.
    """

    def __init__(self, limit: StepLimit) -> None:
        self._rows, self._bytes = (inf if one is None else one for one in (limit.rows, limit.bytes))
        of_bucket = inf if limit.bucket_bytes is None else limit.bucket_bytes
        self._buckets: dict[int, float] = defaultdict(lambda: of_bucket)

    def parts(self, files: Iterable[FileEntry]) -> list[float]:
        """Which part of what is left a row of each file takes, rows of a file being equally large."""
        return [
            max(
                _part(1, self._rows),
                _part(_row_bytes(one), min(self._bytes, self._buckets[one.bucket])),
            )
            for one in files
        ]

    def take(self, files: Sequence[FileEntry], rows: Sequence[int]) -> bool:
        """Use so many rows of each file up; False if they do not fit."""
        for one, count in zip(files, rows, strict=True):
            size = _row_bytes(one) * count
            self._rows -= count
            self._bytes -= size
            self._buckets[one.bucket] -= size
        return min(self._rows, self._bytes, *self._buckets.values(), inf) >= -_ROUNDING

    def copy(self) -> _Room:
        """Another one, to try whether files fit."""
        other = copy(self)
        other._buckets = self._buckets.copy()
        return other


_ROUNDING: Final = 1e-6


def _row_bytes(entry: FileEntry) -> float:
    return entry.size / max(1, entry.rows)


def _part(amount: float, room: float) -> float:
    return amount / room if room > 0 else inf


def advance(
    table: PinnedTable,
    version: Version,
    *,
    limit: StepLimit = NO_LIMIT,
    until: int | None = None,
    scope: Scope = EVERYTHING,
) -> Version:
    """The version at the end of a reader's next step; ``version`` itself when nothing is new.

    Whole commits as far as the limit allows; the first load, or a single larger commit, is cut between
    keys. An overwrite or a deletion is a step of its own. A step has at least one key, so a reader always
    gets on.

    ``until`` is the id of the snapshot beyond which the reader must not go; ``scope`` must be the same as
    when it reads the step.
    """
    if version.cursor is not None:
        return cut(table, version.base, version.target, version.cursor, limit, scope)
    latest = table.snapshot(until).info.data_version
    if latest <= version.base:
        return version
    if not version.base:
        return cut(table, 0, latest, (0, 0), limit, scope)
    target = _last_commit_within(table, version.base, latest, StepLimit(limit.rows), scope)
    end = cut(table, version.base, target, (0, 0), limit, scope)
    if end.is_complete or limit == StepLimit(limit.rows):
        return end
    # they are too many bytes: look at the commits one by one, which takes as long again
    fewer = _last_commit_within(table, version.base, target, limit, scope)
    return end if fewer == target else cut(table, version.base, fewer, (0, 0), limit, scope)


class StepSize(NamedTuple):
    """What a step touches at most; a key may count several times."""

    rows: int
    bytes: int


def step_size(table: PinnedTable, start: Version, end: Version) -> StepSize:
    """How many stored rows a step touches at most, and what they take in memory, without opening a file."""
    step = step_between(start, end)
    if step.is_empty:
        return StepSize(0, 0)
    files = _change_files(table, step.base, step.target).all
    found = [entry for entry in files if step.hashes_of(entry.bucket) is not None]
    return StepSize(sum(one.rows for one in found), sum(one.size for one in found))


def touched_rows(table: PinnedTable, start: Version, end: Version) -> int:
    """How many stored rows a step touches at most."""
    return step_size(table, start, end).rows


def _last_commit_within(table: PinnedTable, base: int, latest: int, limit: StepLimit, scope: Scope) -> int:
    before = table.snapshot(base)  # tells a reader whose base has expired
    if has_gap(table, before, latest):
        return _oldest_state_after(table, base, latest)
    reached, rows, room = base, 0, _Room(replace(limit, rows=None))
    has_bytes = limit != StepLimit(limit.rows)
    for commit in data_commits(table, base, latest):
        is_alone = commit.kind in ("overwrite", "delete") or not commit.is_shown
        rows += commit.delta_rows
        fits = limit.rows is None or rows <= limit.rows
        if has_bytes and fits and not is_alone:
            added = table.published.delta(commit).added
            fits = room.take(added, [entry.rows for entry in added])
        if reached > base and (is_alone or not fits):
            break
        check_tracked(table, commit, scope)
        reached = commit.id
        if is_alone or not fits:
            break
    return reached


def _oldest_state_after(table: PinnedTable, base: int, latest: int) -> int:
    """From where on commits exist for a reader that begins at a tag; it reads one difference till then."""
    head = table.published.seen
    found = table.published.info(head.oldest, head)
    state = min(found.data_version, latest)
    _check_all_tracked(table, base, table.snapshot(state).info)
    return state


def cut(table: PinnedTable, base: int, target: int, low: Cursor, limit: StepLimit, scope: Scope) -> Version:
    """The version between a base and a target after as much as a limit allows from ``low`` on."""
    if limit.is_none:
        return Version.complete(target)
    files = _change_files(table, base, target, scope).all
    room, is_first = _Room(limit), True
    for bucket in range(low[0], table.layout.buckets):
        inside = [entry for entry in files if entry.bucket == bucket and entry.rows]
        smallest = low[1] if bucket == low[0] else 0
        if not inside:
            continue
        if smallest == 0 and (left := room.copy()).take(inside, [entry.rows for entry in inside]):
            room, is_first = left, False  # known without opening the files
            continue
        root = table.published.root
        files_inside = [DataFile.open(root, table.layout, entry) for entry in inside]
        starts = [file.keys_below(smallest) for file in files_inside]
        rest = [file.rows - start for file, start in zip(files_inside, starts, strict=True)]
        if (left := room.copy()).take(inside, rest):
            room, is_first = left, is_first and not any(rest)
            continue
        parts = room.parts(inside)
        # of each no more than that can lie below the limit, or above it and not fit
        fitting = [int((1 + _ROUNDING) / part) for part in parts]
        most = [min(file.rows, rows + 2) for file, rows in zip(files_inside, fitting, strict=True)]
        hashes = [
            file.key_hashes(start, start + rows)
            for file, start, rows in zip(files_inside, starts, most, strict=True)
        ]
        first = _largest_limit(hashes, parts, smallest, must_take=is_first)
        at = (bucket, first) if first <= MAX_HASH else (bucket + 1, 0)
        return Version(base, target, at) if at[0] < table.layout.buckets else Version.complete(target)
    return Version.complete(target)


def _rows_below(hashes: Sequence[Hashes], limit: int) -> list[int]:
    """How many rows of each have a hash below ``limit``."""
    if limit > MAX_HASH:
        return [*map(len, hashes)]
    return [int(np.searchsorted(each, np.uint64(limit))) for each in hashes]


def _largest_limit(
    hashes: Sequence[Hashes], parts: Sequence[float], smallest: int, *, must_take: bool
) -> int:
    """The largest hash so that the rows below it, from ``smallest`` on, fit; each takes its part of the room.

    Rows of one hash stay together. If already the first ones are too many, the limit is just above them
    where ``must_take`` says so.
    """
    fits, exceeds = smallest, MAX_HASH + 1
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        taken = zip(_rows_below(hashes, middle), parts, strict=True)
        if sum(rows * part for rows, part in taken if rows) <= 1 + _ROUNDING:
            fits = middle
        else:
            exceeds = middle
    return exceeds if must_take and not any(_rows_below(hashes, fits)) else fits
