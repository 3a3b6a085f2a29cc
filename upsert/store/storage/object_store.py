"""Any object store with conditional puts: names appear by one of them, large files by way of a local cache.

A put on the condition that there is no such object lets one of many writers of a name win. Where no answer
comes, the object is read back: it is ours if it has our content, which has a random id of its own. Until that
is known, nothing is cleaned up. Large files are sent in parts, and none of them appears half.

What differs between the stores is an ``ObjectClient``: a few requests, each sent once, for only the caller
knows what a second one would do. The clients' libraries keep connections, so they are made for each process,
after the fork.

What a user writes, ``s3://bucket/prefix?endpoint=http://host:9000``, has its settings at the end; the store
keeps them beside the bucket, ``s3://bucket;endpoint=…/prefix``, so that a name can be joined to it as to a
folder. Credentials never stand in a path.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.store.storage.base import (
    FileStat,
    Found,
    RefusedError,
    T,
    UnansweredError,
    Versioned,
    is_http_address,
    repeated,
    settings_of,
)
from upsert.store.storage.cache import CachedStorage, local_cache

ABSENT: Final = ""
"""The version of an object that is not there."""

PART_BYTES: Final = 64 << 20
"""Larger files are sent in parts of this size: a part that fails is sent again, not the whole."""

MAX_PARTS: Final = 9_000

CONNECT_S: Final = 10
READ_S: Final = 60
"""How long a client waits for a connection, and for a sign of the server."""

_PAGE: Final = 1_000
_REMEDY: Final = "check the server and the network, then try again"

_OTHER: Final = Versioned(b"", ABSENT)
"""What the server has seen instead, of which it says nothing."""


class NotAsSeenError(Exception):
    """A conditional put found another version than its condition names; it has not happened."""


class ConflictError(UnansweredError):
    """A request came between another one's beginning and end: 409. It has not happened; try again."""


class Page(NamedTuple):
    """Part of a listing: objects by their keys, folders without a ``/`` at the end, where the next begins.

    Folders of a deep one are those that the store keeps as such.
    """

    objects: Sequence[tuple[str, FileStat]]
    folders: Sequence[str]
    after: str | None


class Repeat(Protocol):
    """Does an action again while the store does not answer."""

    def __call__(self, action: Callable[[], T], /) -> T:
        """What the action gives in the end."""


class ObjectClient(Protocol):
    """Requests about the objects of one bucket, each sent once; threads may share it.

    Raises:
        FileNotFoundError: what is asked for is not there.
        ConfigurationError: there is no such bucket, no client or no credentials.
        RefusedError: the user must not do that.
        UnansweredError: there was no answer, or one that says that the store has failed.
    """

    no_version: str
    """What could be an object's version, and is none's."""

    def put(self, path: str, content: bytes, seen: str | None = None) -> None:
        """Put content under a name; with ``seen`` only if the object there has this version, or is absent.

        Raises:
            NotAsSeenError: it has another one.
            ConflictError: two conditional puts met.
        """

    def upload(self, path: str, source: str, repeat: Repeat) -> None:
        """Send a local file under a name that is used once; the object appears as a whole."""

    def get(self, path: str) -> Versioned:
        """An object's content and version."""

    def aged(self, path: str) -> tuple[bytes, float]:
        """An object's content, and for how many seconds it has it by the server's clock, or for less."""

    def download(self, path: str, target: str) -> None:
        """Write an object's content to a local path."""

    def stat(self, path: str) -> FileStat:
        """What is known of an object without reading it."""

    def page(self, path: str, is_deep: bool, limit: int, after: str | None) -> Page:
        """What follows a path in the keys of objects, not ``is_deep``: up to the next ``/``."""

    def delete(self, path: str) -> None:
        """Delete an object; nothing if there is none."""

    def delete_all(self, paths: Sequence[str]) -> int:
        """Delete objects, at most as many as a page has; how many are left."""


