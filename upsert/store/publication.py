"""Put-if-absent: the one way in which the store makes a file appear under a name that others watch."""

from __future__ import annotations

from upsert.store.storage.door import storage_of


def put_if_absent(target: str, content: bytes, mode: int = 0o666) -> bool:
    """Publish ``content`` as the file ``target``; False if the name is taken, then nothing changed.

    When it returns True, file and name survive a power failure. A crash leaves the whole file or
    none of it under ``target``. ``mode`` are a local file's permissions, less the process's umask.

    Raises:
        ConfigurationError: the place cannot do that, as a file system without hard links.
        OSError: anything else; the file may or may not have been published: look before going on.
    """
    return storage_of(target).put_if_absent(target, content, mode)
