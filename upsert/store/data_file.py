"""One immutable sorted file of a bucket, its sidecar, and a bounded cache of open memory maps.

A data file is a single uncompressed Arrow IPC batch, see docs/decisions/0002. Readers map it: opening
costs a few pages, and a lookup touches only the pages of the rows that it returns. Names are never used
twice, so an open map never goes stale; a file that is deleted while mapped stays readable until the map is
dropped (POSIX).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache

from upsert.errors import CorruptTableError
from upsert.store.bounds import bounds
from upsert.store.failpoints import reach
from upsert.store.layout import KIND_COLUMN, Layout
from upsert.store.lookup_index import HashIndex, build_index, build_sidecar, read_indexes, sidecar_schema
from upsert.store.paths import Partition, data_file, index_file, make_parent, resolve, sync_folder
from upsert.store.projection import Projection, with_ids
from upsert.store.row_keys import key_bytes

Kinds = npt.NDArray[np.int8]
Key = bytes

MAX_OPEN_FILES: Final = 2048
"""Open maps kept by a process: each is two file mappings, far below the usual limit of 65 530."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a manifest knows about one data file.

    Attributes:
        file: path relative to the table.
        partition: partition columns and their values as text, None for NULL.
        bucket: number of the bucket within the partition.
        level: 0 for a flushed file; files of one higher level form one sorted run.
        sequence: id of the snapshot that published the rows; the higher is the newer.
        rows: number of rows, deletions included.
        deletes: number of deletions.
        bytes: size of the data file.
        base: id of the snapshot that its writer began at.
        min: smallest value of each scalar column by its field id; None if there is none or it is not known.
        max: largest value, likewise.
        first_key: key of the first row, in bytes that compare as keys do, see ``row_keys.key_bytes``.
        last_key: key of the last row, likewise.
        definition: version of the table's definition that it was written under.
        written_ms: when, in milliseconds since 1970, by the clock of the file system.
    """

    file: str
    partition: Partition
    bucket: int
    level: int
    sequence: int
    rows: int
    deletes: int
    bytes: int
    base: int
    min: Mapping[int, Any] = field(repr=False)
    max: Mapping[int, Any] = field(repr=False)
    first_key: Key = field(default=b"", repr=False)
    last_key: Key = field(default=b"", repr=False)
    definition: int = 0
    written_ms: int = 0

    @classmethod
    def many(cls, columns: Mapping[str, Sequence[Any]]) -> list[Self]:
        """Entries given column by column, with a value for every attribute: as many calls, much faster."""
        found = [object.__new__(cls) for _ in columns["file"]]
        for name, values in columns.items():
            # the slot itself: no step of the interpreter for each of a hundred thousand values
            deque(map(getattr(cls, name).__set__, found, values), maxlen=0)
        return found

    @property
    def age(self) -> tuple[int, int]:
        """Ascends from newer to older files of a bucket: level 0 by sequence, then level by level.

        The sequence says nothing above level 0: a file that was merged with others there keeps the highest
        one, whatever part of its keys that came from.
        """
        return self.level, 0 if self.level else -self.sequence

    def overlaps(self, other: FileEntry) -> bool:
        """Whether a key may lie in both files, by their first and last ones."""
        return self.first_key <= other.last_key and other.first_key <= self.last_key


def write_data_file(
    root: str | Path,
    layout: Layout,
    rows_sorted: pa.Table,
    kinds: Kinds | None,
    *,
    partition: Partition,
    bucket: int,
    level: int,
    base: int,
) -> FileEntry:
    """Write one data file and its sidecar, durably, and say what is in it.

    After a crash there may be a file that no manifest names; cleaning removes it. ``sequence`` of the
    entry is 0: the committer sets it when it publishes the file.

    Args:
        root: the table's folder.
        layout: the table's layout.
        rows_sorted: the columns of ``layout.stored``, at least one row, ascending by key, each key once.
        kinds: 0 (the row is there) or 1 (the key is deleted) for each row; None for no deletion.
        partition: partition of all rows.
        bucket: bucket of all rows.
        level: level of the LSM that the file belongs to.
        base: id of the snapshot that the writer began at.
    """
    batch = _one_batch(layout, rows_sorted, kinds)
    name = data_file(partition, bucket, base, uuid4().hex)
    path = resolve(os.fspath(root), name)
    make_parent(path)
    reach("data.before-file")
    _write_batch(path, batch)
    reach("data.after-file")
    _write_batch(index_file(path), build_sidecar(layout, batch))
    sync_folder(os.path.dirname(path))
    reach("data.after-sidecar")
    low, high = bounds(layout, batch)
    written = os.stat(path)
    return FileEntry(
        file=name,
        partition=partition,
        bucket=bucket,
        level=level,
        sequence=0,
        rows=batch.num_rows,
        deletes=int(np.count_nonzero(kinds)) if kinds is not None else 0,
        bytes=written.st_size,
        base=base,
        min=low,
        max=high,
        first_key=_key_of_row(layout, batch, 0),
        last_key=_key_of_row(layout, batch, batch.num_rows - 1),
        definition=layout.version,
        written_ms=written.st_mtime_ns // 1_000_000,
    )


def _key_of_row(layout: Layout, batch: pa.RecordBatch, row: int) -> bytes:
    return key_bytes([batch.column(name).slice(row, 1) for name in layout.key])


class DataFile:
    """An open data file: zero-copy views of memory-mapped pages.

    Attributes:
        entry: what the manifest says about it.
        rows: number of rows.
        kinds: 0 or 1 for each row, None if the file has no deletion.
    """

    def __init__(
        self,
        entry: FileEntry,
        batch: pa.RecordBatch,
        kinds: Kinds | None,
        columns: Projection,
        indexes: dict[str, HashIndex],
    ) -> None:
        """Take over what ``open`` has checked: rows as written, and the table's columns made of them."""
        self.entry = entry
        self.rows = batch.num_rows
        self.kinds = kinds
        self._batch = batch
        self._columns = columns
        self._indexes = indexes

    @classmethod
    def open(cls, root: str | Path, layout: Layout, entry: FileEntry) -> DataFile:
        """The file of a manifest entry, from the process-wide cache if it is open.

        Raises:
            CorruptTableError: the file or its sidecar is missing, damaged, or not what the entry says.
        """
        return _OPEN.get(
            resolve(os.fspath(root), entry.file), layout.version, lambda path: cls._map(path, layout, entry)
        )

    @classmethod
    def _map(cls, path: str, layout: Layout, entry: FileEntry) -> Self:
        if entry.definition == layout.version:
            expected = layout.stored
            if entry.deletes:
                expected = expected.append(pa.field(KIND_COLUMN, pa.int8()))
            batch = _map_batch(path, expected, entry.rows, entry.bytes)
            columns = Projection.same(layout)
        else:
            batch = _map_batch(path, None, entry.rows, entry.bytes)
            columns = Projection.of(batch.schema, layout, f"data file {path!r}")
        sidecar = _map_batch(index_file(path), sidecar_schema(layout), entry.rows, None)
        kinds = batch.column(KIND_COLUMN).to_numpy() if entry.deletes else None
        indexes = read_indexes(layout, sidecar)
        for index in layout.indexes:
            if columns.converts(index.columns):
                indexes[index.name] = build_index(columns.apply(batch, index.columns), index.columns)
        return cls(entry, batch, kinds, columns, indexes)

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """Some of the table's stored columns, in this order; no copy of what was stored as it is today."""
        return self._columns.apply(self._batch, names)

    def take(self, names: Sequence[str], rows: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
        """Some stored columns of some rows, given by their numbers."""
        return self._columns.take(self._batch, names, pa.array(rows))

    def column(self, name: str) -> pa.Array:
        """One of the table's stored columns."""
        return self.select([name]).column(0)

    @property
    def table(self) -> pa.Table:
        """The stored columns as a table."""
        return pa.Table.from_batches([self.select(self._columns.names)])

    def index(self, name: str) -> HashIndex:
        """The sorted hashes and row numbers of a lookup index."""
        return self._indexes[name]


class _OpenFiles:
    """Open files by absolute path and version of the table's definition that they are read as.

    Least recently used ones are dropped; threads may share it.
    """

    def __init__(self, max_files: int) -> None:
        self._files: LRUCache[tuple[str, int], DataFile] = LRUCache(max_files)
        self._lock = threading.Lock()

    def get(self, path: str, version: int, open_file: Callable[[str], DataFile]) -> DataFile:
        path = os.path.abspath(path)
        with self._lock:
            file = self._files.get((path, version))
        if file is None:
            # two threads may map the same file at once: harmless, and no reader waits for another's disk
            file = open_file(path)
            with self._lock:
                self._files[path, version] = file
        return file

    def clear(self) -> None:
        with self._lock:
            self._files.clear()

    def renew_lock(self) -> None:
        """A forked child gets a fresh lock: another thread of the parent may have held it during the fork."""
        self._lock = threading.Lock()


_OPEN: Final = _OpenFiles(MAX_OPEN_FILES)
os.register_at_fork(after_in_child=_OPEN.renew_lock)


def forget_open_files() -> None:
    """Drop all open maps of this process; the next reader opens (and checks) its files again."""
    _OPEN.clear()


def _one_batch(layout: Layout, rows: pa.Table, kinds: Kinds | None) -> pa.RecordBatch:
    columns = [rows.column(name) for name in layout.stored.names]
    # no cast: Arrow refuses to cast a NULL struct with NOT NULL fields, even to its own type
    stored = with_ids(layout)
    batches = pa.Table.from_arrays(columns, schema=stored).combine_chunks().to_batches()
    if len(batches) != 1:
        raise ValueError(f"a data file must hold one batch of at least one row, got {len(batches)} batches")
    batch: pa.RecordBatch = batches[0]
    if kinds is None or not kinds.any():
        return batch
    arrays = [*batch.columns, pa.array(kinds, pa.int8())]
    return pa.record_batch(arrays, schema=stored.append(pa.field(KIND_COLUMN, pa.int8())))


def _write_batch(path: str, batch: pa.RecordBatch) -> None:
    with open(path, "xb") as out:
        with pa.ipc.new_file(out, batch.schema) as writer:
            writer.write_batch(batch)
        out.flush()
        os.fsync(out.fileno())


def _map_batch(path: str, expected: pa.Schema | None, rows: int, size: int | None) -> pa.RecordBatch:
    try:
        found = os.stat(path).st_size
        if size is not None and found != size:
            raise _damaged(path, f"{size} bytes", f"{found} bytes")
        reader = pa.ipc.open_file(pa.memory_map(path))
        if expected is not None and reader.schema != expected:
            raise _damaged(path, f"columns {', '.join(expected.names)}", ", ".join(reader.schema.names))
        if reader.num_record_batches != 1:
            raise _damaged(path, "one record batch", str(reader.num_record_batches))
        batch: pa.RecordBatch = reader.get_batch(0)
    except FileNotFoundError as cause:
        raise CorruptTableError(
            f"data file {path!r} is missing; restore it, or read a snapshot that does not need it"
        ) from cause
    except (pa.ArrowException, OSError) as cause:
        raise _damaged(path, "a whole Arrow IPC file", str(cause)) from cause
    if batch.num_rows != rows:
        raise _damaged(path, f"{rows} rows", f"{batch.num_rows}")
    return batch


def _damaged(path: str, expected: str, found: str) -> CorruptTableError:
    return CorruptTableError(
        f"data file {path!r} must have {expected}, got {found}; restore the file from a copy"
    )
