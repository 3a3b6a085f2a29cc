"""A folder of tables: which ones lie in it, by name, and how one is dropped atomically.

In an object store nothing can be moved, so tables come and go by ``table.json``: it appears by put-if-absent
and goes by a deletion, each of which is atomic. The other files of a managed table lie in a folder that
is named by its uuid, so what remains of a dropped table is never taken for the next one's, and can be deleted
at any time: nothing appears in such a folder before ``table.json`` names it.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Final

from upsert.catalog.create_as.stages import is_visible
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    DatabaseNotFoundError,
    TableExistsError,
    TableNotFoundError,
)
from upsert.flock import locked
from upsert.options import suggestion
from upsert.retry import retried
from upsert.sql.tokens import NAME, NAME_RULE
from upsert.store.log.lifecycle import drop_log
from upsert.store.metadata import table_file
from upsert.store.metadata.table_file import FREE
from upsert.store.paths import COMPACTION_ERROR, TABLE_FILE
from upsert.store.storage import of_each, storage_of, swapping
from upsert.store.storage.base import disk_errors_of
from upsert.store.storage.local import sync_folder
from upsert.store.upkeep.orphans import logs_are_gone, only_warned_of, sweep


@contextmanager
def ddl_lock(warehouse: str) -> Iterator[None]:
    """Let one statement at a time create or drop a table; the lock is released when its process dies.

    Publishing ``table.json`` needs no lock, but the folders around it are made step by step, and a drop in
    between would delete them. While there is no warehouse, there is nothing to drop, and no lock. An
    object store has no folders and needs none.
    """
    if not storage_of(warehouse).is_local:
        yield
        return
    with ExitStack() as held:
        with suppress(FileNotFoundError, NotADirectoryError), disk_errors_of(warehouse):
            held.enter_context(locked(warehouse, is_folder=True))
        yield


DROPPED: Final = ".dropped-"
"""Prefix of the folders of dropped tables; no table can have such a name."""


def _drop_logs(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, TABLE_FILE)):
        # a damaged file does not say where a log is, and its table must still be droppable
        with suppress(CorruptTableError):
            drop_log(folder)
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if os.path.isdir(os.path.join(folder, name)):
                _drop_logs(os.path.join(folder, name))


_NOT_EMPTY: Final = (errno.ENOTEMPTY, errno.EEXIST)
_TRIES: Final = 10


def checked_name(name: str, what: str) -> str:
    """The name; refuses one that no table, database or catalog can have."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(f"a {what}'s name must be {NAME_RULE}, got {name!r}; choose another name")
    return name


