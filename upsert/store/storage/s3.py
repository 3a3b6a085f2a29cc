"""An S3-compatible object store: names appear by a conditional put, large files by way of a local cache.

``If-None-Match: *`` lets one of many writers of a name win. 412 says that another has won; 409 that two met,
then the put is tried again. Where no answer comes, the object is read back: it is ours if it has our content,
which has a random id of its own. Until that is known, nothing is cleaned up. Large files are sent in parts,
and none of them appears half.

What a user writes, ``s3://bucket/prefix?endpoint=http://host:9000&region=eu-west-1``, has its settings at the
end; the store keeps them beside the bucket, ``s3://bucket;endpoint=…;region=…/prefix``, so that a name can be
joined to it as to a folder. Credentials never stand in a path.

A client is made for each process, after the fork. Credentials, profile, and what a path does not say of
endpoint and region come from botocore's own chain: environment, ``~/.aws``, the machine's role.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.failpoints import reach
from upsert.store.kept import Kept
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

_SETTINGS: Final = ("endpoint", "region")
_PATH: Final = re.compile(r"(?i:s3[an]?)://([^/;?]*)((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class S3Location:
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


def split(path: str) -> tuple[S3Location, str]:
    """The location of a path and its key, the name of an object in the bucket."""
    match = _PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise ConfigurationError(
            "table path must be s3://bucket/folder, with a bucket's name of 3 to 63 letters, digits, '.', "
            "'_' and '-', got another one"
        )
    settings = settings_of(match[2], match[4])
    # values are not shown: one may be a secret
    if unknown := sorted(settings.keys() - set(_SETTINGS)):
        raise ConfigurationError(
            f"table path of bucket {match[1]!r}: settings are {' and '.join(_SETTINGS)}, "
            f"got {unknown[0]!r}; credentials come from the environment or ~/.aws"
        )
    endpoint, region = settings.get("endpoint"), settings.get("region")
    if endpoint is not None and not is_http_address(endpoint):
        raise ConfigurationError(
            "table path: the endpoint must be http://host:port or https://host without user, path and query, "
            "got another one; credentials come from the environment or ~/.aws"
        )
    if region is not None and not _REGION.fullmatch(region):
        raise ConfigurationError(
            "table path: the region must be of letters, digits and '-', as eu-west-1, got another one"
        )
    return S3Location(match[1], endpoint and endpoint.rstrip("/"), region), match[3]


_CONNECT_S: Final = 10
_READ_S: Final = 60
_ATTEMPTS: Final = 6
_NOT_THERE: Final = ("404", "NoSuchKey", "NoSuchUpload", "NotFound")
_REMEDY: Final = "check the server and the network, then try again"

_NOT_ALLOWED: Final = (
    "401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
)  # fmt: skip

_clients = Kept[tuple[S3Location, bool], Any]({}, is_inherited=False)


class NameTakenError(Exception):
    """A conditional put found an object: 412."""


class ConflictError(Exception):
    """A conditional put came between another one's beginning and end: 409. It has not happened; try again."""


def _client(location: S3Location, *, repeats: bool) -> Any:
    """The process's client; ``repeats``: whether it sends a request again that got no answer."""
    return _clients.made((location, repeats), lambda: _made(location, repeats))


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
    """Turn the client's errors about an object into those that this package speaks of."""
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


PART_BYTES: Final = 64 << 20
"""Larger files are sent in parts of this size: a part that fails is sent again, not the whole."""

_MAX_PARTS: Final = 9_000

Call = Callable[..., Any]
"""A request about one object, by path and operation, tried again where the server does not answer."""


