"""Folds in parts: what they hold, which of them a reader opens, and what earlier releases make of them."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.upkeep.damage import rewrite_snapshot
from upsert.errors import SnapshotExpiredError
from upsert.schema import Column, TableSchema
from upsert.store import paths
from upsert.store.alterations import AddColumn, WidenColumn
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer
from upsert.store.kept import Kept
from upsert.store.metadata import file_set, folding, history
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.folding import combine, combine_rows
from upsert.store.metadata.manifest import ManifestRows, decode, encode, read_manifest, write_manifest
from upsert.store.metadata.partition_order import any_between, ends_of, key_of
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.paths import Partition
from upsert.store.predicate import parse_where, remaining
from upsert.store.table import Table

VALUES: dict[str, list[Any]] = {
    "text": [None, "a", "b", "", "7", "10", "-1", "007", "2024-01-31", "2024-02-01", "ü"],
    "number": [None, -3, 0, 9, 10, 100],
    "day": [None, *(f"2024-0{month}-01" for month in range(1, 6))],
    "real": [None, -0.5, 0.0, 1e300, float("nan")],
}
TYPES = {"text": pa.string(), "number": pa.int32(), "day": pa.date32(), "real": pa.float64()}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds after a few commits, cut after a few entries, and entries that are made when they are needed."""
    monkeypatch.setattr(folding, "MAX_MANIFESTS", 4)
    monkeypatch.setattr(folding, "_FEWEST_TO_FOLD", 2)
    monkeypatch.setattr(folding, "_ENTRIES_OF_PART", 6)
    monkeypatch.setattr(file_set, "FEWEST", 1)
    monkeypatch.setattr(file_set, "MOST_CHANGED", 5)


def text_of(value: Any) -> str | None:
    return None if value is None else str(pa.scalar(value).cast(pa.string()))


