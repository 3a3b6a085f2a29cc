"""Writing data files: one with its sidecar, a sorted run as several, several at once.

The files of a run follow each other by key, and are written while the rest of it is not known yet. Most of
writing a file is waiting for storage, so a commit of many files writes several at a time.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upsert.arrays import Kinds
from upsert.errors import UpsertError
from upsert.failpoints import reach
from upsert.store.checksums import ChecksummedFile
from upsert.store.files.data_file import remove_data_files
from upsert.store.files.formats import ARROW, format_called
from upsert.store.files.formats.base import Compression, FileFormat
from upsert.store.files.lookup_index import build_sidecar
from upsert.store.metadata.file_entry import NO_SIDECAR, FileEntry, bounds
from upsert.store.paths import BucketId, data_file, index_file, resolve
from upsert.store.rows.keys import key_of_row, lower_bound, upper_bound
from upsert.store.rows.layout import KIND_COLUMN, Layout, with_ids
from upsert.store.rows.merge import SortedRows, halves, joined, weight
from upsert.store.storage import storage_of
from upsert.store.storage.local import sync_file
from upsert.store.table_options import TARGET_BYTES

SMALL_ROWS: Final = 4_096
"""A file with fewer rows has no sidecar, see docs/decisions/0141: who searches it makes its indexes."""


def write_data_file(
    root: str | Path,
    layout: Layout,
    rows_sorted: pa.Table,
    kinds: Kinds | None,
    key_bounds: tuple[bytes, bytes] | None = None,
    *,
    bucket_id: BucketId,
    level: int,
    base: int,
) -> FileEntry:
    """Write one data file, durably, with a sidecar if it is not small, and say what is in it.

    After a crash there may be a file that no manifest names; cleaning removes it. ``sequence`` of the
    entry is 0: the committer sets it when it publishes the file. There is at least one row; rows ascend by
    key, each key once, and ``kinds`` says of each 0 (it is there) or 1 (its key is deleted), None for no
    deletion. No key is beyond ``key_bounds``, None for the keys of first and last row, cut.
    """
    batch = _one_batch(layout, rows_sorted, kinds)
    form = layout.file_form
    format_ = format_called(form.format)
    name = data_file(*bucket_id, base, uuid4().hex + format_.suffix)
    path = resolve(os.fspath(root), name)
    reach("data.before-file")
    plain = layout.key if layout.is_searched_by_key else ()
    with removed_if_failed(root, lambda: [name]):
        checksum, written = _write_file(path, format_, batch, replace(form.compression, plain=plain))
        reach("data.after-file")
        index_checksum = _write_sidecar(path, layout, batch) if batch.num_rows >= SMALL_ROWS else NO_SIDECAR
    storage_of(path).settle_with_next(os.path.dirname(path))
    reach("data.after-sidecar")
    low, high = bounds(layout, batch)
    if key_bounds is None:
        key_bounds = (
            lower_bound(key_of_row(batch, layout.key, 0)),
            upper_bound(key_of_row(batch, layout.key, -1)),
        )
    return FileEntry(
        file=name,
        partition=bucket_id[0],
        bucket=bucket_id[1],
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


def write_sidecar_again(
    root: str | Path, layout: Layout, entry: FileEntry, indexed: pa.RecordBatch, *, base: int
) -> FileEntry:
    """Give a data file another name, with a sidecar that has all indexes of the layout, and say so.

    Its rows have the layout's form, and ``indexed`` are those of their columns that indexes are of. On a
    local disk the file is linked; elsewhere it is copied. Otherwise as ``write_data_file``.
    """
    old = resolve(os.fspath(root), entry.file)
    name = data_file(entry.partition, entry.bucket, base, uuid4().hex + os.path.splitext(old)[1])
    path = resolve(os.fspath(root), name)
    storage = storage_of(path)
    reach("data.before-file")

    def link(local: str) -> None:
        with storage.new_file(path) as new:
            try:
                os.link(local, new)
                os.utime(new)  # or a clean-up would take it for waste as old as the rows
            except OSError:  # what was fetched lies on another disk, or a link is not allowed
                Path(new).unlink(missing_ok=True)
                with open(local, "rb") as rows, open(new, "xb") as copy:
                    shutil.copyfileobj(rows, copy)
                    copy.flush()
                    os.fsync(copy.fileno())

    with removed_if_failed(root, lambda: [name]):
        storage.mapped(old, link)
        reach("data.after-file")
        index_checksum = _write_sidecar(path, layout, indexed)
    storage.settle_with_next(os.path.dirname(path))
    reach("data.after-sidecar")
    return replace(entry, file=name, base=base, definition=layout.version, index_checksum=index_checksum)


@contextmanager
def removed_if_failed(root: str | Path, written: Callable[[], Iterable[str]]) -> Iterator[None]:
    """A block that writes data files: when it fails, those that it has ``written`` go.

    What fills the disk would stay there otherwise until a clean-up takes it for old enough.
    """
    try:
        yield
    except BaseException as failure:
        try:
            remove_data_files(os.fspath(root), written())
        except (OSError, UpsertError) as also:
            failure.add_note(f"data files that no snapshot needs stay until clean() deletes them: {also}")
        raise


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


def _write_sidecar(path: str, layout: Layout, rows: pa.RecordBatch) -> int:
    """Write the sidecar of a data file durably; the checksum of its bytes."""
    checksum, _ = _write_file(index_file(path), ARROW, build_sidecar(layout, rows), Compression())
    return checksum


def _write_file(
    path: str, format_: FileFormat, rows: pa.RecordBatch, compression: Compression
) -> tuple[int, os.stat_result]:
    """Write a new file durably; the checksum of its bytes, and what its file system knows of it."""
    storage = storage_of(path)
    with storage.new_file(path) as local, open(local, "xb") as out:
        file = ChecksummedFile(out)
        format_.write(file, rows, compression)
        out.flush()
        if storage.is_local:
            sync_file(local, out.fileno())
        return file.checksum, os.fstat(out.fileno())


Written = TypeVar("Written")

KeyBounds = tuple[bytes, bytes]
"""Bounds of keys, from below and from above, see ``keys.lower_bound``."""

WriteFile = Callable[[pa.Table, Kinds | None, KeyBounds], Written]
"""``write_data_file`` of sorted rows, their kinds and the bounds of their keys, now or at another time."""


def write_run(
    root: str | Path,
    layout: Layout,
    pieces: Iterable[SortedRows],
    bucket_id: BucketId,
    *,
    level: int,
    base: int,
    target_bytes: int = TARGET_BYTES,
    within: KeyBounds | None = None,
) -> list[FileEntry]:
    """Write a sorted run, given in pieces that ascend by key, as files of half to all of ``target_bytes``.

    A piece is asked for when the ones before it are written, or held back for their common file. Of a run
    below the target there is one file; nothing is written for no rows, and nothing is left of a run that
    failed. Otherwise as ``write_data_file``.
    Where the run takes the place of files, ``within`` are their bounds: where these end, others may begin.
    """
    write_file = partial(write_data_file, root, layout, bucket_id=bucket_id, level=level, base=base)
    written: list[FileEntry] = []
    with removed_if_failed(root, lambda: [entry.file for entry in written]):
        written.extend(written_files(write_file, layout.key, pieces, target_bytes, within))
    return written


def written_files(
    write_file: WriteFile[Written],
    key: Sequence[str],
    pieces: Iterable[SortedRows],
    target_bytes: int,
    within: KeyBounds | None = None,
) -> Iterator[Written]:
    """What ``write_file`` gives for each file of a run of rows with a key, see ``write_run``."""
    held: list[SortedRows] = []
    lowest, highest = within or (b"", None)
    below: bytes | None = None

    def write(following: SortedRows | None) -> Written:
        """Write the rows that are held; bounds are cut, but not so that they would meet those beside them."""
        nonlocal below
        first, last = key_of_row(held[0].rows, key, 0), key_of_row(held[-1].rows, key, -1)
        low = max(lowest, lower_bound(first))
        if below is not None and upper_bound(below) >= low:
            low = first
        high = upper_bound(last) if highest is None else min(highest, upper_bound(last))
        if following is not None and high >= lower_bound(key_of_row(following.rows, key, 0)):
            high = last
        below = last
        rows, kinds = joined(held)
        held.clear()
        return write_file(rows, kinds, (low, high))

    size = 0
    for piece in pieces:
        for part in halves(piece, target_bytes):
            if held and size + weight(part) > target_bytes:
                yield write(part)
                size = 0
            held.append(part)
            size += weight(part)
    if held:
        yield write(None)


_AT_ONCE: Final = 8

_ONE_BY_ONE: Final = 4
"""So many first files are written in turn: most commits have no more, and need no threads."""

_MAX_BYTES: Final = 64 << 20
"""Rows that wait to be written, beside those that are being made."""


class ParallelWrites:
    """Writes data files in a few threads; a context that ends when all are durable, or the first one failed.

    Rows in the hands of the threads are bounded by bytes, so a large file is written by itself.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._count = 0
        self._running: deque[tuple[int, Future[FileEntry]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all threads; what has not begun when the block fails is not written."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=type_ is not None)

    def write(
        self,
        write_file: WriteFile[FileEntry],
        rows_sorted: pa.Table,
        kinds: Kinds | None,
        key_bounds: KeyBounds,
    ) -> Future[FileEntry]:
        """What ``write_file`` gives, some time; its errors come with the result."""
        self._count += 1
        if self._count <= _ONE_BY_ONE:
            done: Future[FileEntry] = Future()
            done.set_result(write_file(rows_sorted, kinds, key_bounds))
            return done
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "data-files")
        size = rows_sorted.nbytes
        while self._waiting() + size > _MAX_BYTES and self._running:
            self._running.popleft()[1].result()
        future = self._pool.submit(write_file, rows_sorted, kinds, key_bounds)
        self._running.append((size, future))
        return future

    def _waiting(self) -> int:
        while self._running and self._running[0][1].done():
            self._running.popleft()
        return sum(size for size, _ in self._running)
