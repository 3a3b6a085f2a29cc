"""Where the files of tables lie: a local folder, or a prefix of an object store."""

from upsert.store.storage.base import FileStat, Found, Storage
from upsert.store.storage.resolve import storage_of

__all__ = ["FileStat", "Found", "Storage", "storage_of"]
