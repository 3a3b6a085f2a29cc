"""Mappings of which one differs little from another (pure): the live files of a snapshot and of the next one.

A process remembers dozens of snapshots. A copy of the mapping for each would take dozens of times the memory
of one, and the time of a commit would grow with the number of files. So a mapping is a dict that several
share, and the few differences from it. When these are many, the next mapping begins a dict of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Final, Generic, Self, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST_CHANGED: Final = 2048
"""As many differences are copied for each mapping; beyond, all of it is, once in so many changes."""


class SharedMapping(Mapping[Key, Value], Generic[Key, Value]):
    """A mapping that never changes; its values are not None.

    >>> first = SharedMapping({"a": 1, "b": 2})
    >>> second = first.after({"b": None, "c": 3})
    >>> dict(first), dict(second)
    ({'a': 1, 'b': 2}, {'a': 1, 'c': 3})
    """

    __slots__ = ("_base", "_changed", "_count")

    def __init__(self, base: Mapping[Key, Value]) -> None:
        """What is in ``base``, which is not copied and must not change any more."""
        self._base = base
        self._changed: dict[Key, Value | None] = {}
        self._count = len(base)

    def after(self, changes: Mapping[Key, Value | None]) -> Self:
        """The mapping after some keys have got other values; None: they are gone."""
        found = type(self)(self._base)
        found._changed = {**self._changed, **changes}
        found._count = self._count + sum(
            (value is not None) - (key in self) for key, value in changes.items()
        )
        if len(found._changed) <= MOST_CHANGED:
            return found
        return type(self)(dict(found.items()))

    def __getitem__(self, key: Key) -> Value:
        if key not in self._changed:
            return self._base[key]
        if (found := self._changed[key]) is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[Key]:
        if not self._changed:
            return iter(self._base)
        return self._each()

    def _each(self) -> Iterator[Key]:
        changed, base = self._changed, self._base
        yield from (key for key in base if key not in changed or changed[key] is not None)
        yield from (key for key, value in changed.items() if value is not None and key not in base)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"SharedMapping({dict(self)!r})"
