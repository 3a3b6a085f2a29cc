"""The blobs of a container of Azure Blob Storage, by azure-storage-blob.

``If-None-Match: *`` and ``If-Match`` are the conditions of a put. A path names the account as Spark's and
Flink's users write it, ``abfss://container@account.dfs.core.windows.net/folder``, or the environment does:
``az://container/folder``. The account may have a hierarchical namespace or none: the blobs are asked for over
the same interface, and folders are passed over.

Credentials come from the environment: ``AZURE_STORAGE_CONNECTION_STRING``, a key or a token of the account,
or else what azure-identity finds, such as the machine's identity.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from upsert.errors import ConfigurationError, optional_package
from upsert.store.kept import Kept
from upsert.store.storage import object_store
from upsert.store.storage.base import FileStat, Versioned
from upsert.store.storage.object_store import ABSENT, ObjectStores, Page, Repeat, key_of

CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
ACCOUNT_VARIABLE: Final = "AZURE_STORAGE_ACCOUNT"
KEY_VARIABLE: Final = "AZURE_STORAGE_KEY"
TOKEN_VARIABLE: Final = "AZURE_STORAGE_SAS_TOKEN"
"""As Azure's own command line calls them."""

_PATH: Final = re.compile(
    r"(?i:abfss?|wasbs?|az)://([^/;?@]*)(?:@([^/;?]*))?((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL
)
_CONTAINER: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_HOST: Final = re.compile(r"[a-z0-9]{3,24}(\.[a-z0-9.-]+)?")
_SETTING: Final = "endpoint"
_CREDENTIALS: Final = "the environment"
_SIZES: Final = ("max_single_put_size", "max_single_get_size", "max_chunk_get_size")
_BATCH: Final = 256
_FOLDER: Final = "hdi_isfolder"


@dataclass(frozen=True)
class AzureLocation:
    """A container and how it is reached; None for what the environment says."""

    container: str
    host: str | None = None
    endpoint: str | None = None

    def __str__(self) -> str:
        head = f"az://{self.container}" if self.host is None else f"abfss://{self.container}@{self.host}"
        return object_store.with_settings(head, endpoint=self.endpoint)

    @property
    def account(self) -> str:
        """The name of the account."""
        account = os.environ.get(ACCOUNT_VARIABLE) if self.host is None else self.host.partition(".")[0]
        if not account:
            raise ConfigurationError(
                f"table in container {self.container!r}: its account must be known, got none; write "
                f"abfss://container@account.dfs.core.windows.net/folder, or set {ACCOUNT_VARIABLE}"
            )
        return account

    @property
    def url(self) -> str:
        """The address of the account's blobs.

        >>> AzureLocation("c", "shop.dfs.core.windows.net").url, AzureLocation("c", "shop", "http://host:10000").url
        ('https://shop.blob.core.windows.net', 'http://host:10000/shop')
        """
        if self.endpoint is not None:
            return f"{self.endpoint}/{self.account}"
        _, _, domain = (self.host or "").partition(".")
        return f"https://{self.account}.{domain.replace('dfs.', 'blob.', 1) or 'blob.core.windows.net'}"


def split(path: str) -> tuple[AzureLocation, str]:
    """The location of a path and its key, the name of a blob in the container.

    >>> STORES.folder_uri("abfs://shop@account.dfs.core.windows.net/orders/?endpoint=http://127.0.0.1:10000")
    'abfss://shop@account.dfs.core.windows.net;endpoint=http%3A%2F%2F127.0.0.1%3A10000/orders'
    """
    match = _PATH.fullmatch(path)
    host = match[2] and match[2].lower() if match else None
    if match is None or not _CONTAINER.fullmatch(match[1]) or not (host is None or _HOST.fullmatch(host)):
        raise ConfigurationError(
            "table path must be abfss://container@account.dfs.core.windows.net/folder or "
            "az://container/folder, with names of small letters and digits, got another one; credentials "
            f"come from {_CREDENTIALS}"
        )
    settings = object_store.known_settings(match[1], match[3], match[5], (_SETTING,), _CREDENTIALS)
    return AzureLocation(match[1], host, settings.get(_SETTING)), match[4]


_containers = Kept[AzureLocation, Any](dict, is_inherited=False)


def _made(location: AzureLocation) -> Any:
    with optional_package("azure-storage-blob", "azure", f"a table in container {location.container!r}"):
        from azure.storage.blob import BlobServiceClient
    options: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": object_store.CONNECT_S,
        "read_timeout": object_store.READ_S,
        **dict.fromkeys(_SIZES, object_store.PART_BYTES),
    }
    text = os.environ.get(CONNECTION_VARIABLE) if location.endpoint is None else None
    try:
        service = BlobServiceClient.from_connection_string(text, **options) if text else None
        if service is None or (location.host and service.account_name != location.account):
            service = BlobServiceClient(location.url, _credential(location), **options)
    except ConfigurationError:
        raise
    except ValueError as cause:
        raise ConfigurationError(
            f"table in container {location.container!r}: {CONNECTION_VARIABLE}, {KEY_VARIABLE} and "
            f"{TOKEN_VARIABLE} must be as Azure gives them, got others; correct them"
        ) from cause
    return service.get_container_client(location.container)


