"""What lies under a name in an object store and belongs to no table: of dropped ones, of dead queries."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress

from upsert.errors import CorruptTableError, StorageError, UpsertError
from upsert.store import paths, pointer
from upsert.store.logged_tables import drop_log
from upsert.store.storage import storage_of


class LogLeftWarning(UserWarning):
    """A table is gone, and its log is there still: a later DROP TABLE in the same place takes it away."""


def sweep(folder: str) -> int:
    """Delete what dropped tables, and queries that died, have left under a name; how many folders.

    A folder that is named by a uuid gets its files after ``table.json`` has named it, and is named by no
    other one later. So one that is there, and is not named *afterwards*, will never be needed. Nothing is
    deleted if it cannot be told what the name stands for.

    Raises:
        CorruptTableError: ``table.json`` is damaged.
        OSError: the object store does not say what it has.
    """
    storage = storage_of(folder)
    left = [name for name in storage.names(folder) if paths.is_unique(name)]
    named = pointer.named_folders(pointer.value_in(folder)) if left else frozenset[str]()
    return sum(_delete(folder, name) for name in left if name not in named)


def _delete(folder: str, name: str) -> bool:
    """Delete one after its log, of which only its files know."""
    path = os.path.join(folder, name)
    if not logs_are_gone(path, lambda: drop_log(paths.filling_folder(folder, name))):
        return False
    storage_of(folder).delete_folder(path)
    return True


def logs_are_gone(folder: str, drop: Callable[[], None]) -> bool:
    """Whether the logs of what was in a folder could be dropped; a warning tells of those that could not."""
    try:
        # of what a damaged file says nobody can tell where a log is, and its table must be able to go
        with suppress(CorruptTableError):
            drop()
    except StorageError:
        raise  # the disk or the store failed: the table is still there
    except UpsertError as failure:
        warnings.warn(
            f"a table was dropped, and its log could not be: {failure}; it goes with the next table that is "
            f"dropped there, or delete it yourself, and {folder!r}",
            LogLeftWarning,
            stacklevel=6,
        )
        return False
    return True
