"""Clients that a process keeps between calls, because making one costs a connection and a few threads.

A client is taken out while it is used, so two threads never share one. It belongs to the process that made
it: a forked child starts with an empty cache and never touches its parent's clients, whose threads it lacks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakSet

from cachetools import LRUCache

C = TypeVar("C")

_caches: WeakSet[ClientCache[object]] = WeakSet()
_of_parent: list[object] = []
"""What a forked child got from its parent; giving it up would wait for threads that the child lacks."""


class ClientCache(Generic[C]):
    """At most ``size`` idle clients; the one that was idle longest is closed to make room.

    Args:
        size: how many to keep.
        close: how to end one.
    """

    def __init__(self, size: int, close: Callable[[C], None]) -> None:
        self._size = size
        self._close = close
        self._idle: LRUCache[Hashable, C] = LRUCache(size)
        self._lock = threading.Lock()
        _caches.add(self)  # type: ignore[arg-type]

    def take(self, key: Hashable) -> C | None:
        """The idle client of this key, now the caller's own; None when there is none."""
        with self._lock:
            return self._idle.pop(key, None)

    def give_back(self, key: Hashable, client: C) -> None:
        """Keep a client that is in good order for the next call with this key."""
        with self._lock:
            leaving = [self._idle.pop(key)] if key in self._idle else []
            if len(self._idle) >= self._size:
                leaving.append(self._idle.popitem()[1])
            self._idle[key] = client
        for client in leaving:
            self._close(client)

    def clear(self) -> None:
        """Close all idle clients."""
        with self._lock:
            leaving = list(self._idle.values())
            self._idle.clear()
        for client in leaving:
            self._close(client)

    def _forget(self) -> None:
        _of_parent.append(self._idle)
        self._idle = LRUCache(self._size)
        self._lock = threading.Lock()  # another thread of the parent may have held it


def _forget_all() -> None:
    for cache in list(_caches):
        cache._forget()


os.register_at_fork(after_in_child=_forget_all)
