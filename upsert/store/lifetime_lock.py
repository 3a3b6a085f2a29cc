"""One at a time: whoever decides how long snapshots live.

An expiry asks who holds what and then publishes its boundary; a tag or a consumer makes sure that its
snapshot can still be read and then says that it holds it. Each pair of steps happens under this lock, so that
none comes between another's. Who dies lets go of it. Commits, compactions and readers never ask for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from upsert.errors import CommitConflictError, TableNotFoundError
from upsert.store import paths

GIVE_UP_AFTER_S: Final = 120.0
_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1


@contextmanager
def lifetime_lock(root: str, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> Iterator[None]:
    """Hold the lock; wait for it if necessary.

    Raises:
        CommitConflictError: another process has not let go of it for so long.
        TableNotFoundError: the table's folder is gone.
    """
    with _opened(root) as held:
        deadline, pause = time.monotonic() + give_up_after_s, _PAUSE_S
        while not held():
            if time.monotonic() > deadline:
                raise CommitConflictError(
                    f"table {root!r}: {paths.LIFETIME_LOCK!r} must become free, another process holds it for "
                    f"{give_up_after_s:g} s; end that one, then run this again"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        yield


@contextmanager
def lifetime_lock_if_free(root: str) -> Iterator[bool]:
    """Hold the lock if nobody else does; yields whether it was got."""
    with _opened(root) as held:
        yield held()


@contextmanager
def _opened(root: str) -> Iterator[_Attempt]:
    try:
        file = open(os.path.join(root, paths.LIFETIME_LOCK), "ab")  # noqa: SIM115 - closed below
    except FileNotFoundError as cause:
        raise TableNotFoundError(f"no table lies at {root!r}; was it dropped?") from cause
    with file:
        yield _Attempt(file.fileno())


class _Attempt:
    """Tries to take the lock of an open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
