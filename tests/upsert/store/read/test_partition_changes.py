"""What overwrites, deletions and drops do beside other writers, to readers of changes, and to files."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, files_on_disk, run
from upsert.errors import (
    CommitConflictError,
    CorruptTableError,
    DuplicateKeyError,
    SchemaError,
    UntrackedChangesError,
)
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.alterations import SetOptions, TrackPartition
from upsert.store.commit.change import Change
from upsert.store.commit.committer import Committer, Environment
from upsert.store.files.data_file import forget_open_files
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.paths import BucketId
from upsert.store.read.snapshot import Snapshot
from upsert.store.storage import put_if_absent
from upsert.store.version import Version

SCHEMA = TableSchema.of(
    {"day": pa.string(), "id": pa.int64(), "v": pa.string()},
    primary_key=["day", "id"],
    partitioned_by=["day"],
)
MULTISET = TableSchema.of({"day": pa.string(), "id": pa.int64(), "v": pa.string()}, partitioned_by=["day"])


def rows(*lines: str) -> pa.Table:
    words = [line.split() for line in lines]
    days, ids, values = zip(*words, strict=True) if words else ((), (), ())
    columns = [pa.array([None if d == "NULL" else d for d in days], pa.string())]
    columns += [pa.array(map(int, ids), pa.int64()), pa.array(values, pa.string())]
    return pa.table(columns, names=["day", "id", "v"])


def lines(found: pa.Table) -> list[str]:
    return sorted(" ".join(map(str, row.values())) for row in found.to_pylist())


def content(table: Table) -> list[str]:
    return lines(table.snapshot().scan())


@pytest.fixture(params=["keyed", "multiset"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    schema = SCHEMA if request.param == "keyed" else MULTISET
    return Table.create(tmp_path / "t", schema.index("v"), {"bucket": "2", "write-only": "true"})


@pytest.fixture
def full(table: Table) -> Table:
    table.write(rows("a 1 x", "a 2 y", "b 1 x", "c 3 z"))
    return table


class Rival:
    """An environment in which another process does something just before the first attempts to publish."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        if self.acts:
            self.acts.pop(0)()
        return put_if_absent(path, content)


def beside(table: Table, *acts: Callable[[], object]) -> Table:
    """The table in another process, whose first attempts to publish come just after some acts."""
    other = Table.open(table.path)
    other.published = table.published.reread()
    other._committer = Committer(other.published, Environment(put_if_absent=Rival(*acts).put_if_absent))
    return other


def data_files(table: Table) -> set[str]:
    """Those on the disk; superseded manifests, which only ``clean`` removes, are not looked at."""
    return {n for n in files_on_disk(table) if "bucket-" in n and not n.endswith(".index.arrow")}


# overwrite


def test_a_static_overwrite_replaces_the_partitions_that_it_names(full: Table) -> None:
    full.overwrite(rows("a 9 n"), partition={"day": "a"})
    assert content(full) == ["a 9 n", "b 1 x", "c 3 z"]
    full.overwrite(rows("d 1 n"))
    assert content(full) == ["d 1 n"]


def test_columns_that_the_partition_says_may_be_missing(full: Table) -> None:
    full.overwrite(pa.table({"id": [9], "v": ["n"]}), partition={"day": "b"})
    assert content(full) == ["a 1 x", "a 2 y", "b 9 n", "c 3 z"]


def test_rows_may_come_batch_by_batch(full: Table) -> None:
    batches = [pa.record_batch({"id": [n], "v": ["n"]}) for n in (8, 9)]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
    full.overwrite(reader, partition={"day": "b"})
    assert content(full) == ["a 1 x", "a 2 y", "b 8 n", "b 9 n", "c 3 z"]


def test_rows_that_are_no_table_are_refused(full: Table) -> None:
    with pytest.raises(SchemaError, match="must be a pyarrow"):
        full.overwrite([{"id": 1}], partition={"day": "b"})


def test_rows_outside_of_the_partition_are_refused(full: Table) -> None:
    with pytest.raises(SchemaError, match="must lie in the partition day=a, got rows of day=b"):
        full.overwrite(rows("a 1 n", "b 1 n"), partition={"day": "a"})
    assert full.snapshot().id == 1
    assert_nothing_is_left_over(full)


