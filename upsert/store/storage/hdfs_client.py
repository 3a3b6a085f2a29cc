"""The only file that knows how HDFS is reached: WebHDFS, the REST interface of its name and data nodes.

``hdfs://namenode:8020/folder`` is what Hadoop's users know; the port is that of Hadoop's own protocol, so the
HTTP address stands at the end, ``?endpoint=http://namenode:9870``, those of several name nodes with commas
between. In ``webhdfs://namenode:9870/folder`` and ``swebhdfs:``, Hadoop's names of WebHDFS, it is the address
itself.

A process has its own connections, made after the fork. A request is sent once; a caller that sends it
again must know what that does. Of several name nodes, the one that answered last is asked first.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from upsert.errors import ConfigurationError, StorageError, optional_package
from upsert.store.kept import Kept
from upsert.store.storage.base import (
    NO_ROOM,
    FileStat,
    RefusedError,
    UnansweredError,
    is_http_address,
    settings_of,
)

ENDPOINT_VARIABLE: Final = "UPSERT_WEBHDFS_ENDPOINT"
"""HTTP addresses of the name nodes, for ``hdfs:`` paths that name none."""
USER_VARIABLE: Final = "HADOOP_USER_NAME"
CONNECT_S: Final = 10.0
READ_S: Final = 60.0
_CONNECTIONS: Final = 16
_CHUNK: Final = 1 << 20
_LONGEST_MESSAGE: Final = 300
_BYTES: Final = {"Content-Type": "application/octet-stream"}
_NOT_DONE: Final = ("StandbyException", "RetriableException", "SafeModeException")
_NOT_ALLOWED: Final = ("AccessControlException", "AuthorizationException", "SecurityException")
_ERRNO: Final = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "IllegalArgumentException": errno.EINVAL,
    "InvalidPathException": errno.EINVAL,
}


_HTTP_PORT: Final = 9870
_HTTPS_PORT: Final = 9871
_SETTING: Final = "endpoint"

_PATH: Final = re.compile(r"((?i:s?webhdfs|hdfs))://([^/;?]*)((?:;[^/?]*)?)(/[^?]*|)(?:\?(.*))?", re.DOTALL)

_AUTHORITY: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class HdfsLocation:
    """A cluster, by its host and maybe port or its logical name, and the HTTP addresses that a path names."""

    scheme: str
    authority: str
    endpoints: tuple[str, ...] = ()

    def __str__(self) -> str:
        setting = f";{_SETTING}={quote(','.join(self.endpoints), safe='')}" if self.endpoints else ""
        return f"{self.scheme}://{self.authority}{setting}"

    def addresses(self, configured: str | None) -> tuple[str, ...]:
        """HTTP addresses of the name nodes: of the path, else of the configuration, else the usual port.

        ``configured`` are addresses for ``hdfs:`` paths that name none, with commas between.

        >>> HdfsLocation("hdfs", "nn:8020").addresses(None)
        ('http://nn:9870',)
        >>> HdfsLocation("swebhdfs", "nn:50470").addresses("http://other:9870")
        ('https://nn:50470',)
        """
        if self.endpoints:
            return self.endpoints
        match = _AUTHORITY.fullmatch(self.authority)
        host, port = match.groups() if match else (self.authority, None)
        if self.scheme == "hdfs":
            return _endpoints(configured) if configured else (f"http://{host}:{_HTTP_PORT}",)
        secure = self.scheme == "swebhdfs"
        usual = "" if port else f":{_HTTPS_PORT if secure else _HTTP_PORT}"
        return (f"{'https' if secure else 'http'}://{self.authority}{usual}",)


def folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder; of that form itself the same.

    >>> folder_uri("hdfs://nn:8020/shop/orders/?endpoint=http://nn:9870")
    'hdfs://nn:8020;endpoint=http%3A%2F%2Fnn%3A9870/shop/orders'
    """
    location, path = split(text)
    folder = path.strip("/") if not path.startswith("//") else path
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in folder.split("/")):
        raise ConfigurationError(
            f"table path must name a folder, hdfs://namenode:8020/folder, without '.', '..' and ':', got "
            f"{path!r}"
        )
    return f"{location}/{folder}"


