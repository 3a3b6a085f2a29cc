"""Deleting rows by a condition, and dropping partitions: computed from the very snapshot it is committed on.

A partition of which the condition is true as a whole goes by its files' names alone. In the others the rows
are looked for, one bucket at a time, and deletions written for them like those of any other commit. When
another commit comes first, only the buckets that it has touched are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import CommitConflictError, CorruptTableError, SchemaError
from upsert.failpoints import reach
from upsert.schema import TableSchema
from upsert.store.commit import append, staging
from upsert.store.commit.change import Change, file_below_fence
from upsert.store.commit.committer import Committed, Committer
from upsert.store.commit.staging import StagedFiles
from upsert.store.files.data_file import DataFile
from upsert.store.files.writing import write_run
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.manifest import Manifest
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId, Partition
from upsert.store.predicate import EVERY_ROW, Filter
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.splits import Split
from upsert.store.rows.layout import COUNT_COLUMN, KIND_COLUMN, Layout
from upsert.store.rows.merge import SortedRows, deletions, merge_runs
from upsert.store.rows.partitions import beginning_of, is_within, specified

_IS_NEW: Final = KIND_COLUMN

_MAX_AMENDED_ROWS: Final = 1_000_000
"""Beyond so many rows a bucket is read again, a part at a time: the memory of a deletion is bounded."""

_COUNTED_ROWS: Final = 100_000
"""Of files that go as a whole so many rows are counted, to be told; it takes some milliseconds."""

SnapshotOf = Callable[[SnapshotInfo], Snapshot]
"""How a table reads one of its snapshots."""


def delete(
    committer: Committer, snapshot_of: SnapshotOf, where: Filter, *, tracked: bool | None
) -> Committed:
    """Commit the deletion of the rows of which a filter is true in the snapshot before, if there are any."""
    deletion = _Deletion(committer.history, snapshot_of, where)

    def propose(latest: SnapshotInfo) -> Change | None:
        added, removed = deletion.at(latest)
        reach("delete.after-write")
        return Change("delete", added, removed, tracked=tracked) if added or removed else None

    uuid = committer.history.uuid
    with append.discarded_if_failed(committer, lambda: [StagedFiles(uuid, deletion.files)]):
        return replace(committer.commit(propose), rows=deletion.rows)


def drop(committer: Committer, spec: Partition, *, tracked: bool | None) -> Committed:
    """Commit the removal of all partitions that have some values; nothing if there are none."""
    history = committer.history

    def propose(latest: SnapshotInfo) -> Change | None:
        beginnings = [beginning_of(spec, history.layout.schema.partitioned_by)]
        files = history.files(latest).only(lambda partition: is_within(partition, spec), beginnings)
        removed = files.entries
        return Change("delete", removed=removed, tracked=tracked) if removed else None

    return committer.commit(propose)


def to_drop(schema: TableSchema, spec: Mapping[str, object], of: str) -> Partition:
    """The partition values that ``DROP PARTITION`` names; none would be the whole table."""
    found = specified(schema, spec, of)
    if not found:
        raise SchemaError(
            f"{of}: a partition to drop must be given by partition columns "
            f"({', '.join(schema.partitioned_by) or 'there are none'}), got {dict(spec)!r}; delete([]) "
            "deletes all rows"
        )
    return found


class _Deletion:
    """The deletions of rows that a filter wants gone, kept up to date while others commit."""

    def __init__(self, history: History, snapshot_of: SnapshotOf, where: Filter) -> None:
        self._history = history
        self._snapshot_of = snapshot_of
        self._where = where
        self._files: dict[BucketId, tuple[FileEntry, ...]] = {}
        self._rows: dict[BucketId, int] = {}
        self._dropped: int | None = 0
        self._seen: SnapshotInfo | None = None
        self._asked: dict[str, int] | None = None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return tuple(entry for files in self._files.values() for entry in files)

    @property
    def rows(self) -> int | None:
        """How many rows go; None where files go whose rows are not counted."""
        if self._dropped is None:
            return None
        return self._dropped + sum(self._rows[bucket_id] for bucket_id in self._files)

    def at(self, latest: SnapshotInfo) -> tuple[tuple[FileEntry, ...], tuple[FileEntry, ...]]:
        self._check_columns(latest)
        snapshot = self._snapshot_of(latest)
        left = snapshot.bucket_filters(self._where)
        whole = {bucket_id for bucket_id, where in left.items() if where == EVERY_ROW}
        added = self._added_until(latest)
        for bucket_id, files in list(self._files.items()):
            news = None if added is None else added.get(bucket_id, ())
            is_cleaned = file_below_fence(latest.fence, files) is not None
            if bucket_id not in left or bucket_id in whole or news is None or is_cleaned:
                self._put(bucket_id, None)
            elif news:
                self._put(bucket_id, self._amended(snapshot, bucket_id, left[bucket_id], news))
        for bucket_id in left.keys() - whole - self._files.keys():
            found = self._found(snapshot, bucket_id, left[bucket_id])
            self._put(bucket_id, self._write(snapshot, bucket_id, found))
        self._seen = latest
        groups = snapshot.files.groups
        dropped = tuple(e for bucket_id in whole for run in groups[bucket_id] for e in run)
        self._dropped = None
        if sum(entry.rows for entry in dropped) <= _COUNTED_ROWS:
            with suppress(CorruptTableError):  # it goes too: to be read, it need not be whole
                self._dropped = _rows_in(snapshot, whole)
        return self.files, dropped

    def _check_columns(self, latest: SnapshotInfo) -> None:
        schema = self._history.definition_at(latest.definition).schema
        ids = {column.name: column.id for column in schema.columns}
        if self._asked is None:
            self._asked = {name: ids[name] for name in self._where.columns if name in ids}
        for name, id in self._asked.items():
            if ids.get(name) != id:
                now = next((repr(other) for other, its in ids.items() if its == id), "dropped")
                raise CommitConflictError(
                    f"table {self._history.root!r}: DELETE must find column {name!r} until it is committed, "
                    f"it is {now} since version {latest.definition} of the table's definition; run the "
                    "command again with the present columns"
                )

    def _added_until(self, latest: SnapshotInfo) -> Mapping[BucketId, list[FileEntry] | None] | None:
        """Files added to buckets since the last look at them, oldest first.

        None for a bucket from which rows went with their files, or that has changed too much; None for all if
        the commits in between are not known.
        """
        history, seen = self._history, self._seen
        if seen is None or seen.id < latest.oldest or seen.definition != latest.definition:
            return None  # without a primary key a row of another definition has another identity too
        found: dict[BucketId, list[FileEntry] | None] = {}
        for number in range(seen.id + 1, latest.id + 1):
            info = history.info(number, latest)
            delta = history.delta(info) if info.changes_rows else Manifest((), ())
            found |= dict.fromkeys(entry.bucket_id for entry in delta.removed)
            for entry in delta.added:
                if (files := found.setdefault(entry.bucket_id, [])) is not None:
                    files.append(entry)
        return found

    def _put(self, bucket_id: BucketId, files: tuple[FileEntry, ...] | None) -> None:
        """Other files for a bucket, or none; the old ones go: no attempt to publish them has succeeded."""
        staging.remove(self._history.root, StagedFiles("", self._files.pop(bucket_id, ())))
        if files is not None:
            self._files[bucket_id] = files

    def _found(self, snapshot: Snapshot, bucket_id: BucketId, where: Filter) -> Iterable[SortedRows]:
        found = snapshot.stored_rows(Split(bucket_id), where, snapshot.layout.stored.names)
        return (deletions(snapshot.layout, rows) for rows in found if rows.num_rows)

    def _amended(
        self, snapshot: Snapshot, bucket_id: BucketId, where: Filter, added: Sequence[FileEntry]
    ) -> tuple[FileEntry, ...]:
        """The deletions of a bucket when files were added to it: the keys in these are judged again.

        Without a look at the rest of the bucket, so that a deletion gets through beside a writer that commits
        more often than it takes to read the bucket.
        """
        if sum(entry.rows for entry in (*self._files[bucket_id], *added)) > _MAX_AMENDED_ROWS:
            return self._write(snapshot, bucket_id, self._found(snapshot, bucket_id, where))
        layout = snapshot.layout
        deleted = [self._opened(layout, entry) for entry in self._files[bucket_id]]
        news = [self._opened(layout, entry) for entry in added]
        amend = _amended_counts if layout.is_counted else _amended_keys
        rows = amend(layout, where, deleted, news)
        return self._write(snapshot, bucket_id, [rows] if rows.rows.num_rows else [])

    def _opened(self, layout: Layout, entry: FileEntry) -> SortedRows:
        file = DataFile.open(self._history.root, layout, entry)
        return SortedRows(file.table, file.kinds)

    def _write(
        self, snapshot: Snapshot, bucket_id: BucketId, gone: Iterable[SortedRows]
    ) -> tuple[FileEntry, ...]:
        root = self._history.root
        self._rows[bucket_id] = 0
        counted = self._counted(snapshot.layout, bucket_id, gone)
        return tuple(write_run(root, snapshot.layout, counted, bucket_id, level=0, base=snapshot.id))

    def _counted(
        self, layout: Layout, bucket_id: BucketId, gone: Iterable[SortedRows]
    ) -> Iterator[SortedRows]:
        for run in gone:
            self._rows[bucket_id] += abs(_count(layout, run.rows))
            yield run


def _rows_in(snapshot: Snapshot, buckets: Iterable[BucketId]) -> int:
    """How many rows some buckets have."""
    layout = snapshot.layout
    names = (COUNT_COLUMN,) if layout.is_counted else layout.key
    found = (snapshot.stored_rows(Split(bucket_id), EVERY_ROW, names) for bucket_id in buckets)
    return sum(_count(layout, rows) for rows in chain.from_iterable(found))


def _count(layout: Layout, rows: pa.Table) -> int:
    """How many rows stored ones stand for; of deletions in a table without a key it is negative."""
    return (pc.sum(rows.column(COUNT_COLUMN)).as_py() or 0) if layout.is_counted else rows.num_rows


def _amended_counts(
    layout: Layout, where: Filter, deleted: Sequence[SortedRows], news: Sequence[SortedRows]
) -> SortedRows:
    """Equal rows that came go too, those that went are not taken away twice."""
    wanted = [deletions(layout, where.apply(run.rows)) for run in news]
    return merge_runs(layout, [*deleted, *wanted])


def _amended_keys(
    layout: Layout, where: Filter, deleted: Sequence[SortedRows], news: Sequence[SortedRows]
) -> SortedRows:
    """Deletions of keys that did not change stay; of the others the newest row decides."""
    came = [_with_mark(run, is_new=True) for run in news]
    merged = merge_runs(layout, [*(_with_mark(run, is_new=False) for run in deleted), *came])
    is_new = merged.rows.column(_IS_NEW).to_numpy()
    matches = where.mask(merged.rows).to_numpy()
    gone = merged.rows.drop_columns([_IS_NEW]).filter(pa.array(~is_new | (merged.is_there & matches)))
    return deletions(layout, gone)


def _with_mark(run: SortedRows, *, is_new: bool) -> SortedRows:
    return SortedRows(run.rows.append_column(_IS_NEW, pa.repeat(is_new, run.rows.num_rows)), run.kinds)
