"""Any file system of ``pyarrow.fs``, where names appear under a lock of the user's own.

It has no conditional put and its rename overwrites, so a name is looked for and written while the table's
``CatalogLock`` (FLIP-188) is held. ``UPSERT_CATALOG_LOCK`` names what makes it, as ``package.module:name``: a
text, so that it reaches every process of Spark by the environment, and nothing is unpickled. Files of rows go
through the local cache, as those of an object store.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.store.kept import Kept
from upsert.store.storage.base import FileStat, Found, RefusedError, T, Versioned, store_errors_of
from upsert.store.storage.cache import CachedStorage, local_cache
from upsert.store.storage.local import TEMPORARY_SUFFIX

VARIABLE: Final = "UPSERT_CATALOG_LOCK"


class CatalogLock(Protocol):
    """Lets one process at a time publish something of a table, among all machines that write to it."""

    def run_with_lock(self, database: str, table: str, action: Callable[[], T]) -> T:
        """What ``action`` returns, while no other process runs one for the table; what it raises, too.

        A process that dies must lose the lock; one that lives and works must keep it.
        """

    def close(self) -> None:
        """Let go of connections; the lock is not used again."""


def with_catalog_lock(path: str, action: Callable[[], T]) -> T:
    """What an action returns under a lock of the configured kind, that of the table that has a file."""
    named = os.environ.get(VARIABLE, "")
    module, _, name = named.partition(":")
    try:
        make: Callable[[], CatalogLock] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as cause:
        raise ConfigurationError(
            f"{VARIABLE} must name what makes a lock, as package.module:name, got {named!r}"
        ) from cause
    lock = make()
    try:
        return lock.run_with_lock(*owner_of(path), action)
    finally:
        lock.close()


SCHEMES: Final = ("gs", "gcs", "abfs", "abfss")
_CHUNK: Final = 1 << 20
_TABLE: Final = "table.json"
_UUID: Final = re.compile("[0-9a-f]{32}")

_WHOLE: Final = ("gs", "gcs")
"""Stores in which a file is there when it has been written to its end."""

_systems = Kept[str, Any]({}, is_inherited=False)


def folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder."""
    scheme, _, rest = text.partition("://")
    parts = rest.rstrip("/").split("/")
    if not os.environ.get(VARIABLE):
        raise ConfigurationError(
            f"table path must be a local folder, a file: URI or s3://bucket/folder, got a {scheme}: URI, "
            f"where a put may overwrite another writer's; set {VARIABLE} to what makes a lock, see "
            "docs/object-stores.md"
        )
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or any(c in rest for c in "?#\0"):
        # it is not shown: it may hold a secret
        raise ConfigurationError(
            f"table path must name a folder, {scheme}://bucket/folder, without '?' and '#', got another one; "
            "credentials come from the environment"
        )
    if ":" in parts[0].rpartition("@")[0]:
        raise ConfigurationError(
            f"table path must name a folder and no password, {scheme}://container@account/folder, got one "
            "with ':' before '@'; credentials come from the environment"
        )
    return f"{scheme.lower()}://{'/'.join(parts)}"


def file_system(head: str) -> Any:
    """The process's file system of ``scheme://bucket``, made after the fork."""
    try:
        return _systems.made(head, lambda: pa.fs.FileSystem.from_uri(f"{head}/")[0])
    except (pa.ArrowException, OSError) as cause:
        raise ConfigurationError(f"{head!r}: pyarrow cannot open this file system, got {cause}") from cause


