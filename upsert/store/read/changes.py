"""The consolidated changes of a table between two versions.

The keys to look at come from files (`change_files`), cut to a range of hashes by their indexes, so nothing
outside of the range is read. The newest row of each key there is its value at the target; the value at the
base is looked up in the base's snapshot. Hence exact images of updates and deletions with no files of their
own, and what one key did in between is folded to one change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Positions, one_array
from upsert.errors import ConfigurationError
from upsert.rowkind import (
    DELETE,
    INSERT,
    KIND_FIELD,
    ROW_KIND_COLUMN,
    RowKind,
    with_row_kind,
)
from upsert.store.files.data_file import DataFile
from upsert.store.paths import Partition
from upsert.store.predicate import Filter
from upsert.store.read.change_files import EVERYTHING, ChangeFiles, Scope, change_files
from upsert.store.read.images import KeptStep, changes_since
from upsert.store.read.shares import (
    PIECE_BYTES,
    KeyShare,
    Limits,
    TouchedBucket,
    TouchedFile,
    rows_within,
    shared_rows,
)
from upsert.store.read.snapshot import PinnedTable, Snapshot
from upsert.store.rows.layout import COUNT_COLUMN, Layout
from upsert.store.rows.merge import (
    SortedRows,
    check_counts,
    deletions,
    gather,
    key_ranges,
    merge_runs,
    present,
    same_rows,
)
from upsert.store.version import MAX_HASH, Step, Version, step_between

_T = TypeVar("_T")


def changes(
    table: PinnedTable,
    since: int,
    until: int | None = None,
    columns: Sequence[str] | None = None,
    scope: Scope = EVERYTHING,
) -> pa.Table:
    """The consolidated changes between two snapshots; see ``changes_between`` and ``Table.changes``."""
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
    """The consolidated changes of one step: at most one per key, ``-U`` just before its ``+U``.

    A key whose images are equal in ``columns`` has not changed. In a table without primary key the counts of
    equal rows are consolidated, and a row that exists n times more or less comes n times.

    Several tasks can share a step, each with its ``buckets``, or its ``share`` of their keys. A row that
    begins to meet the filter of the ``scope`` is an insertion, one that ceases to is a deletion; files of
    partitions that never do are not opened.

    Returns:
        The columns, then ``_row_kind``; ``-U`` just before its ``+U``. The same step has the same order each
        time, also when the table was compacted or commits have expired in between: a task of Spark may run
        again.
    """
    table.check_cursor(start)
    table.check_cursor(end)
    step = step_between(start, end)
    names = _checked(table.layout, columns)
    read = list(dict.fromkeys([*names, *scope.where.columns]))
    parts: list[pa.Table] = []
    if not step.is_empty:
        source = change_files(table, step.base, step.target, scope)
        every = sorted(source.by_bucket if buckets is None else source.by_bucket.keys() & set(buckets))
        within = [(bucket, limits) for bucket in every if (limits := step.hashes_of(bucket)) is not None]
        # of a share each bucket has few keys, and looking them up costs about as much as looking up one
        for some in [within] if share is not None and within else [[one] for one in within]:
            found = _bucket_changes(table, source, step, Wanted(tuple(some), share), read)
            judged = (halves_where(part, scope.where).select([*names, ROW_KIND_COLUMN]) for part in found)
            # what is read of the filter's columns alone may be all that an update has changed
            parts += judged if len(read) == len(names) else map(_changed, judged)
    schema = table.layout.declared(names).append(KIND_FIELD)
    # files keep every column nullable, for deletions; signed rows are whole rows again
    whole = [pa.Table.from_arrays(part.columns, schema=schema) for part in parts]
    return pa.concat_tables(whole or [schema.empty_table()])


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


def _changed(changes: pa.Table) -> pa.Table:
    """Changes without the updates of which both halves are equal."""
    rows, kinds = changes.drop_columns([ROW_KIND_COLUMN]), changes.column(ROW_KIND_COLUMN)
    before = np.flatnonzero(pc.equal(kinds, RowKind.UPDATE_BEFORE.value).to_numpy())
    same = before[same_rows(rows, before, rows, before + 1)]
    kept = np.ones(changes.num_rows, np.bool_)
    kept[same] = kept[same + 1] = False
    return changes if kept.all() else changes.filter(pa.array(kept))


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
            yield changes_since(base, within, names)


def _by_partition(files: Sequence[TouchedFile]) -> Iterable[list[TouchedFile]]:
    """The files for each partition apart."""
    found: dict[Partition, list[TouchedFile]] = defaultdict(list)
    for file in files:
        found[file.entry.partition].append(file)
    return _in_order(found)


def _in_order(found: Mapping[Partition, _T]) -> Iterable[_T]:
    """What was found of partitions, in their order: that of files differs once commits have expired."""
    return (found[partition] for partition in sorted(found, key=repr))


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
    touched = [TouchedBucket(tuple(source.within(bucket)), limits) for bucket, limits in buckets]
    shared = shared_rows(table, base, touched, share)
    runs: dict[Partition, list[SortedRows]] = defaultdict(list)
    files = ((file, limits) for files, limits in touched for file in files)
    for (file, limits), chosen in zip(files, shared.of_files, strict=True):
        if len(chosen):
            runs[file.entry.partition].append(_run(table, file, chosen, limits, stored))
    return [(of_partition, shared.are_new) for of_partition in _in_order(runs)]


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
