"""What a process makes once and keeps for the next one who asks: clients, open files, decoded columns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


class Kept(Generic[Key, Thing]):
    """Things by key, as a module has them for its process; threads may share it."""

    def __init__(self, things: MutableMapping[Key, Thing], *, is_inherited: bool) -> None:
        """Kept in ``things``: a cache drops what was not used for long.

        ``is_inherited`` says whether a forked child goes on with what its parent has; not with connections.
        """
        self._things = things
        self._is_inherited = is_inherited
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._begin_child)

    def get(self, key: Key) -> Thing | None:
        """What is kept under a key; None for nothing."""
        with self._lock:
            return self._things.get(key)

    def put(self, key: Key, thing: Thing) -> None:
        """Keep something, unless it is larger than the whole cache."""
        with self._lock, suppress(ValueError):
            self._things[key] = thing

    def made(self, key: Key, make: Callable[[], Thing]) -> Thing:
        """What is kept under a key; made now if it is nothing, while other threads wait."""
        with self._lock:
            if (found := self._things.get(key)) is None:
                found = self._things[key] = make()
            return found

    def clear(self) -> None:
        """Keep nothing; who holds something may go on using it."""
        with self._lock:
            self._things.clear()

    def _begin_child(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if not self._is_inherited:
            self._things.clear()