@dataclass(frozen=True)
class Warehouse:
    """Tables are the folders directly in ``folder`` that have a ``table.json``.

    Attributes:
        folder: where they lie.
        is_database: whether it is the folder of a database, which no table makes.
    """

    folder: str
    is_database: bool = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one statement at a time create or drop a table here, as ``ddl_lock`` does.

        Raises:
            DatabaseNotFoundError: the database was dropped meanwhile.
        """
        with ExitStack() as held:
            if not self.is_database or not storage_of(self.folder).is_local:
                held.enter_context(ddl_lock(self.folder))
            else:
                try:
                    with disk_errors_of(self.folder):
                        held.enter_context(locked(self.folder, is_folder=True))
                except (FileNotFoundError, NotADirectoryError):
                    raise DatabaseNotFoundError(
                        f"database {self.folder!r} must be there until the statement has ended, it was "
                        "dropped meanwhile; create it again"
                    ) from None
            yield

    def names(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""
        storage = storage_of(self.folder)
        try:
            entries = sorted(filter(NAME.fullmatch, storage.names(self.folder)))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(compress(entries, of_each(storage, self._has, entries)))

    def files_of_others(self) -> list[str]:
        """Names in the folder, sorted, that are neither a table nor what statements make or leave there."""
        names = sorted(name for name in os.listdir(self.folder) if not name.startswith("."))
        places = ((name, os.path.join(self.folder, name)) for name in names)
        return [
            name
            for name, path in places
            if os.path.islink(path) or not os.path.isdir(path) or table_file.files_of_others(path)
        ]

    def path(self, name: str) -> str:
        """The folder of a table, whether it exists or not: directly in the warehouse, and not behind a link.

        Raises:
            ConfigurationError: no table can have this name here.
        """
        path = os.path.join(self.folder, checked_name(name, "table"))
        if os.path.islink(path):
            raise ConfigurationError(
                f"table {name!r} must lie in the warehouse {self.folder!r}, got a link to "
                f"{os.path.realpath(path)!r}; open it as Table.open({os.path.realpath(path)!r})"
            )
        return path

    def existing(self, name: str) -> str:
        """The folder of an existing table; a name without one is refused."""
        path = self.path(name)
        if not self._has(name):
            raise self.not_found(name)
        return path

    def has(self, name: str) -> bool:
        """Whether there is a table of this name; in an object store one request says it."""
        return NAME.fullmatch(name) is not None and self._has(name)

    def is_taken(self, name: str) -> bool:
        """Whether a name is in use, also by what a query fills, or has left when it died."""
        return os.path.isdir(self.path(name))

    def drop(self, name: str) -> bool:
        """Drop a table with all that lies in its folder; False if there is none.

        The drop is atomic; files that remain after a crash are deleted with the next table dropped.
        """
        path = self.path(name)
        with ddl_lock(self.folder):
            if not self._has(name):
                return False
            self.throw_away(path)
        self.empty_trash()
        return True

    def rename(self, name: str, to: Warehouse, new: str, prepare: Callable[[], None]) -> None:
        """Atomically give a table another name, maybe in another database of the warehouse.

        ``prepare`` is called while no other statement creates or drops a table.
        """
        target = to.path(new)
        if not storage_of(target).is_local:
            raise ConfigurationError(
                f"table {name!r}: a table in an object store keeps its name, got RENAME TO {new!r}; create "
                "a table of that name and INSERT INTO it"
            )
        with ExitStack() as locks:
            for one in sorted({self, to}, key=lambda one: one.folder):
                locks.enter_context(one.alone())
            prepare()
            # a writer of a table that had the name may make its folder in between
            retried(
                lambda: self._rename(name, to, target),
                is_passing=lambda failure: isinstance(failure, OSError) and failure.errno in _NOT_EMPTY,
                first_pause_s=0.001,
                tries=_TRIES,
            )
        to.empty_trash()

    def _rename(self, name: str, to: Warehouse, target: str) -> None:
        if os.path.lexists(target):
            if not os.path.isdir(target) or os.path.lexists(os.path.join(target, TABLE_FILE)):
                raise TableExistsError(
                    f"table {os.path.basename(target)!r} exists already in {to.folder!r}; choose another name"
                )
            table_file.check_unused(target)
            to.throw_away(target)  # what writers have left of a table that had the name
        with disk_errors_of(target):
            os.rename(self.existing(name), target)
            sync_folder(to.folder)
            sync_folder(self.folder)

    def throw_away(self, path: str) -> None:
        """Atomically move a folder out of sight, to be deleted; the caller holds the catalog's lock."""
        with disk_errors_of(path):
            os.rename(path, os.path.join(self.folder, f"{DROPPED}{uuid.uuid4().hex}"))
            sync_folder(self.folder)

    def not_found(self, name: str) -> TableNotFoundError:
        """The error for an unknown table, with the names that exist."""
        known = self.names()
        if not known and storage_of(self.folder).is_local and not os.path.isdir(self.folder):
            return TableNotFoundError(
                f"table {name!r} does not exist in {self.folder!r}, which is no folder yet; CREATE TABLE "
                "makes it, or correct the warehouse's path"
            )
        hint = suggestion(name, known, "tables are") if known else "it has no tables yet"
        return TableNotFoundError(f"table {name!r} does not exist in {self.folder!r}; {hint}")

    def _has(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        is_table = not os.path.islink(path) and os.path.isfile(os.path.join(path, TABLE_FILE))
        return is_table and is_visible(path)

    def empty_trash(self) -> None:
        """Delete logs and files of what was dropped, also where a DROP TABLE was killed half-way.

        What cannot be deleted is warned of.
        """
        entries: list[str] = []
        with suppress(FileNotFoundError):  # a database that was dropped meanwhile is trash itself
            entries = os.listdir(self.folder)
        for entry in entries:
            folder = os.path.join(self.folder, entry)
            if entry.startswith(DROPPED):
                with only_warned_of(folder):
                    _delete_dropped(folder)


def _delete_dropped(folder: str) -> None:
    # the logs go first: only the files of a table know of its log
    if logs_are_gone(folder, partial(_drop_logs, folder)):
        with suppress(FileNotFoundError):  # another process empties it too
            shutil.rmtree(folder)


@dataclass(frozen=True)
class ObjectStoreWarehouse(Warehouse):
    """Such a folder in an object store."""

    def is_taken(self, name: str) -> bool:
        """Whether a name is in use, also by what a query fills or has left."""
        return not table_file.is_free(table_file.value_in(self.path(name)))

    def drop(self, name: str) -> bool:
        """Drop a table with all its files; False if there is none.

        The drop is atomic; files that remain, of which a warning tells unless it was a crash, are deleted
        when a table of this name is dropped again. Its log goes first, for only its files know of it.
        """
        path = self.path(name)
        if not self._has(name):
            return False
        drop_log(path)
        table_file = os.path.join(path, TABLE_FILE)
        swapping(table_file).take_away(table_file, FREE)
        with only_warned_of(path):
            storage_of(path).delete(os.path.join(path, COMPACTION_ERROR))
            sweep(path)
        return True

    def empty_trash(self) -> None:
        """Nothing: what is dropped is deleted where it lies."""

    def _has(self, name: str) -> bool:
        try:
            return table_file.has_table(table_file.value_in(os.path.join(self.folder, name)))
        except CorruptTableError:
            return True  # it can be dropped


def warehouse_at(folder: str, *, is_database: bool = False) -> Warehouse:
    """The tables of a local folder, or of one in an object store."""
    kind = Warehouse if storage_of(folder).is_local else ObjectStoreWarehouse
    return kind(folder, is_database)
