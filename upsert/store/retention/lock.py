"""One at a time: the process that decides how long snapshots live.

An expiry asks who holds what and then publishes its boundary; a tag or a consumer makes sure that its
snapshot can still be read and then says that it holds it. Each pair of steps happens under this lock, so that
none comes between another's. Commits, compactions and readers never ask for it.

On a local disk it is a lock of the kernel, which a process that dies releases. In an object store it is a
lease, and a holder that stalls for its whole time is passed over. An expiry that has been stopped between its
two steps cannot go on then: a process that skips it publishes an empty snapshot first, and takes the id
that its boundary would have. A tag or a consumer looks once more after its second step; see
docs/decisions/0022.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from upsert.errors import CommitConflictError, TableNotFoundError, UpsertError
from upsert.flock import FileLock
from upsert.retry import retried
from upsert.store import paths
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.metadata.history import History
from upsert.store.storage import storage_of
from upsert.store.storage.base import disk_errors_of
from upsert.store.storage.lease import Lease

GIVE_UP_AFTER_S: Final = 120.0
_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.1
_REMOTE_PAUSE_S: Final = 0.5


class _BusyError(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True)
class Lock:
    """The lock of a table, held on a local disk by the kernel, in an object store by a lease."""

    root: str
    held: FileLock | Lease

    @property
    def is_held(self) -> bool:
        """Whether it still is; asks an object store."""
        return isinstance(self.held, FileLock) or self.held.is_held

    def check(self, *, renew: bool = False) -> None:
        """Refuse to go on where this process stalled and another one went on; maybe hold it for longer."""
        if not (self.held.renew() if renew and isinstance(self.held, Lease) else self.is_held):
            raise CommitConflictError(
                f"table {self.root!r}: {paths.LIFETIME_LOCK!r} must be renewed within a minute, this process "
                "stalled for longer and another one went on; run this again"
            )

    def release(self) -> None:
        """Let go of it; what was done under it is done."""
        with suppress(OSError, UpsertError):  # without an answer it ends by itself, in a minute
            self.held.release()


@contextmanager
def lifetime_lock(history: History, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> Iterator[Lock]:
    """Hold the lock; wait for it if necessary."""

    def take() -> Lock:
        if (lock := _taken(history)) is None:
            raise _BusyError
        return lock

    is_local = storage_of(history.root).is_local
    try:
        lock = retried(
            take,
            is_passing=lambda failure: isinstance(failure, _BusyError),
            first_pause_s=_PAUSE_S if is_local else _LONGEST_PAUSE_S,
            longest_pause_s=_LONGEST_PAUSE_S if is_local else _REMOTE_PAUSE_S,
            patience_s=give_up_after_s,
        )
    except _BusyError:
        raise CommitConflictError(
            f"table {history.root!r}: {paths.LIFETIME_LOCK!r} must become free, another process holds it "
            f"for {give_up_after_s:g} s; end that one, then run this again"
        ) from None
    try:
        with history.writing():
            yield lock
    finally:
        lock.release()


@contextmanager
def lifetime_lock_if_free(history: History) -> Iterator[Lock | None]:
    """Hold the lock if it is free; yields None if it is not."""
    lock = _taken(history)
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def _taken(history: History) -> Lock | None:
    path = os.path.join(history.root, paths.LIFETIME_LOCK)
    storage = storage_of(path)
    held: FileLock | Lease | None
    if storage.is_local:
        try:
            with disk_errors_of(path):
                held = FileLock.take(path)
        except FileNotFoundError as cause:
            raise TableNotFoundError(f"no table lies at {history.root!r}; was it dropped?") from cause
    elif (held := Lease.take(storage, path)) and held.passed_over:
        try:
            # an empty snapshot, in the way of a process that looked at the table before
            Committer(history).commit(lambda head: Change("clean") if head.id else None)
        except BaseException:
            held.release()
            raise
    return None if held is None else Lock(history.root, held)
