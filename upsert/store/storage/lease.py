"""A lock among machines, made of put-if-absent alone: who does not renew it may be passed over.

Each holder has an object of its own, ``<name>-<20 digits>``, and the highest number holds. The next one may
be put when that object says that it is free, or was not written to for ``LEASE_S`` by the clock of the store.
So no process ever writes to another's object, and exactly one follows.

A holder that stalled does not know that it was passed over before it looks. What it does under the lock must
be taken back when a look says so, or be stopped by the next holder: see ``upsert.store.retention.lock``. A
``KeptLease`` is renewed by a thread: it tells others that the process lives, and nothing more. What the
process does in the end must fail by itself if another one has gone on in its place.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self
from uuid import uuid4

from upsert.errors import UnknownOutcomeError, UpsertError
from upsert.store.storage import storage_of
from upsert.store.storage.base import Storage, UnansweredError

LEASE_S: Final = 60.0
_FREE: Final = b"free"
_DIGITS: Final = 20


_released: Final[dict[str, int]] = {}
"""The number under which this process has said last that a lock is free."""


@dataclass(frozen=True)
class Lease:
    """A lock that is held, by the holder's object.

    ``passed_over``: the holder before has not let go of it, and may be at work still.
    """

    path: str
    passed_over: bool
    _storage: Storage
    _token: bytes

    @classmethod
    def take(cls, storage: Storage, path: str) -> Self | None:
        """The lock of this name; None while another holder lives.

        Raises:
            UnansweredError: it may be this process's; then it is free in a minute.
        """
        # if no other process has had it since, the next number is ours: two requests less
        own_last = _released.pop(path, 0)
        newest = own_last or max(_numbers(storage, path), default=0)
        passed_over = False
        if newest and not own_last:
            if (found := storage.aged(_path(path, newest))) is None:
                return None  # it changes hands just now
            content, age_s = found
            passed_over = content != _FREE
            if passed_over and age_s < LEASE_S:
                return None
        token = uuid4().hex.encode()
        own = _path(path, newest + 1)
        if not _is_put(storage, own, token):
            return cls.take(storage, path) if own_last else None
        numbers = _numbers(storage, path)
        if max(numbers, default=0) != newest + 1:
            # others went on in between, so far that the number was free again
            storage.delete(own)
            return cls.take(storage, path) if own_last else None
        for number in numbers:
            if number <= newest:
                storage.delete(_path(path, number))
        return cls(own, passed_over, storage, token)

    def renew(self) -> bool:
        """Hold it for longer; False if another process has passed this holder over."""
        self._storage.replace(self.path, self._token)
        return self.is_held

    @property
    def is_held(self) -> bool:
        """Whether no other process has passed this holder over."""
        name, number = self._named
        return max(_numbers(self._storage, name), default=0) == number

    def release(self) -> None:
        """Let go of it; harmless if it was lost."""
        self._storage.replace(self.path, _FREE)
        name, number = self._named
        _released[name] = number

    @property
    def _named(self) -> tuple[str, int]:
        name, _, number = self.path.rpartition("-")
        return name, int(number)


def _is_put(storage: Storage, path: str, token: bytes) -> bool:
    try:
        return storage.put_if_absent(path, token)
    except UnknownOutcomeError as cause:  # of a lock, not of rows that must not be written twice
        raise UnansweredError(
            errno.EIO, "the object store must say who has the lock, got no answer; try again", path
        ) from cause


def age(storage: Storage, path: str) -> float | None:
    """For how many seconds the holder of this name has given no sign of life; None if it is free."""
    newest = max(_numbers(storage, path), default=0)
    found = storage.aged(_path(path, newest)) if newest else None
    return None if found is None or found[0] == _FREE else found[1]


def _path(path: str, number: int) -> str:
    return f"{path}-{number:0{_DIGITS}d}"


def _numbers(storage: Storage, path: str) -> Sequence[int]:
    folder, _, name = path.rpartition("/")
    number = re.compile(rf"{re.escape(name)}-([0-9]{{{_DIGITS}}})")
    return [int(found[1]) for entry in storage.names(folder) if (found := number.fullmatch(entry))]


_RENEW_S: Final = LEASE_S / 4
"""Often enough that a lost answer does no harm."""

_LOOK_S: Final = 1.0


class KeptLease:
    """A lease that is renewed until it is released or this process dies."""

    def __init__(self, held: Lease) -> None:
        """Use ``KeptLease.take``."""
        self._held = held
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        threading.Thread(target=self._keep, name="upsert-lease", daemon=True).start()

    @classmethod
    def take(cls, path: str) -> Self | None:
        """The lease of this name; None while another holder lives, or has died within the last minute."""
        held = Lease.take(storage_of(path), path)
        return None if held is None else cls(held)

    @classmethod
    def take_when_free(cls, path: str, sleep: Callable[[float], None] = time.sleep) -> Self | None:
        """The lease, after up to a minute in which its holder gives no sign of life; None if it gives one."""
        storage = storage_of(path)
        before = age(storage, path)
        while (own := cls.take(path)) is None:
            sleep(_LOOK_S)
            now = age(storage, path)
            if now is not None and before is not None and now < before:
                return None
            before = now
        return own

    def release(self, *, for_good: bool = False) -> None:
        """Let go of it; again is harmless. ``for_good``: no process will ever ask for it again."""
        with self._lock:  # a renewal after it would bring it back
            if self._is_over.is_set():
                return
            self._is_over.set()
            # without an answer it ends by itself
            with suppress(OSError, UpsertError):
                if for_good:
                    storage_of(self._held.path).delete(self._held.path)
                else:
                    self._held.release()

    def _keep(self) -> None:
        while not self._is_over.wait(_RENEW_S):
            with self._lock:
                if self._is_over.is_set():
                    return
                # without an answer the next renewal may have one; if none has, the end of the work tells
                with suppress(OSError, UpsertError):
                    if not self._held.renew():
                        self._is_over.set()
