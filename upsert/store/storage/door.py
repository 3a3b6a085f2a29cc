"""From a path to the storage that has its files."""

from __future__ import annotations

from upsert.store.storage.base import Storage
from upsert.store.storage.local import LOCAL


def storage_of(path: str) -> Storage:  # noqa: ARG001
    """The storage of a whole path, or of a table's folder."""
    return LOCAL
