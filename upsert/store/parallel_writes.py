"""The data files of a commit, several at a time: most of writing one is waiting for where it lies."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from upsert.arrays import Kinds
from upsert.store.file_entry import FileEntry
from upsert.store.run_files import KeyBounds, WriteFile

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
