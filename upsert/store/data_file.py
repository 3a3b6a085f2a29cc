"""One immutable sorted file of a bucket and its sidecar.

By default a data file is a single uncompressed Arrow IPC batch, see docs/decisions/0002. Readers map it:
opening costs a few pages, and a lookup touches only the pages of the rows that it returns. Files of the other
formats are mapped too, and decoded where they are read, see ``file_columns``. Sidecars are always mapped
Arrow. Names are never used twice, so an open map never goes stale; a file that is deleted while mapped stays
readable until the map is dropped (POSIX).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store.bounds import bounds
from upsert.store.checksum import ChecksummedFile, checksum_of
from upsert.store.failpoints import reach
from upsert.store.file_columns import FileColumns, forget_decoded
from upsert.store.file_entry import FileEntry
from upsert.store.file_formats import ARROW, Compression, FileFormat, format_called, format_of_file
from upsert.store.layout import KIND_COLUMN, Layout
from upsert.store.lookup_index import HashIndex, build_index, build_sidecar, read_indexes, sidecar_schema
from upsert.store.open_files import OpenFiles
from upsert.store.paths import Partition, data_file, index_file, resolve
from upsert.store.projection import Projection, with_ids
from upsert.store.row_keys import key_bytes
from upsert.store.storage import storage_of

Kinds = npt.NDArray[np.int8]

MAX_OPEN_FILES: Final = 2048
"""Open maps kept by a process: each is two file mappings, far below the usual limit of 65 530."""


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
    form = layout.file_form
    format_ = format_called(form.format)
    name = data_file(partition, bucket, base, uuid4().hex + format_.suffix)
    path = resolve(os.fspath(root), name)
    reach("data.before-file")
    checksum, written = _write_file(path, format_, batch, form.compression)
    reach("data.after-file")
    index_checksum, _ = _write_file(index_file(path), ARROW, build_sidecar(layout, batch), Compression())
    storage_of(path).settle(os.path.dirname(path))
    reach("data.after-sidecar")
    low, high = bounds(layout, batch)
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
        memory=batch.nbytes,
        checksum=checksum,
        index_checksum=index_checksum,
    )


def _key_of_row(layout: Layout, batch: pa.RecordBatch, row: int) -> bytes:
    return key_bytes([batch.column(name).slice(row, 1) for name in layout.key])


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


def _write_file(
    path: str, format_: FileFormat, rows: pa.RecordBatch, compression: Compression
) -> tuple[int, os.stat_result]:
    """Write a new file durably; the checksum of its bytes, and what its file system knows of it."""
    with storage_of(path).new_file(path) as local, open(local, "xb") as out:
        file = ChecksummedFile(out)
        format_.write(file, rows, compression)
        out.flush()
        os.fsync(out.fileno())
        return file.checksum, os.fstat(out.fileno())


class DataFile:
    """An open data file: zero-copy views of memory-mapped pages, or columns that are decoded when asked for.

    Attributes:
        entry: what the manifest says about it.
        rows: number of rows.
        kinds: 0 or 1 for each row, None if the file has no deletion.
    """

    def __init__(
        self,
        entry: FileEntry,
        stored: FileColumns,
        columns: Projection,
        indexes: dict[str, HashIndex],
        layout: Layout,
    ) -> None:
        """Take over what ``open`` has checked: rows as written, and the table's columns made of them."""
        self.entry = entry
        self.rows = stored.rows
        self.kinds: Kinds | None = stored.column(KIND_COLUMN).to_numpy() if entry.deletes else None
        self._stored = stored
        self._columns = columns
        self._indexes = indexes
        self._layout = layout

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
        if (format_ := format_of_file(path)) is None:
            raise _damaged(path, "a name that tells its format", repr(os.path.basename(path)))
        if entry.definition == layout.version:
            expected = layout.stored
            if entry.deletes:
                expected = expected.append(pa.field(KIND_COLUMN, pa.int8()))
            stored = _open_file(path, format_, expected, entry.rows, entry.bytes, entry.checksum)
            columns = Projection.same(layout)
        else:
            stored = _open_file(path, format_, None, entry.rows, entry.bytes, entry.checksum)
            columns = Projection.of(stored.schema, layout, f"data file {path!r}")
        # of an older definition a file may lack indexes, and have others
        known = sidecar_schema(layout) if entry.definition == layout.version else None
        sidecar = _open_file(index_file(path), ARROW, known, entry.rows, None, entry.index_checksum)
        indexes = read_indexes(layout, sidecar.select(sidecar.schema.names))
        for index in layout.indexes:
            if columns.converts(index.columns):
                indexes.pop(index.name, None)
        return cls(entry, stored, columns, indexes, layout)

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """Some of the table's stored columns, in this order; no copy of what is mapped as it is today."""
        return self._columns.apply(self._stored.select(self._columns.needed(names)), names)

    def slice(self, names: Sequence[str], start: int, length: int) -> pa.RecordBatch:
        """Some stored columns of some rows that follow each other; not much else is decoded."""
        return self._columns.apply(
            self._stored.slice(self._columns.needed(names), start, start + length), names
        )

    def take(self, names: Sequence[str], rows: npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
        """Some stored columns of some rows, given by their numbers."""
        return self._columns.apply(self._stored.take(self._columns.needed(names), rows), names)

    def column(self, name: str) -> pa.Array:
        """One of the table's stored columns, for one who asks again: what was decoded for it is kept."""
        source = self._columns.needed([name])
        if self._columns.is_same:
            return self._stored.column(name)
        if not source:
            return self.select([name]).column(0)
        stored = pa.record_batch([self._stored.column(source[0])], names=source)
        return self._columns.apply(stored, [name]).column(0)

    @property
    def is_mapped(self) -> bool:
        """Whether its columns are views of the file; those of a compressed file take memory."""
        return self._stored.is_mapped

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored columns."""
        return self._columns.names

    @property
    def table(self) -> pa.Table:
        """The stored columns as a table."""
        return pa.Table.from_batches([self.select(self.names)])

    def index(self, name: str) -> HashIndex:
        """The sorted hashes and row numbers of a lookup index; built and kept where the sidecar lacks it."""
        found = self._indexes.get(name)
        if found is None:
            columns = self._layout.lookup_index(name).columns
            found = self._indexes[name] = build_index(self.select(columns), columns)
        return found


_OPEN: Final = OpenFiles[DataFile](MAX_OPEN_FILES)


def forget_open_files() -> None:
    """Drop all open maps of this process; the next reader opens (and checks) its files again."""
    _OPEN.clear()
    forget_decoded()


def _open_file(
    path: str,
    format_: FileFormat,
    expected: pa.Schema | None,
    rows: int,
    size: int | None,
    checksum: int,
) -> FileColumns:
    try:
        content = mapped_content(path)
        if size is not None and content.size != size:
            raise _damaged(path, f"{size} bytes", f"{content.size} bytes")
        # of a local file that would read what the map avoids reading; this one was just downloaded
        if checksum and not storage_of(path).is_local and checksum_of(content) != checksum:
            raise _damaged(path, f"checksum {checksum:x}", f"{checksum_of(content):x}")
        columns = FileColumns(path, format_.open(content))
    except ConfigurationError:
        raise  # a package is missing: the file may be whole
    except FileNotFoundError as cause:
        raise CorruptTableError(
            f"data file {path!r} is missing; restore it, or read a snapshot that does not need it"
        ) from cause
    except (pa.ArrowException, OSError, ValueError) as cause:
        raise _damaged(path, f"a whole file of format {format_.name}", str(cause)) from cause
    if expected is not None and columns.schema != expected:
        raise _damaged(path, f"columns {', '.join(expected.names)}", ", ".join(columns.schema.names))
    if columns.rows != rows:
        raise _damaged(path, f"{rows} rows", f"{columns.rows}")
    return columns


def mapped_content(path: str) -> pa.Buffer:
    """The bytes of a file, wherever it lies; the buffer keeps the map, and needs no open file for it.

    Raises:
        OSError: it is missing, or cannot be read.
    """

    def content(local: str) -> pa.Buffer:
        with pa.memory_map(local) as mapped:
            return mapped.read_buffer()

    return storage_of(path).mapped(path, content)


def _damaged(path: str, expected: str, found: str) -> CorruptTableError:
    return CorruptTableError(
        f"data file {path!r} must have {expected}, got {found}; restore the file from a copy"
    )