class ObjectStorage(CachedStorage):
    """The objects of one bucket, as one client reaches it."""

    has_temporary_names = False

    def __init__(self, client: ObjectClient, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._is_sound = False
        self._swaps = False

    def put_if_absent(self, path: str, content: bytes, mode: int = 0o666) -> bool:  # noqa: ARG002
        """Publish content under a name; False if another has it."""
        reach("publish.before-link")
        won = self._put_if_absent(path, content)
        if won:
            reach("publish.after-link")
            reach("publish.after-sync")
        return won

    def _put_if_absent(self, path: str, content: bytes) -> bool:
        found = self._put(path, content, ABSENT)
        return found is None or found.content == content

    def _put(self, path: str, content: bytes, seen: str) -> Versioned | None:
        """Put content in the place of the version ``seen``; None if it was done, else what is there instead.

        The content differs from all that others put there. An unanswered put is tried again while that
        version is there.

        Raises:
            UnknownOutcomeError: the server has not answered for a minute or more.
        """
        has_doubts = False

        def put() -> Versioned | None:
            nonlocal has_doubts
            failure = UnansweredError(
                errno.EAGAIN, "the object store must put it, got 409 again and again; try again", path
            )
            try:
                self._client.put(path, content, seen)
                return None
            except NotAsSeenError:
                if not has_doubts:
                    return _OTHER
            except ConflictError:
                pass
            except UnansweredError as cause:
                has_doubts, failure = True, cause
            except ConfigurationError:  # a right that is missing now says nothing of the attempt before
                if not has_doubts:
                    raise
            if has_doubts and (found := self._versioned_if_any(path)) is not None and found.version != seen:
                return found
            raise failure

        try:
            return self._repeated(put)
        except UnansweredError as cause:
            if not has_doubts:
                raise
            raise UnknownOutcomeError(
                f"{path!r}: the object store must say whether it has the object, got no answer; look at the "
                "table's history before you write the rows again"
            ) from cause

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = 0o666) -> bool:  # noqa: ARG002
        """Put other content in the place of what was seen."""
        self._check_swaps(path)
        found = self._put(path, content, seen.version)
        if found is None or found.content == content:
            return True
        if found is not _OTHER:
            raise UnknownOutcomeError(
                f"{path!r}: the object store must say whether it has replaced the object, got no answer, and "
                "another process has replaced it since; look at the table"
            )
        return False

    def take_away(self, path: str, instead: bytes) -> None:  # noqa: ARG002
        """Delete an object: no swap that has seen it will find it."""
        self.delete(path)

    def _check_swaps(self, path: str) -> None:
        """Make sure, once in a process, that the server replaces on a condition.

        It must not put what is to follow an object that is not there: then a crash leaves no probe behind.
        """
        if self._swaps:
            return
        probe = f"{path}-probe-{uuid4().hex}"
        try:
            self._repeated(partial(self._client.put, probe, b"", self._client.no_version))
        except NotAsSeenError:
            self._swaps = True
            return
        self._delete(probe)
        raise ConfigurationError(
            f"{path!r}: the object store must refuse a put with If-Match of another version than it has, "
            "got one that overwrites; CREATE TABLE and INSERT INTO it, or choose another store"
        )

    def versioned(self, path: str) -> Versioned | None:
        """The content of an object and its version; None if there is none."""
        try:
            return self._repeated(partial(self._client.get, path))
        except FileNotFoundError:
            return None

    def _versioned_if_any(self, path: str) -> Versioned | None:
        try:
            return self._client.get(path)
        except (FileNotFoundError, UnansweredError, ConfigurationError):
            return None

    def replace(self, path: str, content: bytes, mode: int = 0o666) -> None:  # noqa: ARG002
        """Put other content under a name."""
        self._repeated(partial(self._client.put, path, content))

    def prepare(self, folder: str) -> None:
        """Make sure, once in a process, that conditional puts are honoured: some servers overwrite."""
        if self._is_sound:
            return
        probe = f"{folder}/probe-{uuid4().hex}"
        self._put_if_absent(probe, b"first")
        is_sound = not self._put_if_absent(probe, b"second")
        self._delete(probe)
        if not is_sound:
            raise ConfigurationError(
                f"{folder!r}: the object store must refuse a put with If-None-Match: * of a name that is "
                "taken, got one that overwrites, where commits would be lost; choose another store"
            )
        self._is_sound = True

    def _upload(self, path: str, source: str) -> None:
        self._client.upload(path, source, self._repeated)

    def read(self, path: str) -> bytes:
        """The content of an object."""
        return self._repeated(partial(self._client.get, path)).content

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of an object, and for how many seconds it has it by the server's clock."""
        try:
            return self._repeated(partial(self._client.aged, path))
        except FileNotFoundError:
            return None

    def _download(self, path: str, target: str) -> None:
        self._repeated(partial(self._client.download, path, target))

    def stat(self, path: str) -> FileStat | None:
        """What is known of an object; None if there is none."""
        try:
            return self._repeated(partial(self._client.stat, path))
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """What follows the folder in the names of objects, up to the next ``/``."""
        skipped = len(key_of(f"{folder}/"))
        names: dict[str, None] = {}
        for page in self._pages(f"{folder}/", is_deep=False):
            names.update(dict.fromkeys(key[skipped:] for key, _ in page.objects))
            names.update(dict.fromkeys(key[skipped:] for key in page.folders))
        return [name for name in names if name]

    def walk(self, folder: str) -> Iterator[Found]:
        """All objects below a folder."""
        skipped = len(key_of(f"{folder}/"))
        for page in self._pages(f"{folder}/", is_deep=True):
            for key, stat in page.objects:
                yield Found(key[skipped:], partial(_itself, stat))

    def _pages(self, path: str, *, is_deep: bool) -> Iterator[Page]:
        after = None
        while True:
            page = self._repeated(partial(self._client.page, path, is_deep, _PAGE, after))
            yield page
            if (after := page.after) is None:
                return

    def delete(self, path: str) -> bool:
        """Delete an object; not every server says whether there was one."""
        local_cache().drop(path)
        self._delete(path)
        return True

    def _delete(self, path: str) -> None:
        self._repeated(partial(self._client.delete, path))

    def delete_folder(self, folder: str) -> None:
        """Delete all objects below a folder, many with each request where the store can do that."""
        skipped = len(key_of(f"{folder}/"))
        folders: list[str] = []
        for page in self._pages(f"{folder}/", is_deep=True):
            folders += page.folders
            paths = [f"{folder}/{key[skipped:]}" for key, _ in page.objects]
            if paths and (left := self._repeated(partial(self._client.delete_all, paths))):
                raise UnansweredError(
                    errno.EIO, f"the object store must delete objects, {left} are left; try again", folder
                )
        for inner in reversed(folders):
            with suppress(UnansweredError):  # another process has put an object there
                self._client.delete(f"{folder}/{inner[skipped:]}")

    def _repeated(self, action: Callable[[], T]) -> T:
        return repeated(action, self._sleep)


