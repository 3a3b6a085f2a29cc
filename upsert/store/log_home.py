"""Where a table lay when its log was made: a copy of its folder does not take the original's topic away.

``log/home`` names the folder and, on a local disk, its inode. Who is in that folder, or in one of that inode
after a move, is the table; another folder with the same files is a copy, whose log is the original's. A table
of an older release has no such file until it publishes next, and counts as the original.
"""

from __future__ import annotations

import os

from upsert.errors import CorruptTableError
from upsert.store import paths
from upsert.store.checked_json import content_of, parse_versioned, subject_of
from upsert.store.storage import storage_of

_claimed: set[str] = set()
"""Folders of which this process knows that they have the file."""


def claim(root: str, uuid: str, *, anew: bool = False) -> None:
    """Say that a table's log belongs to the table in this folder.

    Args:
        root: where the table's files lie.
        uuid: of the table.
        anew: whether that replaces what the file says, as for a new log; else the first one stays.
    """
    if root in _claimed and not anew:
        return
    path, storage = _path(root), storage_of(root)
    content = content_of({"folder": root, "inode": _inode(root)}, subject_of(uuid, paths.LOG_HOME))
    if anew:
        storage.replace(path, content)
    elif not storage.exists(path):
        storage.prepare(os.path.dirname(path))
        storage.put_if_absent(path, content)
    _claimed.add(root)


def is_home(root: str, uuid: str) -> bool:
    """Whether the log of the table in a folder is its own.

    Raises:
        CorruptTableError: what says so is damaged.
    """
    path = _path(root)
    try:
        found = parse_versioned(storage_of(root).read(path), path, subject_of(uuid, paths.LOG_HOME))
    except FileNotFoundError:
        return True
    folder, inode = found.get("folder"), found.get("inode")
    if not isinstance(folder, str) or not isinstance(inode, int | None):
        raise CorruptTableError(f"{path}: it must name a folder and an inode, got {found!r}; restore it")
    return folder == root or (inode is not None and inode == _inode(root))


def _path(root: str) -> str:
    return os.path.join(root, paths.LOG_HOME)


def _inode(root: str) -> int | None:
    """What stays the same when a local folder is moved, and differs in a copy; None elsewhere."""
    return os.stat(root).st_ino if storage_of(root).is_local else None