def test_a_dynamic_overwrite_replaces_the_partitions_of_its_rows(full: Table) -> None:
    full.overwrite(rows("a 9 n", "e 1 n"), dynamic=True)
    assert content(full) == ["a 9 n", "b 1 x", "c 3 z", "e 1 n"]
    assert full.overwrite(rows(), dynamic=True).id == full.snapshot().id == 2


def test_an_overwrite_is_done_once_for_a_transaction(full: Table) -> None:
    for value in ("n", "m"):
        full.overwrite(rows(f"a 9 {value}"), partition={"day": "a"}, writer_id="job", transaction=1)
    assert content(full) == ["a 9 n", "b 1 x", "c 3 z"]


def test_a_unique_index_is_checked_against_what_an_overwrite_leaves(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA.index("v", unique=True))
    table.write(rows("a 1 x", "b 1 y"))
    table.overwrite(rows("a 5 x"), partition={"day": "a"})
    with pytest.raises(DuplicateKeyError, match="'v': 'y'"):
        table.overwrite(rows("a 5 y"), partition={"day": "a"})
    assert content(table) == ["a 5 x", "b 1 y"]


# beside other writers


def test_appends_to_other_partitions_go_through(full: Table) -> None:
    other = beside(full, lambda: full.write(rows("b 7 q")), lambda: full.write(rows("z 7 q")))
    other.overwrite(rows("a 9 n"), partition={"day": "a"})
    assert content(full) == ["a 9 n", "b 1 x", "b 7 q", "c 3 z", "z 7 q"]


def test_an_overwrite_goes_after_the_appends_that_were_published_before_it(full: Table) -> None:
    late = full.stage(rows("a 8 late"), order="rows")
    other = beside(full, lambda: full.write(rows("a 7 q")))
    other.overwrite(rows("a 9 n"), partition={"day": "a"})
    full.commit([late])
    assert content(full) == ["a 8 late", "a 9 n", "b 1 x", "c 3 z"]


def test_two_overwrites_of_one_partition_never_conflict(full: Table) -> None:
    other = beside(full, lambda: full.overwrite(rows("a 7 q"), partition={"day": "a"}))
    other.overwrite(rows("a 9 n"), partition={"day": "a"})
    assert content(full) == ["a 9 n", "b 1 x", "c 3 z"]


def test_a_file_to_remove_that_is_gone_is_a_conflict_that_names_both(full: Table) -> None:
    """What a command that does not look again would meet: its base's files are not there any more."""
    gone = tuple(full.published.live(full.snapshot().info).values())
    full.overwrite(rows("a 9 n"))

    def propose(latest: SnapshotInfo) -> Change:
        return Change("overwrite", removed=gone)

    with pytest.raises(
        CommitConflictError, match=r"this overwrite.* snapshot 2 \(overwrite\) has already removed"
    ):
        full._committer.commit(propose)


def test_a_deletion_is_true_of_the_snapshot_before_it(full: Table) -> None:
    """Rows that came to match meanwhile go, rows that ceased to stay, also after a compaction."""

    def meanwhile() -> None:
        if full.schema.primary_key:
            full.write(rows("a 1 y", "a 2 x", "b 5 x"))
        else:
            full.overwrite(rows("a 1 y", "a 2 x"), partition={"day": "a"})
            full.write(rows("b 5 x"))
        full.compact()

    other = beside(full, meanwhile, lambda: full.write(rows("d 1 x", "d 2 y")), lambda: full.compact())
    other.delete([("v", "=", "x"), ("id", ">", 0)])
    assert content(full) == ["a 1 y", "c 3 z", "d 2 y"]
    assert data_files(full) == {entry for info in full.history() for entry in full.published.live(info)}


