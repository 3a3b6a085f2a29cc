"""A catalog lock for tests, made of a lock on a local file."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from typing import ClassVar, TypeVar

T = TypeVar("T")


class FileLock:
    """One process and thread at a time, of this machine.

    Attributes:
        taken: database and table of every time that it was held in this process.
        open: locks that were made and not closed.
    """

    taken: ClassVar[list[tuple[str, str]]] = []
    open: ClassVar[int] = 0

    def __init__(self) -> None:
        FileLock.open += 1

    def run_with_lock(self, database: str, table: str, action: Callable[[], T]) -> T:
        path = os.path.join(tempfile.gettempdir(), f"test-lock-{os.getuid()}")
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            FileLock.taken.append((database, table))
            return action()

    def close(self) -> None:
        FileLock.open -= 1
