"""The only file that knows how an S3 server is reached: a client for each process, made after the fork.

Credentials, profile, and what a path does not say of endpoint and region come from botocore's own chain:
environment, ``~/.aws``, the machine's role.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from upsert.errors import ConfigurationError, StorageError
from upsert.store.storage.locations import S3Location
from upsert.store.storage.refusals import RefusedError

_CONNECT_S: Final = 10
_READ_S: Final = 60
_ATTEMPTS: Final = 6
_NOT_THERE: Final = ("404", "NoSuchKey", "NoSuchUpload", "NotFound")
_REMEDY: Final = "check the server and the network, then try again"
_NOT_ALLOWED: Final = (
    "401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
)  # fmt: skip

_clients: dict[tuple[S3Location, bool], Any] = {}
_lock = threading.Lock()


class NameTakenError(Exception):
    """A conditional put found an object: 412."""


class ConflictError(Exception):
    """A conditional put came between another one's beginning and end: 409. It has not happened; try again."""


class UnansweredError(StorageError):
    """The server did not answer, or said that it has failed; the request may have been carried out."""


def client_of(location: S3Location, *, repeats: bool) -> Any:
    """The process's client; ``repeats``: whether it sends a request again that got no answer.

    Raises:
        ConfigurationError: botocore is not installed, or its configuration is wrong.
    """
    key = location, repeats
    with _lock:
        if key not in _clients:
            _clients[key] = _made(location, repeats)
        return _clients[key]


def _made(location: S3Location, repeats: bool) -> Any:
    try:
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as cause:
        raise ConfigurationError(
            f"table in bucket {location.bucket!r}: an object store needs botocore, which is not installed; "
            "pip install 'deltajoin[s3]'"
        ) from cause
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    own_server = location.endpoint or next(filter(None, map(os.environ.get, variables)), None)
    region = location.region or (os.environ.get("AWS_REGION", "us-east-1") if own_server else None)
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS if repeats else 1},
        # a server of one's own seldom has a name in DNS for each bucket
        s3={"addressing_style": "path"} if own_server else {},
        # checksums that not every server knows
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return botocore.session.Session().create_client(
            "s3", region_name=region, endpoint_url=location.endpoint, config=config
        )
    except BotoCoreError as cause:
        raise ConfigurationError(
            f"table in bucket {location.bucket!r}: the client's configuration must be right, got "
            f"{type(cause).__name__}; correct the environment or ~/.aws"
        ) from cause


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Turn the client's errors about an object into those that this package speaks of.

    Raises:
        FileNotFoundError: there is no such object.
        NameTakenError, ConflictError: of a conditional put.
        ConfigurationError: there is no such bucket.
        RefusedError: the server refuses who asks.
        UnansweredError: everything else.
    """
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except ClientError as cause:
        code = str(cause.response.get("Error", {}).get("Code", ""))
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _NOT_THERE:
            raise FileNotFoundError(errno.ENOENT, "no such object", path) from None
        if status == 412:
            raise NameTakenError(path) from None
        if status == 409:
            raise ConflictError(path) from None
        if code == "NoSuchBucket":
            raise ConfigurationError(f"{path!r}: there must be a bucket of this name; create it") from None
        if code in _NOT_ALLOWED or status in (401, 403):
            raise RefusedError(
                errno.EACCES,
                f"the server must allow what is asked, got {code or status}; correct the "
                "credentials in the environment or ~/.aws, or the rights of their owner",
                path,
            ) from None
        found = " ".join(dict.fromkeys((str(status), code)))
        raise UnansweredError(
            errno.EIO, f"the object store must do what is asked, got {found}; {_REMEDY}", path
        ) from None
    except (NoCredentialsError, PartialCredentialsError) as cause:
        raise ConfigurationError(
            f"{path!r}: an object store needs credentials, got none; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws"
        ) from cause
    except BotoCoreError as cause:
        raise UnansweredError(
            errno.EIO, f"the object store must answer, got {type(cause).__name__}; {_REMEDY}", path
        ) from cause


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _clients.clear()  # connections that the parent goes on using


os.register_at_fork(after_in_child=_after_fork)
