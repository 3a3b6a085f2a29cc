"""What a disk or a store did not do, told apart from what is wrong with a file.

Arrow says with an ``OSError``, too, that the content of a file is no such file; it has no ``errno`` then.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from upsert.errors import ConfigurationError, StorageError, UpsertError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)

_ANSWERS: Final = (
    FileNotFoundError, FileExistsError, NotADirectoryError, BlockingIOError,
)  # fmt: skip
"""What callers ask for: they say what exists, and not that it could not be seen."""

_NO_DISK: Final = (*_ANSWERS, ConnectionError, TimeoutError)
"""Beside that, what comes from where rows are read that are being written."""

_REMEDIES: Final = {
    errno.EACCES: "give this process's user the right to the file and its folder",
    errno.EPERM: "give this process's user the right to the file and its folder",
    errno.EROFS: "mount the disk for writing, or choose another one",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or raise the user's quota",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine",
}

_REMEDY: Final = "check the disk and try again; the file need not be damaged"


class DeniedError(StorageError, PermissionError):
    """The user of this process has no right to a file of this machine."""


class RefusedError(StorageError, ConfigurationError):
    """A remote store does not let this user do what was asked."""


@contextmanager
def disk_errors_of(path: str) -> Iterator[None]:
    """Tell what this machine's disk did not do with a file.

    Raises:
        StorageError: it failed. That a file is missing, or is there already, stays the error that it is.
    """
    try:
        yield
    except (UpsertError, *_NO_DISK):
        raise
    except OSError as cause:
        if cause.errno is None:
            raise
        kind = DeniedError if isinstance(cause, PermissionError) else StorageError
        remedy = _REMEDIES.get(cause.errno, _REMEDY)
        found = f"the disk must do what is asked, got {os.strerror(cause.errno)!r}; {remedy}"
        raise kind(cause.errno, found, path) from cause


@contextmanager
def cache_errors_of(folder: str, settings: str) -> Iterator[None]:
    """Tell what the disk of the local copies did not do; the error is not the remote file's.

    Raises:
        StorageError: it failed.
    """
    try:
        yield
    except (UpsertError, *_NO_DISK):
        raise
    except OSError as cause:
        if cause.errno is None:
            raise
        raise StorageError(
            cause.errno,
            f"the cache folder must take copies of files, got {os.strerror(cause.errno)!r}; {settings}",
            folder,
        ) from cause


@contextmanager
def store_errors_of(path: str) -> Iterator[None]:
    """Tell what a remote file system of ``pyarrow.fs`` did not do with a file.

    Raises:
        StorageError: it failed.
    """
    try:
        yield
    except (UpsertError, *_ANSWERS):
        raise
    except OSError as cause:
        kind = RefusedError if isinstance(cause, PermissionError) else StorageError
        raise kind(
            cause.errno or errno.EIO,
            f"the store must do what is asked, got {cause}; see that it can be reached and that its user "
            "has the rights, then try again",
            path,
        ) from cause
