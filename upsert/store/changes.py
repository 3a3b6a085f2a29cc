"""The net changes of a table between two versions.

The keys to look at come from the files that the commits in between have added, cut to a range of
hashes by their sidecars, so nothing outside of the range is read. The newest row of each key there
is its value at the target; the value at the base is looked up in the base's snapshot. Hence exact
images of updates and deletions with no files of their own, and what one key did in between is
folded to one net change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Positions
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind, every_kind
from upsert.store.change_files import EVERYTHING, ChangeFiles, Scope, VersionedTable, change_files
from upsert.store.data_file import DataFile
from upsert.store.file_entry import FileEntry
from upsert.store.filters import Filter
from upsert.store.float_values import as_values
from upsert.store.hashing import is_null, one_array
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows, check_counts, gather, merge_runs, present
from upsert.store.paths import Partition
from upsert.store.row_hash import row_hashes
from upsert.store.row_keys import equal_rows
from upsert.store.version import MAX_HASH, Step, Version, step_between

Limits = tuple[int, int]
"""Smallest and largest hash of a range of keys, both inside."""

_INSERT, _BEFORE, _AFTER, _DELETE = range(len(RowKind))
_KIND_FIELD: Final = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)


def changes(
    table: VersionedTable,
    since: int,
    until: int | None = None,
    columns: Sequence[str] | None = None,
    scope: Scope = EVERYTHING,
) -> pa.Table:
    """The net changes between two snapshots; see ``changes_between``.

    Args:
        table: the table.
        since: id of a snapshot; 0 for the empty table, so that every row of ``until`` is an insertion.
        until: id of the same or a later snapshot; None for the latest.
        columns: the columns to return; None for all.
        scope: which changes.

    Raises:
        ConfigurationError: ``until`` is before ``since``.

    >>> import tempfile
    >>> from upsert import Table, TableSchema
    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> table = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> for name in ("ann", "bob", "cem"):
    ...     snapshot = table.write(pa.table({"id": [1], "name": [name]}))
    >>> changes(table, since=1).to_pylist()
    [{'id': 1, 'name': 'ann', '_row_kind': '-U'}, {'id': 1, 'name': 'cem', '_row_kind': '+U'}]
    """
    base = 0 if since == 0 else table.snapshot(since).info.data_version
    target = table.snapshot(until).info.data_version
    if until is not None and until < since:
        raise ConfigurationError(
            f"changes must be read forwards, got since {since} and until {until}; swap them"
        )
    start, end = Version.complete(base), Version.complete(max(base, target))
    return changes_between(table, start, end, columns=columns, scope=scope)


def changes_between(
    table: VersionedTable,
    start: Version,
    end: Version,
    *,
    columns: Sequence[str] | None = None,
    buckets: Collection[int] | None = None,
    scope: Scope = EVERYTHING,
) -> pa.Table:
    """The net changes of one step: at most one per key, ``-U`` just before its ``+U``.

    A key whose images are equal in ``columns`` has not changed. In a table without primary key the counts of
    equal rows are netted, and a row that there is n times more or less comes n times.

    Args:
        table: the table.
        start: where a reader is.
        end: what ``advance`` answered.
        columns: the columns to return; None for all.
        buckets: the buckets to read, so that several tasks can share a step; None for all.
        scope: which changes. A row that begins to meet its filter is an insertion, one that ceases to is a
            deletion; files of partitions that never do are not opened.

    Returns:
        The columns, then ``_row_kind``. Rows are in no particular order but for the two halves of an update.

    Raises:
        ConfigurationError: no single step leads from ``start`` to ``end``.
        SchemaError: a column is unknown.
        SnapshotExpiredError: base or target has expired.
        UntrackedChangesError: a commit in between was written with ``change-tracking = false``.
    """
    step = step_between(start, end)
    names = _checked(table.layout, columns)
    read = list(dict.fromkeys([*names, *scope.where.columns]))
    parts = []
    if not step.is_empty:
        source = change_files(table, step.base, step.target, scope)
        for bucket in sorted(range(table.layout.buckets) if buckets is None else buckets):
            limits = step.hashes_of(bucket)
            if limits is not None:
                found = _bucket_changes(table, source, step, bucket, limits, read)
                parts.append(halves_where(found, scope.where).select([*names, ROW_KIND_COLUMN]))
    declared = table.layout.schema.arrow
    schema = pa.schema([*(declared.field(name) for name in names), _KIND_FIELD])
    # files keep every column nullable, for deletions; signed rows are whole rows again
    whole = [pa.Table.from_arrays(part.columns, schema=schema) for part in parts]
    return pa.concat_tables([schema.empty_table(), *whole])


def halves_where(changes: pa.Table, where: Filter) -> pa.Table:
    """Those halves of changes of which a filter is true, and what they are without the other half.

    Args:
        changes: rows with ``_row_kind``, each ``-U`` just before its ``+U``.
        where: the filter.
    """
    if not where.alternatives or not changes.num_rows:
        return changes
    kept = where.mask(changes).to_numpy()
    kinds = changes.column(ROW_KIND_COLUMN)
    is_before = pc.equal(kinds, RowKind.UPDATE_BEFORE.value).to_numpy()
    is_after = pc.equal(kinds, RowKind.UPDATE_AFTER.value).to_numpy()
    # the halves of an update are neighbours
    leaves = is_before & ~np.append(kept[1:], False)
    enters = is_after & ~np.append(False, kept[:-1])
    alone = pc.if_else(pa.array(leaves), RowKind.DELETE.value, kinds)
    alone = pc.if_else(pa.array(enters), RowKind.INSERT.value, alone)
    position = changes.column_names.index(ROW_KIND_COLUMN)
    return changes.set_column(position, _KIND_FIELD, alone).filter(pa.array(kept))


def _checked(layout: Layout, columns: Sequence[str] | None) -> list[str]:
    names = list(layout.schema.names if columns is None else columns)
    for name in names:
        layout.schema.type_of(name, "changes")
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"changes must be of one or more different columns, got {names!r}")
    return names


def _bucket_changes(
    table: VersionedTable,
    source: ChangeFiles,
    step: Step,
    bucket: int,
    limits: Limits,
    names: list[str],
) -> pa.Table:
    layout = table.layout
    internal = [COUNT_COLUMN] if layout.is_counted else []
    stored = list(dict.fromkeys([*layout.key, *names, *internal]))
    merged = _merged_partitions(table, source, bucket, limits, stored)
    if layout.is_counted:
        return _repeated(merged.rows, names, is_load=step.base == 0)
    if step.base == 0:
        return _with_kinds(present(layout, merged).select(names), _INSERT)
    keys = merged.rows.select(list(layout.key))
    positions, before = table.snapshot(step.base).match(list(layout.key), keys, select=names)
    return _net(before, merged.rows.select(names), _is_there(merged), positions)


def _merged_partitions(
    table: VersionedTable, source: ChangeFiles, bucket: int, limits: Limits, stored: list[str]
) -> SortedRows:
    """The touched keys of a bucket in all partitions: their newest rows, or that they are gone."""
    runs: dict[Partition, list[SortedRows]] = {}
    for entry in (entry for entry in source.old if entry.bucket == bucket):
        runs.setdefault(entry.partition, []).append(_gone(_cut_file(table, entry, limits, stored)))
    for entry in (entry for entry in source.new if entry.bucket == bucket):
        runs.setdefault(entry.partition, []).append(_cut_file(table, entry, limits, stored))
    merged = [merge_runs(table.layout, of_partition) for of_partition in runs.values()]
    if not merged:
        return SortedRows(table.layout.stored.empty_table().select(stored), None)
    if len(merged) == 1:
        return merged[0]
    return SortedRows(pa.concat_tables([run.rows for run in merged]), _all_kinds(merged))


def _all_kinds(runs: Iterable[SortedRows]) -> npt.NDArray[np.int8]:
    return np.concatenate([np.zeros(r.rows.num_rows, np.int8) if r.kinds is None else r.kinds for r in runs])


def _cut_file(table: VersionedTable, entry: FileEntry, limits: Limits, stored: list[str]) -> SortedRows:
    """The rows of a file whose hash is within the limits, in the file's order."""
    file = DataFile.open(table.published.root, table.layout, entry)
    rows = pa.Table.from_batches([file.select(stored)])
    if limits == (0, MAX_HASH):
        return SortedRows(rows, file.kinds)
    index = file.index("pk")
    start = np.searchsorted(index.hashes, np.uint64(limits[0]), side="left")
    stop = np.searchsorted(index.hashes, np.uint64(limits[1]), side="right")
    chosen = np.sort(index.rows[start:stop]).astype(np.int64)
    return SortedRows(gather(rows, chosen), None if file.kinds is None else file.kinds[chosen])


