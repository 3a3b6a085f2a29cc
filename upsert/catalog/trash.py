"""What dropped tables leave: their files, and the logs that belong to them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Final

from upsert.errors import CorruptTableError
from upsert.store.left_folders import logs_are_gone
from upsert.store.logged_tables import drop_log
from upsert.store.paths import TABLE_FILE

DROPPED: Final = ".dropped-"
"""Prefix of the folders of dropped tables; no table can have such a name."""


def empty_trash(warehouse: str) -> None:
    """Delete logs and files of what was dropped in a folder, also where a DROP TABLE was killed half-way."""
    for entry in os.listdir(warehouse):
        if entry.startswith(DROPPED):
            _delete(os.path.join(warehouse, entry))


def _delete(folder: str) -> None:
    """Delete the folder of a table, or of several, after their logs: only their files know of these."""
    if not logs_are_gone(folder, lambda: _drop_logs(folder)):
        return
    with suppress(FileNotFoundError):  # another process empties it too
        shutil.rmtree(folder)


def _drop_logs(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, TABLE_FILE)):
        # of what a damaged file says nobody can tell where a log is, and its table must be able to go
        with suppress(CorruptTableError):
            drop_log(folder)
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if os.path.isdir(os.path.join(folder, name)):
                _drop_logs(os.path.join(folder, name))
