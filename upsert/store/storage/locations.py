"""Where an object lies and how its server is reached (pure): ``s3://bucket/prefix``, ``hdfs://host/folder``.

What a user writes, ``s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1``, has its settings at the
end; the store keeps them beside the bucket, ``s3://bucket;endpoint=…;region=…/prefix``, so that a name can be
joined to it as to a folder. Credentials never stand in a path.

``hdfs://namenode:8020/folder`` is what Hadoop's users know; the port is that of Hadoop's own protocol, so the
HTTP address stands at the end, ``?endpoint=http://namenode:9870``, those of several name nodes with commas
between. In ``webhdfs://namenode:9870/folder`` and ``swebhdfs:``, Hadoop's names of WebHDFS, it is the address
itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from upsert.errors import ConfigurationError


def settings_of(beside: str, query: str | None) -> dict[str, str]:
    """Settings as the store keeps them, ``;name=value`` beside the host, and as users write them at the end.

    >>> settings_of(";region=eu-west-1", "endpoint=http://host:9000")
    {'region': 'eu-west-1', 'endpoint': 'http://host:9000'}
    """
    given = [part.partition("=")[::2] for part in beside.split(";")[1:]]
    kept = {name: unquote(value) for name, value in given}
    return kept | dict(parse_qsl(query or "", keep_blank_values=True))


def is_http_address(value: str) -> bool:
    """Whether this is the address of a server, without user, path and query.

    >>> is_http_address("http://host:9000"), is_http_address("http://me@host"), is_http_address("host:9000")
    (True, False, False)
    """
    try:
        parts = urlsplit(value)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return is_server and "@" not in value and not (parts.path.strip("/") or parts.query or parts.fragment)


S3_SCHEMES: Final = ("s3", "s3a", "s3n")
"""Names of one kind of store; Spark's users know it by the others."""

