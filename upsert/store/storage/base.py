"""What the store asks of the storage in which its files lie (pure).

Paths are whole: an absolute local path, ``s3://bucket/prefix/name`` or ``hdfs://host/folder/name``. A
name that others watch appears by ``put_if_absent`` alone; all other files have names that are used once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class FileStat(NamedTuple):
    """What is known of a file without reading it.

    Attributes:
        size: in bytes.
        modified_ns: when it was written, in nanoseconds since 1970, by the clock of the storage.
        version: differs if another file was put under the name.
    """

    size: int
    modified_ns: int
    version: Hashable


class Found(NamedTuple):
    """A file that a walk has met.

    Attributes:
        name: relative to the folder of the walk, with ``/`` between its parts.
        stat: what is known of it; None if it is gone by now.
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
    nothing about whether it has happened.

    Attributes:
        is_local: whether it is a file system of this machine, with folders and locks of its own.
        has_temporary_names: whether every file is written as ``.<name>-<uuid>.tmp`` in its folder, which
            a crash may leave there. On a local file system only what ``put_if_absent`` publishes is.
    """

    is_local: bool
    has_temporary_names: bool

    def put_if_absent(self, path: str, content: bytes, mode: int = 0o666) -> bool:
        """Publish content under a name; False if the name is taken, then nothing has changed.

        When it returns True, the file survives a power failure. A crash leaves the whole file or none.

        Raises:
            ConfigurationError: the storage cannot do that.
            UnknownOutcomeError: it may have been published, or may be soon: clean nothing up.
        """

    def replace(self, path: str, content: bytes, mode: int = 0o666) -> None:
        """Put other content under a name: readers see the old or the new, also after a crash.

        ``mode`` are a file's permissions where files have some, less the process's umask.
        """

    def write(self, path: str, content: bytes) -> None:
        """Write a new file under a name that is used once; it survives a power failure."""

    def prepare(self, folder: str) -> None:
        """Make a folder durable before ``put_if_absent`` of the first file in it."""

    def new_file(self, path: str) -> AbstractContextManager[str]:
        """A local path to write a new large file to; it is there when the block has ended well.

        The block syncs what it wrote; ``settle`` makes the names durable. Nothing is left of a block that
        fails.
        """

    def settle(self, folder: str) -> None:
        """Make the names of files in a folder durable that ``new_file`` has made."""

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


@runtime_checkable
class SwappingStorage(Storage, Protocol):
    """A storage without folders to move, which replaces a file only if it is still the one that was seen."""

    def versioned(self, path: str) -> Versioned | None:
        """A file as it is now; None if there is none."""

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = 0o666) -> bool:
        """Put other content in the place of what was seen; False if that is gone.

        Of several that have seen the same, one wins. A crash leaves the one content or the other. ``mode``
        are a file's permissions where files have some.

        Raises:
            ConfigurationError: the storage cannot do that.
            UnknownOutcomeError: it may have happened, or may be about to.
        """

    def take_away(self, path: str, instead: bytes) -> None:
        """Delete a file that others swap, or leave ``instead`` where a deletion could be undone by a swap."""
