"""Added indexes are stored for existing files: beside other writers, through crashes, never by half."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.object_store import ObjectStore
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, run, start
from upsert.catalog.system_tables import read
from upsert.schema import Column, Index, TableSchema
from upsert.store import Table, compactor, paths
from upsert.store.alterations import (
    AddColumn,
    AddIndex,
    DropIndex,
    RenameColumn,
    WidenColumn,
)
from upsert.store.files import data_file, writing
from upsert.store.files.data_file import forget_open_files
from upsert.store.upkeep import background, compaction, index_building
from upsert.store.upkeep.background import compaction_lock

pytestmark = pytest.mark.sidecars

SCHEMA = TableSchema.of({"id": pa.int64(), "a": pa.int32(), "b": pa.string()}, primary_key=["id"])
QUIET = {"write-only": "true", "bucket": "2"}
BY_A = AddIndex(Index("by_a", ("a",)))


def rows(*ids: int) -> pa.Table:
    """Rows in which ``a`` is the id modulo 5."""
    a = pa.array([id % 5 for id in ids], pa.int32())
    return pa.table({"id": list(ids), "a": a, "b": [f"b{id % 3}" for id in ids]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files in each bucket, with a deletion, an index that they lack, and nothing that stores it."""
    table = Table.create(tmp_path / "t", SCHEMA, QUIET)
    table.write(rows(*range(20)))
    table.compact()
    table.write(rows(*range(10, 30)))
    table.delete([("id", "=", 3)])
    table.alter(BY_A)
    return table


def stored(table: Table, name: str = "by_a") -> tuple[int, int]:
    """How many files there are, and how many of them have the index stored."""
    (found,) = (one for one in read(table, "indexes", None).to_pylist() if one["index_name"] == name)
    return found["file_count"], found["indexed_file_count"]


def found(table: Table, **by: Any) -> list[int]:
    keys = pa.table({name: pa.array([value], table.schema.type_of(name)) for name, value in by.items()})
    ids: list[int] = sorted(table.snapshot().lookup(list(by), keys)["id"].to_pylist())
    return ids


def expected(**by: Any) -> list[int]:
    there = [row for row in rows(*range(30)).to_pylist() if row["id"] != 3]
    return [row["id"] for row in there if all(row[name] == value for name, value in by.items())]


@contextmanager
def no_index_is_built() -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("an index was built in memory")

    forget_open_files()
    with pytest.MonkeyPatch.context() as lookups:
        lookups.setattr(data_file, "build_index", refuse)
        yield


def build(table: Table) -> None:
    with compaction_lock(table.root, wait=True):
        index_building.build(table._committer)


