"""What the store asks of the storage in which its files lie, and how it tells what was not done (pure).

Paths are whole: an absolute local path, ``s3://bucket/prefix/name`` or ``hdfs://host/folder/name``. A
name that others watch appears by ``put_if_absent`` alone; all other files have names that are used once.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlsplit

from upsert.errors import ConfigurationError, StorageError, UpsertError
from upsert.retry import retried

T = TypeVar("T")
One = TypeVar("One")


class FileStat(NamedTuple):
    """What is known of a file without reading it.

    ``modified_ns`` is when it was written, in nanoseconds since 1970 by the storage's clock; ``version``
    differs if another file was put under the name.
    """

    size: int
    modified_ns: int
    version: Hashable


class Found(NamedTuple):
    """A file that a walk has met.

    ``name`` is relative to the folder of the walk, with ``/`` between its parts; ``stat`` gives None if the
    file is gone by now.
    """

    name: str
    stat: Callable[[], FileStat | None]


class Versioned(NamedTuple):
    """The content of a file, and what tells it from any other that was or will be under its name."""

    content: bytes
    version: str


class Storage(Protocol):
    """The files of one storage; threads may share it.

    Whatever is missing is a ``FileNotFoundError`` where nothing else is said. An ``OSError`` of a write says
    nothing about whether it has happened. ``mode`` are a file's permissions where files have some, less the
    process's umask.
    """

    is_local: bool
    """Whether it is a file system of this machine, with folders and locks of its own."""

    has_temporary_names: bool
    """Whether every file is written as ``.<name>-<uuid>.tmp`` in its folder, which a crash may leave there.
    On a local file system only what ``put_if_absent`` publishes is."""

    def put_if_absent(self, path: str, content: bytes, mode: int = 0o666) -> bool:
        """Publish content under a name; False if the name is taken, then nothing has changed.

        When it returns True, the file survives a power failure. A crash leaves the whole file or none.

        Raises:
            ConfigurationError: the storage cannot do that.
            UnknownOutcomeError: it may have been published, or may be soon: clean nothing up.
        """

    def publishing_into(self, folder: str, check: Callable[[], None]) -> AbstractContextManager[None]:
        """A block in which files get names in the folder that has this path when it begins.

        On a disk another one may have the path by then, of a table that was created there again; so ``check``
        is called just before a file appears, and raises if it shall not. Elsewhere folders stay in place.
        """

    def replace(self, path: str, content: bytes, mode: int = 0o666) -> None:
        """Put other content under a name: readers see the old or the new, also after a crash."""

    def write(self, path: str, content: bytes) -> None:
        """Write a new file under a name that is used once; it survives a power failure."""

    def prepare(self, folder: str) -> None:
        """Make a folder durable before ``put_if_absent`` of the first file in it."""

    def new_file(self, path: str) -> AbstractContextManager[str]:
        """A local path to write a new large file to; it is there when the block has ended well, else nothing.

        Where ``is_local`` the block syncs what it wrote; ``settle_with_next`` makes the names durable.
        """

    def settle(self, folder: str) -> None:
        """Make the names in a folder durable, now."""

    def settle_with_next(self, folder: str) -> None:
        """Make the names in a folder durable, at the latest when this thread publishes something."""

    def read(self, path: str) -> bytes:
        """The content of a file."""

    def mapped(self, path: str, use: Callable[[str], T]) -> T:
        """What ``use`` makes of a local path at which the file can be mapped into memory.

        The path is good until ``use`` returns, a map of it for as long as it is held. ``use`` may be called
        again.
        """

    def exists(self, path: str) -> bool:
        """Whether there is a file."""

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file; None if there is none."""

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder; an object store knows no empty folder."""

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder."""

    def lock_file(self, root: str, name: str) -> str:
        """A local file that processes of this machine lock in the name of something in ``root``."""

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of a file and its age in seconds by the clock of the storage; None if there is none."""

    def delete(self, path: str) -> bool:
        """Delete a file; False if it is known that there was none."""

    def delete_folder(self, folder: str) -> None:
        """Delete all files below a folder."""


_AT_ONCE: Final = 8


def read_each(storage: Storage, paths: Sequence[str]) -> list[bytes]:
    """The contents of files, in the order of the paths; several are read at once where each is a request.

    ``FileNotFoundError`` is that of the first one that is missing.
    """
    return list(of_each(storage, storage.read, paths))


def delete_each(storage: Storage, paths: Sequence[str], then: Callable[[], None] = lambda: None) -> None:
    """Delete files, several at once where each is a request; ``then`` is called after each."""
    for _ in of_each(storage, storage.delete, paths):
        then()


def of_each(storage: Storage, do: Callable[[One], T], files: Sequence[One]) -> Iterator[T]:
    """What a function of a file gives, in the order of the files; several at once where each is a request."""
    if storage.is_local or len(files) < 2:
        yield from map(do, files)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(files)), "files") as threads:
        yield from threads.map(do, files)


@runtime_checkable
class SwappingStorage(Storage, Protocol):
    """A storage without folders to move, which replaces a file only if it is still the one that was seen."""

    def versioned(self, path: str) -> Versioned | None:
        """A file as it is now; None if there is none."""

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = 0o666) -> bool:
        """Put other content in the place of what was seen; False if that is gone.

        Of several that have seen the same, one wins. A crash leaves the one content or the other.

        Raises:
            ConfigurationError: the storage cannot do that.
            UnknownOutcomeError: it may have happened, or may be about to.
        """

    def take_away(self, path: str, instead: bytes) -> None:
        """Delete a file that others swap, or leave ``instead`` where a deletion could be undone by a swap."""


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
    errno.EFBIG: "raise the limit of the size of files of this process (ulimit -f)",
    errno.EISDIR: "move the folder away that is where a file should be",
    errno.EROFS: "mount the disk for writing, or choose another one",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or raise the user's quota",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine",
}

_REMEDY: Final = "check the disk and try again; the file need not be damaged"


class DeniedError(StorageError, PermissionError):
    """The user of this process has no right to a file of this machine, or its disk is for reading only."""


class RefusedError(StorageError, ConfigurationError):
    """A remote store does not let this user do what was asked."""


DENIED: Final = (PermissionError, RefusedError)
"""What says that this user may not do something: of a disk, and of a remote store."""


class UnansweredError(StorageError):
    """A remote store did not answer, or said that it has failed; the request may have been carried out."""


_TRIES: Final = 20
"""Together the pauses last about a minute: a stand-by name node needs less to take over."""


def repeated(action: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """What an action gives that may be done again where a remote store did not answer."""
    return retried(
        action,
        is_passing=lambda failure: isinstance(failure, UnansweredError),
        first_pause_s=0.05,
        longest_pause_s=5.0,
        tries=_TRIES,
        jitter=random.uniform,
        sleep=sleep,
    )


class disk_errors_of:  # noqa: N801 - used as a function; a generator takes five times as long
    """Tell what this machine's disk did not do with a file, or with the folder of local copies.

    With ``cache_remedy`` it is the latter: then the error is not the remote file's. Arrow says with an
    ``OSError``, too, that the content of a file is no such file; it has no ``errno`` then, and goes on.

    Raises:
        StorageError: it failed. That a file is missing, or is there already, stays the error that it is.
    """

    __slots__ = ("_cache_remedy", "_path")

    def __init__(self, path: str, cache_remedy: str | None = None) -> None:
        self._path = path
        self._cache_remedy = cache_remedy

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(
        self, type_: type[BaseException] | None, cause: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise what the error means to who reads it."""
        if not isinstance(cause, OSError) or isinstance(cause, (UpsertError, *_NO_DISK)):
            return
        if cause.errno is None:
            return
        kind, reason = StorageError, os.strerror(cause.errno)
        found = f"the cache folder must take copies of files, got {reason!r}; {self._cache_remedy}"
        if self._cache_remedy is None:
            is_denied = isinstance(cause, PermissionError) or cause.errno == errno.EROFS
            kind = DeniedError if is_denied else StorageError
            found = f"the disk must do what is asked, got {reason!r}; {_REMEDIES.get(cause.errno, _REMEDY)}"
        raise kind(cause.errno, found, self._path) from cause


def settings_of(beside: str, query: str | None) -> dict[str, str]:
    """Settings as the store keeps them, ``;name=value`` beside the host, and as users write them at the end.

    >>> settings_of(";region=eu-west-1", "endpoint=http://host:9000")
    {'region': 'eu-west-1', 'endpoint': 'http://host:9000'}
    """
    given = [part.partition("=")[::2] for part in beside.split(";")[1:]]
    kept = {name: unquote(value) for name, value in given}
    return kept | dict(parse_qsl(query or "", keep_blank_values=True))


def is_http_address(value: str) -> bool:
    """Whether this is the address of a server, without user, path and query.

    >>> is_http_address("http://host:9000"), is_http_address("http://me@host"), is_http_address("host:9000")
    (True, False, False)
    """
    try:
        parts = urlsplit(value)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return is_server and "@" not in value and not (parts.path.strip("/") or parts.query or parts.fragment)