def _gone(run: SortedRows) -> SortedRows:
    """The run as an overwrite sees it: its keys deleted, its counts taken away."""
    if COUNT_COLUMN not in run.rows.column_names:
        return SortedRows(run.rows, np.ones(run.rows.num_rows, np.int8))
    position = run.rows.column_names.index(COUNT_COLUMN)
    negated = pc.negate(run.rows.column(position))
    return SortedRows(run.rows.set_column(position, run.rows.field(position), negated), None)


def _is_there(run: SortedRows) -> npt.NDArray[np.bool_]:
    return np.ones(run.rows.num_rows, np.bool_) if run.kinds is None else run.kinds == 0


def _net(
    before: pa.Table, after: pa.Table, is_after: npt.NDArray[np.bool_], positions: Positions
) -> pa.Table:
    """Signed rows from the images of each touched key.

    Args:
        before: images at the base.
        after: of each touched key the image at the target, meaningless where ``is_after`` is false.
        is_after: whether the key is there at the target.
        positions: for each row of ``before``, the row of ``after`` that has the same key.
    """
    if not before.num_rows:  # nothing but new keys, as in a log of events
        return _with_kinds(after if is_after.all() else gather(after, np.flatnonzero(is_after)), _INSERT)
    before_of = np.full(after.num_rows, -1, np.int64)
    before_of[positions] = np.arange(before.num_rows)
    both = np.flatnonzero(is_after & (before_of >= 0))
    unchanged = both[_same_images(gather(before, before_of[both]), gather(after, both))]
    is_changed = np.ones(after.num_rows, np.bool_)
    is_changed[unchanged] = False
    leaving = np.flatnonzero((before_of >= 0) & is_changed)
    coming = np.flatnonzero(is_after & is_changed)
    # a stable sort by key puts the old image, which comes first in the input, just before the new one
    order = np.argsort(np.concatenate([leaving, coming]), kind="stable")
    kinds = np.concatenate(
        [
            np.where(is_after[leaving], _BEFORE, _DELETE),
            np.where(before_of[coming] >= 0, _AFTER, _INSERT),
        ]
    )
    both_images = [gather(before, before_of[leaving]), gather(after, coming)]
    columns = [image.columns for image in both_images]
    images = pa.concat_tables([pa.Table.from_arrays(each, schema=after.schema) for each in columns])
    return _with_kinds(gather(images, order), kinds[order])


