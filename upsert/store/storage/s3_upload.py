"""Sending files to an S3-compatible object store: large ones in parts, none of them half."""

from __future__ import annotations

import os
from typing import Any, Final, Protocol

PART_BYTES: Final = 64 << 20
"""Larger files are sent in parts of this size: a part that fails is sent again, not the whole."""
_MAX_PARTS: Final = 9_000


class Call(Protocol):
    """A request about one object, tried again where the server does not answer."""

    def __call__(self, path: str, operation: str, **arguments: Any) -> Any:
        """What the server answers."""
        ...


def upload(call: Call, path: str, source: str) -> None:
    """Send a local file under a name that is used once; the object appears as a whole.

    Raises:
        OSError: it could not be sent.
    """
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
            _abort(call, path, upload_id, failure)
            raise


def _complete(call: Call, path: str, upload_id: str, parts: list[dict[str, object]], size: int) -> None:
    try:
        call(path, "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})
    except FileNotFoundError:
        # no such upload: one whose answer was lost has ended it, if the object is there
        if call(path, "head_object")["ContentLength"] != size:
            raise


def _abort(call: Call, path: str, upload_id: str, failure: BaseException) -> None:
    try:
        call(path, "abort_multipart_upload", UploadId=upload_id)
    except OSError as also:
        failure.add_note(f"its parts stay at the server until a rule of the bucket deletes them: {also}")
