"""Temporary tables: they lie in a folder of the warehouse that belongs to one session, and go with it.

The folder is locked while the process lives. What a killed process leaves has no lock, and is deleted when a
session of the warehouse makes its first temporary table.
"""

from __future__ import annotations

import os
import shutil
import uuid
import weakref
from contextlib import suppress
from typing import Final

from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, UpsertError
from upsert.flock import FileLock
from upsert.store.storage import storage_of
from upsert.store.storage.base import disk_errors_of

FOLDER: Final = ".temporary"
"""Folder in the warehouse; no table can have such a name."""


class TemporaryTables:
    """The temporary tables of a session in one warehouse.

    >>> import tempfile
    >>> tables = TemporaryTables(tempfile.mkdtemp())
    >>> tables.add("default", "t")
    >>> tables.has("default", "t"), tables.names("default"), tables.has("other", "t")
    (True, ['t'], False)
    """

    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse
        self._root: str | None = None
        self._names: set[tuple[str, str]] = set()

    def has(self, database: str, name: str) -> bool:
        """Whether the name is that of a temporary table, or of one that is being made."""
        return (database, name) in self._names

    def names(self, database: str) -> list[str]:
        """Names of the temporary tables of a database, sorted."""
        return sorted(name for own, name in self._names if own == database)

    def tables(self, database: str) -> Warehouse:
        """Where the temporary tables of a database lie."""
        if self._root is None:
            self._root = self._made()
        folder = os.path.join(self._root, database)
        os.makedirs(folder, exist_ok=True)
        return Warehouse(folder)

    def add(self, database: str, name: str) -> None:
        """Let a name be that of a temporary table."""
        if not storage_of(self._warehouse).is_local:
            raise ConfigurationError(
                f"temporary table {name!r}: the warehouse must be a local folder, whose locks tell when a "
                f"session has ended, got {self._warehouse!r}; create the table in a database of its own, and "
                "drop that"
            )
        self.tables(database)
        self._names.add((database, name))

    def drop(self, database: str, name: str) -> bool:
        """Drop a temporary table; False if there is none."""
        dropped = self.has(database, name) and self.tables(database).drop(name)
        self._names.discard((database, name))
        return dropped

    def _made(self) -> str:
        """The folder of this session, locked until it ends."""
        outer = os.path.join(self._warehouse, FOLDER)
        with disk_errors_of(outer):
            os.makedirs(outer, exist_ok=True)
        for name in os.listdir(outer):
            _delete(os.path.join(outer, name), None)
        while True:
            root = os.path.join(outer, uuid.uuid4().hex)
            with disk_errors_of(root):
                os.mkdir(root)
            # another session may have taken the new folder for one that was left
            with suppress(FileNotFoundError):
                lock = FileLock.take(root, is_folder=True)
                if lock is not None and os.path.isdir(root):
                    weakref.finalize(self, _end, root, lock, os.getpid())
                    return root
                if lock is not None:
                    lock.release()


def _end(root: str, lock: FileLock, process: int) -> None:
    if os.getpid() == process:  # a child that was forked has the session of its parent
        _delete(root, lock)


def _delete(root: str, lock: FileLock | None) -> None:
    """Drop all tables of a session that has ended; nothing while it lives."""
    try:
        lock = FileLock.take(root, is_folder=True) if lock is None else lock
    except OSError:
        return
    if lock is None:
        return
    with lock, suppress(OSError):  # the next session deletes what is left
        for database in os.listdir(root):
            tables = Warehouse(os.path.join(root, database))
            for name in tables.names():
                with suppress(UpsertError, OSError):  # its folder is deleted, whatever it was
                    tables.drop(name)  # and its log
        shutil.rmtree(root, ignore_errors=True)
