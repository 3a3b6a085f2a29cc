"""Tables that queries fill in a warehouse on a disk.

A staged table lies in the folder of its name. The process that fills it holds a lock on this folder, the
entry's lease: the kernel releases it when the process dies, however that happens. A staged table that no
process holds is deleted by the next statement that wants its name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from upsert.catalog import warehouse
from upsert.catalog.create_as import stages
from upsert.catalog.create_as.stages import ENTRY_FILE, CleanUp, Entry, entry_of
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, TableExistsError
from upsert.failpoints import reach
from upsert.flock import FileLock
from upsert.store.checksums import content_of
from upsert.store.paths import SNAPSHOT_FOLDER, TABLE_FILE
from upsert.store.storage import put_if_absent, storage_of
from upsert.store.storage.local import make_parent, sync_folder

_HERE: Final = -100
"""Paths are absolute, or relative to the working folder (``AT_FDCWD``)."""

_EXCHANGE: Final = 2
"""``RENAME_EXCHANGE`` of Linux; ``RENAME_SWAP`` of macOS has the same value."""

_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def exchange(one: str, other: str) -> None:
    """Exchange two existing folders of one file system; a crash leaves both as they were, or both exchanged.

    Raises:
        ConfigurationError: the system or the file system cannot do that. Nothing has changed.
        OSError: the disk refused.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for name in ("old", "new"):
    ...     os.mkdir(f"{folder}/{name}")
    ...     open(f"{folder}/{name}/{name}.txt", "w").close()
    >>> exchange(f"{folder}/old", f"{folder}/new")
    >>> os.listdir(f"{folder}/old"), os.listdir(f"{folder}/new")
    (['new.txt'], ['old.txt'])
    """
    name, arguments = (
        ("renamex_np", (os.fsencode(one), os.fsencode(other), _EXCHANGE))
        if sys.platform == "darwin"
        else ("renameat2", (_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE))
    )
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is None or call(*arguments):
        number = ctypes.get_errno()
        if call is not None and number not in _UNSUPPORTED:
            raise OSError(number, os.strerror(number), one, None, other)
        raise ConfigurationError(
            f"folder {other!r} must be on a file system that can atomically exchange two folders, got one "
            "that cannot; DROP TABLE and create it again"
        )
    sync_folder(os.path.dirname(one))
    sync_folder(os.path.dirname(other))


def begin_folder(folder: str, entry: Entry) -> FileLock:
    """Make an empty folder for a staged table, with its entry, and hold its lock.

    The caller holds the catalog's lock and has made sure that nothing lies there. After a crash there is a
    folder without a table, or a staged one that no process holds.
    """
    make_parent(os.path.join(folder, ENTRY_FILE))
    lease = FileLock.take(folder, is_folder=True)
    if lease is None:  # the catalog's lock excludes that
        raise RuntimeError(f"folder {folder!r} is locked although it is new")
    put_if_absent(os.path.join(folder, ENTRY_FILE), content_of(entry.to_json(), ENTRY_FILE))
    reach("create-as.after-entry")
    return lease


def mark_entry(folder: str, **changes: Any) -> None:
    """Change fields of the entry of a staged table atomically; nothing if it has none."""
    entry = entry_of(folder)
    if entry is not None and (changed := replace(entry, **changes)) != entry:
        path = os.path.join(folder, ENTRY_FILE)
        storage_of(path).replace(path, content_of(changed.to_json(), ENTRY_FILE))


def remove_entry(folder: str) -> None:
    """Delete the entry: the table is one like any other, also if it has no commit."""
    with suppress(FileNotFoundError):  # it was interrupted after that
        os.unlink(os.path.join(folder, ENTRY_FILE))
    sync_folder(folder)


_REPLACING: Final = ".replacing-"
"""Prefix of folders in which the successor of a table is filled; no table can have such a name."""


@dataclass
class LocalStage:
    """A table that this process fills."""

    folder: str
    lease: FileLock
    _tables: Warehouse
    _clean_up: CleanUp

    @property
    def is_visible(self) -> bool:
        """Whether readers see the table: it has a commit, or was done before."""
        return stages.is_visible(self.folder)

    def remember(self, made: tuple[str, ...]) -> None:
        """Record what was created outside."""
        mark_entry(self.folder, made=made)

    def show(self) -> None:
        """Make the table visible, while it is filled further."""
        mark_entry(self.folder, is_done=True)

    def show_after_commit(self) -> None:
        """Make a table that lies elsewhere visible; a managed one becomes so by its own first commit."""
        if not os.path.isdir(os.path.join(self.folder, SNAPSHOT_FOLDER)):
            self.show()

    def done(self, *, forget: bool) -> None:
        """Make the table visible, and release its lock."""
        if forget:
            remove_entry(self.folder)
        else:
            self.show()
        reach("create-as.after-done")
        self.lease.release()

    def let_go(self) -> None:
        """Leave the table as it is."""
        self.lease.release()

    def discard(self) -> None:
        """Delete the table unless it may have been seen, and release its lock."""
        with warehouse.ddl_lock(self._tables.folder):
            # looked at under the lock, and a moved folder takes no commit any more
            if not self.is_visible:
                _throw_away(self._tables, self.folder, self._clean_up)
        self.lease.release()
        self._tables.empty_trash()


@dataclass(frozen=True)
class LocalStages:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse on a disk."""

    tables: Warehouse
    clean_up: CleanUp

    def sweep(self, name: str) -> None:
        """Delete the staged table of this name that a dead process has left, if there is one.

        The caller holds the catalog's lock.
        """
        folder = self.tables.path(name)
        entry = stages.entry_of(folder)
        if entry is None or (self._has_table_file(folder) and stages.is_visible(folder)):
            return
        lease = FileLock.take(folder, is_folder=True)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being created by {entry.owner}, which has not committed yet; wait for "
                "it, or choose another name"
            )
        _throw_away(self.tables, folder, self.clean_up)
        lease.release()
        self.tables.empty_trash()

    def begin(self, name: str, entry: Entry, create: Callable[[str], None]) -> LocalStage:
        """A staged table, made by ``create`` in the folder that it is given."""
        folder = self.tables.path(name)
        make_parent(folder)  # the catalog's lock is one on the warehouse
        with warehouse.ddl_lock(self.tables.folder):
            self.sweep(name)
            if self._has_table_file(folder):
                raise TableExistsError(
                    f"table {name!r} exists already; choose another name, or IF NOT EXISTS"
                )
            stage = self._stage(folder, begin_folder(folder, entry))
            create(folder)
            reach("create-as.after-table")
        self.tables.empty_trash()
        return stage

    def resume(self, name: str, checkpoint: str) -> LocalStage | None:
        """The table that an earlier run of the same streaming statement has begun; None if there is none."""
        folder = self.tables.path(name)
        with warehouse.ddl_lock(self.tables.folder):
            entry = stages.entry_of(folder)
            if entry is None or not self._has_table_file(folder):
                return None
            if entry.mode != "streaming" or entry.checkpoint != checkpoint:
                return None
            lease = FileLock.take(folder, is_folder=True)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being filled by a query with this checkpoint, started by {entry.owner}; "
                "stop it first"
            )
        return self._stage(folder, lease)

    @contextmanager
    def successor(self, name: str) -> Iterator[str]:
        """A hidden folder for the table that will replace ``name``; it does so when the block ends well."""
        hidden = os.path.join(self.tables.folder, f"{_REPLACING}{uuid.uuid4().hex}")
        with warehouse.ddl_lock(self.tables.folder):
            self._sweep_successors()
            Path(hidden).mkdir()
            lease = FileLock.take(hidden, is_folder=True)
        try:
            folder = os.path.join(hidden, name)
            yield folder
            with warehouse.ddl_lock(self.tables.folder):
                reach("create-as.before-exchange")
                exchange(folder, self.tables.existing(name))
                reach("create-as.after-exchange")
        finally:
            with warehouse.ddl_lock(self.tables.folder):
                self.tables.throw_away(hidden)
            if lease is not None:
                lease.release()
            self.tables.empty_trash()

    def drop(self, name: str) -> bool:
        """Drop a table of the warehouse."""
        return self.tables.drop(name)

    def entry(self, name: str) -> Entry | None:
        """The entry of a table that a statement fills, or has filled and may continue."""
        return stages.entry_of(self.tables.path(name))

    def _stage(self, folder: str, lease: FileLock) -> LocalStage:
        return LocalStage(folder, lease, self.tables, self.clean_up)

    def _has_table_file(self, folder: str) -> bool:
        return os.path.isfile(os.path.join(folder, TABLE_FILE))

    def _sweep_successors(self) -> None:
        for entry in os.listdir(self.tables.folder):
            if entry.startswith(_REPLACING):
                with suppress(FileNotFoundError):  # it has just ended well
                    hidden = os.path.join(self.tables.folder, entry)
                    if (lease := FileLock.take(hidden, is_folder=True)) is not None:
                        self.tables.throw_away(hidden)
                        lease.release()


def _throw_away(tables: Warehouse, folder: str, clean_up: CleanUp) -> None:
    entry = stages.entry_of(folder)
    if entry is not None and entry.made:
        clean_up(folder, entry.made)
    tables.throw_away(folder)