_S3_SETTINGS: Final = ("endpoint", "region")
_S3_PATH: Final = re.compile(r"(?i:s3[an]?)://([^/;?]*)((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class S3Location:
    """A bucket and how it is reached; None for what the client's own configuration says."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        settings = ((name, getattr(self, name)) for name in _S3_SETTINGS)
        return f"s3://{self.bucket}" + "".join(
            f";{name}={quote(value, safe='')}" for name, value in settings if value is not None
        )


def s3_folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder; of that form itself the same.

    Raises:
        ConfigurationError: it names no folder within a bucket, or a setting is unknown or wrong.

    >>> s3_folder_uri("s3a://bucket/shop/orders/?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    's3://bucket;endpoint=http%3A%2F%2F127.0.0.1%3A9000;region=eu-west-1/shop/orders'
    """
    location, key = s3_split(text)
    key = key.rstrip("/")
    if not key or any(part in ("", ".", "..") or "\0" in part for part in key.split("/")):
        raise ConfigurationError(
            f"table path must name a folder within a bucket, s3://bucket/folder, got bucket "
            f"{location.bucket!r} and folder {key!r}"
        )
    return f"{location}/{key}"


def s3_split(path: str) -> tuple[S3Location, str]:
    """The location of a path and its key, the name of an object in the bucket.

    Raises:
        ConfigurationError: it is no such path.
    """
    match = _S3_PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise ConfigurationError(
            "table path must be s3://bucket/folder, with a bucket's name of 3 to 63 letters, digits, '.', "
            "'_' and '-', got another one"
        )
    settings = settings_of(match[2], match[4])
    # values are not shown: one may be a secret
    if unknown := sorted(settings.keys() - set(_S3_SETTINGS)):
        raise ConfigurationError(
            f"table path of bucket {match[1]!r}: settings are {' and '.join(_S3_SETTINGS)}, "
            f"got {unknown[0]!r}; credentials come from the environment or ~/.aws"
        )
    return S3Location(
        match[1], _s3_endpoint(settings.get("endpoint")), _region(settings.get("region"))
    ), match[3]


def _s3_endpoint(value: str | None) -> str | None:
    if value is None:
        return None
    if not is_http_address(value):
        raise ConfigurationError(
            "table path: the endpoint must be http://host:port or https://host without user, path and query, "
            "got another one; credentials come from the environment or ~/.aws"
        )
    return value.rstrip("/")


def _region(value: str | None) -> str | None:
    if value is not None and not _REGION.fullmatch(value):
        raise ConfigurationError(
            "table path: the region must be of letters, digits and '-', as eu-west-1, got another one"
        )
    return value


HDFS_SCHEMES: Final = ("hdfs", "webhdfs", "swebhdfs")
HTTP_PORT: Final = 9870
HTTPS_PORT: Final = 9871
_HDFS_SETTING: Final = "endpoint"

_HDFS_PATH: Final = re.compile(
    r"((?i:s?webhdfs|hdfs))://([^/;?]*)((?:;[^/?]*)?)(/[^?]*|)(?:\?(.*))?", re.DOTALL
)

_AUTHORITY: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class HdfsLocation:
    """A cluster and how it is reached.

    Attributes:
        scheme: one of ``HDFS_SCHEMES``.
        authority: host and maybe port, or the cluster's logical name.
        endpoints: HTTP addresses of the name nodes that the path names; empty if it names none.
    """

    scheme: str
    authority: str
    endpoints: tuple[str, ...] = ()

    def __str__(self) -> str:
        setting = f";{_HDFS_SETTING}={quote(','.join(self.endpoints), safe='')}" if self.endpoints else ""
        return f"{self.scheme}://{self.authority}{setting}"

    def addresses(self, configured: str | None) -> tuple[str, ...]:
        """HTTP addresses of the name nodes: of the path, else of the configuration, else the usual port.

        Args:
            configured: addresses for ``hdfs:`` paths that name none, with commas between; empty is none.

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
            return _endpoints(configured) if configured else (f"http://{host}:{HTTP_PORT}",)
        secure = self.scheme == "swebhdfs"
        usual = "" if port else f":{HTTPS_PORT if secure else HTTP_PORT}"
        return (f"{'https' if secure else 'http'}://{self.authority}{usual}",)


def hdfs_folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder; of that form itself the same.

    Raises:
        ConfigurationError: it names no folder, or a setting is unknown or wrong.

    >>> hdfs_folder_uri("hdfs://nn:8020/shop/orders/?endpoint=http://nn:9870")
    'hdfs://nn:8020;endpoint=http%3A%2F%2Fnn%3A9870/shop/orders'
    """
    location, path = hdfs_split(text)
    folder = path.strip("/") if not path.startswith("//") else path
    if any(part in ("", ".", "..") or ":" in part or "\0" in part for part in folder.split("/")):
        raise ConfigurationError(
            f"table path must name a folder, hdfs://namenode:8020/folder, without '.', '..' and ':', got "
            f"{path!r}"
        )
    return f"{location}/{folder}"


def hdfs_split(text: str) -> tuple[HdfsLocation, str]:
    """The cluster of a path, and the path within it, which begins with ``/`` if there is one.

    Raises:
        ConfigurationError: it is no such path.
    """
    match = _HDFS_PATH.fullmatch(text)
    authority = None if match is None else _AUTHORITY.fullmatch(match[2])
    if match is None or authority is None or not int(authority[2] or 1) < 65536:
        raise ConfigurationError(
            "table path must be hdfs://namenode:8020/folder or webhdfs://namenode:9870/folder, with a host "
            "and without a user, got another one; the user's name comes from HADOOP_USER_NAME"
        )
    settings = settings_of(match[3], match[5])
    # values are not shown: one may be a secret
    if unknown := sorted(settings.keys() - {_HDFS_SETTING}):
        raise ConfigurationError(
            f"table path at {match[2]!r}: the only setting is {_HDFS_SETTING}, got {unknown[0]!r}; "
            "the user's name comes from HADOOP_USER_NAME"
        )
    endpoints = _endpoints(settings[_HDFS_SETTING]) if _HDFS_SETTING in settings else ()
    return HdfsLocation(match[1].lower(), match[2], endpoints), match[4]


def _endpoints(value: str) -> tuple[str, ...]:
    return tuple(_hdfs_endpoint(part.strip()) for part in value.split(","))


def _hdfs_endpoint(value: str) -> str:
    if not is_http_address(value):
        raise ConfigurationError(
            "table path: the endpoint must be the HTTP address of a name node, http://namenode:9870 without "
            "user, path and query, of several with ',' between, got another one"
        )
    return value.rstrip("/")