def _same_images(one: pa.Table, other: pa.Table) -> npt.NDArray[np.bool_]:
    """Row by row, whether all columns are equal: NULL equals NULL, NaN equals NaN, -0.0 is not 0.0."""
    same = np.ones(one.num_rows, np.bool_)
    for name in one.column_names:
        left, right = (as_values(one_array(side.column(name))) for side in (one, other))
        if types.is_scalar(left.type):
            equal = equal_rows([left], [right])
            if left.null_count and right.null_count:
                equal |= is_null(left) & is_null(right)
        else:
            equal = equal_rows([row_hashes([left], len(left))], [row_hashes([right], len(right))])
        same &= equal
    return same


def _repeated(rows: pa.Table, names: list[str], *, is_load: bool) -> pa.Table:
    """Rows of a table without primary key, each as often as its net count says."""
    counts = one_array(rows.column(COUNT_COLUMN)).to_numpy()
    if is_load:
        check_counts(rows, counts)
    repeated = np.repeat(np.arange(len(counts)), np.abs(counts))
    kinds = np.where(counts > 0, _INSERT, _DELETE)
    return _with_kinds(gather(rows.select(names), repeated), kinds[repeated])


def _with_kinds(rows: pa.Table, kinds: int | Positions) -> pa.Table:
    if isinstance(kinds, int):
        column = pa.repeat(every_kind()[kinds], rows.num_rows)
    else:
        column = every_kind().take(pa.array(kinds, pa.int64()))
    return rows.append_column(_KIND_FIELD, column)
