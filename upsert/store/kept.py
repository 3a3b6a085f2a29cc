"""What a process makes once and keeps for the next one who asks: clients, open files, decoded columns."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import suppress
from operator import itemgetter
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


class Kept(Generic[Key, Thing]):
    """Things by key, as a module has them for its process; threads may share it."""

    def __init__(self, empty: Callable[[], MutableMapping[Key, Thing]], *, is_inherited: bool) -> None:
        """Kept in what ``empty`` makes: a cache drops what was not used for long.

        ``is_inherited`` says whether a forked child goes on with what its parent has; not with connections.
        """
        self._empty = empty
        self._things = empty()
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

    def keep_only(self, is_wanted: Callable[[Key], bool]) -> None:
        """Keep only what is wanted by its key; other threads do not wait for the answers."""
        with self._lock:
            keys = [*self._things]
        unwanted = [key for key in keys if not is_wanted(key)]
        with self._lock:
            for key in unwanted:
                self._things.pop(key, None)

    def __len__(self) -> int:
        """How many things are kept."""
        return len(self._things)

    def clear(self) -> None:
        """Keep nothing; who holds something may go on using it."""
        with self._lock:
            self._things.clear()

    def _begin_child(self) -> None:
        # another thread of the parent, which is not here, may have been changing the things
        if self._lock.locked() or not self._is_inherited:
            self._things = self._empty()
        self._lock = threading.Lock()


ENTRY_BYTES: Final = 2 << 10
"""What an entry takes beside its arrays: objects of Python, and what memory is rounded up to."""


class KeptArrays(Generic[Key, Thing]):
    """Things made of arrays, of which a process keeps so many bytes; the least recently used ones go first.

    An entry of few rows counts by its key and by what any entry takes, too. Of a file that is mapped into
    memory keep copies: a slice holds its map, of which a process may have some 65 000, and its disk space.
    """

    def __init__(self, most_bytes: int, size: Callable[[Thing], int]) -> None:
        """``size`` tells the bytes of a thing's arrays."""
        self._size = size
        self._kept = Kept[Key, tuple[Thing, int]](
            lambda: LRUCache(most_bytes, itemgetter(1)), is_inherited=True
        )

    def get(self, key: Key) -> Thing | None:
        """What is kept under a key; None for nothing."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: Key, thing: Thing) -> None:
        """Keep something, unless it is larger than all that may be kept."""
        self._kept.put(key, (thing, ENTRY_BYTES + _bytes_of(key) + self._size(thing)))

    def clear(self) -> None:
        """Keep nothing; who holds something may go on using it."""
        self._kept.clear()


def _bytes_of(key: object) -> int:
    inside = sum(_bytes_of(part) for part in key) if isinstance(key, tuple) else 0
    return sys.getsizeof(key) + inside
