"""The turn of a commit or a statement that has lost several races: other commits of this machine wait for it.

It is a courtesy of processes that look at one lock, see docs/decisions/0127, 0133 and 0134: the names of
snapshots decide who comes first, with it or without. So a lock that cannot be opened stops no commit, and one
whose holder hangs stops each attempt for five minutes at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self

from upsert.flock import FileLock
from upsert.store import paths
from upsert.store.storage import storage_of

LONGEST_WAIT_S: Final = 300.0
_PAUSE_S: Final = 0.005

_taken: Final = ContextVar[Mapping[str, FileLock]]("turns of this thread", default=MappingProxyType({}))
"""The locks of turns that this thread has, by path: commits within one of them must not wait for it."""


@dataclass
class Turn:
    """The turn of one commit, or of all that its thread tries until one is through; it ends with a context.

    >>> import tempfile
    >>> from contextvars import Context
    >>> path = os.path.join(tempfile.mkdtemp(), "commit.lock")
    >>> clock = iter(range(0, 10_000, 100))
    >>> late, other = (Turn(path, sleep=lambda _: None, monotonic=lambda: next(clock)) for _ in range(2))
    >>> with late:
    ...     late.take()
    ...     Context().run(other.wait_for_others)  # in another thread: for five minutes, then it goes on
    ...     other.wait_for_others()  # within the turn
    ...     other.end()  # a commit within the turn is through
    ...     Context().run(other.wait_for_others)
    True
    False
    False
    >>> other.wait_for_others()
    False
    """

    path: str
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    _lock: FileLock | None = field(default=None, init=False)
    _before: Token[Mapping[str, FileLock]] | None = field(default=None, init=False)

    @classmethod
    def of(cls, root: str) -> Self:
        """One of the table in a folder, for a statement that reads and commits."""
        return cls(storage_of(root).lock_file(root, paths.COMMIT_LOCK), time.sleep, time.monotonic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            _taken.reset(self._before)
        if self._lock is not None:
            self._lock.release()

    @property
    def has_come(self) -> bool:
        """Whether the others wait for this commit."""
        return self._lock is not None

    def take(self) -> None:
        """Let the others wait from now on; this one waits until another one's turn is over."""
        if self.path in _taken.get():
            return
        self._lock, _ = self._got(is_shared=False)
        if self._lock is not None:
            self._before = _taken.set({**_taken.get(), self.path: self._lock})

    def end(self) -> None:
        """Let the others go on: a commit of this thread is through, and what follows it may take long."""
        if (lock := _taken.get().get(self.path)) is not None:
            lock.release()

    def wait_for_others(self) -> bool:
        """Wait while another commit has its turn; whether one had."""
        if self.path in _taken.get() or not os.path.exists(self.path):  # none was needed yet
            return False
        lock, has_waited = self._got(is_shared=True)
        if lock is not None:
            lock.release()
        return has_waited

    def _got(self, *, is_shared: bool) -> tuple[FileLock | None, bool]:
        """The lock, and whether another commit had it; None if it cannot be had."""
        has_waited, until = False, self.monotonic() + LONGEST_WAIT_S
        with suppress(OSError):  # the table is gone, or the lock is another user's
            while (lock := FileLock.take(self.path, is_shared=is_shared)) is None:
                has_waited = True
                if self.monotonic() >= until:
                    break
                self.sleep(_PAUSE_S)
            return lock, has_waited
        return None, has_waited
