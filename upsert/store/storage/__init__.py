"""Where the files of tables lie: from a path to a local folder, an object store or another storage."""

from __future__ import annotations

from typing import Final

from upsert.errors import ConfigurationError
from upsert.store.storage.base import FileStat, Found, Storage, SwappingStorage
from upsert.store.storage.local import LOCAL

__all__ = ["FileStat", "Found", "Storage", "put_if_absent", "remote_folder", "storage_of", "swapping"]

_S3: Final = ("s3", "s3a", "s3n")
"""Names of one kind of store; Spark's users know it by the others."""

_HDFS: Final = ("hdfs", "webhdfs", "swebhdfs")

_remote: Final[dict[str, Storage]] = {}


def storage_of(path: str) -> Storage:
    """The storage of a whole path, or of a table's folder."""
    if "://" not in path:
        return LOCAL
    head = path[: path.find("/", path.find("://") + 3)]
    found = _remote.get(head)
    if found is None:
        found = _remote.setdefault(head, _storage(head, path))
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


def _storage(head: str, path: str) -> Storage:
    scheme = head.partition("://")[0]
    if scheme in _S3:
        from upsert.store.storage import s3

        return s3.S3Storage(s3.split(path)[0])
    if scheme in _HDFS:
        from upsert.store.storage import hdfs, hdfs_client

        return hdfs.HdfsStorage(hdfs_client.split(path)[0])
    from upsert.store.storage import locked

    return locked.LockedStorage(head)


def remote_folder(scheme: str, text: str) -> str | None:
    """The form in which the store keeps the URI of a folder elsewhere; None if no store has such a scheme."""
    if scheme in _S3:
        from upsert.store.storage import s3

        return s3.folder_uri(text)
    if scheme in _HDFS:
        from upsert.store.storage import hdfs_client

        return hdfs_client.folder_uri(text)
    from upsert.store.storage import locked

    return locked.folder_uri(text) if scheme in locked.SCHEMES else None


def put_if_absent(target: str, content: bytes, mode: int = 0o666) -> bool:
    """``Storage.put_if_absent`` of the storage of a path.

    After an ``OSError`` the file may or may not have been published: look before going on.
    """
    return storage_of(target).put_if_absent(target, content, mode)