class ObjectStores(NamedTuple):
    """The stores of one kind: what makes a client of a bucket's location, and paths taken apart.

    ``split`` gives the location of a path and its key; ``form`` is what such a path looks like.
    """

    client: Callable[[Any], ObjectClient]
    split: Callable[[str], tuple[Any, str]]
    form: str

    def storage(self, path: str) -> ObjectStorage:
        """The storage of a path's bucket."""
        return ObjectStorage(self.client(self.split(path)[0]))

    def folder_uri(self, text: str) -> str:
        """The form in which the store keeps the URI of a folder; of that form itself the same."""
        return folder_within(*self.split(text), self.form)


def _itself(stat: FileStat) -> FileStat:
    return stat


def key_of(path: str) -> str:
    """The name of an object in its bucket.

    >>> key_of("s3://bucket;region=eu-west-1/shop/orders/table.json")
    'shop/orders/table.json'
    """
    return path.partition("://")[2].partition("/")[2]


def parts(source: str) -> Iterator[bytes]:
    """What a local file is sent in: a small one is one part."""
    with open(source, "rb") as file:
        size = max(PART_BYTES, -(-os.fstat(file.fileno()).st_size // MAX_PARTS))
        yield file.read(size)
        while part := file.read(size):
            yield part


def with_settings(head: str, **settings: str | None) -> str:
    """A bucket with its settings beside it; None for what the client's own configuration says.

    >>> with_settings("s3://bucket", endpoint="http://host:9000", region=None)
    's3://bucket;endpoint=http%3A%2F%2Fhost%3A9000'
    """
    given = ((name, value) for name, value in settings.items() if value is not None)
    return head + "".join(f";{name}={quote(value, safe='')}" for name, value in given)


def known_settings(
    bucket: str, beside: str, query: str | None, known: Collection[str], credentials: str
) -> dict[str, str]:
    """The settings of a path, its endpoint without a ``/`` at the end.

    Raises:
        ConfigurationError: another one is given, or the endpoint is none. Values are not shown: one may be a
            secret. ``credentials`` are where these come from.
    """
    settings = settings_of(beside, query)
    if unknown := sorted(settings.keys() - set(known)):
        raise ConfigurationError(
            f"table path of bucket {bucket!r}: what may be set is {' and '.join(known)}, got {unknown[0]!r}; "
            f"credentials come from {credentials}"
        )
    if "endpoint" in settings:
        if not is_http_address(settings["endpoint"]):
            raise ConfigurationError(
                "table path: the endpoint must be http://host:port or https://host without user, path and "
                f"query, got another one; credentials come from {credentials}"
            )
        settings["endpoint"] = settings["endpoint"].rstrip("/")
    return settings


def folder_within(bucket: object, key: str, form: str) -> str:
    """The path of a folder within a bucket, from that of the bucket and a key."""
    key = key.rstrip("/")
    if not key or any(part in ("", ".", "..") or "\0" in part for part in key.split("/")):
        raise ConfigurationError(
            f"table path must name a folder within a bucket, {form}, got bucket {bucket} and folder {key!r}"
        )
    return f"{bucket}/{key}"


def failure(path: str, status: int, code: str, credentials: str) -> Exception:
    """What an answer other than success says of a request about an object."""
    said = " ".join(dict.fromkeys(filter(None, (str(status), code))))
    match status:
        case 404:
            return FileNotFoundError(errno.ENOENT, "no such object", path)
        case 412:
            return NotAsSeenError(path)
        case 409:
            return ConflictError(errno.EAGAIN, f"the object store must do it, got {said}; try again", path)
        case 401 | 403:
            return RefusedError(
                errno.EACCES,
                f"the server must allow what is asked, got {code or status}; correct the credentials in "
                f"{credentials}, or the rights of their owner",
                path,
            )
        case _ if status in _NEVER:
            return RefusedError(
                errno.EINVAL,
                f"the object store must do what is asked, got {said}, which it will say again; correct the "
                "settings of the path and the credentials, or choose another store",
                path,
            )
        case _:
            return UnansweredError(
                errno.EIO, f"the object store must do what is asked, got {said}; {_REMEDY}", path
            )


_NEVER: Final = frozenset({*range(300, 500), 501} - {408, 425, 429})
"""Answers to a request that is wrong, or that the server does not know; the same one gets the same again."""


def no_answer(path: str, cause: Exception) -> UnansweredError:
    """What it means that a client has got none."""
    return UnansweredError(
        errno.EIO, f"the object store must answer, got {type(cause).__name__}; {_REMEDY}", path
    )


def no_bucket(path: str) -> ConfigurationError:
    """What it means that the store does not know the bucket."""
    return ConfigurationError(f"{path!r}: there must be a bucket of this name; create it")
