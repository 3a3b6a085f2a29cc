"""Buckets in parts for tasks: even where keys are, whole where they cannot be cut, nothing left out."""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from upsert.schema import TableSchema
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.paths import BucketId
from upsert.store.read import snapshot as snapshots
from upsert.store.read.splits import OPEN_BYTES, TASK_BYTES, Split, cut, tasks
from upsert.store.rows.keys import key_bytes
from upsert.store.table import Table

ONLY: BucketId = ((), 0)


def key(value: int | str) -> bytes:
    return key_bytes([pa.array([value])])


def file(first: bytes, last: bytes, size: int, bucket_id: BucketId = ONLY) -> FileEntry:
    values = {"level": 0, "sequence": 1, "rows": 1, "deletes": 0, "base": 0, "min": {}, "max": {}}
    partition, bucket = bucket_id
    return FileEntry("f", partition, bucket, **values, bytes=size, first_key=first, last_key=last)  # type: ignore[arg-type]


def counts(splits: Sequence[Split], keys: Sequence[bytes]) -> list[int]:
    """How many keys each split has; each has all from its lower bound to the next one's."""
    assert [split.high for split in splits[:-1]] == [split.low for split in splits[1:]]
    assert (splits[0].low, splits[-1].high) == (b"", None)
    lows = [split.low for split in splits]
    assert lows == sorted(set(lows))
    return np.bincount([bisect_right(lows, each) - 1 for each in keys], minlength=len(splits)).tolist()


@pytest.mark.parametrize("name", [int, "order-{:06}".format], ids=["integers", "texts"])
def test_files_over_the_same_keys_are_cut_into_even_ranges(name) -> None:
    files = [file(key(name(0)), key(name(99_999)), size) for size in (1000, 400, 600)]
    splits = cut(ONLY, files, 500)
    found = counts(splits, [key(name(number)) for number in range(0, 100_000, 100)])
    assert 4 <= len(splits) <= 6
    if name is int:
        assert max(found) <= 300


def test_files_after_each_other_are_cut_between_and_within_them() -> None:
    files = [file(key(start), key(start + 999), 100) for start in range(0, 10_000, 1000)]
    found = counts(cut(ONLY, files, 250), [key(number) for number in range(10_000)])
    assert 4 <= len(found) <= 6
    assert 1000 <= min(found) <= max(found) <= 2500


def test_a_bucket_that_is_small_or_has_one_key_or_unknown_keys_stays_whole() -> None:
    assert cut(ONLY, [file(key(0), key(9), 500)], 500) == [Split(ONLY)]
    assert cut(ONLY, [file(key(7), key(7), 5000)] * 3, 500) == [Split(ONLY)]
    assert cut(ONLY, [], 500) == [Split(ONLY)]
    assert cut(ONLY, [file(b"", b"", 5000)], 500) == [Split(ONLY)]


def test_a_file_may_have_keys_of_a_split_that_meets_it() -> None:
    entry = file(key(10), key(20), 1)
    near = [(b"", key(10)), (b"", key(11)), (key(20), None), (key(21), None), (key(12), key(13))]
    assert [Split(ONLY, *ends).may_have(entry) for ends in near] == [False, True, True, False, True]


def test_small_partitions_share_a_task_and_large_ones_are_cut() -> None:
    sizes = [TASK_BYTES // 2, 1, 1, TASK_BYTES - 3 * OPEN_BYTES, 1, 10 * TASK_BYTES]
    places: list[BucketId] = [((("day", str(number)),), 0) for number in range(len(sizes))]
    groups = {
        place: ((file(key(0), key(1000), size, place),),) for place, size in zip(places, sizes, strict=True)
    }
    shares = tasks(FileSet(groups), groups)
    assert [len(share) for share in shares[:2]] == [3, 2]
    assert [split.bucket_id for share in shares for split in share[:1]][2:] == [places[-1]] * (
        len(shares) - 2
    )
    assert 10 <= len(shares) - 2 <= 14


def test_buckets_without_partitions_are_tasks_of_their_own() -> None:
    groups = {((), bucket): ((file(key(0), key(1), 1, ((), bucket)),),) for bucket in range(3)}
    assert tasks(FileSet(groups), groups) == [[Split(((), bucket))] for bucket in range(3)]


def test_what_a_reader_of_pieces_holds_does_not_grow_with_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of 4 MB, merged in pieces of 128 kB."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 1 << 17)
    schema = TableSchema.of({"id": pa.int64(), "v": pa.int64(), "w": pa.int64()}, primary_key=["id"])
    table = Table.create(tmp_path / "t", schema, {"bucket": "1", "write-only": "true"})
    ids = np.arange(180_000)
    for version in range(3):
        table.write(pa.table({"id": ids, "v": ids + version, "w": ids}))
    forget_open_files()
    before, held, rows = pa.total_allocated_bytes(), [], 0
    for piece in table.snapshot().pieces(["v"]):
        rows += piece.num_rows
        assert piece.column("v")[0].as_py() == rows - piece.num_rows + 2
        held.append(pa.total_allocated_bytes() - before)
    assert rows == len(ids)
    assert len(held) > 20
    assert max(held) < 1 << 18
