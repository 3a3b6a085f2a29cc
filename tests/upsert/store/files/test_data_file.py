"""Data files: what is written is what is read, and damage is found when a file is opened."""

import datetime as dt
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers import files_open_in
from tests.upsert.store.samples import KEY_VALUES, table_of
from upsert.errors import CorruptTableError
from upsert.schema import TableSchema
from upsert.store.files import data_file, writing
from upsert.store.files.data_file import DataFile, forget_open_files
from upsert.store.files.lookup_index import build_index, search
from upsert.store.files.writing import write_data_file, write_run
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.paths import index_file
from upsert.store.rows.conform import conform
from upsert.store.rows.fold import fold
from upsert.store.rows.hashing import hash_columns
from upsert.store.rows.layout import Layout
from upsert.store.storage.local import LocalStorage, synced_together
from upsert.store.version import MAX_HASH

pytestmark = pytest.mark.sidecars

LAYOUT = Layout.of(TableSchema.of({"a": pa.int64(), "b": pa.string()}, primary_key=["a"]).index("b"))
ROWS = pa.table({"a": [1, 2, 3], "b": ["x", None, "y"]})


def write(root: Path, kinds: list[int] | None = None, **where: object) -> FileEntry:
    given = None if kinds is None else np.array(kinds, np.int8)
    options = {"bucket_id": ((), 0), "level": 0, "base": 4, **where}
    return write_data_file(root, LAYOUT, ROWS, given, **options)


def test_file_reads_back_as_written(tmp_path):
    entry = write(tmp_path, [0, 1, 0], bucket_id=((("a", "1/2"), ("b", None)), 3), level=2)
    assert Path(entry.file).parent == Path("a=1%2F2/b=__DEFAULT_PARTITION__/bucket-3")
    assert Path(entry.file).name.startswith(f"{4:020d}-")
    assert (entry.rows, entry.deletes, entry.level, entry.base) == (3, 1, 2, 4)
    assert entry.bytes == (tmp_path / entry.file).stat().st_size
    assert (entry.min, entry.max) == ({1: 1, 2: "x"}, {1: 3, 2: "y"})
    file = DataFile.open(tmp_path, LAYOUT, entry)
    assert file.table.to_pydict() == ROWS.to_pydict()
    assert file.kinds.tolist() == [0, 1, 0]
    assert sorted(file.index("pk").rows.tolist()) == [0, 1, 2]


def test_file_without_deletions_has_no_kinds(tmp_path):
    entry = write(tmp_path, [0, 0, 0])
    assert DataFile.open(tmp_path, LAYOUT, entry).kinds is None
    assert entry.deletes == 0


def test_a_small_file_has_no_sidecar_and_the_indexes_of_one_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SMALL_ROWS", 300)
    rows = pa.table({"a": range(300), "b": [f"t{row % 7}" for row in range(300)]})
    for kept, has_sidecar in ((rows, True), (rows.slice(1), False)):
        entry = write_data_file(tmp_path, LAYOUT, kept, None, bucket_id=((), 0), level=0, base=4)
        assert (entry.has_sidecar, (tmp_path / index_file(entry.file)).exists()) == (has_sidecar, has_sidecar)
        file = DataFile.open(tmp_path, LAYOUT, entry)
        assert all(file.has_index(index.name) for index in LAYOUT.indexes)
        keys = hash_columns([kept.column("a").combine_chunks()])
        assert len(file.keys_that_may_be_there(keys)) == len(kept)
        assert file.key_hashes().tolist() == sorted(keys.tolist())
        middle = int(np.median(keys))
        assert file.rows_of_hashes(0, middle).tolist() == np.flatnonzero(keys <= middle).tolist()
        assert file.index("index_2").hashes.dtype == np.uint32, "half as much memory as whole ones take"
        found = search(file.index("index_2"), hash_columns([pa.array(["t3", "none"])]))
        expected = [row for row, text in enumerate(kept.column("b").to_pylist()) if text == "t3"]
        assert (set(found.probes.tolist()), sorted(found.rows.tolist())) == ({0}, expected)


def test_a_file_of_an_earlier_release_has_a_sidecar_without_a_known_checksum(tmp_path: Path) -> None:
    assert replace(write(tmp_path), checksum=0, index_checksum=0).has_sidecar


def test_columns_are_views_of_the_mapped_file(tmp_path):
    """Opening a file allocates nothing that grows with it."""
    before = pa.total_allocated_bytes()
    big = pa.table({"a": np.arange(200_000), "b": ["some text"] * 200_000})
    entry = write_data_file(tmp_path, LAYOUT, big, None, bucket_id=((), 0), level=0, base=0)
    del big
    file = DataFile.open(tmp_path, LAYOUT, entry)
    assert file.table.num_rows == 200_000
    assert pa.total_allocated_bytes() - before < 100_000


def test_entry_is_a_plain_value_that_can_be_sent_to_other_processes(tmp_path):
    entry = write(tmp_path)
    assert pickle.loads(pickle.dumps(entry)) == entry


