"""A bounded cache of open files, shared by all readers of a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import LRUCache

Opened = TypeVar("Opened")


class OpenFiles(Generic[Opened]):
    """Open files by absolute path and version of the table's definition that they are read as.

    Names are never used twice, so nothing goes stale. Least recently used ones are dropped; threads may share
    it, and a forked child goes on with what its parent has open.
    """

    def __init__(self, max_files: int) -> None:
        self._files: LRUCache[tuple[str, int], Opened] = LRUCache(max_files)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def get(self, path: str, version: int, open_file: Callable[[str], Opened]) -> Opened:
        """The open file; ``open_file`` opens it if it is not there."""
        path = path if "://" in path else os.path.abspath(path)
        with self._lock:
            file = self._files.get((path, version))
        if file is None:
            # two threads may map the same file at once: harmless, and no reader waits for another's disk
            file = open_file(path)
            with self._lock:
                self._files[path, version] = file
        return file

    def clear(self) -> None:
        """Drop all; who holds one may go on reading it."""
        with self._lock:
            self._files.clear()

    def _renew_lock(self) -> None:
        """Another thread of the parent may have held it during the fork."""
        self._lock = threading.Lock()
