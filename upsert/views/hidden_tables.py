"""The hidden tables of a view: which there are, who reads them, and how those go that nothing needs any more.

They lie in the view's folder. What they are is the planner's; here they are tables that a refresh reads, and
that another plan may not need. A refresh says that it runs, so that no other process drops what it reads: on
a local disk by a shared lock of the kernel, elsewhere by a lease of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple
from uuid import uuid4

from upsert.errors import TableNotFoundError, UpsertError
from upsert.failpoints import reach
from upsert.flock import FileLock
from upsert.store import paths
from upsert.store.read.snapshot import Snapshot
from upsert.store.storage import storage_of
from upsert.store.storage.lease import LEASE_S, KeptLease, age
from upsert.store.table import Table
from upsert.store.upkeep.query_state import drop_folder

HIDDEN_TABLES: Final = paths.STAGES_FOLDER
"""Folder of the tables that a view keeps, in that of its own."""

POINTS: Final = ("view.before-drop", "view.within-drop", "view.after-drop")
"""Points of ``upsert.failpoints`` at which a test can kill the process that drops hidden tables."""

_LEASES: Final = "refreshing"
"""Folder of the leases of refreshes, where there are no locks of the kernel."""

_DROPPING: Final = "dropping"
"""The lease of the process that drops tables; those of refreshes are named by uuids."""

_DIGITS: Final = 21
"""So many characters end the name of a lease's object: its number, after a hyphen."""


def consumer_of(uuid: str, hidden: str = "") -> str:
    """The name under which a view, or a hidden table of it, holds changes until it has read them."""
    return f"view-{uuid}-{hidden}" if hidden else f"view-{uuid}"


class Hidden(NamedTuple):
    """A hidden table: its uuid, and its newest snapshot."""

    uuid: str
    head: Snapshot


def hidden_tables(root: str) -> dict[str, Hidden]:
    """The hidden tables of the view whose files lie in a folder, by name."""
    found = {}
    for name in sorted(_names(root)):
        path = os.path.join(root, HIDDEN_TABLES, name)
        try:
            table = Table.open(path)
            found[name] = Hidden(table.uuid, table.snapshot())
        except UpsertError:
            if storage_of(path).exists(os.path.join(path, paths.TABLE_FILE)):
                raise
            # else it was dropped a moment ago, or by a process that has died in between
    return found


def uuids_of(root: str, names: Iterable[str]) -> dict[str, str]:
    """The uuids of the hidden tables of these names; of those that are there."""
    folder, found = os.path.join(root, HIDDEN_TABLES), {}
    for name in names:
        with suppress(TableNotFoundError):
            found[name] = Table.open(os.path.join(folder, name)).uuid
    return found


@contextmanager
def reading(root: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Let no process drop hidden tables of the view meanwhile; waits for one that does so just now."""
    folder = os.path.join(root, HIDDEN_TABLES)
    if storage_of(root).is_local:
        os.makedirs(folder, exist_ok=True)
        lock = FileLock.take(folder, wait=True, is_folder=True, is_shared=True)
        assert lock is not None  # it waits
        with lock:
            yield
        return
    lease = KeptLease.take(os.path.join(root, _LEASES, uuid4().hex))
    assert lease is not None  # its name is new
    try:
        # what drops tables takes its lease before it looks at those of refreshes
        while (silent_s := age(storage_of(root), os.path.join(root, _LEASES, _DROPPING))) is not None:
            if silent_s > LEASE_S:
                break
            sleep(1.0)
        yield
    finally:
        lease.release(for_good=True)


def drop_unused(root: str, uuid: str, needed: Collection[str], bases: Iterable[str]) -> bool:
    """Drop the hidden tables that a view does not need; False if another refresh runs, which may read them.

    After a crash a table is there or not, never half of one; the next call deletes what is left of it.

    Args:
        root: folder of the files of the view's table.
        uuid: of that table.
        needed: names of the hidden tables that its refreshes read.
        bases: folders of the tables that the view's query reads.
    """
    unused = [name for name in _names(root, also_dropped=True) if name not in needed]
    if not unused:
        return True
    with _alone(root) as is_alone:
        if is_alone:
            reach(POINTS[0])
            _release(root, uuid, unused, needed, bases)
            for name in unused:
                drop_folder(os.path.join(root, HIDDEN_TABLES), name, POINTS[1])
            reach(POINTS[2])
        return is_alone


def _names(root: str, *, also_dropped: bool = False) -> list[str]:
    storage, folder = storage_of(root), os.path.join(root, HIDDEN_TABLES)
    names = storage.names(folder) if HIDDEN_TABLES in storage.names(root) else []
    # what else begins with a dot a system has put there, as .DS_Store
    dropped = paths.DROPPED if also_dropped else ()
    return [name for name in names if not name.startswith(".") or name.startswith(dropped)]


@contextmanager
def _alone(root: str) -> Iterator[bool]:
    """Whether no refresh of the view runs, nor begins meanwhile."""
    if storage_of(root).is_local:
        lock = FileLock.take(os.path.join(root, HIDDEN_TABLES), is_folder=True)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()
        return
    lease = KeptLease.take(os.path.join(root, _LEASES, _DROPPING))
    try:
        yield lease is not None and not _refreshing(root)
    finally:
        if lease is not None:
            lease.release()


def _refreshing(root: str) -> bool:
    """Whether a process has a lease of a refresh; forgets those of processes that have died."""
    storage, folder = storage_of(root), os.path.join(root, _LEASES)
    found = False
    for name in storage.names(folder):
        if name.startswith(_DROPPING):
            continue
        silent_s = age(storage, os.path.join(folder, name[:-_DIGITS]))
        if silent_s is not None and silent_s <= LEASE_S:
            found = True
        else:
            storage.delete(os.path.join(folder, name))
    return found


def _release(
    root: str, uuid: str, unused: Iterable[str], needed: Iterable[str], bases: Iterable[str]
) -> None:
    """Let other tables expire what the unused ones hold."""
    folder = os.path.join(root, HIDDEN_TABLES)
    names = {consumer_of(uuid, name) for name in unused}
    release((*bases, *(os.path.join(folder, name) for name in needed)), names.__contains__)


def release_all(uuid: str, tables: Iterable[str]) -> None:
    """End the leases that a view and its hidden tables have of the tables in some folders."""
    of_view = consumer_of(uuid)
    release(tables, lambda name: name.startswith(of_view))


def release(tables: Iterable[str], is_over: Callable[[str], bool]) -> None:
    """End the leases of some consumers, by their names; one that cannot be ended here ends by itself."""
    for path in tables:
        with suppress(UpsertError, OSError):
            table = Table.open(path)
            for consumer in table.consumers():
                if is_over(consumer.name):
                    table.release(consumer.name)
