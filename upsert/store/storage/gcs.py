"""The objects of a bucket of Google Cloud Storage, by its JSON interface over google-auth's session.

``ifGenerationMatch`` is the condition of a put: 0 for no such object, else the number that the store has
given to the object that was seen, and gives to no other one. Credentials come from google-auth's own chain:
``GOOGLE_APPLICATION_CREDENTIALS``, those of ``gcloud``, the machine's service account. They are sent over
HTTPS alone: an ``http:`` endpoint is an emulator's, which wants none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from upsert.errors import ConfigurationError, optional_package
from upsert.store.kept import Kept
from upsert.store.storage import object_store
from upsert.store.storage.base import FileStat, Versioned, is_http_address
from upsert.store.storage.object_store import ABSENT, ObjectStores, Page, Repeat, key_of

ENDPOINT_VARIABLE: Final = "STORAGE_EMULATOR_HOST"
"""As Google's own clients call it."""

_PATH: Final = re.compile(r"(?i:gc?s)://([^/;?]*)((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_SETTING: Final = "endpoint"
_GOOGLE: Final = "https://storage.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS or the machine's account"
_CHUNK: Final = 1 << 20
_AT_ONCE: Final = 8
_METADATA: Final = b'{"cacheControl": "no-store"}'
"""Otherwise the objects of a public bucket may be read from caches, an hour after they were replaced."""


@dataclass(frozen=True)
class GcsLocation:
    """A bucket and how it is reached; None for what the environment says."""

    bucket: str
    endpoint: str | None = None

    def __str__(self) -> str:
        return object_store.with_settings(f"gs://{self.bucket}", endpoint=self.endpoint)


def split(path: str) -> tuple[GcsLocation, str]:
    """The location of a path and its key, the name of an object in the bucket.

    >>> STORES.folder_uri("gs://bucket/shop/orders/?endpoint=http://127.0.0.1:4443")
    'gs://bucket;endpoint=http%3A%2F%2F127.0.0.1%3A4443/shop/orders'
    """
    match = _PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise ConfigurationError(
            "table path must be gs://bucket/folder, with a bucket's name of 3 to 222 small letters, digits, "
            f"'.', '_' and '-', got another one; credentials come from {_CREDENTIALS}"
        )
    settings = object_store.known_settings(match[1], match[2], match[4], (_SETTING,), _CREDENTIALS)
    return GcsLocation(match[1], settings.get(_SETTING)), match[3]


_sessions = Kept[str, Any](dict, is_inherited=False)


def _made(endpoint: str, bucket: str) -> Any:
    with optional_package("google-auth", "gcs", f"a table in bucket {bucket!r}"):
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    if endpoint.startswith("http:"):
        return AuthorizedSession(AnonymousCredentials())
    try:
        return AuthorizedSession(google.auth.default(scopes=[_SCOPE])[0])
    except GoogleAuthError as cause:
        raise ConfigurationError(
            f"table in bucket {bucket!r}: an object store needs credentials, got {type(cause).__name__}; set "
            "GOOGLE_APPLICATION_CREDENTIALS to a file of them, or run gcloud auth application-default login"
        ) from cause


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Turn the session's errors about an object into those that this package speaks of."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from requests.exceptions import RequestException

    try:
        yield
    except (TransportError, RequestException) as cause:
        raise object_store.no_answer(path, cause) from cause
    except GoogleAuthError as cause:
        if cause.retryable:
            raise object_store.no_answer(path, cause) from cause
        raise object_store.failure(path, 401, "no token for them", _CREDENTIALS) from cause


class GcsClient:
    """Requests to one bucket."""

    no_version = "1"

    def __init__(self, location: GcsLocation) -> None:
        self._location = location

    def put(self, path: str, content: bytes, seen: str | None = None) -> None:
        """Put content under a name, with ``seen`` on a condition."""
        boundary = uuid4().hex
        head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n"
        between = f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        body = (head.encode(), _METADATA, between.encode(), content, f"\r\n--{boundary}--".encode())
        condition = {} if seen is None else {"ifGenerationMatch": "0" if seen == ABSENT else seen}
        related = f"multipart/related; boundary={boundary}"
        self._insert(path, "multipart", b"".join(body), related, **condition)

    def upload(self, path: str, source: str, repeat: Repeat) -> None:
        """Send a local file, whatever its size, by one request."""
        body = _Whole(source)
        repeat(partial(self._insert, path, "media", body, "application/octet-stream"))

    def _insert(self, path: str, kind: str, body: bytes | _Whole, type_: str, **condition: str) -> None:
        self._ask_bucket(
            path,
            "POST",
            "/upload/storage/v1",
            params={"uploadType": kind, "name": key_of(path), "fields": "generation", **condition},
            data=body,
            headers={"Content-Type": type_},
        )

    def get(self, path: str) -> Versioned:
        """An object's content and the number of its generation."""
        reply = self._media(path)
        return Versioned(reply.content, reply.headers["X-Goog-Generation"])

    def aged(self, path: str) -> tuple[bytes, float]:
        """An object's content and its age; one that is put in between makes it younger, not older."""
        content = self._media(path).content
        reply = self._about(path)
        now = parsedate_to_datetime(reply.headers["Date"])
        return content, (now - _time(reply.json())).total_seconds()

    def download(self, path: str, target: str) -> None:
        """Write an object's content to a local path."""
        reply = self._media(path, stream=True)
        with _errors_of(path), reply, open(target, "wb") as file:
            for chunk in reply.iter_content(_CHUNK):
                file.write(chunk)

    def stat(self, path: str) -> FileStat:
        """What is known of an object."""
        return _stat(self._about(path).json())

    def page(self, path: str, is_deep: bool, limit: int, after: str | None) -> Page:
        """Part of a listing."""
        params = {"prefix": key_of(path), "maxResults": str(limit)} | ({} if is_deep else {"delimiter": "/"})
        if after is not None:
            params["pageToken"] = after
        params["fields"] = "items(name,size,timeCreated,generation),prefixes,nextPageToken"
        page = self._ask_bucket(path, "GET", "/storage/v1", params=params).json()
        return Page(
            [(found["name"], _stat(found)) for found in page.get("items", ())],
            [found[:-1] for found in page.get("prefixes", ())],
            page.get("nextPageToken"),
        )

    def delete(self, path: str) -> None:
        """Delete an object."""
        with suppress(FileNotFoundError):
            self._ask(path, "DELETE", self._url(path))

    def delete_all(self, paths: Sequence[str]) -> int:
        """Delete objects, some at once: the store takes one with each request."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for _ in threads.map(self.delete, paths):
                pass
        return 0

    def _media(self, path: str, *, stream: bool = False) -> Any:
        url = self._url(path, "/download/storage/v1")
        return self._ask(path, "GET", url, params={"alt": "media"}, stream=stream)

    def _about(self, path: str) -> Any:
        return self._ask(path, "GET", self._url(path), params={"fields": "size,timeCreated,generation"})

    def _url(self, path: str, interface: str = "/storage/v1") -> str:
        return f"{self._endpoint}{interface}/b/{self._location.bucket}/o/{quote(key_of(path), safe='')}"

    def _ask_bucket(self, path: str, method: str, interface: str, **request: Any) -> Any:
        """Ask something that is about all objects, or a new one."""
        try:
            return self._ask(
                path, method, f"{self._endpoint}{interface}/b/{self._location.bucket}/o", **request
            )
        except FileNotFoundError:
            raise object_store.no_bucket(path) from None

    def _ask(self, path: str, method: str, url: str, **request: Any) -> Any:
        session = _sessions.made(self._endpoint, lambda: _made(self._endpoint, self._location.bucket))
        with _errors_of(path):
            reply = session.request(
                method, url, timeout=(object_store.CONNECT_S, object_store.READ_S), **request
            )
            if reply.status_code < 400:
                return reply
            # of an object that is not there it says the same as of a bucket, but for the words
            text = reply.text
        if reply.status_code == 404 and "bucket does not exist" in text:
            raise object_store.no_bucket(path)
        raise object_store.failure(path, reply.status_code, "", _CREDENTIALS)

    @property
    def _endpoint(self) -> str:
        if self._location.endpoint is not None:
            return self._location.endpoint
        given = os.environ.get(ENDPOINT_VARIABLE)
        if not given:
            return _GOOGLE
        address = given if "://" in given else f"http://{given}"
        if not is_http_address(address):
            raise ConfigurationError(f"{ENDPOINT_VARIABLE} must be http://host:port, got another one")
        return address.rstrip("/")


class _Whole:
    """A file as a body, from its beginning each time it is sent: the session may do that by itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __len__(self) -> int:
        return os.stat(self._path).st_size

    def __iter__(self) -> Iterator[bytes]:
        with open(self._path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def _time(found: Mapping[str, str]) -> datetime:
    return datetime.fromisoformat(found["timeCreated"])


def _stat(found: Mapping[str, str]) -> FileStat:
    return FileStat(int(found["size"]), int(_time(found).timestamp() * 1e9), found["generation"])


STORES: Final = ObjectStores(GcsClient, split, "gs://bucket/folder")
