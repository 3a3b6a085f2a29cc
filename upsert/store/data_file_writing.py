"""Writing one immutable sorted file of a bucket and its sidecar; what they are is told in ``data_file``."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upsert.arrays import Kinds
from upsert.store.bounds import bounds
from upsert.store.checksum import ChecksummedFile
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.file_formats import ARROW, Compression, FileFormat, format_called
from upsert.store.layout import KIND_COLUMN, Layout
from upsert.store.lookup_index import build_sidecar
from upsert.store.paths import Partition, data_file, index_file, resolve
from upsert.store.projection import with_ids
from upsert.store.row_keys import key_of_row, lower_bound, upper_bound
from upsert.store.storage import storage_of


def write_data_file(
    root: str | Path,
    layout: Layout,
    rows_sorted: pa.Table,
    kinds: Kinds | None,
    key_bounds: tuple[bytes, bytes] | None = None,
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
        key_bounds: no key is below the one or above the other; None for the keys of first and last row, cut.
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
    if key_bounds is None:
        key_bounds = (
            lower_bound(key_of_row(batch, layout.key, 0)),
            upper_bound(key_of_row(batch, layout.key, -1)),
        )
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
        first_key=key_bounds[0],
        last_key=key_bounds[1],
        definition=layout.version,
        written_ms=written.st_mtime_ns // 1_000_000,
        memory=batch.nbytes,
        checksum=checksum,
        index_checksum=index_checksum,
    )


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