def _credential(location: AzureLocation) -> Any:
    """A key or a token of the account, or what azure-identity finds."""
    if os.environ.get(ACCOUNT_VARIABLE, location.account) == location.account:
        if key := os.environ.get(KEY_VARIABLE):
            return {"account_name": location.account, "account_key": key}
        if token := os.environ.get(TOKEN_VARIABLE):
            return token
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as cause:
        raise ConfigurationError(
            f"table in container {location.container!r}: an object store needs credentials, got none; set "
            f"{CONNECTION_VARIABLE}, {KEY_VARIABLE} or {TOKEN_VARIABLE}, or pip install 'deltajoin[azure]' "
            "for the machine's identity"
        ) from cause
    return DefaultAzureCredential()


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Turn the client's errors about a blob into those that this package speaks of."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

    try:
        yield
    except HttpResponseError as cause:
        code = getattr(cause, "error_code", None)
        code = str(getattr(code, "value", code) or "")
        if code in ("ContainerNotFound", "ContainerBeingDeleted"):
            raise object_store.no_bucket(path) from None
        if code == "BlobAlreadyExists":
            raise object_store.NotAsSeenError(path) from None
        # of azure-identity there is no status: it had nothing to ask with
        usual = 401 if isinstance(cause, ClientAuthenticationError) else 0
        raise object_store.failure(path, cause.status_code or usual, code, _CREDENTIALS) from None
    except AzureError as cause:
        raise object_store.no_answer(path, cause) from cause


class AzureClient:
    """Requests to one container."""

    no_version = '"0x1"'

    def __init__(self, location: AzureLocation) -> None:
        self._location = location

    def put(self, path: str, content: bytes, seen: str | None = None) -> None:
        """Put content under a name, with ``seen`` on a condition."""
        from azure.core import MatchConditions

        condition = {"etag": seen, "match_condition": MatchConditions.IfNotModified} if seen else {}
        with _errors_of(path):
            self._blob(path).upload_blob(content, overwrite=seen != ABSENT, **condition)

    def upload(self, path: str, source: str, repeat: Repeat) -> None:
        """Send a local file, a large one in parts."""
        parts = object_store.parts(source)
        if os.stat(source).st_size <= object_store.PART_BYTES:
            for content in parts:
                repeat(partial(self.put, path, content))
            return
        blocks = []
        for part in parts:
            blocks.append(b64encode(uuid4().bytes).decode())
            repeat(partial(self._stage, path, blocks[-1], part))
        repeat(partial(self._commit, path, blocks))

    def _stage(self, path: str, block: str, part: bytes) -> None:
        with _errors_of(path):
            self._blob(path).stage_block(block, part)

    def _commit(self, path: str, blocks: Sequence[str]) -> None:
        from azure.storage.blob import BlobBlock

        with _errors_of(path):
            self._blob(path).commit_block_list([BlobBlock(block) for block in blocks])

    def get(self, path: str) -> Versioned:
        """A blob's content and ETag."""
        with _errors_of(path):
            found = self._blob(path).download_blob()
            return Versioned(found.readall(), found.properties.etag)

    def aged(self, path: str) -> tuple[bytes, float]:
        """A blob's content and its age."""
        dates: list[str] = []
        with _errors_of(path):
            found = self._blob(path).download_blob(
                raw_response_hook=lambda reply: dates.append(reply.http_response.headers["Date"])
            )
            age = parsedate_to_datetime(dates[0]) - found.properties.last_modified
            return found.readall(), age.total_seconds()

    def download(self, path: str, target: str) -> None:
        """Write a blob's content to a local path."""
        with _errors_of(path), open(target, "wb") as file:
            self._blob(path).download_blob().readinto(file)

    def stat(self, path: str) -> FileStat:
        """What is known of a blob."""
        with _errors_of(path):
            return _stat(self._blob(path).get_blob_properties())

    def page(self, path: str, is_deep: bool, limit: int, after: str | None) -> Page:
        """Part of a listing."""
        from azure.storage.blob import BlobPrefix

        container = self._container
        listed = container.list_blobs if is_deep else partial(container.walk_blobs, delimiter="/")
        with _errors_of(path):
            pages = listed(
                name_starts_with=key_of(path), results_per_page=limit, include=["metadata"]
            ).by_page(after)
            page = list(next(pages))
        objects, folders = list[tuple[str, FileStat]](), list[str]()
        for found in page:
            # a folder of a hierarchical namespace is listed as a blob with this entry
            if isinstance(found, BlobPrefix) or _FOLDER in (found.metadata or {}):
                folders.append(found.name.rstrip("/"))
            else:
                objects.append((found.name, _stat(found)))
        return Page(objects, folders, pages.continuation_token or None)

    def delete(self, path: str) -> None:
        """Delete a blob."""
        with suppress(FileNotFoundError), _errors_of(path):
            self._blob(path).delete_blob(delete_snapshots="include")

    def delete_all(self, paths: Sequence[str]) -> int:
        """Delete blobs, many by one request."""
        left = 0
        for at in range(0, len(paths), _BATCH):
            keys = map(key_of, paths[at : at + _BATCH])
            with _errors_of(paths[0]):
                replies = self._container.delete_blobs(
                    *keys, delete_snapshots="include", raise_on_any_failure=False
                )
                left += sum(reply.status_code not in (202, 404) for reply in replies)
        return left

    def _blob(self, path: str) -> Any:
        return self._container.get_blob_client(key_of(path))

    @property
    def _container(self) -> Any:
        return _containers.made(self._location, lambda: _made(self._location))


def _stat(blob: Any) -> FileStat:
    return FileStat(blob.size, int(blob.last_modified.timestamp() * 1e9), blob.etag.strip('"'))


STORES: Final = ObjectStores(AzureClient, split, "abfss://container@account.dfs.core.windows.net/folder")
