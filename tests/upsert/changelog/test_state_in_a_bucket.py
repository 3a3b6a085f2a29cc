"""Newest images in an object store: a query's state may lie where its tables do."""

import os

import pyarrow as pa
import pytest

from tests.helpers import changelog
from tests.object_store import ObjectStore
from upsert.changelog.image_log import ImageLog
from upsert.errors import UnknownOutcomeError
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.files.data_file import forget_open_files
from upsert.store.paths import table_folder
from upsert.store.storage import storage_of
from upsert.store.storage.object_store import ObjectStorage

SCHEMA = TableSchema.of({"word": pa.string(), "n": pa.int64(), "offset": pa.int64()}, primary_key=["word"])


def advance(folder: str, start: int, end: int, *lines: str) -> list[dict[str, object]]:
    """What a process that opens the images anew finds."""
    log = ImageLog.open(os.path.join(folder, "words-0"), SCHEMA, "words-0", beginning=0)
    found = log.advance(start, end, changelog(SCHEMA.arrow, *lines), compare=["n"])
    return [row for table in found for row in table.to_pylist()]


def test_images_go_on_from_each_other_and_a_replay_gives_the_same(s3: ObjectStore) -> None:
    folder = table_folder(s3.folder())
    advance(folder, 0, 2, "+U a 1 0", "+U b 2 1")
    expected = changelog(SCHEMA.arrow, "-U a 1 0", "+U a 3 2", "-D b 2 1").to_pylist()
    for _ in range(2):
        assert advance(folder, 2, 4, "+U a 3 2", "-D b NULL 3") == expected


def test_images_stay_where_nobody_knows_whether_their_commit_happened(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put arrives after the reader has given up: a replay meets a commit that has its files."""
    folder = table_folder(s3.folder())
    advance(folder, 0, 2, "+U a 1 0", "+U b 2 1")
    late: list[tuple[str, bytes]] = []
    answered = ObjectStorage.put_if_absent

    def not_of_commits(self: ObjectStorage, path: str, content: bytes, mode: int = 0o666) -> bool:
        if paths.snapshot_file(2) not in path:
            return answered(self, path, content, mode)
        late.append((path, content))
        raise UnknownOutcomeError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStorage, "put_if_absent", not_of_commits)
        with pytest.raises(UnknownOutcomeError):
            advance(folder, 2, 3, "+U a 3 2")
    assert storage_of(folder).put_if_absent(*late[-1])
    forget_open_files()
    assert advance(folder, 2, 3, "+U a 3 2") == changelog(SCHEMA.arrow, "-U a 1 0", "+U a 3 2").to_pylist()
