"""A lock among machines, made of nothing but put-if-absent: whoever does not renew it may be passed over.

Each holder has an object of its own, ``<name>-<20 digits>``, and the highest number holds. The next one may
be put when that object says that it is free, or was not written to for ``LEASE_S`` by the clock of the store.
So nobody ever writes to another's object, and exactly one follows.

A holder that stalled does not know that it was passed over before it looks. What it does under the lock must
be taken back when a look says so, or be stopped by whoever follows: see ``upsert.store.lifetime_lock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self
from uuid import uuid4

LEASE_S: Final = 60.0
_FREE: Final = b"free"
_DIGITS: Final = 20


class LeaseStorage(Protocol):
    """What a lease asks of an object store."""

    def names(self, folder: str) -> list[str]:
        """Names of the objects in a folder."""

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of an object, and for how many seconds it has it; None if there is none."""

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Put a new object; False if there is one."""

    def replace(self, path: str, content: bytes) -> None:
        """Put an object."""

    def delete(self, path: str) -> bool:
        """Delete an object."""


@dataclass(frozen=True)
class Lease:
    """A lock that is held.

    Attributes:
        path: the holder's object.
        passed_over: whether the holder before has not let go of it: it may be at work still.
    """

    path: str
    passed_over: bool
    _storage: LeaseStorage
    _token: bytes

    @classmethod
    def take(cls, storage: LeaseStorage, path: str) -> Self | None:
        """The lock of this name; None while another holder lives."""
        newest = max(_numbers(storage, path), default=0)
        passed_over = False
        if newest:
            if (found := storage.aged(_path(path, newest))) is None:
                return None  # it changes hands just now
            content, age_s = found
            passed_over = content != _FREE
            if passed_over and age_s < LEASE_S:
                return None
        token = uuid4().hex.encode()
        own = _path(path, newest + 1)
        if not storage.put_if_absent(own, token):
            return None
        numbers = _numbers(storage, path)
        if max(numbers, default=0) != newest + 1:
            # others went on in between, so far that the number was free again
            storage.delete(own)
            return None
        for number in numbers:
            if number <= newest:
                storage.delete(_path(path, number))
        return cls(own, passed_over, storage, token)

    def renew(self) -> bool:
        """Hold it for longer; False if somebody has passed this holder over."""
        self._storage.replace(self.path, self._token)
        name, _, number = self.path.rpartition("-")
        return max(_numbers(self._storage, name), default=0) == int(number)

    def release(self) -> None:
        """Let go of it; harmless if it was lost."""
        self._storage.replace(self.path, _FREE)


def age(storage: LeaseStorage, path: str) -> float | None:
    """For how many seconds the holder of this name has given no sign of life; None if nobody holds it."""
    newest = max(_numbers(storage, path), default=0)
    found = storage.aged(_path(path, newest)) if newest else None
    return None if found is None or found[0] == _FREE else found[1]


def _path(path: str, number: int) -> str:
    return f"{path}-{number:0{_DIGITS}d}"


def _numbers(storage: LeaseStorage, path: str) -> Sequence[int]:
    folder, _, name = path.rpartition("/")
    found = (
        entry.removeprefix(f"{name}-") for entry in storage.names(folder) if entry.startswith(f"{name}-")
    )
    return [int(text) for text in found if len(text) == _DIGITS and text.isdecimal()]
