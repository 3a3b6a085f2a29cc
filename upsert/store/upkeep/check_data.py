"""The rules of data: what a manifest says of a file, what its index says, and what the rows are together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from upsert.errors import ChangelogError, CorruptTableError, StorageError
from upsert.store.files.data_file import DataFile, check_bytes, forget_open_files
from upsert.store.files.lookup_index import HashIndex
from upsert.store.metadata.file_entry import FileEntry, bounds
from upsert.store.metadata.manifest import FileSet
from upsert.store.paths import index_file, resolve
from upsert.store.read.snapshot import Snapshot
from upsert.store.rows.hashing import hash_columns, row_hashes
from upsert.store.rows.keys import key_of_row, lower_bound, order_by, upper_bound
from upsert.store.rows.layout import COUNT_COLUMN, ROW_HASH_COLUMN
from upsert.store.rows.partitions import split

if TYPE_CHECKING:
    from upsert.store.upkeep.disk_state import DiskState


class Finding(NamedTuple):
    """What breaks a rule, and how."""

    subject: str
    found: str


def bytes_have_their_checksum(state: DiskState) -> Iterator[Finding]:
    """The bytes of a file and of its indexes are those that were written; else no more is asked of it."""
    forget_open_files()
    for entry in state.entries:
        for name, stated in ((entry.file, entry.checksum), (index_file(entry.file), entry.index_checksum)):
            try:
                check_bytes(resolve(state.history.root, name), stated)
            except FileNotFoundError:
                state.misfits.add(entry.file)  # rules that read no data have said so
            except StorageError as reason:
                state.misfits.add(entry.file)
                state.unread[name] = str(reason)
            except CorruptTableError as reason:
                state.misfits.add(entry.file)
                yield Finding(name, str(reason))


def data_can_be_read(state: DiskState) -> Iterator[Finding]:
    """Every file and its indexes are whole files of their format, with the columns and rows as stated."""
    for entry in state.entries:
        try:
            _open(state, entry)
        except StorageError as reason:
            state.misfits.add(entry.file)
            state.unread[entry.file] = str(reason)
        except CorruptTableError as reason:
            if entry.file not in state.misfits:  # else another rule has said so
                state.misfits.add(entry.file)
                yield Finding(entry.file, str(reason))


def keys_ascend(state: DiskState) -> Iterator[Finding]:
    """A file is sorted by key, and has each key once."""
    for entry, file in _opened(state):
        order = order_by([file.column(name) for name in state.history.layout.key])
        if not order.is_first.all() or (np.diff(order.rows) < 0).any():
            yield Finding(entry.file, "its rows must ascend by key, each key once")


def entry_fits_the_rows(state: DiskState) -> Iterator[Finding]:
    """Deletions, bounds, first and last key of a file are what the manifest says."""
    for entry, file in _opened(state):
        layout = state.history.layout
        deletes = 0 if file.kinds is None else int(np.count_nonzero(file.kinds))
        if deletes != entry.deletes:
            yield Finding(entry.file, f"it must have {entry.deletes} deletions, got {deletes}")
        if entry.definition != layout.version:
            continue  # bounds and keys are of the rows as they were written
        low, high = bounds(layout, file.select(layout.stored.names))
        for column in low:
            stated = entry.min.get(column), entry.max.get(column)
            if stated != (low[column], high[column]):
                found = f"{low[column]!r} to {high[column]!r}"
                yield Finding(
                    entry.file, f"column {column!r} must go from {stated[0]!r} to {stated[1]!r}, got {found}"
                )
        rows = file.select(layout.key)
        first, last = key_of_row(rows, layout.key, 0), key_of_row(rows, layout.key, -1)
        # a bound is cut where a key is long
        if not (lower_bound(first) <= entry.first_key <= first):
            yield Finding(entry.file, "its first key is not the one that the manifest says")
        if not (last <= entry.last_key <= upper_bound(last)):
            yield Finding(entry.file, "its last key is not the one that the manifest says")


def index_fits_the_rows(state: DiskState) -> Iterator[Finding]:
    """A lookup index has the hash of every row, once, in order, and leads to each of them."""
    for entry, file in _opened(state):
        for index in state.history.layout.indexes:
            found = file.index(index.name)
            rows = found.rows.astype(np.int64)
            is_whole = np.array_equal(np.sort(rows), np.arange(entry.rows))
            hashes = hash_columns([file.column(name) for name in index.columns], entry.rows)
            if not is_whole or not np.array_equal(hashes[rows], found.hashes):
                yield Finding(entry.file, f"its index {index.label} does not have the hashes of its rows")
            elif (found.hashes[1:] < found.hashes[:-1]).any():
                yield Finding(entry.file, f"its index {index.label} is not in order")
            elif not _leads_to_all(found):
                yield Finding(entry.file, f"its index {index.label} does not lead to all of its hashes")


def _leads_to_all(index: HashIndex) -> bool:
    right = HashIndex.of(index.hashes, index.rows)
    return np.array_equal(index.starts, right.starts) and np.array_equal(index.filled, right.filled)


def rows_lie_in_their_bucket(state: DiskState) -> Iterator[Finding]:
    """The bucket and the partition of a file are those of its rows."""
    for entry, file in _opened(state):
        layout = state.history.layout
        buckets = {portion.bucket_id for portion in split(layout, file.table, None)}
        if buckets != {entry.bucket_id}:
            yield Finding(
                entry.file, f"its rows belong to {sorted(buckets)}, it lies in bucket {entry.bucket}"
            )


def identity_is_that_of_the_row(state: DiskState) -> Iterator[Finding]:
    """Without a primary key a row's key is the hash of all its columns."""
    for entry, file in _opened(state):
        layout = state.history.layout
        if layout.is_counted and entry.definition == layout.version:
            hashes = row_hashes([file.column(name) for name in layout.schema.names], entry.rows)
            if not hashes.equals(file.column(ROW_HASH_COLUMN)):
                yield Finding(entry.file, "a row's identity is not the hash of its columns")
            if 0 in file.column(COUNT_COLUMN).to_pylist():
                yield Finding(entry.file, "a row counts 0 times")