@pytest.mark.parametrize("type_", KEY_VALUES, ids=str)
def test_bounds_of_every_scalar_type_are_its_smallest_and_largest_value(tmp_path, type_):
    layout = Layout.of(TableSchema.of({"k": type_}, primary_key=["k"]))
    run = fold(layout, *conform(layout, table_of(layout.schema, [(v,) for v in KEY_VALUES[type_]])), "rows")
    (entry,) = write_run(tmp_path, layout, [run], ((), 0), level=0, base=0)
    values = [v for v in KEY_VALUES[type_] if v == v]
    longest = max(values)
    cut = longest if not isinstance(longest, str | bytes) or len(longest) <= 64 else None
    assert (entry.min[1], entry.max[1]) == (min(values), cut)


@pytest.mark.parametrize(
    ("nanos", "bounds"),
    [
        ([1000, 2000], (dt.time(0, 0, 0, 1), dt.time(0, 0, 0, 2))),
        ([1001, 1999], (dt.time(0, 0, 0, 1), dt.time(0, 0, 0, 2))),
        ([86_399_999_999_000], (dt.time(23, 59, 59, 999_999),) * 2),
        ([86_399_999_999_001], (dt.time(23, 59, 59, 999_999), None)),
    ],
)
def test_bounds_of_nanoseconds_are_microseconds_around_them(tmp_path, nanos, bounds):
    layout = Layout.of(TableSchema.of({"k": pa.time64("ns")}, primary_key=["k"]))
    rows = pa.table({"k": pa.array(nanos, pa.time64("ns"))})
    entry = write_data_file(tmp_path, layout, rows, None, bucket_id=((), 0), level=0, base=0)
    assert (entry.min[1], entry.max[1]) == bounds


def test_bounds_that_python_cannot_hold_are_not_known(tmp_path):
    """Spark's timestamps reach far beyond Python's year 9999; such a file is never skipped."""
    layout = Layout.of(
        TableSchema.of({"k": pa.int64(), "t": pa.timestamp("us"), "f": pa.float64()}, primary_key=["k"])
    )
    rows = pa.table({"k": [1], "t": pa.array([2**60], pa.timestamp("us")), "f": [float("nan")]})
    entry = write_data_file(tmp_path, layout, rows, None, bucket_id=((), 0), level=0, base=0)
    assert (entry.max[2], entry.max[3]) == (None, None)


