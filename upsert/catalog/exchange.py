"""Two folders change places at one moment: what ``os.rename`` cannot do, and the systems below it can."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

from upsert.errors import ConfigurationError
from upsert.store.storage.local import sync_folder

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
            f"folder {other!r} must be on a file system that can exchange two folders at one moment, got one "
            "that cannot; DROP TABLE and create it again"
        )
    sync_folder(os.path.dirname(one))
    sync_folder(os.path.dirname(other))
