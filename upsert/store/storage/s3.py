"""The objects of a bucket of S3, or of any server that speaks its protocol, by botocore.

``If-None-Match: *`` and ``If-Match`` are the conditions of a put: 412 says that something else is there, 409
that two met. Credentials, profile, and what a path does not say of endpoint and region come from botocore's
own chain: environment, ``~/.aws``, the machine's role.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from upsert.errors import ConfigurationError, optional_package
from upsert.store.kept import Kept
from upsert.store.storage import object_store
from upsert.store.storage.base import FileStat, RefusedError, Versioned
from upsert.store.storage.object_store import ABSENT, ObjectStores, Page, Repeat, key_of

_SETTINGS: Final = ("endpoint", "region")
_PATH: Final = re.compile(r"(?i:s3[an]?)://([^/;?]*)((?:;[^/?]*)?)/?([^?]*)(?:\?(.*))?", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
_CREDENTIALS: Final = "the environment or ~/.aws"


@dataclass(frozen=True)
class S3Location:
    """A bucket and how it is reached; None for what the client's own configuration says."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return object_store.with_settings(f"s3://{self.bucket}", endpoint=self.endpoint, region=self.region)


def split(path: str) -> tuple[S3Location, str]:
    """The location of a path and its key, the name of an object in the bucket.

    >>> STORES.folder_uri("s3a://bucket/shop/orders/?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    's3://bucket;endpoint=http%3A%2F%2F127.0.0.1%3A9000;region=eu-west-1/shop/orders'
    """
    match = _PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise ConfigurationError(
            "table path must be s3://bucket/folder, with a bucket's name of 3 to 63 letters, digits, '.', "
            "'_' and '-', got another one"
        )
    settings = object_store.known_settings(match[1], match[2], match[4], _SETTINGS, _CREDENTIALS)
    region = settings.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise ConfigurationError(
            "table path: the region must be of letters, digits and '-', as eu-west-1, got another one"
        )
    return S3Location(match[1], settings.get("endpoint"), region), match[3]


_clients = Kept[S3Location, Any](dict, is_inherited=False)


def _made(location: S3Location) -> Any:
    with optional_package("botocore", "s3", f"a table in bucket {location.bucket!r}"):
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    own_server = location.endpoint or next(filter(None, map(os.environ.get, variables)), None)
    region = location.region or (os.environ.get("AWS_REGION", "us-east-1") if own_server else None)
    config = Config(
        connect_timeout=object_store.CONNECT_S,
        read_timeout=object_store.READ_S,
        retries={"mode": "standard", "total_max_attempts": 1},
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


_STATUS: Final = {
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "NotFound"), 404),
    **dict.fromkeys(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"), 403),
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), 403),
    # said with 400, of a request that did not arrive as it was sent
    **dict.fromkeys(("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"), 503),
    # of the service that has the keys of an encrypted bucket, said with 400 too
    **dict.fromkeys(("Throttling", "ThrottlingException", "KMS.ThrottlingException"), 503),
}
"""What a code means, whatever the status that comes with it."""


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Turn the client's errors about an object into those that this package speaks of."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except ClientError as cause:
        code = str(cause.response.get("Error", {}).get("Code", ""))
        status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "NoSuchBucket":
            raise object_store.no_bucket(path) from None
        if code == "RequestTimeTooSkewed":
            raise RefusedError(
                errno.EACCES,
                "the clocks of the server and of this machine must agree to a quarter of an hour, got "
                f"{code}; set this machine's clock",
                path,
            ) from None
        raise object_store.failure(path, _STATUS.get(code, status), code, _CREDENTIALS) from None
    except (NoCredentialsError, PartialCredentialsError) as cause:
        raise ConfigurationError(
            f"{path!r}: an object store needs credentials, got none; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws"
        ) from cause
    except BotoCoreError as cause:
        raise object_store.no_answer(path, cause) from cause


Call = Callable[..., Any]
"""A request about one object, by path and operation, tried again where the server does not answer."""


