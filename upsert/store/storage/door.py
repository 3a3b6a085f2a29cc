"""From a path to the storage that has its files."""

from __future__ import annotations

from typing import Final

from upsert.store.storage.base import Storage
from upsert.store.storage.local import LOCAL
from upsert.store.storage.location import split

_remote: Final[dict[str, Storage]] = {}


def storage_of(path: str) -> Storage:
    """The storage of a whole path, or of a table's folder.

    Raises:
        ConfigurationError: the path is of a kind that the store cannot use.
    """
    if "://" not in path:
        return LOCAL
    head = path[: path.find("/", path.find("://") + 3)]
    found = _remote.get(head)
    if found is None:
        from upsert.store.storage.s3 import S3Storage

        location, _ = split(path)
        found = _remote.setdefault(head, S3Storage(location))
    return found
