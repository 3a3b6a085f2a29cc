"""A lock of the user's own, for file systems on which a put overwrites. Follows FLIP-188's ``CatalogLock``.

``UPSERT_CATALOG_LOCK`` names what makes it, as ``package.module:name``: a text, so that it reaches every
process of Spark by the environment, and nothing is unpickled.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, cast

from upsert.errors import ConfigurationError
from upsert.store.storage.base import T

VARIABLE: Final = "UPSERT_CATALOG_LOCK"


class CatalogLock(Protocol):
    """Lets one process at a time publish something of a table, among all machines that write to it."""

    def run_with_lock(self, database: str, table: str, action: Callable[[], T]) -> T:
        """What ``action`` returns, while nobody else runs one for the table; what it raises, too.

        Whoever dies must lose the lock, and nobody may lose it who lives and is still at work.
        """

    def close(self) -> None:
        """Let go of connections; the lock is not used again."""


CatalogLockFactory = Callable[[], CatalogLock]
"""Makes a lock, in any process; a class that needs no arguments is one."""


def is_configured() -> bool:
    """Whether the environment names a lock."""
    return bool(os.environ.get(VARIABLE))


@contextmanager
def catalog_lock() -> Iterator[CatalogLock]:
    """A lock of the configured kind, closed at the end of the block.

    Raises:
        ConfigurationError: the environment names none, or what it names is none.
    """
    named = os.environ.get(VARIABLE, "")
    module, _, name = named.partition(":")
    try:
        factory = cast(CatalogLockFactory, getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as cause:
        raise ConfigurationError(
            f"{VARIABLE} must name what makes a lock, as package.module:name, got {named!r}"
        ) from cause
    lock = factory()
    try:
        yield lock
    finally:
        lock.close()
