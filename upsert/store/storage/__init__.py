"""Where the files of tables lie: from a path to a local folder, an object store or another storage."""

from __future__ import annotations

from typing import Final, Protocol

from upsert.errors import ConfigurationError
from upsert.store.storage.base import (
    FileStat,
    Found,
    Storage,
    SwappingStorage,
    delete_each,
    of_each,
    read_each,
)
from upsert.store.storage.local import LOCAL

__all__ = [
    "FileStat",
    "Found",
    "Storage",
    "delete_each",
    "of_each",
    "put_if_absent",
    "read_each",
    "remote_folder",
    "storage_of",
    "swapping",
]


class _Kind(Protocol):
    """What a module of this package makes of paths with its schemes."""

    def storage(self, path: str, /) -> Storage:
        """The storage of a path."""

    def folder_uri(self, text: str, /) -> str:
        """The form in which the store keeps the URI of a folder."""


def _kind(scheme: str) -> _Kind | None:
    """The stores of a scheme, whose module is loaded when it is met: it may need a library."""
    match scheme:
        case "s3" | "s3a" | "s3n":
            from upsert.store.storage import s3

            return s3.STORES
        case "gs" | "gcs":
            from upsert.store.storage import gcs

            return gcs.STORES
        case "abfs" | "abfss" | "az" | "wasb" | "wasbs":
            from upsert.store.storage import azure

            return azure.STORES
        case "hdfs" | "webhdfs" | "swebhdfs":
            from upsert.store.storage import hdfs

            return hdfs
        case _:
            return None


_remote: Final[dict[str, Storage]] = {}


def storage_of(path: str) -> Storage:
    """The storage of a whole path, or of a table's folder."""
    if "://" not in path:
        return LOCAL
    end = path.find("/", path.find("://") + 3)
    head = path if end < 0 else path[:end]
    found = _remote.get(head)
    if found is None:
        scheme = head.partition("://")[0]
        if (kind := _kind(scheme)) is None:
            raise ConfigurationError(f"table path: there must be a store of its kind, got a {scheme}: URI")
        found = _remote.setdefault(head, kind.storage(path))
    return found


def swapping(path: str) -> SwappingStorage:
    """The storage of a path where files are replaced only if they are as they were seen."""
    storage = storage_of(path)
    if not isinstance(storage, SwappingStorage):
        raise ConfigurationError(
            f"{path!r}: this needs a place where a file is replaced only if it is the one last read, as in "
            "s3://bucket/folder, got another one; CREATE TABLE and INSERT INTO it"
        )
    return storage


def remote_folder(scheme: str, text: str) -> str | None:
    """The form in which the store keeps the URI of a folder elsewhere; None if no store has such a scheme."""
    kind = _kind(scheme)
    return None if kind is None else kind.folder_uri(text)


def put_if_absent(target: str, content: bytes, mode: int = 0o666) -> bool:
    """``Storage.put_if_absent`` of the storage of a path.

    After an ``OSError`` the file may or may not have been published: look before going on.
    """
    return storage_of(target).put_if_absent(target, content, mode)