def _delete(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garble(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\xff" * 40)


@pytest.mark.parametrize("damage", [_delete, _truncate, _empty, _garble])
@pytest.mark.parametrize("victim", [str, index_file])
def test_missing_or_damaged_file_is_refused_by_name(tmp_path, damage: Callable, victim: Callable):
    entry = write(tmp_path)
    path = tmp_path / victim(entry.file)
    damage(path)
    with pytest.raises(CorruptTableError, match="restore") as caught:
        DataFile.open(tmp_path, LAYOUT, entry)
    assert str(path) in str(caught.value)


def test_file_of_other_columns_or_rows_is_refused(tmp_path):
    entry = write(tmp_path)
    other = Layout.of(TableSchema.of({"a": pa.int64(), "c": pa.string()}, primary_key=["a"]))
    with pytest.raises(CorruptTableError, match="must have columns a, c"):
        DataFile.open(tmp_path, other, entry)
    with pytest.raises(CorruptTableError, match="must have 4 rows, got 3"):
        DataFile.open(tmp_path, LAYOUT, replace(entry, rows=4))
    fewer_indexes = Layout.of(TableSchema.of({"a": pa.int64(), "b": pa.string()}, primary_key=["a"]))
    own = r"pk\.gap uint8 or uint16 or uint32, pk\.filled uint8"
    with pytest.raises(CorruptTableError, match=rf"index\.arrow.* must have columns {own}, got"):
        DataFile.open(tmp_path, fewer_indexes, entry)


def with_sidecar_of_an_earlier_release(root: Path, layout: Layout, entry: FileEntry) -> None:
    """The rows of an integer key in the order of their hashes, whole hashes, and starts as positions."""
    path = index_file(str(root / entry.file))
    rows = DataFile.open(root, layout, entry).table.combine_chunks().to_batches()[0]
    forget_open_files()
    arrays = {}
    for index in layout.indexes:
        found = build_index(rows, index.columns)
        parts = {
            "hash": found.hashes,
            "row": found.rows,
            "start": found.first_in(np.arange(len(rows))).astype(np.uint32),
            "filled": found.filled,
        }
        if index.name == "pk" and layout.is_searched_by_key:
            del parts["hash"], parts["start"]
        arrays |= {f"{index.name}.{part}": pa.array(values) for part, values in parts.items()}
    batch = pa.record_batch(arrays)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize("key", [["a"], ["a", "b"]], ids=str)
@pytest.mark.parametrize("is_earlier", [False, True])
def test_rows_of_a_range_of_hashes_are_those_of_a_scan(
    tmp_path: Path, key: list[str], is_earlier: bool
) -> None:
    layout = Layout.of(TableSchema.of({"a": pa.int64(), "b": pa.string()}, primary_key=key).index("b"))
    rows = pa.table({"a": np.arange(0, 9000, 3), "b": [f"t{n % 50:02d}" for n in range(3000)]})
    entry = write_data_file(tmp_path, layout, rows, None, bucket_id=((), 0), level=0, base=0)
    if is_earlier:
        with_sidecar_of_an_earlier_release(tmp_path, layout, entry)
    file = DataFile.open(tmp_path, layout, entry)
    hashes = layout.key_hashes(rows)
    assert file.key_hashes().tolist() == np.sort(hashes).tolist()
    assert file.key_hashes(100, 1500).tolist() == np.sort(hashes)[100:1500].tolist()
    assert file.key_hashes(3000, 3001).tolist() == []
    edges = [0, 1, 1 << 60, (1 << 60) - 1, int(np.sort(hashes)[7]), 5 << 60, MAX_HASH]
    assert [file.keys_below(e) for e in edges] == [np.count_nonzero(hashes < np.uint64(e)) for e in edges]
    assert file.keys_below(MAX_HASH + 1) == 3000
    for low in edges:
        for high in edges:
            there = (hashes >= np.uint64(low)) & (hashes <= np.uint64(high))
            assert file.rows_of_hashes(low, high).tolist() == np.flatnonzero(there).tolist(), (low, high)
    hits = search(file.index("index_2"), hash_columns([pa.array(["t07", "t99"])]))
    assert (hits.probes.tolist(), sorted(hits.rows.tolist())) == ([0] * 60, list(range(7, 3000, 50)))


def test_open_file_is_shared_and_survives_its_deletion(tmp_path):
    """A reader that holds a snapshot keeps what it has mapped when a clean-up removes the file."""
    entry = write(tmp_path)
    file = DataFile.open(tmp_path, LAYOUT, entry)
    (tmp_path / entry.file).unlink()
    assert DataFile.open(tmp_path, LAYOUT, entry) is file
    assert file.table.num_rows == 3
    forget_open_files()
    with pytest.raises(CorruptTableError, match="is missing"):
        DataFile.open(tmp_path, LAYOUT, entry)


def test_maps_of_deleted_files_go_when_others_are_opened(tmp_path):
    """As long as a file is mapped it takes its space on the disk; who holds it may go on."""
    left, deleted, held = (write(tmp_path) for _ in range(3))
    file = DataFile.open(tmp_path, LAYOUT, held)
    for entry in (left, deleted):
        DataFile.open(tmp_path, LAYOUT, entry)
    for entry in (deleted, held):
        (tmp_path / entry.file).unlink()
    for other in (tmp_path / "a", tmp_path / "b"):
        for _ in range(data_file._FEWEST_OPENED):
            DataFile.open(other, LAYOUT, write(other))
    mapped = Path("/proc/self/maps").read_text()
    assert [entry.file in mapped for entry in (left, deleted, held)] == [True, False, True]
    assert file.table.to_pydict() == ROWS.to_pydict()
    assert DataFile.open(tmp_path, LAYOUT, left) is DataFile.open(tmp_path, LAYOUT, left)


def test_forked_child_reads_open_files(tmp_path):
    """PySpark forks its workers; a map or a lock that does not survive that would hang them."""
    entry = write(tmp_path)
    DataFile.open(tmp_path, LAYOUT, entry)
    child = os.fork()
    if child == 0:
        opened = DataFile.open(tmp_path, LAYOUT, entry)
        os._exit(0 if opened.table["b"].to_pylist() == ["x", None, "y"] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_files_are_never_overwritten(tmp_path):
    names = {write(tmp_path).file for _ in range(3)}
    assert len(names) == 3
    assert len(list(tmp_path.rglob("*.arrow"))) == 6


class Downloaded(LocalStorage):
    """A local disk that is taken for a place from which files are downloaded."""

    is_local = False


@pytest.mark.parametrize("victim", [str, index_file])
def test_file_that_was_downloaded_must_have_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: Callable[[str], str]
) -> None:
    """Of a local one nobody asks when it is opened: that would read all of what the map does not."""
    entry = write(tmp_path)
    damaged = replace(entry, checksum=1) if victim is str else replace(entry, index_checksum=1)
    DataFile.open(tmp_path, LAYOUT, damaged)
    monkeypatch.setattr(data_file, "storage_of", lambda _: Downloaded())
    forget_open_files()
    DataFile.open(tmp_path, LAYOUT, entry)
    forget_open_files()
    with pytest.raises(CorruptTableError, match="must have checksum 1, got") as caught:
        DataFile.open(tmp_path, LAYOUT, damaged)
    assert victim(entry.file) in str(caught.value)


def test_no_file_that_was_uploaded_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a block ends that publishes nothing on this machine, its disk space would not come back."""
    monkeypatch.setattr(writing, "storage_of", lambda _: Downloaded())
    with synced_together():
        write(tmp_path)
        assert files_open_in(tmp_path) == []
