"""Where a file lies in HDFS, and at which addresses its name nodes answer over HTTP (pure).

``hdfs://namenode:8020/folder`` is what Hadoop's users know; the port is that of Hadoop's own protocol, so the
HTTP address stands at the end, ``?endpoint=http://namenode:9870``, those of several name nodes with commas
between. In ``webhdfs://namenode:9870/folder`` and ``swebhdfs:``, Hadoop's names of WebHDFS, it is the address
itself. The store keeps the setting beside the host, as that of a bucket:
``hdfs://namenode:8020;endpoint=…/folder``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from upsert.errors import ConfigurationError
from upsert.store.storage.path_settings import is_http_address, settings_of

SCHEMES: Final = ("hdfs", "webhdfs", "swebhdfs")
HTTP_PORT: Final = 9870
HTTPS_PORT: Final = 9871
_SETTING: Final = "endpoint"
_PATH: Final = re.compile(r"((?i:s?webhdfs|hdfs))://([^/;?]*)((?:;[^/?]*)?)(/[^?]*|)(?:\?(.*))?", re.DOTALL)
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class HdfsLocation:
    """A cluster and how it is reached.

    Attributes:
        scheme: one of ``SCHEMES``.
        authority: host and maybe port, or the cluster's logical name.
        endpoints: HTTP addresses of the name nodes that the path names; empty if it names none.
    """

    scheme: str
    authority: str
    endpoints: tuple[str, ...] = ()

    def __str__(self) -> str:
        setting = f";{_SETTING}={quote(','.join(self.endpoints), safe='')}" if self.endpoints else ""
        return f"{self.scheme}://{self.authority}{setting}"

    def addresses(self, configured: str | None) -> tuple[str, ...]:
        """HTTP addresses of the name nodes: of the path, else of the configuration, else the usual port.

        Args:
            configured: addresses for ``hdfs:`` paths that name none, with commas between; empty is none.

        Raises:
            ConfigurationError: what is configured is no address.

        >>> HdfsLocation("hdfs", "nn:8020").addresses(None)
        ('http://nn:9870',)
        >>> HdfsLocation("swebhdfs", "nn:50470").addresses("http://other:9870")
        ('https://nn:50470',)
        """
        if self.endpoints:
            return self.endpoints
        if self.scheme == "hdfs":
            if configured:
                return _endpoints(configured)
            return (f"http://{_host(self.authority)}:{HTTP_PORT}",)
        secure = self.scheme == "swebhdfs"
        port = "" if _port(self.authority) else f":{HTTPS_PORT if secure else HTTP_PORT}"
        return (f"{'https' if secure else 'http'}://{self.authority}{port}",)


def folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder; of that form itself the same.

    Raises:
        ConfigurationError: it names no folder, or a setting is unknown or wrong.

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
    """The cluster of a path, and the path within it, which begins with ``/`` if there is one.

    Raises:
        ConfigurationError: it is no such path.
    """
    match = _PATH.fullmatch(text)
    authority = None if match is None else _AUTHORITY.fullmatch(match[2])
    if match is None or authority is None or not int(authority[2] or 1) < 65536:
        raise ConfigurationError(
            "table path must be hdfs://namenode:8020/folder or webhdfs://namenode:9870/folder, with a host "
            "and without a user, got another one; the user's name comes from HADOOP_USER_NAME"
        )
    settings = settings_of(match[3], match[5])
    # values are not shown: somebody may have put a secret there
    if unknown := sorted(settings.keys() - {_SETTING}):
        raise ConfigurationError(
            f"table path at {match[2]!r}: the only setting is {_SETTING}, got {unknown[0]!r}; "
            "the user's name comes from HADOOP_USER_NAME"
        )
    endpoints = _endpoints(settings[_SETTING]) if _SETTING in settings else ()
    return HdfsLocation(match[1].lower(), match[2], endpoints), match[4]


def _host(authority: str) -> str:
    match = _AUTHORITY.fullmatch(authority)
    return match[1] if match else authority


def _port(authority: str) -> str | None:
    match = _AUTHORITY.fullmatch(authority)
    return match[2] if match else None


def _endpoints(value: str) -> tuple[str, ...]:
    return tuple(_endpoint(part.strip()) for part in value.split(","))


def _endpoint(value: str) -> str:
    if not is_http_address(value):
        raise ConfigurationError(
            "table path: the endpoint must be the HTTP address of a name node, http://namenode:9870 without "
            "user, path and query, of several with ',' between, got another one"
        )
    return value.rstrip("/")
