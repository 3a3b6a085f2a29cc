"""From a path to the storage that has its files."""

from __future__ import annotations

from typing import Final

from upsert.errors import ConfigurationError
from upsert.store.storage import hdfs_location
from upsert.store.storage.base import Storage, SwappingStorage
from upsert.store.storage.local import LOCAL
from upsert.store.storage.location import SCHEMES, folder_uri, split

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
        found = _remote.setdefault(head, _storage(head, path))
    return found


def swapping(path: str) -> SwappingStorage:
    """The storage of a path where files are replaced only if they are as they were seen.

    Raises:
        ConfigurationError: it does not do that.
    """
    storage = storage_of(path)
    if not isinstance(storage, SwappingStorage):
        raise ConfigurationError(
            f"{path!r}: this needs a place where a file is replaced only if nobody else has done so, as in "
            "s3://bucket/folder, got another one; CREATE TABLE and INSERT INTO it"
        )
    return storage


def _storage(head: str, path: str) -> Storage:
    scheme = head.partition("://")[0]
    if scheme in SCHEMES:
        from upsert.store.storage.s3 import S3Storage

        return S3Storage(split(path)[0])
    if scheme in hdfs_location.SCHEMES:
        from upsert.store.storage.hdfs import HdfsStorage

        return HdfsStorage(hdfs_location.split(path)[0])
    from upsert.store.storage.locked import LockedStorage

    return LockedStorage(head)


def remote_folder(scheme: str, text: str) -> str | None:
    """The form in which the store keeps the URI of a folder elsewhere; None if no store has such a scheme.

    Raises:
        ConfigurationError: the URI names no folder there, or what publishing needs is not configured.
    """
    if scheme in SCHEMES:
        return folder_uri(text)
    if scheme in hdfs_location.SCHEMES:
        return hdfs_location.folder_uri(text)
    from upsert.store.storage import locked

    return locked.folder_uri(text) if scheme in locked.SCHEMES else None