class Files:
    """A table by its manifests: the files that they name are not there."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        schema = {**{name: TYPES[name] for name in columns}, "id": pa.int64(), "small": pa.int32()}
        self.columns = columns
        self.table = Table.create(path, TableSchema.of(schema, partitioned_by=columns), {"bucket": "2"})
        rows = pa.table({name: pa.array([None if name in columns else 1], t) for name, t in schema.items()})
        (self.sample,) = self.table.stage(rows, order="rows").files
        self.committer = Committer(self.table.published)
        self.live: dict[str, FileEntry] = {}

    def entry(self, partition: Partition, bucket: int) -> FileEntry:
        name = paths.data_file(partition, bucket, 0, uuid4().hex) + Path(self.sample.file).suffix
        base = self.table.published.latest().id
        return replace(self.sample, file=name, partition=partition, bucket=bucket, base=base, sequence=0)

    def commit(self, added: list[FileEntry], removed: Sequence[FileEntry] = ()) -> None:
        done = self.committer.commit(lambda _: Change("overwrite", tuple(added), tuple(removed)))
        for entry in removed:
            del self.live[entry.file]
        self.live |= {entry.file: replace(entry, sequence=done.info.id) for entry in done.added}

    def partition(self, **values: Any) -> Partition:
        return tuple((name, text_of(values.get(name))) for name in self.columns)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the manifests that are read as columns."""
    names: list[str] = []
    read = history.read_rows
    monkeypatch.setattr(history, "read_rows", lambda root, ref: names.append(ref.name) or read(root, ref))
    return names


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("commits", [12, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("columns", [("text",), ("number", "text"), ("day", "number"), ("real",), ()])
def test_files_are_those_of_a_dict_whatever_is_folded(
    columns: tuple[str, ...], commits: int, tmp_path: Path
) -> None:
    """Files come to partitions and go, at random; readers that know nothing and ones that follow agree."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    files = Files(tmp_path / "t", columns)
    following = files.table.published.reread()
    parts = 0
    for number in range(commits):
        added = [
            files.entry(
                files.partition(**{c: chance.choice(VALUES[c]) for c in columns}), chance.randrange(2)
            )
            for _ in range(chance.choice([1, 2, 3, 9]))
        ]
        removed = chance.sample(list(files.live.values()), min(len(files.live), chance.choice([0, 0, 1, 7])))
        files.commit(added, removed)
        info = files.table.published.latest()
        parts = max(parts, *(ref.part for ref in info.manifests))
        expected = FileSet.of(files.live.values()).groups
        for found in (files.table.published.reread(), following if number % 3 else files.table.published):
            groups = found.files(info).groups
            for bucket_id in chance.sample(list(expected), min(2, len(expected))):
                assert same_runs(groups[bucket_id], expected[bucket_id])
            check_filter(files, found, chance)
            if chance.random() < 0.3:
                continue  # and some manifests are not opened
            assert {id: sorted_runs(runs) for id, runs in groups.items()} == {
                id: sorted_runs(runs) for id, runs in expected.items()
            }
    assert bool(parts) == bool(columns)
    rules = {finding.rule for finding in files.table.check()}
    of_files = {"data_file_is_whole", "index_file_is_there", "file_is_needed", "files_of_a_run_are_disjoint"}
    assert rules <= of_files  # the files are not there, and have the same keys


def sorted_runs(runs: Any) -> list[list[str]]:
    return [sorted(entry.file for entry in run) for run in runs]


def same_runs(found: Any, expected: Any) -> bool:
    return sorted_runs(found) == sorted_runs(expected)


def check_filter(files: Files, found: history.History, chance: random.Random) -> None:
    """A filter on partition columns finds the buckets that it finds among all."""
    if not files.columns:
        return
    where = []
    for name in chance.sample(files.columns, chance.randint(1, len(files.columns))):
        operator = chance.choice(["=", "<", ">=", "!=", "in", "not in", "is null"])
        values = [value for value in VALUES[name] if value is not None]
        value: Any = [chance.choice(values) for _ in range(2)] if "in" in operator else chance.choice(values)
        if name == "day":
            typed = pa.array([value] if isinstance(value, str) else value).cast(pa.date32()).to_pylist()
            value = typed if "in" in operator else typed[0]
        where.append((name, operator, None if operator == "is null" else value))
    info = files.table.published.latest()
    snapshot = type(files.table.snapshot()).retained(found, info, found.layout)
    wanted = parse_where(where, files.table.schema)
    partitions = remaining(wanted, {e.partition for e in files.live.values()}, files.table.schema)
    buckets = {e.bucket_id for e in files.live.values() if e.partition in partitions}
    assert snapshot.bucket_filters(wanted).keys() == buckets, where


@pytest.mark.usefixtures("small_parts")
def test_a_reader_of_one_partition_opens_one_part(tmp_path: Path, opened: list[str]) -> None:
    files = Files(tmp_path / "t", ("number", "text"))
    files.commit([files.entry(files.partition(number=n, text=t), 0) for n in range(200) for t in "ab"])
    found = files.table.published.reread()
    snapshot = type(files.table.snapshot()).retained(found, found.latest(), found.layout)
    assert len(found.latest().manifests) > 50
    for where in ([("number", "=", 117)], [("number", "in", [117]), ("text", "=", "b")]):
        assert snapshot.bucket_filters(parse_where(where, files.table.schema))
        assert len(snapshot.files.groups[files.partition(number=117, text="a"), 0]) == 1
        assert len(opened) == 1
    assert len(snapshot.bucket_filters(parse_where([("number", "<", 3)], files.table.schema))) == 6
    assert len(opened) == 2


@pytest.mark.usefixtures("small_parts")
def test_a_commit_to_one_partition_opens_its_part_alone(tmp_path: Path, opened: list[str]) -> None:
    files = Files(tmp_path / "t", ("number",))
    files.commit([files.entry(files.partition(number=n), 0) for n in range(100)])
    later = Files.__new__(Files)
    later.__dict__ |= files.__dict__
    later.committer = Committer(files.table.published.reread())
    gone = next(entry for entry in files.live.values() if entry.partition == files.partition(number=40))
    later.commit([files.entry(files.partition(number=40), 0)], [gone])
    assert len(opened) == 1


@pytest.mark.usefixtures("small_parts")
def test_what_an_earlier_release_leaves_out_is_asked_of_the_manifests(tmp_path: Path) -> None:
    """It copies the names of manifests to its next snapshot, and of what it does not know nothing."""
    files = Files(tmp_path / "t", ("text",))
    files.commit([files.entry(files.partition(text=chr(97 + n % 26)), n % 2) for n in range(60)])
    info = files.table.published.latest()
    path = Path(files.table.path, paths.snapshot_file(info.id))
    known = ("name", "entries", "sequence", "checksum")
    refs = [{name: ref[name] for name in known} for ref in json.loads(path.read_bytes())["manifests"]]
    rewrite_snapshot(files.table, info.id, manifests=refs)
    files.committer = Committer(files.table.published.reread())
    for number in range(8):
        expected = FileSet.of(files.live.values()).groups
        found = files.table.published.reread()
        assert all(same_runs(found.files(found.latest()).groups[id], runs) for id, runs in expected.items())
        files.commit([files.entry(files.partition(text="z"), number % 2)])
    assert files.table.published.latest().manifests[0].first


@pytest.mark.usefixtures("small_parts")
def test_a_reader_goes_on_when_the_manifests_that_it_began_with_have_expired(tmp_path: Path) -> None:
    """The files of a snapshot are those of an earlier one and changes; the earlier one may go."""
    files = Files(tmp_path / "t", ("number",))
    files.commit([files.entry(files.partition(number=n), 0) for n in range(30)])
    found = files.table.published.reread()
    first = found.files(found.latest())
    for number in range(25):
        files.commit([files.entry(files.partition(number=number % 2), 0)])
        found.files(found.latest())
    last = found.files(found.latest())
    without = last.without([(files.partition(number=20), 0)])
    files.table.expire(keep=1)
    assert len(without.groups) == len(last.groups) - 1 == 29
    expected = FileSet.of(files.live.values()).groups
    assert {id: sorted_runs(runs) for id, runs in last.groups.items()} == {
        id: sorted_runs(runs) for id, runs in expected.items()
    }
    with pytest.raises(file_set.SnapshotExpiredError):
        first.entries  # noqa: B018


@pytest.mark.usefixtures("small_parts")
def test_a_snapshot_is_read_though_the_one_before_it_has_expired(tmp_path: Path) -> None:
    """A process knows the files of that one, but has not opened their manifests, which are gone."""
    files = Files(tmp_path / "t", ("number",))
    for _ in range(4):
        files.commit([files.entry(files.partition(number=n), 0) for n in range(12)])
    found = files.table.published.reread()
    before = found.latest()
    found.files(before)
    files.commit([files.entry(files.partition(number=n), 0) for n in range(12)])
    last = files.table.published.latest()
    assert not {ref.name for ref in before.manifests} & {ref.name for ref in last.manifests}
    files.table.expire(keep=1)
    groups = found.files(found.info(last.id)).groups
    expected = FileSet.of(files.live.values()).groups
    assert {id: sorted_runs(runs) for id, runs in groups.items()} == {
        id: sorted_runs(runs) for id, runs in expected.items()
    }


def test_two_threads_go_on_when_manifests_have_expired() -> None:
    """The second one finds that the first has begun with the snapshot's own manifests."""
    own = file_set.Manifests((), lambda _: pytest.fail("there is none"), lambda _: None)
    others = []

    def expired(_: ManifestRef) -> file_set.OpenManifest:
        if not others:
            others.append("asks")
            assert stored.buckets() == []
        raise SnapshotExpiredError("gone")

    earlier = file_set.Manifests((ManifestRef("m", 1, 1),), expired, lambda _: None)
    stored = file_set.StoredFiles(earlier, own=lambda: own)
    assert stored.buckets() == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("columns", [("number",), ()])
def test_a_fold_of_which_nothing_is_left_writes_no_manifest(columns: tuple[str, ...], tmp_path: Path) -> None:
    files = Files(tmp_path / "t", columns)
    for _ in range(4):
        files.commit([files.entry(files.partition(number=n), 0) for n in range(3)])
    files.commit([], list(files.live.values()))
    found = files.table.published.reread()
    assert (found.latest().manifests, found.files(found.latest()).entries) == ((), ())


texts = st.one_of(
    st.none(), st.sampled_from(["", "a", "7", "-7", "10", "007", "2024-01-31"]), st.text(max_size=3)
)
partitions = st.lists(st.tuples(texts, texts), min_size=1, max_size=6)


@given(partitions, partitions)
def test_partitions_lie_between_their_ends(asked: list[Any], there: list[Any]) -> None:
    """Of those that are there none is passed over; NULL, numbers, days and texts are told apart."""
    ends = ends_of([(("a", a), ("b", b)) for a, b in there])
    assert ends is not None
    (found,) = any_between(asked, [ends])
    assert found == any(key_of(ends[0]) <= key_of(one) <= key_of(ends[1]) for one in asked)
    assert found or not set(asked) & set(there)
    assert any_between([one[:1] for one in there], [ends]) == [True]
    assert len({key_of(one) for one in (*asked, *there)}) == len({*asked, *there})


def test_snapshots_share_the_names_of_manifests(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}))
    for number in range(2):
        table.write(pa.table({"id": [number]}))
    first, second = table.published.reread().retained()
    assert first.manifests[0] is second.manifests[0] == first.delta


