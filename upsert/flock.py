"""Locks of the kernel on files and folders: released when their holder dies, however that happens."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Self

TOLD_AFTER_S: Final = 10.0
"""Who waits for a lock says so after this time, if one holder has kept it."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


_CHANGING: Final = threading.RLock()
"""Held while a descriptor is opened or closed: a fork waits for that."""

_held: Final[set[FileLock]] = set()


class FileLock:
    """A lock that this process holds; a program that it starts with the descriptor holds it on.

    A child that is forked does not, else it would keep others out for as long as it lives.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> first = FileLock.take(folder, is_folder=True)
    >>> FileLock.take(folder, is_folder=True) is None
    True
    >>> first.release()
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._is_held = True
        _held.add(self)

    @classmethod
    def take(
        cls,
        path: str | os.PathLike[str],
        *,
        wait: bool = False,
        is_folder: bool = False,
        is_shared: bool = False,
    ) -> Self | None:
        """The lock on a file, which is created if it is missing, or on an existing folder.

        Without ``wait`` None while another holder lives. Those that share it exclude only one that does not.
        """
        with _CHANGING:
            lock = cls(os.open(path, _FOLDER if is_folder else _FILE, 0o666))
        try:
            kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
            fcntl.flock(lock.descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BaseException as cause:
            lock.release()
            if isinstance(cause, BlockingIOError):
                return None
            raise
        return lock

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with _CHANGING:
            if not self._is_held:
                return
            self._is_held = False
            _held.remove(self)
            # a network file system tells here that it has not written the holder's name; the lock is free
            with suppress(OSError):
                os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _let_go() -> None:
    """In a forked child: leave all locks to the parent."""
    for lock in [*_held]:
        lock.release()
    _CHANGING.release()


os.register_at_fork(before=_CHANGING.acquire, after_in_parent=_CHANGING.release, after_in_child=_let_go)


def name_holder(descriptor: int, process: int | None = None) -> None:
    """Say in a lock's file who has it since when, this process or another one, for those who wait."""
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    name = f"process {process or os.getpid()} on {socket.gethostname()}, since {now}"
    with suppress(OSError):  # without it the others wait all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, name.encode())


@dataclass
class Holder:
    """Who has a lock, or had it last, as of the newest look; ``tell`` gets who kept it since the look before.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "lock")
    >>> with FileLock.take(path) as lock:
    ...     name_holder(lock.descriptor, process=12)
    ...     holder = Holder(path, lambda name: print(name[:14]))
    ...     holder.look()
    ...     name_holder(lock.descriptor, process=13)
    ...     holder.look()
    process 12 on
    """

    path: str
    tell: Callable[[str], None]
    name: str = field(init=False)
    """Empty if that cannot be known."""

    def __post_init__(self) -> None:
        """Look for the first time."""
        self.name = self._named()

    def look(self) -> None:
        """Look again."""
        before, self.name = self.name, self._named()
        if self.name == before:
            self.tell(before or "a process without a name")

    def _named(self) -> str:
        with suppress(OSError), open(self.path, "rb") as file:
            return file.read().decode(errors="replace")
        return ""


@contextmanager
def telling_holder(path: str, tell: Callable[[str], None]) -> Iterator[None]:
    """A block that waits for a lock; another thread tells who keeps it, each ten seconds."""
    holder, is_over = Holder(path, tell), threading.Event()

    def look() -> None:
        while not is_over.wait(TOLD_AFTER_S):
            holder.look()

    threading.Thread(target=look, name="telling holder", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@contextmanager
def locked(path: str | os.PathLike[str], *, is_folder: bool = False) -> Iterator[None]:
    """Hold the lock on a file or folder, see ``FileLock.take``; wait while another process has it.

    It is the one that lies there then: who had the lock may have put another one in its place.
    """
    lock = _lock_of_present(path, is_folder=is_folder)
    try:
        yield
    finally:
        lock.release()


def _lock_of_present(path: str | os.PathLike[str], *, is_folder: bool) -> FileLock:
    while True:
        lock = FileLock.take(path, wait=True, is_folder=is_folder)
        assert lock is not None  # it has waited
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(lock.descriptor)):
                return lock
        lock.release()