def upload(call: Call, path: str, source: str) -> None:
    """Send a local file under a name that is used once; the object appears as a whole."""
    size = os.stat(source).st_size
    with open(source, "rb") as file:
        if size <= PART_BYTES:
            call(path, "put_object", Body=file)
            return
        upload_id = call(path, "create_multipart_upload")["UploadId"]
        try:
            parts: list[dict[str, object]] = []
            part_bytes = max(PART_BYTES, -(-size // _MAX_PARTS))
            while part := file.read(part_bytes):
                number = len(parts) + 1
                done = call(path, "upload_part", Body=part, UploadId=upload_id, PartNumber=number)
                parts.append({"ETag": done["ETag"], "PartNumber": number})
            _complete(call, path, upload_id, parts, size)
        except BaseException as failure:
            try:
                call(path, "abort_multipart_upload", UploadId=upload_id)
            except OSError as also:
                left = "its parts stay at the server until a rule of the bucket deletes them"
                failure.add_note(f"{left}: {also}")
            raise


def _complete(call: Call, path: str, upload_id: str, parts: list[dict[str, object]], size: int) -> None:
    try:
        call(path, "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})
    except FileNotFoundError:
        # no such upload: one whose answer was lost has ended it, if the object is there
        if call(path, "head_object")["ContentLength"] != size:
            raise


_PUTS: Final = 9
_GETS: Final = 3
_CHUNK: Final = 1 << 20

_OTHER: Final = Versioned(b"", "")
"""What the server has seen instead, of which it says nothing."""


class S3Storage(CachedStorage):
    """The objects of one bucket, as one location reaches it."""

    has_temporary_names = False

    def __init__(self, location: S3Location, sleep: Callable[[float], None] = time.sleep) -> None:
        self.location = location
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
        found = self._put(path, content, IfNoneMatch="*")
        return found is None or found.content == content

    def _put(
        self, path: str, content: bytes, *, seen: str | None = None, **condition: str
    ) -> Versioned | None:
        """Put content on a condition; None if that was done, else what is there instead.

        The content differs from all that others put there. An unanswered put is tried again at the version
        ``seen``; None: where there is none.

        Raises:
            UnknownOutcomeError: the server has not answered for a minute or more.
        """
        has_doubts = False

        def put() -> Versioned | None:
            nonlocal has_doubts
            try:
                self._call(path, "put_object", repeats=False, Body=content, **condition)
                return None
            except NameTakenError:
                if not has_doubts:
                    return _OTHER
            except FileNotFoundError:  # of If-Match, where another has deleted what was seen
                if "IfMatch" not in condition:
                    raise
                if not has_doubts:
                    return _OTHER
            except ConflictError:
                pass
            except UnansweredError:
                has_doubts = True
            except ConfigurationError:  # a right that is missing now says nothing of the attempt before
                if not has_doubts:
                    raise
            if has_doubts and (found := self._versioned_if_any(path)) is not None and found.version != seen:
                return found
            raise UnansweredError(
                errno.EAGAIN, "the object store must put it, got 409 again and again; try again", path
            )

        try:
            return repeated(put, _PUTS, self._sleep)
        except UnansweredError:
            if not has_doubts:
                raise
        raise UnknownOutcomeError(
            f"{path!r}: the object store must say whether it has the object, got no answer; look at the "
            "table's history before you write the rows again"
        )

    def swap(self, path: str, content: bytes, seen: Versioned, mode: int = 0o666) -> bool:  # noqa: ARG002
        """Put other content in the place of what was seen, by ``If-Match``."""
        self._check_swaps(path)
        found = self._put(path, content, seen=seen.version, IfMatch=seen.version)
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
        """Make sure, once in a process, that the server honours ``If-Match``."""
        if self._swaps:
            return
        probe = f"{path}-probe-{uuid4().hex}"
        self._put_if_absent(probe, b"first")
        swaps = self._put(probe, b"second", IfMatch='"0123456789abcdef0123456789abcdef"') is _OTHER
        self._call(probe, "delete_object")
        if not swaps:
            raise ConfigurationError(
                f"{path!r}: the object store must refuse a put with If-Match of another version than it has, "
                "got one that overwrites; CREATE TABLE and INSERT INTO it, or choose another store"
            )
        self._swaps = True

    def versioned(self, path: str) -> Versioned | None:
        """The content of an object and its ETag; None if there is none."""
        try:
            found = self._call(path, "get_object")
        except FileNotFoundError:
            return None
        with errors_of(path):
            return Versioned(found["Body"].read(), found["ETag"])

    def _versioned_if_any(self, path: str) -> Versioned | None:
        try:
            return self.versioned(path)
        except (UnansweredError, ConfigurationError):
            return None

    def replace(self, path: str, content: bytes, mode: int = 0o666) -> None:  # noqa: ARG002
        """Put other content under a name."""
        self._call(path, "put_object", Body=content)

    def prepare(self, folder: str) -> None:
        """Make sure, once in a process, that conditional puts are honoured: some servers overwrite."""
        if self._is_sound:
            return
        probe = f"{folder}/probe-{uuid4().hex}"
        self._put_if_absent(probe, b"first")
        is_sound = not self._put_if_absent(probe, b"second")
        self._call(probe, "delete_object")
        if not is_sound:
            raise ConfigurationError(
                f"{folder!r}: the object store must refuse a put with If-None-Match: * of a name that is "
                "taken, got one that overwrites, where commits would be lost; choose another store"
            )
        self._is_sound = True

    def _upload(self, path: str, source: str) -> None:
        upload(self._call, path, source)

    def read(self, path: str) -> bytes:
        """The content of an object."""
        return self._whole(path, lambda body: bytes(body.read()))

    def _whole(self, path: str, take: Callable[[Any], T]) -> T:
        """What is made of an object's content; the client asks again only where no answer has begun."""
        has_begun = False

        def get() -> T:
            nonlocal has_begun
            has_begun = False
            body = self._call(path, "get_object")["Body"]
            has_begun = True
            with errors_of(path):
                return take(body)

        return repeated(get, _GETS, self._sleep, lambda: has_begun)

    def aged(self, path: str) -> tuple[bytes, float] | None:
        """The content of an object, and for how many seconds it has it by the server's clock."""
        try:
            found = self._call(path, "get_object")
        except FileNotFoundError:
            return None
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        with errors_of(path):
            return found["Body"].read(), (now - found["LastModified"]).total_seconds()

    def _download(self, path: str, target: str) -> None:
        def save(body: Any) -> None:
            with open(target, "wb") as file:
                for chunk in body.iter_chunks(_CHUNK):
                    file.write(chunk)

        self._whole(path, save)

    def stat(self, path: str) -> FileStat | None:
        """What is known of an object; None if there is none."""
        try:
            return _stat(self._call(path, "head_object"), "ContentLength")
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """What follows the folder in the names of objects, up to the next ``/``."""
        _, prefix = split(f"{folder}/")
        names = []
        for page in self._pages(folder, Prefix=prefix, Delimiter="/"):
            names += [found["Key"][len(prefix) :] for found in page.get("Contents", ())]
            names += [found["Prefix"][len(prefix) : -1] for found in page.get("CommonPrefixes", ())]
        return [name for name in names if name]

    def walk(self, folder: str) -> Iterator[Found]:
        """All objects below a folder."""
        _, prefix = split(f"{folder}/")
        for page in self._pages(folder, Prefix=prefix):
            for found in page.get("Contents", ()):
                yield Found(found["Key"][len(prefix) :], partial(_stat, found, "Size"))

    def _pages(self, path: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            with errors_of(path):
                client = _client(self.location, repeats=True)
                page = client.list_objects_v2(Bucket=self.location.bucket, **arguments, **after)
            yield page
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, path: str) -> bool:
        """Delete an object; the server does not say whether there was one."""
        local_cache().drop(path)
        self._call(path, "delete_object")
        return True

    def delete_folder(self, folder: str) -> None:
        """Delete all objects below a folder, a thousand with each request."""
        _, prefix = split(f"{folder}/")
        for page in self._pages(folder, Prefix=prefix):
            keys = [{"Key": found["Key"]} for found in page.get("Contents", ())]
            if not keys:
                continue
            request = {"Objects": keys, "Quiet": True}
            with errors_of(folder):
                client = _client(self.location, repeats=True)
                done = client.delete_objects(Bucket=self.location.bucket, Delete=request)
            if failed := done.get("Errors"):
                raise UnansweredError(
                    errno.EIO,
                    f"the object store must delete objects, {len(failed)} are left; try again",
                    folder,
                )

    def _call(self, path: str, operation: str, *, repeats: bool = True, **arguments: Any) -> Any:
        _, key = split(path)
        client = _client(self.location, repeats=repeats)
        with errors_of(path):
            return getattr(client, operation)(Bucket=self.location.bucket, Key=key, **arguments)


def _stat(found: dict[str, Any], size: str) -> FileStat:
    return FileStat(found[size], int(found["LastModified"].timestamp() * 1e9), found["ETag"])
