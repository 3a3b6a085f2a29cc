"""Where an object lies: ``s3://bucket/prefix``, and how its server is reached (pure).

What a user writes, ``s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1``, has its settings at the
end; the store keeps them beside the bucket, ``s3://bucket;endpoint=…;region=…/prefix``, so that a name can be
joined to it as to a folder. Credentials never stand in a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from upsert.errors import ConfigurationError
from upsert.store.storage.path_settings import is_http_address, settings_of

SCHEMES: Final = ("s3", "s3a", "s3n")
"""Names of one kind of store; Spark's users know it by the others."""
_SETTINGS: Final = ("endpoint", "region")
_PATH: Final = re.compile(r"(?i:s3[an]?)://([^/;?]*)((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class Location:
    """A bucket and how it is reached; None for what the client's own configuration says."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        settings = ((name, getattr(self, name)) for name in _SETTINGS)
        return f"s3://{self.bucket}" + "".join(
            f";{name}={quote(value, safe='')}" for name, value in settings if value is not None
        )


def folder_uri(text: str) -> str:
    """The form in which the store keeps the URI of a folder; of that form itself the same.

    Raises:
        ConfigurationError: it names no folder within a bucket, or a setting is unknown or wrong.

    >>> folder_uri("s3a://bucket/shop/orders/?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    's3://bucket;endpoint=http%3A%2F%2F127.0.0.1%3A9000;region=eu-west-1/shop/orders'
    """
    location, key = split(text)
    key = key.rstrip("/")
    if not key or any(part in ("", ".", "..") or "\0" in part for part in key.split("/")):
        raise ConfigurationError(
            f"table path must name a folder within a bucket, s3://bucket/folder, got bucket "
            f"{location.bucket!r} and folder {key!r}"
        )
    return f"{location}/{key}"


def split(path: str) -> tuple[Location, str]:
    """The location of a path and its key, the name of an object in the bucket.

    Raises:
        ConfigurationError: it is no such path.
    """
    match = _PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise ConfigurationError(
            "table path must be s3://bucket/folder, with a bucket's name of 3 to 63 letters, digits, '.', "
            "'_' and '-', got another one"
        )
    settings = settings_of(match[2], match[4])
    # values are not shown: somebody may have put a secret there
    if unknown := sorted(settings.keys() - set(_SETTINGS)):
        raise ConfigurationError(
            f"table path of bucket {match[1]!r}: settings are {' and '.join(_SETTINGS)}, "
            f"got {unknown[0]!r}; credentials come from the environment or ~/.aws"
        )
    return Location(match[1], _endpoint(settings.get("endpoint")), _region(settings.get("region"))), match[3]


def _endpoint(value: str | None) -> str | None:
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
