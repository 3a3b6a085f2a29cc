"""A stream that has nothing to do asks an object store once a second, not as often as Spark asks the stream.

Each look costs some requests, which are counted, and Spark looks again as soon as an answer is there. So a
second look from one offset waits, and asks then: what was written before it is always seen. A local disk is
asked at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from upsert.store.storage import storage_of
from upsert.store.table import Table

PAUSE_S: Final = 1.0


class IdleLooks:
    """When a reader has last found nothing new, and from where."""

    def __init__(self) -> None:
        self._start: Mapping[str, Any] | None = None
        self._at = 0.0

    @property
    def answer(self) -> Mapping[str, Any] | None:
        """The offset at which there was nothing new just now; None if that is not known."""
        return self._start if time.monotonic() < self._at + PAUSE_S else None

    def wait(self, start: Mapping[str, Any]) -> None:
        """Wait before another look from an offset at which there was nothing new just now."""
        if self.answer == start:
            time.sleep(max(0.0, self._at + PAUSE_S - time.monotonic()))

    def note(self, tables: Iterable[Table], start: Mapping[str, Any]) -> None:
        """Remember that a look at tables from an offset has found nothing new."""
        self._start = start if any(not storage_of(table.path).is_local for table in tables) else None
        self._at = time.monotonic()