@pytest.mark.parametrize("name", ["a", "b"])
def test_index_of_a_restored_table_is_stored_though_one_of_its_version_was_before(
    tmp_path: Path, name: str
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    table.write(rows(*range(20)))
    shutil.copytree(table.path, tmp_path / "copy")
    table.alter(BY_A)
    assert stored(table) == (1, 1)
    shutil.rmtree(table.path)
    shutil.copytree(tmp_path / "copy", table.path)
    table.alter(AddIndex(Index(f"by_{name}", (name,))))
    assert stored(table, f"by_{name}") == (1, 1)


def test_existing_files_get_the_index_and_lookups_build_none(table: Table) -> None:
    before, content = table.snapshot(), table.snapshot().scan().sort_by("id")
    assert stored(table)[1] == 0
    compactor.run(table.path)
    files, having = stored(table)
    assert files == having > 2
    with no_index_is_built():
        assert found(table, a=2) == expected(a=2)
        assert found(table, a=4) == expected(a=4)
    assert table.snapshot().scan().sort_by("id") == content
    assert table.changes(before.id).num_rows == 0
    assert table.snapshot().info.data_version == before.info.data_version
    assert table.check(deep=True) == ()
    inodes = {os.stat(Path(table.path, one.file)).st_nlink for one in table.snapshot().files.entries}
    assert inodes == {2}, "the rows are not written again"
    table.expire(keep=1)
    assert found(table, a=2) == expected(a=2)
    assert_nothing_is_left_over(table)


def test_small_files_need_no_stored_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who searches them makes it; a large file beside them gets it."""
    monkeypatch.setattr(writing, "SMALL_ROWS", 100)
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    table.write(rows(*range(150)))
    table.write(rows(*range(200, 210)))
    before = {entry.rows: entry.file for entry in table.snapshot().files.entries}
    table.alter(BY_A)
    build(table)
    after = {entry.rows: entry.file for entry in table.snapshot().files.entries}
    assert (before[10] == after[10], before[150] == after[150]) == (True, False)
    assert stored(table) == (2, 2)
    assert table.snapshot().lookup(["a"], pa.table({"a": pa.array([1], pa.int32())})).num_rows == 32


def test_small_table_has_the_index_when_the_statement_ends(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    table.write(rows(*range(20)))
    table.alter(BY_A)
    assert stored(table) == (1, 1)
    kinds = [info.kind for info in table.history()]
    assert kinds == ["append", "alter", "compact"]
    table.alter(DropIndex("by_a"), AddIndex(Index("by_a", ("b",))))
    assert stored(table) == (1, 1)
    assert found(table, b="b1") == [id for id in range(20) if id % 3 == 1]


@pytest.mark.long
def test_a_child_process_builds_it_for_a_larger_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    table.write(rows(*range(20)))
    monkeypatch.setattr(background, "MAX_FOREGROUND_ROWS", 10)
    table.alter(BY_A)
    with compaction_lock(table.root, wait=True):  # it has inherited the lock
        pass
    assert stored(table) == (1, 1)


def test_next_commit_goes_on_with_what_a_dead_process_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    table.write(rows(*range(20)))
    with monkeypatch.context() as quiet:
        quiet.setattr(background, "after_alter", lambda *_: None)
        table.alter(BY_A)
    assert stored(table) == (1, 0)
    started: list[str] = []
    monkeypatch.setattr(background, "start_compactor", lambda folder, _: started.append(folder))
    table.write(rows(40))
    assert started == [table.path]
    compactor.run(table.path)
    table.write(rows(41))
    assert started == [table.path]
    assert stored(table)[1] == stored(table)[0]


def test_columns_that_changed_since_are_written_again(table: Table) -> None:
    table.alter(RenameColumn("b", "c"), AddColumn(Column("d", pa.int32())), WidenColumn("a", pa.int64()))
    build(table)
    assert len(set(stored(table))) == 1
    with no_index_is_built():
        assert found(table, a=2) == expected(a=2)
    assert table.snapshot().scan(["c"])["c"].null_count == 0
    assert table.check(deep=True) == ()


def test_index_of_a_widened_column_is_stored_again(table: Table) -> None:
    build(table)
    assert len(set(stored(table))) == 1
    table.alter(WidenColumn("a", pa.int64()))
    assert stored(table)[1] == 0
    table.compact(buckets=[0])
    files, having = stored(table)
    assert 0 < having < files
    table.compact()
    assert len(set(stored(table))) == 1
    assert found(table, a=2) == expected(a=2)


def test_renamed_column_keeps_its_index(table: Table) -> None:
    build(table)
    table.alter(RenameColumn("a", "x"))
    assert len(set(stored(table))) == 1
    head = table.snapshot().id
    build(table)
    assert table.snapshot().id == head


def before_publishing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something that happens once, when the files of the first commit of indexes are written."""
    publish, pending = compaction.publish, [act]

    def late(*arguments: Any, **named: Any) -> Any:
        if pending:
            pending.pop()()
        return publish(*arguments, **named)

    monkeypatch.setattr(compaction, "publish", late)


def test_index_is_dropped_while_it_is_built(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before_publishing(monkeypatch, lambda: table.alter(DropIndex("by_a")))
    build(table)
    assert [one["index_name"] for one in read(table, "indexes", None).to_pylist()] == ["PRIMARY KEY"]
    assert found(table, id=7) == [7]
    assert table.check(deep=True) == ()
    table.alter(BY_A)
    build(table)
    assert len(set(stored(table))) == 1
    assert found(table, a=2) == expected(a=2)


def test_compaction_and_overwrite_of_other_processes_take_files_away(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_publishing(
        monkeypatch, lambda: compaction.compact_fully(table._committer, table.options, lambda _: True)
    )
    build(table)
    assert len(set(stored(table))) == 1
    assert found(table, a=2) == expected(a=2)
    table.alter(AddIndex(Index("by_b", ("b",))))
    before_publishing(monkeypatch, lambda: table.overwrite(rows(1, 2, 7)))
    build(table)
    assert found(table, b="b1") == [1, 7]
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert table.check(deep=True) == ()
    assert_nothing_is_left_over(table)


def test_clean_up_beside_it_takes_no_file_that_is_needed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up of files of any age takes what is not published yet; it is built again."""
    before_publishing(monkeypatch, lambda: table.clean(older_than_s=0))
    build(table)
    assert len(set(stored(table))) == 1
    assert found(table, a=2) == expected(a=2)
    assert table.check(deep=True) == ()


def test_what_a_dead_builder_has_left_is_as_young_as_its_name(table: Table) -> None:
    """Its rows may be old: a clean-up that took it for old would stop the writers that are at work."""
    for entry in table.snapshot().files.entries:
        os.utime(Path(table.path, entry.file), (0, 0))
    staged = table.stage(rows(50), order="rows")
    assert run(lambda: build(table), "compact.after-write") == KILLED
    assert table.clean() == 0
    table.commit([staged])
    assert found(table, a=0) == [*expected(a=0), 50]


def test_file_that_cannot_be_linked_is_copied_durably(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it belongs to another user, whose files Linux lets no one link who may not write to them."""
    link, sync, synced = os.link, os.fsync, set[int]()

    def refuse(source: str, target: str, **folders: int) -> None:
        if "bucket-" in target:
            raise PermissionError
        link(source, target, **folders)

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", noted)
    build(table)
    assert len(set(stored(table))) == 1
    assert {os.stat(Path(table.path, one.file)).st_ino for one in table.snapshot().files.entries} <= synced
    assert found(table, a=2) == expected(a=2)
    assert table.check(deep=True) == ()


POINTS = (
    "data.before-file",
    "data.after-file",
    "data.after-sidecar",
    "compact.after-write",
    "commit.after-manifest",
    "publish.before-link",
    "publish.after-link",
    "compact.after-publish",
)


@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_indexes_are_built(
    table: Table, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have the index whole or not at all; what is left is built by the next process."""
    monkeypatch.setattr(index_building, "MAX_ROWS_PER_COMMIT", 1)  # a commit for each file
    assert run(lambda: build(table), f"{point}:{nth}") == KILLED
    for again in (table, Table.open(table.path)):
        again.published = again.published.reread()
        forget_open_files()
        assert [violation for violation in again.check(deep=True) if not violation.is_information] == []
        for a in range(5):
            assert found(again, a=a) == expected(a=a)
    files, having = stored(table)
    assert having in (nth - 1, nth)
    again = Table.open(table.path)
    build(again)
    assert stored(again) == (files, files)
    again.expire(keep=1)
    again.clean(older_than_s=0)
    assert again.check(deep=True) == ()
    assert_nothing_is_left_over(again)


def test_writers_and_two_builders_at_once(table: Table) -> None:
    def write() -> None:
        writer = Table.open(table.path)
        for id in range(100, 110):
            writer.write(rows(id))

    def compact() -> None:
        Table.open(table.path).compact()

    def maintain() -> None:
        compactor.maintain(table.path)

    assert finish([start(write), start(compact), start(maintain)]) == [0, 0, 0]
    table.compact()
    assert len(set(stored(table))) == 1
    ids = [*expected(a=2), *(id for id in range(100, 110) if id % 5 == 2)]
    assert found(table, a=2) == ids
    assert all(violation.is_information for violation in table.check(deep=True))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_files_of_other_formats(file_format: str, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, QUIET | {"file.format": file_format})
    table.write(rows(*range(20)))
    table.alter(BY_A)
    build(table)
    with no_index_is_built():
        assert found(table, a=2) == [2, 7, 12, 17]
    (one, *_) = table.snapshot().files.entries
    assert one.file.endswith(file_format)
    assert Path(table.path, paths.index_file(one.file)).exists()


def test_files_in_an_object_store_are_stored_again_under_the_new_name(s3: ObjectStore) -> None:
    table = Table.create(s3.folder(), SCHEMA, QUIET)
    table.write(rows(*range(20)))
    table.alter(BY_A)
    before = {entry.file for entry in table.snapshot().files.entries}
    build(table)
    assert stored(table) == (2, 2)
    assert before.isdisjoint(entry.file for entry in table.snapshot().files.entries)
    with no_index_is_built():
        assert found(table, a=2) == [2, 7, 12, 17]
    table.expire(keep=1)
    assert table.check(deep=True) == ()


@pytest.mark.parametrize("key", [["id"], []])
def test_random_lives_against_scans(key: list[str], tmp_path: Path) -> None:
    """Writes, deletions, indexes that come and go, columns, building, compaction, in random order."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    schema = TableSchema.of({"id": pa.int64(), "a": pa.int32(), "b": pa.string()}, primary_key=key)
    policy = {"compaction.policy": draw.choice(["universal", "leveled"])}
    table = Table.create(tmp_path / f"t{len(key)}", schema, QUIET | policy)

    def write() -> None:
        new = rows(*(draw.randrange(30) for _ in range(6)))
        for column in table.schema.columns[3:]:
            new = new.append_column(column.name, pa.nulls(new.num_rows, column.type))
        table.write(new)

    steps: list[Callable[[], object]] = [
        write,
        write,
        lambda: table.delete([("id", "=", draw.randrange(30))]),
        lambda: toggle(table, "a"),
        lambda: toggle(table, "b"),
        lambda: build(table),
        lambda: compactor.run(table.path),
        lambda: table.alter(AddColumn(Column(f"c{table.definition.version}", pa.int8()))),
    ]
    for _ in range(40):
        draw.choice(steps)()
        content = table.snapshot().scan(["id", "a", "b"]).to_pylist()
        for index in table.schema.indexes:
            (name,) = index.columns
            wanted = Counter(row["id"] for row in content if row[name] == {"a": 2, "b": "b1"}[name])
            assert Counter(found(table, **{name: {"a": 2, "b": "b1"}[name]})) == wanted
    build(table)
    assert all(len(set(stored(table, index.name))) == 1 for index in table.schema.indexes)
    assert table.check(deep=True) == ()


def toggle(table: Table, column: str) -> None:
    name = f"by_{column}"
    there = any(index.name == name for index in table.schema.indexes)
    table.alter(DropIndex(name) if there else AddIndex(Index(name, (column,))))
