"""The staged tables of a warehouse by name: begun, filled, and made visible or swept away."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upsert.catalog import persistence, staged
from upsert.catalog.bucket_stages import BucketStages
from upsert.catalog.exchange import exchange
from upsert.catalog.staged import Entry, Lease
from upsert.catalog.stages import CleanUp, Stages
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, TableExistsError
from upsert.store.failpoints import reach
from upsert.store.paths import SNAPSHOT_FOLDER, TABLE_FILE
from upsert.store.storage import storage_of
from upsert.store.storage.local import make_parent

_REPLACING: Final = ".replacing-"
"""Prefix of folders in which the successor of a table is filled; no table can have such a name."""


@dataclass
class Stage:
    """A table that this process fills.

    Attributes:
        folder: where the table lies.
        lease: the lock on it.
    """

    folder: str
    lease: Lease
    _tables: Warehouse
    _clean_up: CleanUp

    @property
    def is_visible(self) -> bool:
        """Whether everybody sees the table: it has a commit, or was done before."""
        return staged.is_visible(self.folder)

    def remember(self, made: tuple[str, ...]) -> None:
        """Note what was made outside, so that it goes away with the table if that is never seen."""
        staged.mark(self.folder, made=made)

    def show(self) -> None:
        """Let everybody see the table, while it is filled on."""
        staged.mark(self.folder, is_done=True)

    def show_after_commit(self) -> None:
        """Let everybody see a table that lies elsewhere; a managed one is seen by its own first commit."""
        if not os.path.isdir(os.path.join(self.folder, SNAPSHOT_FOLDER)):
            self.show()

    def done(self, *, forget: bool) -> None:
        """Let everybody see the table, and let go of it.

        Args:
            forget: also take away the entry, by which the same statement could go on.
        """
        if forget:
            staged.forget(self.folder)
        else:
            self.show()
        reach("create-as.after-done")
        self.lease.release()

    def let_go(self) -> None:
        """Leave the table as it is, for the same statement to go on."""
        self.lease.release()

    def discard(self) -> None:
        """Take the table away unless somebody may have seen it, and let go of it."""
        with persistence.ddl_lock(self._tables.folder):
            # looked at under the lock, and a moved folder takes no commit any more
            if not self.is_visible:
                _throw_away(self._tables, self.folder, self._clean_up)
        self.lease.release()
        self._tables.empty_trash()


@dataclass(frozen=True)
class StagedTables:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse on a disk."""

    tables: Warehouse
    clean_up: CleanUp

    def sweep(self, name: str) -> None:
        """Take away the staged table of this name that a dead process has left, if there is one.

        The caller holds the catalog's lock.

        Raises:
            TableExistsError: a living process fills a staged table of this name.
        """
        folder = self.tables.path(name)
        entry = staged.entry_of(folder)
        if entry is None or (self._has_table_file(folder) and staged.is_visible(folder)):
            return
        lease = Lease.take(folder)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being created by {entry.owner}, which has not committed yet; wait for "
                "it, or choose another name"
            )
        _throw_away(self.tables, folder, self.clean_up)
        lease.release()
        self.tables.empty_trash()

    def begin(self, name: str, entry: Entry, create: Callable[[str], None]) -> Stage:
        """A staged table, made by ``create`` in the folder that it is given.

        Raises:
            TableExistsError: there is a table, or a living process fills one.
        """
        folder = self.tables.path(name)
        make_parent(folder)  # the catalog's lock is one on the warehouse
        with persistence.ddl_lock(self.tables.folder):
            self.sweep(name)
            if self._has_table_file(folder):
                raise TableExistsError(
                    f"table {name!r} exists already; choose another name, or IF NOT EXISTS"
                )
            stage = self._stage(folder, staged.begin(folder, entry))
            create(folder)
            reach("create-as.after-table")
        self.tables.empty_trash()
        return stage

    def resume(self, name: str, checkpoint: str) -> Stage | None:
        """The table that an earlier run of the same streaming statement has begun; None if there is none.

        Raises:
            TableExistsError: that run still lives.
        """
        folder = self.tables.path(name)
        with persistence.ddl_lock(self.tables.folder):
            entry = staged.entry_of(folder)
            if entry is None or not self._has_table_file(folder):
                return None
            if entry.mode != "streaming" or entry.checkpoint != checkpoint:
                return None
            lease = Lease.take(folder)
        if lease is None:
            raise TableExistsError(
                f"table {name!r} is being filled by a query with this checkpoint, started by {entry.owner}; "
                "stop it first"
            )
        return self._stage(folder, lease)

    @contextmanager
    def successor(self, name: str) -> Iterator[str]:
        """A hidden folder for the table that will replace ``name``; it does so when the block ends well.

        Readers find the old table until then, and the new one from that moment on.

        Raises:
            ConfigurationError: the file system cannot exchange two folders.
            TableNotFoundError: the old table has been dropped meanwhile.
        """
        hidden = os.path.join(self.tables.folder, f"{_REPLACING}{uuid.uuid4().hex}")
        with persistence.ddl_lock(self.tables.folder):
            self._sweep_successors()
            Path(hidden).mkdir()
            lease = Lease.take(hidden)
        try:
            folder = os.path.join(hidden, name)
            yield folder
            with persistence.ddl_lock(self.tables.folder):
                reach("create-as.before-exchange")
                exchange(folder, self.tables.existing(name))
                reach("create-as.after-exchange")
        finally:
            with persistence.ddl_lock(self.tables.folder):
                self.tables.throw_away(hidden)
            if lease is not None:
                lease.release()
            self.tables.empty_trash()

    def drop(self, name: str) -> bool:
        """Drop a table of the warehouse."""
        return self.tables.drop(name)

    def entry(self, name: str) -> Entry | None:
        """What is said of a table that a statement fills, or has filled and may go on with."""
        return staged.entry_of(self.tables.path(name))

    def _stage(self, folder: str, lease: Lease) -> Stage:
        return Stage(folder, lease, self.tables, self.clean_up)

    def _has_table_file(self, folder: str) -> bool:
        return os.path.isfile(os.path.join(folder, TABLE_FILE))

    def _sweep_successors(self) -> None:
        for entry in os.listdir(self.tables.folder):
            if entry.startswith(_REPLACING):
                with suppress(FileNotFoundError):  # it has just ended well
                    if (lease := Lease.take(os.path.join(self.tables.folder, entry))) is not None:
                        self.tables.throw_away(os.path.join(self.tables.folder, entry))
                        lease.release()


def _throw_away(tables: Warehouse, folder: str, clean_up: CleanUp) -> None:
    entry = staged.entry_of(folder)
    if entry is not None and entry.made:
        clean_up(folder, entry.made)
    tables.throw_away(folder)


def stages_of(tables: Warehouse, clean_up: CleanUp) -> Stages:
    """What ``CREATE TABLE … AS SELECT`` needs of a warehouse, on a disk or in an object store."""
    if storage_of(tables.folder).is_local:
        return StagedTables(tables, clean_up)
    return BucketStages(tables, clean_up)


def refuse_connector(name: str, folder: str) -> None:
    """Only managed tables are replaced: what another table holds lies elsewhere.

    Raises:
        ConfigurationError: the table has a connector.
    """
    if persistence.load(folder) is not None:
        raise ConfigurationError(
            f"table {name!r}: only a managed table can be replaced, got one with a connector; DROP TABLE "
            "first, or choose another name"
        )
