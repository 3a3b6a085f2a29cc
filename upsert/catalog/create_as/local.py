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
from typing import Any, Final

from upsert.catalog.connectors.definition import clean_up
from upsert.catalog.create_as.stages import Entry, entry_of, is_visible
from upsert.catalog.warehouse import Warehouse, ddl_lock
from upsert.errors import ConfigurationError, TableExistsError
from upsert.failpoints import reach
from upsert.flock import FileLock
from upsert.store.checksums import content_of
from upsert.store.metadata.table_file import check_unused
from upsert.store.paths import ENTRY_FILE, SNAPSHOT_FOLDER, TABLE_FILE
from upsert.store.storage import put_if_absent, storage_of
from upsert.store.storage.base import disk_errors_of
from upsert.store.storage.local import sync_folder

_HERE: Final = -100
"""Paths are absolute, or relative to the working folder (``AT_FDCWD``)."""
_EXCHANGE: Final = 2
"""``RENAME_EXCHANGE`` of Linux; ``RENAME_SWAP`` of macOS has the same value."""
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def exchange(one: str, other: str) -> None:
    """Exchange two existing folders of one file system; a crash leaves both as they were, or both exchanged.

    Nothing has changed when it raises: the system or the file system cannot do that, or the disk refused.

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


_REPLACING: Final = ".replacing-"
"""Prefix of folders in which the successor of a table is filled; no table can have such a name."""


@dataclass
class LocalStage:
    """A table that this process fills."""

    folder: str
    lease: FileLock
    _tables: Warehouse

    @property
    def is_visible(self) -> bool:
        """Whether readers see the table: it has a commit, or was done before."""
        return is_visible(self.folder)

    def remember(self, made: tuple[str, ...]) -> None:
        """Record what was created outside, so that it is deleted with a table that never becomes visible."""
        self._change_entry(made=made)

    def _change_entry(self, **changes: Any) -> None:
        """Change fields of the entry atomically; nothing if there is none."""
        entry = entry_of(self.folder)
        if entry is not None and (changed := replace(entry, **changes)) != entry:
            path = os.path.join(self.folder, ENTRY_FILE)
            storage_of(path).replace(path, content_of(changed.to_json(), ENTRY_FILE))

    def show_after_commit(self) -> None:
        """Make a table that lies elsewhere visible; a managed one becomes so by its own first commit."""
        if not os.path.isdir(os.path.join(self.folder, SNAPSHOT_FOLDER)):
            self._change_entry(is_done=True)

    def done(self, *, forget: bool) -> None:
        """Make the table visible, and release its lock.

        ``forget`` deletes the entry, by which the same statement could continue: the table is one like any
        other, also if it has no commit.
        """
        if forget:
            with suppress(FileNotFoundError):  # it was interrupted after that
                os.unlink(os.path.join(self.folder, ENTRY_FILE))
            sync_folder(self.folder)
        else:
            self._change_entry(is_done=True)
        reach("create-as.after-done")
        self.lease.release()

    def let_go(self) -> None:
        """Leave the table as it is, for the same statement to continue."""
        self.lease.release()

    def discard(self) -> None:
        """Delete the table unless it may have been seen, and release its lock."""
        with ddl_lock(self._tables.folder):
            # looked at under the lock, and a moved folder takes no commit any more
            if not self.is_visible:
                _throw_away(self._tables, self.folder)
        self.lease.release()
        self._tables.empty_trash()


@dataclass(frozen=True)
class LocalStages:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse on a disk."""

    tables: Warehouse

    def sweep(self, name: str) -> None:
        """Delete the staged table of this name that a dead process has left, if it was never visible.

        The caller holds the catalog's lock.
        """
        folder = self.tables.path(name)
        entry = entry_of(folder)
        if entry is None or (_has_table_file(folder) and is_visible(folder)):
            return
        lease = FileLock.take(folder, is_folder=True)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being created by {entry.owner}, which has not committed yet; wait for "
                "it, or choose another name"
            )
        _throw_away(self.tables, folder)
        lease.release()
        self.tables.empty_trash()

    def begin(self, name: str, entry: Entry, create: Callable[[str], None]) -> LocalStage:
        """A staged table, made by ``create`` in the folder that it is given.

        After a crash there is a folder without a table, or a staged one that no process holds.
        """
        folder = self.tables.path(name)
        path = os.path.join(folder, ENTRY_FILE)
        if not self.tables.is_database:
            storage_of(folder).prepare(self.tables.folder)  # the catalog's lock is one on the warehouse
        with self.tables.alone():
            self.sweep(name)
            if _has_table_file(folder):
                raise TableExistsError(
                    f"table {name!r} exists already; choose another name, or IF NOT EXISTS"
                )
            check_unused(folder)
            storage_of(folder).prepare(folder)
            lease = FileLock.take(folder, is_folder=True)
            if lease is None:  # the catalog's lock excludes that
                raise RuntimeError(f"folder {folder!r} is locked although it is new")
            try:
                put_if_absent(path, content_of(entry.to_json(), ENTRY_FILE))
                reach("create-as.after-entry")
                create(folder)
                reach("create-as.after-table")
            except BaseException:
                _throw_away(self.tables, folder)
                lease.release()
                self.tables.empty_trash()
                raise
        self.tables.empty_trash()
        return LocalStage(folder, lease, self.tables)

    def resume(self, name: str, checkpoint: str) -> LocalStage | None:
        """The table that an earlier run of the same streaming statement has begun; None if there is none."""
        folder = self.tables.path(name)
        with ddl_lock(self.tables.folder):
            entry = entry_of(folder)
            if entry is None or not _has_table_file(folder):
                return None
            if entry.mode != "streaming" or entry.checkpoint != checkpoint:
                return None
            lease = FileLock.take(folder, is_folder=True)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being filled by a query with this checkpoint, started by {entry.owner}; "
                "stop it first"
            )
        return LocalStage(folder, lease, self.tables)

    @contextmanager
    def successor(self, name: str) -> Iterator[str]:
        """A hidden folder for the table that will replace ``name``; it does so when the block ends well.

        The exchange is atomic: readers find the old table before it, the new one after it.
        """
        hidden = os.path.join(self.tables.folder, f"{_REPLACING}{uuid.uuid4().hex}")
        with ddl_lock(self.tables.folder):
            self._sweep_successors()
            with disk_errors_of(hidden):
                os.mkdir(hidden)
            lease = FileLock.take(hidden, is_folder=True)
        try:
            folder = os.path.join(hidden, name)
            yield folder
            with ddl_lock(self.tables.folder):
                reach("create-as.before-exchange")
                old = self.tables.existing(name)
                with disk_errors_of(old):
                    exchange(folder, old)
                reach("create-as.after-exchange")
        finally:
            with ddl_lock(self.tables.folder):
                self.tables.throw_away(hidden)
            if lease is not None:
                lease.release()
            self.tables.empty_trash()

    def entry(self, name: str) -> Entry | None:
        """The entry of a table that a statement fills, or has filled and may continue."""
        return entry_of(self.tables.path(name))

    def _sweep_successors(self) -> None:
        for entry in os.listdir(self.tables.folder):
            if entry.startswith(_REPLACING):
                with suppress(FileNotFoundError):  # it has just ended well
                    hidden = os.path.join(self.tables.folder, entry)
                    if (lease := FileLock.take(hidden, is_folder=True)) is not None:
                        self.tables.throw_away(hidden)
                        lease.release()


def _has_table_file(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, TABLE_FILE))


def _throw_away(tables: Warehouse, folder: str) -> None:
    entry = entry_of(folder)
    if entry is not None and entry.made:
        clean_up(folder, entry.made)
    tables.throw_away(folder)
