"""How often one operation looks at the same tables: a refresh opens and reads them many times.

Each look at a table on a local disk reads three files. Within ``looking_once`` a thread goes by what it has
seen of a table a moment ago, as all do with tables in an object store. What must be seen as it is, it asks
for itself: a commit looks at the table before it is made, and finds what was committed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")

LASTS_S: Final = 1.0
"""What was seen longer ago is looked at again: an operation may take minutes."""


class Looks:
    """What a thread has seen, and when."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Nothing yet."""
        self._now = now
        self._seen: dict[Hashable, tuple[Any, float]] = {}

    def __reduce__(self) -> tuple[type[Looks], tuple[()]]:
        """Another process has seen nothing yet."""
        return Looks, ()

    def note(self, key: Hashable, seen: Any) -> None:
        """Remember what was seen just now."""
        self._seen[key] = seen, self._now()

    def forget(self) -> None:
        """Forget all: another process has committed for this one."""
        self._seen.clear()

    def recent(self, key: Hashable) -> Any:
        """What was seen a moment ago; None for nothing.

        >>> clock = iter([0.0, 0.9, 1.1])
        >>> looks = Looks(lambda: next(clock))
        >>> looks.note("orders", 7)
        >>> looks.recent("orders"), looks.recent("orders"), looks.recent("users")
        (7, None, None)
        """
        if (found := self._seen.get(key)) is None:
            return None
        seen, at = found
        return seen if self._now() < at + LASTS_S else None


_LOOKS: ContextVar[Looks | None] = ContextVar("looks", default=None)


def looks() -> Looks | None:
    """What this thread has seen within ``looking_once``; None outside of it."""
    return _LOOKS.get()


def seen_once(key: Hashable, look: Callable[[], T]) -> T:
    """What a look gives; within ``looking_once`` what it has given this thread a moment ago."""
    if (seen := looks()) is None:
        return look()
    found: T | None = seen.recent(key)
    if found is None:
        found = look()
        seen.note(key, found)
    return found


@contextmanager
def looking_once(own: Looks | None = None) -> Iterator[None]:
    """Let this thread look at each table once a moment; within another such block that one goes on.

    ``own`` are the looks of an earlier block that go on in this one.
    """
    token = _LOOKS.set(_LOOKS.get() or own or Looks())
    try:
        yield
    finally:
        _LOOKS.reset(token)
