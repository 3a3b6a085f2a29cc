"""Newest images in an object store: a query's state may lie where its tables do."""

import os

import pyarrow as pa

from tests.helpers import changelog
from tests.object_store import ObjectStore
from upsert.changelog.image_log import ImageLog
from upsert.schema import TableSchema
from upsert.store.paths import table_folder

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
