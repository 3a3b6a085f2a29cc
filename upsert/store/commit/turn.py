"""The turn of a commit that has lost several races: the others of this machine wait until it is through.

It is a courtesy of processes that look at one lock, see docs/decisions/0127 and 0134: the names of snapshots
decide who comes first, with it or without. So a lock that cannot be opened stops no commit, and one whose
holder hangs stops each attempt for five minutes at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from upsert.flock import FileLock

LONGEST_WAIT_S: Final = 300.0
_PAUSE_S: Final = 0.005


@dataclass
class Turn:
    """The turn of one commit, which ends with a context.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "commit.lock")
    >>> clock = iter(range(0, 10_000, 100))
    >>> late, other = (Turn(path, sleep=lambda _: None, monotonic=lambda: next(clock)) for _ in range(2))
    >>> with late:
    ...     late.take()
    ...     other.wait_for_others()  # for five minutes, then it goes on
    True
    >>> other.wait_for_others()
    False
    """

    path: str
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    _lock: FileLock | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    @property
    def has_come(self) -> bool:
        """Whether the others wait for this commit."""
        return self._lock is not None

    def take(self) -> None:
        """Let the others wait from now on; this commit waits until another one's turn is over."""
        self._lock, _ = self._got(is_shared=False)

    def wait_for_others(self) -> bool:
        """Wait while another commit has its turn; whether one had."""
        if not os.path.exists(self.path):  # no commit of this table has needed one yet
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