def upload(call: Call, path: str, source: str) -> None:
    """Send a local file under a name that is used once; the object appears as a whole."""
    size = os.stat(source).st_size
    if size <= object_store.PART_BYTES:
        for content in object_store.parts(source):
            call(path, "put_object", Body=content)
        return
    upload_id = call(path, "create_multipart_upload")["UploadId"]
    try:
        parts: list[dict[str, object]] = []
        for number, part in enumerate(object_store.parts(source), 1):
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


_CHUNK: Final = 1 << 20


class S3Client:
    """Requests to one bucket."""

    no_version = '"0123456789abcdef0123456789abcdef"'

    def __init__(self, location: S3Location) -> None:
        self._location = location

    def put(self, path: str, content: bytes, seen: str | None = None) -> None:
        """Put content under a name, with ``seen`` on a condition."""
        condition = {} if seen is None else {"IfNoneMatch": "*"} if seen == ABSENT else {"IfMatch": seen}
        try:
            self._call(path, "put_object", Body=content, **condition)
        except FileNotFoundError:  # of If-Match, where another has deleted what was seen
            if "IfMatch" in condition:
                raise object_store.NotAsSeenError(path) from None
            raise

    def upload(self, path: str, source: str, repeat: Repeat) -> None:
        """Send a local file, a large one in parts."""

        def call(path: str, operation: str, **arguments: Any) -> Any:
            return repeat(lambda: self._call(path, operation, **arguments))

        upload(call, path, source)

    def get(self, path: str) -> Versioned:
        """An object's content and ETag."""
        found = self._call(path, "get_object")
        with _errors_of(path):
            return Versioned(found["Body"].read(), found["ETag"])

    def aged(self, path: str) -> tuple[bytes, float]:
        """An object's content and its age."""
        found = self._call(path, "get_object")
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        with _errors_of(path):
            return found["Body"].read(), (now - found["LastModified"]).total_seconds()

    def download(self, path: str, target: str) -> None:
        """Write an object's content to a local path."""
        body = self._call(path, "get_object")["Body"]
        with _errors_of(path), open(target, "wb") as file:
            for chunk in body.iter_chunks(_CHUNK):
                file.write(chunk)

    def stat(self, path: str) -> FileStat:
        """What is known of an object."""
        return _stat(self._call(path, "head_object"), "ContentLength")

    def page(self, path: str, is_deep: bool, limit: int, after: str | None) -> Page:
        """Part of a listing."""
        arguments = {} if is_deep else {"Delimiter": "/"}
        if after is not None:
            arguments["ContinuationToken"] = after
        with _errors_of(path):
            page = self._client.list_objects_v2(
                Bucket=self._location.bucket, Prefix=key_of(path), MaxKeys=limit, **arguments
            )
        return Page(
            [(found["Key"], _stat(found, "Size")) for found in page.get("Contents", ())],
            [found["Prefix"][:-1] for found in page.get("CommonPrefixes", ())],
            page["NextContinuationToken"] if page.get("IsTruncated") else None,
        )

    def delete(self, path: str) -> None:
        """Delete an object; the server does not say whether there was one."""
        self._call(path, "delete_object")

    def delete_all(self, paths: Sequence[str]) -> int:
        """Delete objects by one request."""
        request = {"Objects": [{"Key": key_of(path)} for path in paths], "Quiet": True}
        with _errors_of(paths[0]):
            done = self._client.delete_objects(Bucket=self._location.bucket, Delete=request)
        return len(done.get("Errors", ()))

    def _call(self, path: str, operation: str, **arguments: Any) -> Any:
        with _errors_of(path):
            return getattr(self._client, operation)(
                Bucket=self._location.bucket, Key=key_of(path), **arguments
            )

    @property
    def _client(self) -> Any:
        return _clients.made(self._location, lambda: _made(self._location))


def _stat(found: dict[str, Any], size: str) -> FileStat:
    return FileStat(found[size], int(found["LastModified"].timestamp() * 1e9), found["ETag"])


STORES: Final = ObjectStores(S3Client, split, "s3://bucket/folder")
