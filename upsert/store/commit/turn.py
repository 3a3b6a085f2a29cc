"""The turn of a commit or a statement that has lost several races: other commits of this machine wait for it.

It is a courtesy of processes that look at one lock, see docs/decisions/0127, 0133 and 0134: the names of
snapshots decide who comes first, with it or without. So a lock that cannot be opened stops no commit, and one
whose holder hangs, as a process that is stopped does, holds each process up once, for five minutes at most.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self

from upsert.flock import TOLD_AFTER_S, FileLock, Holder, name_holder
from upsert.store import paths
from upsert.store.storage import storage_of

LONGEST_WAIT_S: Final = 300.0
_PAUSE_S: Final = 0.005
_SHORT_WAIT_S: Final = 0.1
"""For a turn that was waited for before: another commit may just be asking for it, as this one does."""

_taken: Final = ContextVar[Mapping[str, FileLock]]("turns of this thread", default=MappingProxyType({}))
"""The locks of turns that this thread has, by path: commits within one of them must not wait for it."""

_too_long: Final[dict[str, str]] = {}
"""The turns, by path, that this process has waited for as long as it waits: it does so once for each."""


class LongTurnWarning(UserWarning):
    """A commit waits for another process that has not ended its turn yet. It goes on after five minutes."""


@dataclass
class Turn:
    """The turn of one commit, or of all that its thread tries until one is through; it ends with a context.

    >>> import tempfile
    >>> from contextvars import Context
    >>> folder = tempfile.mkdtemp()
    >>> one, other = Turn(folder), Turn(folder)
    >>> with one:
    ...     one.take()
    ...     other.wait_for_others()  # within the turn, whose thread this is
    ...     other.end()  # a commit within the turn is through
    ...     Context().run(other.wait_for_others)  # in another thread
    False
    False
    """

    root: str
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    path: str = field(init=False)
    _lock: FileLock | None = field(default=None, init=False)
    _before: Token[Mapping[str, FileLock]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path = storage_of(self.root).lock_file(self.root, paths.COMMIT_LOCK)

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
            name_holder(self._lock.descriptor)  # no other turn has the same process and time
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
        lock, has_waited = None, False
        with suppress(OSError):  # the table is gone, or the lock is another user's
            if (lock := FileLock.take(self.path, is_shared=is_shared)) is None:
                has_waited = True
                lock = self._awaited(is_shared=is_shared)
        return lock, has_waited

    def _awaited(self, *, is_shared: bool) -> FileLock | None:
        """The lock once the others' turns are over; None if one lasts too long."""
        holder = Holder(self.path, self._warn)
        is_known = bool(holder.name) and _too_long.get(self.path) == holder.name
        begun = looked = self.monotonic()
        until = begun + (_SHORT_WAIT_S if is_known else LONGEST_WAIT_S)
        while (lock := FileLock.take(self.path, is_shared=is_shared)) is None:
            now = self.monotonic()
            if now >= looked + TOLD_AFTER_S:
                holder.look()
                looked = now
            if now >= until:
                _too_long[self.path] = holder.name
                return None
            self.sleep(_PAUSE_S)
        return lock

    def _warn(self, holder: str) -> None:
        warnings.warn(
            f"table {paths.name_of(self.root)!r}: a commit waits for another one's turn, for "
            f"{LONGEST_WAIT_S:g} s at most — it is that of {holder}; if that "
            "is stopped, let it continue (kill -CONT) or end it",
            LongTurnWarning,
            stacklevel=2,
        )
