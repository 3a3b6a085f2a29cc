"""Sending a large file in parts to a server that forgets an upload as soon as it has ended."""

import errno
from pathlib import Path
from typing import Any

import pytest

from upsert.store.storage import object_store, s3

CONTENT = bytes(range(10))


class Server:
    """Answers requests, but not the one that completes an upload: the next try finds no such upload."""

    def __init__(self, *, completes: bool, aborts: bool = True) -> None:
        self._completes, self._aborts = completes, aborts
        self.parts: list[bytes] = []
        self.aborted = False

    def __call__(self, path: str, operation: str, **arguments: Any) -> Any:
        match operation:
            case "create_multipart_upload":
                return {"UploadId": "1"}
            case "upload_part":
                self.parts.append(arguments["Body"])
                return {"ETag": str(arguments["PartNumber"])}
            case "complete_multipart_upload":
                raise FileNotFoundError(errno.ENOENT, "no such object", path)
            case "head_object":
                return {"ContentLength": len(CONTENT) if self._completes else 3}
            case "abort_multipart_upload" if self._aborts:
                self.aborted = True
                return None
            case _:
                raise OSError(errno.EIO, "the object store did not answer", path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(object_store, "PART_BYTES", 4)
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return str(path)


def test_an_upload_whose_last_answer_was_lost_is_done(source: str) -> None:
    server = Server(completes=True)
    s3.upload(server, "s3://b/large", source)
    assert b"".join(server.parts) == CONTENT
    assert not server.aborted


def test_an_upload_that_ended_without_its_object_has_failed_and_leaves_no_parts(source: str) -> None:
    server = Server(completes=False)
    with pytest.raises(FileNotFoundError):
        s3.upload(server, "s3://b/large", source)
    assert server.aborted


def test_parts_that_could_not_be_deleted_are_told_of_with_the_failure(source: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        s3.upload(Server(completes=False, aborts=False), "s3://b/large", source)
    assert "its parts stay at the server" in raised.value.__notes__[0]