class LockedStorage(CachedStorage):
    """The files of one bucket."""

    def __init__(self, head: str) -> None:
        self._head = head
        # elsewhere a file can be seen while it is being written, and stays as it is if its writer dies
        self.has_temporary_names = head.partition(":")[0] not in _WHOLE

    def put_if_absent(self, path: str, content: bytes, mode: int = 0o666) -> bool:  # noqa: ARG002
        """Look for a name and write it, under the lock of its table."""

        def put() -> bool:
            if self.exists(path):
                return False
            try:
                self.replace(path, content)
            except (FileNotFoundError, RefusedError):
                raise
            except OSError as cause:
                raise UnknownOutcomeError(
                    f"{path!r}: the store must say whether it has the file, got {cause}; look at the table's "
                    "history before you write the rows again"
                ) from cause
            return True

        reach("publish.before-link")
        won = with_catalog_lock(path, put)
        reach("publish.after-link")
        return won

    def versioned(self, path: str) -> Versioned | None:
        """The content of a file, which is its version too; None if there is none."""
        try:
            content = self.read(path)
        except FileNotFoundError:
            return None
        return Versioned(content, sha256(content).hexdigest())

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = 0o666) -> bool:  # noqa: ARG002
        """Look at a file and write it, under the lock of its table."""

        def put() -> bool:
            if self.versioned(path) != seen:
                return False
            self.replace(path, content)
            return True

        return with_catalog_lock(path, put)

    def take_away(self, path: str, instead: bytes) -> None:  # noqa: ARG002
        """Delete a file, not while another one is between its look and its writing."""
        with_catalog_lock(path, lambda: self.delete(path))

    def replace(self, path: str, content: bytes, mode: int = 0o666) -> None:  # noqa: ARG002
        """Write a file, whatever was there; readers see the old or the new."""
        inside = self._inside(path)
        folder, name = os.path.split(inside)
        first = f"{folder}/.{name}-{uuid4().hex}{TEMPORARY_SUFFIX}" if self.has_temporary_names else inside
        with store_errors_of(path):
            self._system.create_dir(folder, recursive=True)
            with self._system.open_output_stream(first) as out:
                out.write(content)
            if first == inside:
                return
            try:
                self._system.move(first, inside)
            except NotImplementedError as cause:
                raise ConfigurationError(
                    f"{path!r}: the store must rename files, got {cause}; choose an account with a "
                    "hierarchical namespace"
                ) from cause

    def _upload(self, path: str, source: str) -> None:
        inside = self._inside(path)
        with open(source, "rb") as file, store_errors_of(path):
            self._system.create_dir(os.path.dirname(inside), recursive=True)
            with self._system.open_output_stream(inside) as out:
                while chunk := file.read(_CHUNK):
                    out.write(chunk)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        with store_errors_of(path), self._system.open_input_stream(self._inside(path)) as source:
            content: bytes = source.read()
        return content

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of a file, and its age in seconds; by two clocks, which should agree."""
        found = self.stat(path)
        return None if found is None else (self.read(path), time.time() - found.modified_ns / 1e9)

    def _download(self, path: str, target: str) -> None:
        with open(target, "xb") as out:
            for chunk in self._chunks(path):
                out.write(chunk)

    def _chunks(self, path: str) -> Iterator[bytes]:
        with store_errors_of(path), self._system.open_input_stream(self._inside(path)) as source:
            while chunk := source.read(_CHUNK):
                yield chunk

    def stat(self, path: str) -> FileStat | None:
        """What is known of a file; None if there is none."""
        with store_errors_of(path):
            (found,) = self._system.get_file_info([self._inside(path)])
        return _stat(found) if found.is_file else None

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder."""
        return [found.base_name for found in self._listed(folder, recursive=False)]

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder."""
        skipped = len(self._inside(folder)) + 1
        for found in self._listed(folder, recursive=True):
            if found.is_file:
                yield Found(found.path[skipped:], partial(_stat, found))

    def _listed(self, folder: str, *, recursive: bool) -> Any:
        inside = self._inside(folder)
        with store_errors_of(folder):
            selected = pa.fs.FileSelector(inside, allow_not_found=True, recursive=recursive)
            return self._system.get_file_info(selected)

    def delete(self, path: str) -> bool:
        """Delete a file; False if there was none."""
        local_cache().drop(path)
        try:
            with store_errors_of(path):
                self._system.delete_file(self._inside(path))
        except FileNotFoundError:
            return False
        return True

    def delete_folder(self, folder: str) -> None:
        """Delete all files below a folder."""
        with suppress(FileNotFoundError), store_errors_of(folder):
            self._system.delete_dir(self._inside(folder))

    @property
    def _system(self) -> Any:
        return file_system(self._head)

    def _inside(self, path: str) -> str:
        return path.partition("://")[2]


def owner_of(path: str) -> tuple[str, str]:
    """Database and table of a file, by the folders that it lies in.

    >>> owner_of("gs://bucket/shop.db/fruit/0123456789abcdef0123456789abcdef/snapshot/snapshot-1")
    ('shop', 'fruit')
    >>> owner_of("gs://bucket/warehouse/fruit/table.json")
    ('warehouse', 'fruit')
    """
    *parts, name = path.partition("://")[2].split("/")
    at = next((n for n, part in enumerate(parts) if _UUID.fullmatch(part)), len(parts))
    database, table = ["", *parts[:at]][-2:] if name == _TABLE or at < len(parts) else ["", "/".join(parts)]
    return database.removesuffix(".db"), table


def _stat(found: Any) -> FileStat:
    return FileStat(found.size, found.mtime_ns or 0, (found.mtime_ns, found.size))
