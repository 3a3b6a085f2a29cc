"""What streaming queries keep beside a table: the newest rows of a topic, or the rows of a sink's keys.

Each query has a folder that its id names. One that begins with another checkpoint is another query, and the
folder of the one before stays: whether that comes again no file can tell. So a folder goes by an age that the
user chooses. A query that comes again nevertheless finds none of its rows, and ends with an error that says
so: what it keeps begins with its first micro-batch.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

from upsert.failpoints import reach
from upsert.store import paths
from upsert.store.storage import storage_of
from upsert.store.storage.local import sync_folder

FORGOTTEN: Final = "forget.after-rename"
"""A point of ``upsert.failpoints`` at which a test can kill the process."""


def forget_queries(folder: str, before_s: float, spared: Collection[str]) -> list[str]:
    """Delete what queries keep in a folder and have not changed since a time; their ids.

    After a crash a query has all of it or none; the next call deletes what is left.

    Args:
        folder: that of a table with what queries keep, each by its id; it need not be there.
        before_s: the time, in s since 1970, by the clock of the storage.
        spared: ids of queries that run.
    """
    storage, found = storage_of(folder), list[str]()
    with suppress(FileNotFoundError, NotADirectoryError):
        names = storage.names(folder)
        for name in sorted(names):
            if name.startswith(paths.DROPPED):
                storage.delete_folder(os.path.join(folder, name))
            elif _is_id(name) and name not in spared and _is_older(os.path.join(folder, name), before_s):
                drop_folder(folder, name, FORGOTTEN)
                found.append(name)
    return found


def drop_folder(folder: str, name: str, point: str) -> None:
    """Delete a folder with tables: from one moment on, which is a ``point`` of tests, they are not there."""
    path, storage = os.path.join(folder, name), storage_of(folder)
    if storage.is_local:
        dropped = path
        if not name.startswith(paths.DROPPED):
            dropped = os.path.join(folder, f"{paths.DROPPED}{uuid4().hex}")
            os.rename(path, dropped)
            sync_folder(folder)
        path = dropped
    else:  # their files lie in folders that have the tables' uuids: others of these names have none of them
        for table in _tables(path):
            storage.delete(table)
    reach(point)
    storage.delete_folder(path)


def _tables(folder: str) -> Iterator[str]:
    for found in list(storage_of(folder).walk(folder)):
        if found.name.rpartition("/")[2] == paths.TABLE_FILE:
            yield os.path.join(folder, found.name)


def _is_id(name: str) -> bool:
    """Whether a folder has the name of a query's id: mirrors and others lie beside such ones."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _is_older(folder: str, before_s: float) -> bool:
    """Whether a folder has files, and all were written before a time."""
    stats = [found.stat() for found in storage_of(folder).walk(folder)]
    return bool(stats) and all(stat is not None and stat.modified_ns < before_s * 1e9 for stat in stats)