def split(text: str) -> tuple[HdfsLocation, str]:
    """The cluster of a path, and the path within it, which begins with ``/`` if there is one."""
    match = _PATH.fullmatch(text)
    authority = None if match is None else _AUTHORITY.fullmatch(match[2])
    if match is None or authority is None or not int(authority[2] or 1) < 65536:
        raise ConfigurationError(
            "table path must be hdfs://namenode:8020/folder or webhdfs://namenode:9870/folder, with a host "
            "and without a user, got another one; the user's name comes from HADOOP_USER_NAME"
        )
    settings = settings_of(match[3], match[5])
    # values are not shown: one may be a secret
    if unknown := sorted(settings.keys() - {_SETTING}):
        raise ConfigurationError(
            f"table path at {match[2]!r}: the only setting is {_SETTING}, got {unknown[0]!r}; "
            "the user's name comes from HADOOP_USER_NAME"
        )
    endpoints = _endpoints(settings[_SETTING]) if _SETTING in settings else ()
    return HdfsLocation(match[1].lower(), match[2], endpoints), match[4]


def _endpoints(value: str) -> tuple[str, ...]:
    addresses = [part.strip() for part in value.split(",")]
    if not all(map(is_http_address, addresses)):
        raise ConfigurationError(
            "table path: the endpoint must be the HTTP address of a name node, http://namenode:9870 without "
            "user, path and query, of several with ',' between, got another one"
        )
    return tuple(address.rstrip("/") for address in addresses)


_active: dict[HdfsLocation, int] = {}
_pools = Kept[None, Any](dict, is_inherited=False)


class NotDoneError(UnansweredError):
    """The request has not been carried out: no name node was reached, or it is none to ask now."""


class Reply(NamedTuple):
    """An answer that is no error."""

    status: int
    headers: Any
    body: bytes


class Entry(NamedTuple):
    """A file or a folder; ``name`` is empty if it was not listed, but asked for itself."""

    name: str
    is_file: bool
    stat: FileStat


def ask(location: HdfsLocation, method: str, path: str, operation: str, **parameters: str) -> Reply:
    """What the active name node answers to an operation of WebHDFS on a path within the cluster.

    Raises:
        OSError: HDFS says that it cannot be done; ``FileNotFoundError``: there is no such file or folder.
        NotDoneError: no name node can be asked now.
        UnansweredError: it is unknown whether it was executed.
    """
    query = urlencode({"op": operation, "user.name": _user(), **parameters})
    addresses = location.addresses(os.environ.get(ENDPOINT_VARIABLE))
    first = _active.get(location, 0)
    failure = None
    for number in range(first, first + len(addresses)):
        address = addresses[number % len(addresses)]
        _active[location] = number % len(addresses)
        try:
            response = _send(method, f"{address}/webhdfs/v1{quote(path)}?{query}", path)
            return Reply(response.status, response.headers, response.data)
        except NotDoneError as cause:
            failure = cause
        except UnansweredError:
            _active[location] = (number + 1) % len(addresses)  # this one may hang
            raise
    _active[location] = first
    assert failure is not None
    raise failure


def create(location: HdfsLocation, path: str, body: bytes | IO[bytes], size: int, mode: int | None) -> None:
    """Write a new file of ``size`` bytes, on the disks of its data nodes, with its folders; see ``ask``."""
    parameters = {"overwrite": "false", "createflag": "CREATE,SYNC_BLOCK"}
    if mode is not None:
        parameters["permission"] = f"{mode:o}"
    reply = ask(location, "PUT", path, "CREATE", **parameters)
    _send("PUT", _data_node(reply, path), path, body, {**_BYTES, "Content-Length": str(size)})


def read(location: HdfsLocation, path: str) -> bytes:
    """The content of a file."""
    return b"".join(chunks(location, path))


def chunks(location: HdfsLocation, path: str) -> Iterator[bytes]:
    """The content of a file in pieces; see ``ask``."""
    where = _data_node(ask(location, "GET", path, "OPEN"), path)
    response = _send("GET", where, path, is_streamed=True)
    from urllib3.exceptions import HTTPError

    try:
        yield from response.stream(_CHUNK)
    except HTTPError as cause:
        found = f"HDFS stopped in an answer, {type(cause).__name__}"
        raise UnansweredError(errno.EIO, found, path) from cause
    finally:
        response.close()  # a connection with the rest of an answer is of no use


def value(reply: Reply, path: str, *names: str) -> Any:
    """What is below these names in the JSON of an answer."""
    try:
        found = json.loads(reply.body)
        for name in names:
            found = found[name]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise UnansweredError(errno.EPROTO, f"HDFS must answer {'.'.join(names)!r}, did not", path) from cause
    return found


