"""Manifests: every column type in statistics, folding, and a cost that does not grow with age."""

import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES
from upsert.errors import CorruptTableError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.metadata import history, manifest
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.folding import MAX_MANIFESTS, combine, folded_count
from upsert.store.metadata.manifest import (
    Manifest,
    apply,
    read_manifest,
    read_manifests,
    write_manifest,
)
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.rows.layout import Layout
from upsert.store.storage import Storage, read_each

LAYOUT = Layout.of(TableSchema.of({"id": pa.int64()}, primary_key=["id"]))


def entry(name: str, sequence: int = 0) -> FileEntry:
    return FileEntry(name, (), 0, 0, sequence, 1, 0, 100, 0, {1: 1}, {1: 2})


def named(letter: str) -> str:
    return f"bucket-0/{0:020d}-{letter * 32}.arrow"


def test_what_is_written_is_read_and_new_files_get_the_commits_sequence(tmp_path: Path) -> None:
    new, merged, old = entry(named("a")), entry(named("b"), sequence=3), entry(named("c"), sequence=2)
    ref = write_manifest(str(tmp_path), LAYOUT, 4, [new, merged], [old])
    found = read_manifest(str(tmp_path), ManifestRef(ref.name, ref.entries, 5))
    assert found == Manifest((replace(new, sequence=5), merged), (old,))


def test_manifests_that_are_read_together_are_those_that_are_read_one_by_one(tmp_path: Path) -> None:
    """Of several definitions in turn, with more entries and fewer, and some that are read again."""
    wider = Layout.of(TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"]))
    refs = []
    for number in range(12):
        layout = wider if number // 3 % 2 else LAYOUT
        added = [entry(named(letter), number % 2) for letter in "abc"[: 1 + number % 3]]
        ref = write_manifest(str(tmp_path), layout, 4, added, [entry(named("d"), 1)][: number % 3])
        refs.append(replace(ref, sequence=number))
    refs += refs[:2]
    together = read_manifests(str(tmp_path), refs)
    assert together == [read_manifest(str(tmp_path), ref) for ref in refs]
    assert len({*map(len, (one.added for one in together))}) > 1
    assert read_manifests(str(tmp_path), []) == []


def test_of_manifests_that_are_read_together_the_one_that_is_wrong_is_named(tmp_path: Path) -> None:
    impossible = replace(entry(named("b")), deletes=2)
    refs = [write_manifest(str(tmp_path), LAYOUT, 4, [one], []) for one in (entry(named("a")), impossible)]
    with pytest.raises(CorruptTableError, match=f"{refs[1].name}.*more deletions than rows"):
        read_manifests(str(tmp_path), refs)
    (tmp_path / refs[0].name).unlink()
    with pytest.raises(FileNotFoundError, match=refs[0].name):
        read_manifests(str(tmp_path), refs)


def test_statistics_of_every_type_survive(tmp_path: Path) -> None:
    """Including NULL, the ends of the calendar, and bounds that are not known."""
    types = {f"c{number}": type_ for number, type_ in enumerate(KEY_VALUES)}
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64(), **types}, primary_key=["k"]))
    length = max(len(values) for values in KEY_VALUES.values())
    columns = {
        name: pa.array([*KEY_VALUES[type_], *[None] * (length - len(KEY_VALUES[type_]))], type_)
        for name, type_ in types.items()
    }
    staged = table.stage(pa.table({"k": range(length), **columns}), order="rows")
    info = table.commit([staged]).info
    (found,) = table.published.reread().live(info).values()
    (written,) = staged.files
    assert (found.min, found.max) == (written.min, written.max)


def test_a_file_that_only_goes_to_another_level_stays_live_also_when_manifests_are_folded() -> None:
    moved = replace(entry("file", sequence=1), level=5)
    manifests = [Manifest((entry("file", sequence=1),), ()), Manifest((moved,), (entry("file", sequence=1),))]
    for commits in (manifests, [combine(manifests)], [manifests[0], combine(manifests[1:])]):
        live: dict[str, FileEntry] = {}
        for one in commits:
            apply(live, one)
        assert live == {"file": moved}


names = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.sets(names, max_size=3), st.integers(0, 3)), max_size=8), st.integers(0, 8))
def test_folding_changes_nothing(steps: list[tuple[set[str], int]], cut: int) -> None:
    """Each step removes some live files and adds new ones; any suffix may be folded."""
    live: dict[str, FileEntry] = {}
    manifests = []
    for number, (removed, added) in enumerate(steps):
        gone = [file for name, file in live.items() if name[0] in removed]
        new = [entry(f"{'abcdef'[n]}{number}") for n in range(added)]
        manifests.append(Manifest(tuple(new), tuple(gone)))
        apply(live, manifests[-1])
    folded: dict[str, FileEntry] = {}
    for one in (*manifests[:cut], combine(manifests[cut:])):
        apply(folded, one)
    assert folded == live


def test_the_cost_of_a_commit_does_not_grow_with_its_age() -> None:
    """Over 5000 commits the manifests stay few, and an entry is rewritten a logarithmic number of times."""
    sizes: list[int] = []
    rewritten = 0
    for _ in range(5000):
        sizes.append(1)
        if count := folded_count(sizes):
            rewritten += sum(sizes[-count:])
            sizes[-count:] = [sum(sizes[-count:])]
        assert len(sizes) <= MAX_MANIFESTS
    assert rewritten < 5000 * 10


@pytest.mark.parametrize("commits", [40])
def test_a_table_of_many_commits_reads_the_same_with_nothing_remembered(tmp_path: Path, commits: int) -> None:
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    for number in range(commits):
        table.write(pa.table({"id": [number]}))
    info = table.snapshot().info
    assert len(info.manifests) <= MAX_MANIFESTS
    assert table.published.reread().live(info) == table.published.live(info)
    assert [e.sequence for e in table.snapshot().files.entries] == list(range(commits, 0, -1))


def test_bounds_that_were_read_are_values_for_other_processes(tmp_path: Path) -> None:
    """What a reader holds is a row of the whole manifest; what it sends is that of the file alone."""
    ref = write_manifest(str(tmp_path), LAYOUT, 4, [entry(named("a")), entry(named("b"))], [])
    (one, _) = read_manifest(str(tmp_path), replace(ref, sequence=5)).added
    sent = pickle.loads(pickle.dumps(one))
    assert (sent, sent.min, type(sent.min)) == (one, {1: 1}, dict)
    assert repr(one.min) == "{1: 1}"


@given(st.lists(st.tuples(st.sets(names, max_size=3), st.integers(0, 3)), max_size=8))
def test_the_files_after_a_commit_are_those_of_all_its_entries(steps: list[tuple[set[str], int]]) -> None:
    """Whether they are grouped anew or what the commit touches is exchanged."""
    found, live = FileSet.of([]), dict[str, FileEntry]()
    for number, (removed, added) in enumerate(steps):
        gone = [file for name, file in live.items() if name[0] in removed]
        new = [replace(entry(f"{'abcdef'[n]}{number}", number), bucket=n) for n in range(added)]
        new += [replace(file, level=number) for file in gone[:1]]  # a file that goes to another level
        apply(live, Manifest(tuple(new), tuple(gone)))
        found = found.after(new, gone)
        assert found.groups == FileSet.of(live.values()).groups


def test_an_entry_holds_the_bounds_of_few_others(tmp_path: Path) -> None:
    """Of many manifests that are read together one entry may be all that is left."""
    refs = []
    for first in range(4):
        names = (f"bucket-0/{0:020d}-{first * 600 + number:032x}.arrow" for number in range(600))
        refs.append(write_manifest(str(tmp_path), LAYOUT, 4, [*map(entry, names)], []))

    def held(read: Callable[[], Manifest]) -> int:
        gc.collect()  # what earlier tests have left would be taken off
        before = pa.total_allocated_bytes()
        left = read().added[0]
        gc.collect()
        assert left.max == {1: 2}
        return pa.total_allocated_bytes() - before

    alone = held(lambda: read_manifest(str(tmp_path), refs[0]))
    assert held(lambda: read_manifests(str(tmp_path), refs)[0]) <= 2 * alone


def test_the_files_of_many_snapshots_are_never_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    for number in range(7):
        table.write(pa.table({"id": [number]}))
    head, sizes = table.published.latest(), list[int]()

    def counted(storage: Storage, paths: list[str]) -> list[bytes]:
        sizes.append(len(paths))
        return read_each(storage, paths)

    for module in (history, manifest):
        monkeypatch.setattr(module, "read_each", counted)
    monkeypatch.setattr(history, "_IDS_TOGETHER", 3)
    fresh = table.published.reread()
    needed = fresh.files_since(0, fresh.latest())
    assert needed == set(table.published.live(head))
    assert max(sizes) == 3