def test_folding_columns_is_folding_entries(tmp_path: Path) -> None:
    """Also where files go to another level, and a column came and another became wider in between."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    files = Files(tmp_path / "t", ("number",))
    root = files.table.root
    live: dict[str, FileEntry] = {}
    refs, manifests = [], []
    for number in range(12):
        gone = chance.sample(list(live.values()), min(len(live), chance.randrange(4)))
        new = [
            files.entry(files.partition(number=chance.randrange(5)), 0) for _ in range(chance.randint(1, 4))
        ]
        new += [replace(one, level=one.level + 1) for one in gone[:1]]
        if number == 6:
            files.table.alter(AddColumn(Column("more", pa.string())))
            files.table.alter(WidenColumn("small", pa.int64()))
        layout = files.table.layout
        ref = replace(write_manifest(root, layout, 0, new, gone), sequence=number + 1)
        manifests.append(read_manifest(root, ref))
        refs.append(ref)
        live = {name: one for name, one in live.items() if one not in gone}
        live |= {one.file: one for one in manifests[-1].added}
    for first in range(len(refs)):
        rows = ManifestRows(combine_rows(layout, root, refs[first:]), 0)
        entries = rows.entries(np.arange(rows.rows.num_rows))
        found = [
            [one for one, is_ in zip(entries, rows.is_added, strict=True) if is_ == k] for k in (True, False)
        ]
        plain = combine(manifests[first:])
        expected = decode(encode(layout, plain.added, plain.removed))
        assert found == [list(expected.added), list(expected.removed)]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_overwriting_a_partition_and_dropping_one_open_their_parts_alone(
    is_dynamic: bool, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path / "t", ("number", "text"))
    files.commit([files.entry(files.partition(number=n, text=t), 0) for n in range(100) for t in "ab"])
    monkeypatch.setattr(history, "_shared", Kept(lambda: LRUCache(1), is_inherited=True))
    table = Table.open(files.table.path)  # as another process would
    row = {"number": pa.array([40], pa.int32()), "text": ["a"], "id": [7], "small": pa.array([0], pa.int32())}
    spec = {"number": 40} if is_dynamic else {"number": 40, "text": "a"}
    table.overwrite(pa.table(row), partition=spec, dynamic=is_dynamic)
    table.drop_partition({"number": 70})
    assert len(opened) == 2
    left = {entry.partition: entry for entry in table.published.reread().live(table.snapshot().info).values()}
    assert left.keys() == {entry.partition for entry in files.live.values() if entry.partition[0][1] != "70"}
    assert [one for one in left if left[one].file not in files.live] == [files.partition(number=40, text="a")]