def entry(status: Any, path: str) -> Entry:
    """What a file status of WebHDFS says."""
    try:
        modified_ms = int(status["modificationTime"])
        known = FileStat(int(status["length"]), modified_ms * 1_000_000, (status.get("fileId"), modified_ms))
        return Entry(str(status["pathSuffix"]), status["type"] == "FILE", known)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise UnansweredError(errno.EPROTO, "HDFS must answer a file's status, did not", path) from cause


def clock(reply: Reply, path: str) -> float:
    """When a name node answered, in whole seconds since 1970 by its clock."""
    try:
        return parsedate_to_datetime(reply.headers.getlist("Date")[0]).timestamp()  # it may be there twice
    except (ValueError, IndexError) as cause:
        raise UnansweredError(errno.EPROTO, "HDFS must date its answers, did not", path) from cause


def _user() -> str:
    if name := os.environ.get(USER_VARIABLE):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError) as cause:
        raise ConfigurationError(
            f"table in HDFS: HDFS must be told who asks, and this process's user has no name; set "
            f"{USER_VARIABLE}"
        ) from cause


def _data_node(reply: Reply, path: str) -> str:
    """Where a name node says that the bytes go or come from."""
    where = str(reply.headers.get("Location", ""))
    parts = urlsplit(where)
    if reply.status != 307 or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnansweredError(errno.EPROTO, f"HDFS must name a data node, answered {reply.status}", path)
    return where


def _send(
    method: str,
    url: str,
    path: str,
    body: bytes | IO[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    is_streamed: bool = False,
) -> Any:
    """The answer to one request; if it is streamed, its body is not yet read."""
    pool, address = _pool(), "{0.scheme}://{0.netloc}".format(urlsplit(url))
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

    try:
        response = pool.request(
            method, url, body=body, headers=headers, redirect=False, preload_content=not is_streamed
        )
        if response.status >= 400:
            raise _error(response.status, response.data, address, path)
    except (NewConnectionError, ConnectTimeoutError) as cause:
        found = f"HDFS was not reached at {address}, {type(cause).__name__}"
        raise NotDoneError(errno.EIO, found, path) from cause
    except HTTPError as cause:
        raise UnansweredError(errno.EIO, f"HDFS did not answer, {type(cause).__name__}", path) from cause
    return response


def _error(status: int, body: bytes, address: str, path: str) -> Exception:
    if status == 401:
        return ConfigurationError(
            f"{path!r}: HDFS must take a user's name for what it is, got 401 from {address!r}, as from a "
            "cluster with Kerberos, which is not supported; copy the table, or use another store"
        )
    name, message = _remote_exception(body)
    if name in _ERRNO:
        kind = StorageError if _ERRNO[name] in NO_ROOM else OSError
        return kind(_ERRNO[name], f"HDFS answered {message!r}", path)
    if name in _NOT_DONE:
        return NotDoneError(errno.EAGAIN, f"HDFS answered {name} {message!r}", path)
    if name in _NOT_ALLOWED:
        return RefusedError(
            errno.EACCES,
            f"HDFS must allow user {_user()!r} what is asked, got {message!r}; correct "
            f"{USER_VARIABLE}, or the rights",
            path,
        )
    if not name and status < 500:
        return ConfigurationError(
            f"{address!r} must be the HTTP address of a name node, usually with port 9870, got {status} "
            f"without an answer of WebHDFS; correct the endpoint in the path or {ENDPOINT_VARIABLE}"
        )
    return UnansweredError(errno.EIO, f"HDFS answered {status} {name} {message!r}", path)


def _remote_exception(body: bytes) -> tuple[str, str]:
    """Name and message of the exception in an answer; empty if there is none."""
    try:
        found = json.loads(body)["RemoteException"]
        return str(found["exception"]), str(found["message"]).partition("\n")[0][:_LONGEST_MESSAGE]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""


def _pool() -> Any:
    with optional_package("urllib3", "hdfs", "a table in HDFS"):
        import urllib3
    timeout = urllib3.Timeout(connect=CONNECT_S, read=READ_S)

    def make() -> Any:
        return urllib3.PoolManager(timeout=timeout, retries=False, maxsize=_CONNECTIONS, blocksize=_CHUNK)

    return _pools.made(None, make)