def no_count_is_negative(state: DiskState) -> Iterator[Finding]:
    """Without a primary key no row is there less than 0 times."""
    for name, snapshot in _snapshots(state):
        if snapshot.layout.is_counted:
            try:
                snapshot.scan([])
            except ChangelogError as reason:
                yield Finding(name, str(reason))


def unique_index_has_one_row_a_key(state: DiskState) -> Iterator[Finding]:
    """No two rows of the latest snapshot have one key of a UNIQUE INDEX, unless a part of it is NULL."""
    for name, snapshot in _snapshots(state):
        for index in snapshot.layout.indexes[1:]:
            if index.is_unique:
                rows = snapshot.scan(list(index.columns)).drop_null()
                counts = rows.group_by(list(index.columns)).aggregate([([], "count_all")])
                twice = counts.filter(pc.greater(counts["count_all"], 1)).drop_columns(["count_all"])
                if twice.num_rows:
                    yield Finding(
                        name, f"{index.label} has several rows with {twice.slice(0, 1).to_pylist()[0]!r}"
                    )


RULES: Final[tuple[Callable[[DiskState], Iterator[Finding]], ...]] = (
    bytes_have_their_checksum,
    data_can_be_read,
    keys_ascend,
    entry_fits_the_rows,
    index_fits_the_rows,
    rows_lie_in_their_bucket,
    identity_is_that_of_the_row,
    no_count_is_negative,
    unique_index_has_one_row_a_key,
)
"""The rules that ask for data."""


def _open(state: DiskState, entry: FileEntry) -> DataFile:
    if entry.file in state.misfits:
        raise CorruptTableError(f"data file {entry.file!r} is not what was written; restore it from a copy")
    file = DataFile.open(state.history.root, state.history.layout, entry)
    if not file.is_mapped:
        file.table  # noqa: B018 - what is compressed shows its damage when it is decoded
    return file


def _opened(state: DiskState) -> Iterator[tuple[FileEntry, DataFile]]:
    """Each file that is what was written and can be opened."""
    for entry in state.entries:
        try:
            file = _open(state, entry)
        except CorruptTableError:
            continue  # ``data_can_be_read`` says so
        yield entry, file


def _snapshots(state: DiskState) -> Iterator[tuple[str, Snapshot]]:
    """The latest snapshot, if all of its files can be opened."""
    if state.head is None or (files := state.files_of(state.head)) is None:
        return
    try:
        for entry in files.values():
            _open(state, entry)
    except CorruptTableError:
        return
    history = state.history
    name = f"snapshot {state.head.id}"
    yield name, Snapshot(history.root, history.layout, FileSet.of(files.values()), state.head)