def test_a_deletion_beside_a_busy_writer_reads_each_bucket_once(
    full: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a writer that commits while the bucket is read would hold it up for ever."""
    read: list[tuple[object, int]] = []
    stored_rows = Snapshot.stored_rows

    def counted(self: Snapshot, place: BucketId, *others: Any) -> Any:
        read.append(place)
        return stored_rows(self, place, *others)

    acts = [lambda n=n: full.write(rows(f"a {n} x", f"a {n + 1} y", f"b {n} x")) for n in range(4)]
    other = beside(full, *acts, lambda: full.overwrite(rows("b 1 x"), partition={"day": "b"}))
    monkeypatch.setattr(Snapshot, "stored_rows", counted)
    other.delete([("v", "=", "x")])
    monkeypatch.undo()
    assert full.snapshot().scan(where=[("v", "=", "x")]).num_rows == 0
    left = full.snapshot().scan(where=[("v", "=", "y")])
    assert sorted(left["id"].to_pylist()) == ([4] if full.schema.primary_key else sorted([2, *range(1, 5)]))
    assert len(read) == len(set(read)) + 1, "only the bucket that was overwritten is read again"
    assert data_files(full) == {entry for info in full.history() for entry in full.published.live(info)}


def test_a_deletion_of_what_others_have_deleted_commits_nothing(full: Table) -> None:
    other = beside(full, lambda: full.delete([("v", "=", "x")]))
    assert other.delete([("v", "=", "x")]).id == 2
    assert data_files(full) == {entry for info in full.history() for entry in full.published.live(info)}


@pytest.mark.parametrize("point", ["delete.after-write", "data.after-file", "publish.after-link"])
def test_a_deletion_killed_is_whole_or_absent(full: Table, point: str) -> None:
    def delete() -> None:
        full.delete([("v", "=", "x")])

    assert run(delete, point) == KILLED
    is_there = point == "publish.after-link"
    assert content(full) == (["a 2 y", "c 3 z"] if is_there else ["a 1 x", "a 2 y", "b 1 x", "c 3 z"])
    delete()
    full.clean(older_than_s=0)
    assert content(full) == ["a 2 y", "c 3 z"]
    assert_nothing_is_left_over(full)


# delete and drop


def test_deleted_rows_are_changes_and_equal_rows_go_together(full: Table) -> None:
    full.write(rows("a 4 x", "a 4 x") if not full.schema.primary_key else rows("a 4 x"))
    before = full.snapshot().id
    full.delete([("v", "=", "x"), ("day", "!=", "b")])
    gone = ["a 1 x -D", *["a 4 x -D"] * (1 if full.schema.primary_key else 2)]
    assert lines(full.changes(before)) == gone
    assert full.snapshot().info.kind == "delete"


def test_deleting_nothing_commits_nothing(full: Table) -> None:
    for where in ([("v", "=", "nobody")], [("day", "=", "nobody")], [("id", ">", 99), ("day", "=", "a")]):
        assert full.delete(where).id == 1
    assert full.drop_partition({"day": "nobody"}).id == 1
    assert_nothing_is_left_over(full)


def test_whole_partitions_go_without_a_look_at_their_rows(full: Table) -> None:
    poison(full, "a")
    full.delete([[("day", "=", "a")], [("day", "=", "b"), ("id", "=", 1)]])
    assert content(full) == ["c 3 z"]
    poison(full, "c")
    full.drop_partition({"day": "c"})
    assert content(full) == []
    assert [info.name for info in full.partitions()] == ["day=b"], "deletions, until they are merged"


def test_null_is_a_partition_like_any_other(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", MULTISET)
    table.write(rows("NULL 1 x", "__DEFAULT_PARTITION__ 2 y", "a 3 z"))
    table.overwrite(rows("NULL 4 n"), dynamic=True)
    assert content(table) == ["None 4 n", "__DEFAULT_PARTITION__ 2 y", "a 3 z"]
    assert [info.name for info in table.partitions()] == ["day=NULL", "day=__DEFAULT_PARTITION__", "day=a"]
    assert len({info.path for info in table.partitions()}) == 3
    table.drop_partition({"day": None})
    assert content(table) == ["__DEFAULT_PARTITION__ 2 y", "a 3 z"]


@pytest.mark.parametrize("spec", [{}, {"id": 1}, {"day": 1}])
def test_a_partition_that_cannot_be_is_one_clear_error(full: Table, spec: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match=r"table 't': a partition|must be given a value of STRING, got 1"):
        full.drop_partition(spec)
    assert full.snapshot().id == 1


# files of other partitions are never opened


def poison(table: Table, day: str) -> None:
    """Whoever opens a file of this partition fails."""
    forget_open_files()
    for path in Path(table.path, f"day={day}").rglob("*.arrow"):
        path.write_bytes(b"poison")


def test_other_partitions_are_not_opened(full: Table) -> None:
    full.write(rows("a 5 x", "b 6 y"))
    poison(full, "b")
    with pytest.raises(CorruptTableError):
        full.snapshot().scan()
    snapshot, where = full.snapshot(), [("day", "=", "a")]
    assert lines(snapshot.scan(where=where)) == ["a 1 x", "a 2 y", "a 5 x"]
    assert lines(snapshot.scan(["id"], where=[("day", "in", ["a", "c"]), ("v", "!=", "x")])) == ["2", "3"]
    keys = pa.table({"day": ["a", "c", "zz"], "v": ["x", "z", "x"]})
    assert lines(snapshot.lookup(["v", "day"], keys)) == ["a 1 x", "a 5 x", "c 3 z"]
    found = snapshot.match(["v"], pa.table({"v": ["x"]}), where=where)[1]
    assert lines(found) == ["a 1 x", "a 5 x"]
    assert lines(full.changes(0, where=where)) == ["a 1 x +I", "a 2 y +I", "a 5 x +I"]
    assert lines(full.changes(1, where=where)) == ["a 5 x +I"]
    version = full.advance(Version.EMPTY, max_rows=2, where=where)
    assert not version.is_complete
    step = full.changes_between(Version.EMPTY, version, where=where)
    assert 1 <= step.num_rows <= 2
    full.overwrite(rows("a 5 w"), partition={"day": "a"})
    assert lines(full.changes(2, where=where)) == (
        ["a 1 x -D", "a 2 y -D", "a 5 w +U", "a 5 x -U"]
        if full.schema.primary_key
        else ["a 1 x -D", "a 2 y -D", "a 5 w +I", "a 5 x -D"]
    )


def test_an_overwrite_costs_readers_only_its_own_partitions(full: Table) -> None:
    full.overwrite(rows("a 1 n"), partition={"day": "a"})
    poison(full, "b")
    poison(full, "c")
    assert full.changes(1).num_rows == 3


def test_rows_that_begin_or_cease_to_meet_a_filter_come_and_go(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    table.write(rows("a 1 x", "a 2 y", "a 3 x", "a 4 y"))
    table.write(rows("a 1 y", "a 2 x", "a 3 x", "a 4 z"))
    changed = table.changes(1, columns=["id"], where=[("v", "=", "x")])
    assert lines(changed) == ["1 -D", "2 +I"]
    changed = table.changes(1, columns=["id"], where=[("v", "in", ["y", "z"])])
    assert lines(changed) == ["1 +I", "2 -D"], "4 has only changed what the filter asks"


# change tracking


def test_the_statement_decides_before_the_partition_and_the_table(full: Table) -> None:
    full.alter(TrackPartition({"day": "a"}, False))
    full.write(rows("a 7 q"), tracked=True)
    assert lines(full.changes(1)) == ["a 7 q +I"]
    full.write(rows("b 7 q"), tracked=False)
    with pytest.raises(
        UntrackedChangesError, match="snapshot 4 was committed with change-tracking = false; load"
    ):
        full.changes(3)


@pytest.mark.parametrize("act", ["overwrite", "delete", "drop_partition"])
def test_every_statement_can_be_untracked(full: Table, act: str) -> None:
    acts: dict[str, Callable[[], object]] = {
        "overwrite": lambda: full.overwrite(rows("a 9 n"), partition={"day": "a"}, tracked=False),
        "delete": lambda: full.delete([("v", "=", "x")], tracked=False),
        "drop_partition": lambda: full.drop_partition({"day": "a"}, tracked=False),
    }
    acts[act]()
    with pytest.raises(UntrackedChangesError, match="snapshot 2"):
        full.advance(Version.complete(1))
    assert full.changes_between(Version.complete(1), Version.complete(2), skip_untracked=True).num_rows == 0
    full.write(rows("c 9 q"))
    assert full.advance(Version.complete(1), skip_untracked=True) == Version.complete(2)
    assert lines(full.changes(2)) == ["c 9 q +I"]


def test_a_commit_that_touches_an_untracked_partition_names_it(full: Table) -> None:
    full.alter(TrackPartition({"day": "a"}, False))
    assert [info.change_tracking for info in full.partitions()] == [False, True, True]
    full.write(rows("b 7 q"))
    full.write(rows("a 7 q", "b 8 q"))
    first, second = Version.complete(3), Version.complete(4)
    assert full.advance(Version.complete(1)) == first, "what came before can be read"
    with pytest.raises(UntrackedChangesError, match=r"snapshot 4 .* false for partition day=a; load"):
        full.advance(first)
    with pytest.raises(UntrackedChangesError, match="snapshot 4"):
        full.changes(1)
    with pytest.raises(UntrackedChangesError, match="snapshot 4"):
        full.changes_between(Version.complete(1), second, skip_untracked=True)
    assert full.advance(first, skip_untracked=True) == second
    assert lines(full.changes_between(first, second, skip_untracked=True)) == ["b 8 q +I"]
    assert lines(full.changes(1, where=[("day", "=", "b")])) == ["b 7 q +I", "b 8 q +I"], "the rest is exact"
    assert full.snapshot().scan(where=[("day", "=", "a")]).num_rows == 3


def test_of_several_untracked_partitions_one_is_named_though_its_value_may_be_null(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", MULTISET)
    table.write(rows("NULL 1 x", "a 1 x"))
    table.alter(TrackPartition({"day": None}, False), TrackPartition({"day": "a"}, False))
    table.write(rows("NULL 2 x", "a 2 x", "b 2 x"))
    with pytest.raises(UntrackedChangesError, match=r"snapshot 3 .* false for partition day=a; load"):
        table.advance(Version.complete(1))


def test_a_partition_or_a_table_without_tracking_hides_whole_commits(full: Table) -> None:
    full.alter(TrackPartition({"day": "a"}, False))
    assert not full.write(rows("a 7 q")).info.tracked
    full.alter(TrackPartition({"day": "a"}, True))
    assert full.write(rows("a 8 q")).info.is_shown
    full.alter(SetOptions({"change-tracking": "false"}))
    assert not full.write(rows("b 8 q")).info.tracked
    assert [info.change_tracking for info in full.partitions()] == [False] * 3


# what there is to know of partitions


def test_partitions_tell_their_files_rows_and_whether_they_are_compacted(tmp_path: Path) -> None:
    schema = TableSchema.of({"day": pa.date32(), "id": pa.int64()}, ["day", "id"], partitioned_by=["day"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    days = [dt.date(2013, 1, 2), dt.date(2013, 1, 1)]
    for ids in ([1, 1], [2, 1]):
        table.write(pa.table({"day": pa.array(days, pa.date32()), "id": ids}))
    table.delete([("id", "=", 2)])
    first, second = table.partitions()
    assert (dict(first.spec), first.name) == ({"day": days[1]}, "day=2013-01-01")
    assert first.path == f"{table.path}/day=2013-01-01"
    assert (first.files, first.rows, first.is_compacted) == (2, 2, False)
    assert (second.files, second.rows) == (3, 1)
    assert 0 <= table.snapshot().info.time_ms - second.last_modified_ms < 60_000
    table.compact()
    assert [(info.files, info.rows, info.is_compacted) for info in table.partitions()] == [(1, 1, True)] * 2
    table.drop_partition(first.spec)
    assert [info.name for info in table.partitions()] == ["day=2013-01-02"]


def test_a_table_without_partitions_is_one(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}, ["id"]), {"bucket": "2"})
    assert table.partitions() == ()
    table.write(pa.table({"id": range(9)}))
    (only,) = table.partitions()
    assert (dict(only.spec), only.rows, only.path) == ({}, 9, table.path)


# merge engines


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "first-row"},
        {"merge-engine": "partial-update"},
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "last_value"},
        {"sequence.field": "v"},
        {"merge-engine": "first-row", "ignore-delete": "true"},
    ],
    ids=str,
)
def test_a_deletion_takes_rows_of_every_merge_engine_away(options: dict[str, str], tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, options)
    table.write(rows("a 1 x", "a 2 y", "b 1 x"))
    before = table.snapshot().id
    table.delete([("id", "=", 1), ("v", "=", "x")])
    assert content(table) == ["a 2 y"]
    assert lines(table.changes(before)) == ["a 1 x -D", "b 1 x -D"]
    table.write(rows("a 1 z"))
    table.compact()
    assert content(table) == ["a 1 z", "a 2 y"]
