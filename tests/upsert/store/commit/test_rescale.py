"""ALTER TABLE to another number of buckets: rows, their ages and changes stay, whoever is at work."""

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from upsert.errors import (
    ChangelogError,
    CommitConflictError,
    ConfigurationError,
    SnapshotExpiredError,
    StaleWriterError,
    TableNotFoundError,
)
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.sql.checks import check_of
from upsert.sql.columns import read_check
from upsert.sql.tokens import Cursor
from upsert.store import Table
from upsert.store.alterations import AddCheck, AddColumn, Alteration, ResetOptions, SetComment, SetOptions
from upsert.store.commit.committer import Committer, Environment
from upsert.store.storage import put_if_absent
from upsert.store.version import Version

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"]).index("v")
COUNTED = TableSchema.of({"id": pa.int64(), "v": pa.string()}).index("v")
BY_DAY = TableSchema.of(
    {"day": pa.string(), "id": pa.int64(), "v": pa.string()}, ["day", "id"], partitioned_by=["day"]
)


def buckets(count: int) -> SetOptions:
    return SetOptions({"bucket": str(count)})


def some(ids: Any, text: str = "a") -> pa.Table:
    ids = [*ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{text}{id}" for id in ids]})


def found(table: Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.snapshot().scan().to_pylist())


def ages(table: Table) -> Counter[tuple[int, int]]:
    """How many rows are on each level, by the commit that wrote them."""
    rows: Counter[tuple[int, int]] = Counter()
    for entry in table.snapshot().files.entries:
        rows[entry.level, entry.sequence if entry.level == 0 else 0] += entry.rows
    return rows


CHANGES_OF_COUNT = [(1, 4), (4, 1), (2, 8), (8, 2), (3, 5), (6, 4)]


@pytest.mark.parametrize("schema", [KEYED, COUNTED], ids=["keyed", "counted"])
@pytest.mark.parametrize(("before", "after"), CHANGES_OF_COUNT)
def test_rows_and_their_ages_stay(tmp_path: Path, schema: TableSchema, before: int, after: int) -> None:
    table = Table.create(tmp_path / "t", schema, {"bucket": str(before), "write-only": "true"})
    table.write(some(range(100)))
    table.compact()
    table.write(some(range(50, 120), "b" if schema.primary_key else "a"))
    table.delete([("id", "<", 20)])
    rows, old = found(table), ages(table)
    head = table.snapshot()
    table.alter(buckets(after))
    assert (found(table), ages(table), table.options.bucket) == (rows, old, after)
    assert {bucket for _, bucket in table.snapshot().files.groups} == set(range(after))
    assert table.snapshot().info.data_version == head.info.data_version
    assert table.changes(head.id).num_rows == 0
    assert table.check(deep=True) == ()
    assert table.snapshot().lookup(["v"], pa.table({"v": ["a30", "a19"]})).num_rows == 1
    table.compact()
    assert found(table) == rows
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "max"},
        {"merge-engine": "partial-update"},
        {"merge-engine": "first-row"},
        {"sequence.field": "n"},
        {"file.format": "parquet"},
        {"file.format": "orc", "target-file-size": "1 kb"},
        {"compaction.policy": "leveled", "level0-file-num-compaction-trigger": "2"},
    ],
    ids=lambda options: " ".join(options),
)
def test_a_table_that_is_rescaled_goes_on_as_one_that_is_not(
    tmp_path: Path, options: Mapping[str, str]
) -> None:
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int64(), "v": pa.string()}, ["id"])
    rescaled, other = (
        Table.create(tmp_path / name, schema, {"bucket": "3", **options}) for name in ("rescaled", "other")
    )
    draw = random.Random(7)
    for turn in range(12):
        ids = sorted(draw.sample(range(40), 12))
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "n": pa.array([draw.randrange(100) for _ in ids], pa.int64()),
                "v": [draw.choice(["x", "y", None]) for _ in ids],
            }
        )
        for table in (rescaled, other):
            table.write(rows)
        if turn % 3 == 1:
            rescaled.alter(buckets(draw.choice([1, 2, 4, 7])))
        assert found(rescaled) == found(other)
    assert rescaled.check(deep=True) == ()


def test_partitions_keep_their_rows_and_their_files_lie_in_their_folders(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", BY_DAY, {"bucket": "2"})
    days = ["mon", "tue", "wed"] * 40
    table.write(pa.table({"day": days, "id": range(120), "v": ["a"] * 120}))
    rows = found(table)
    table.alter(buckets(5))
    assert found(table) == rows
    assert table.check(deep=True) == ()
    table.drop_partition({"day": "mon"})
    assert found(table) == Counter({row: n for row, n in rows.items() if row[0] != "mon"})


def test_the_same_number_writes_nothing_and_a_reset_is_the_default(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "4"})
    table.write(some(range(40)))
    files = {entry.file for entry in table.snapshot().files.entries}
    table.alter(buckets(4), SetOptions({"write-only": "true"}))
    assert {entry.file for entry in table.snapshot().files.entries} == files
    table.alter(ResetOptions(("bucket",)))
    assert (table.options.bucket, found(table)) == (1, Counter((id, f"a{id}") for id in range(40)))


@pytest.mark.parametrize("schema", [KEYED, COUNTED], ids=["keyed", "counted"])
def test_an_added_column_comes_in_the_same_statement(tmp_path: Path, schema: TableSchema) -> None:
    table = Table.create(tmp_path / "t", schema, {"bucket": "2"})
    table.write(some(range(30)))
    table.alter(AddColumn(Column("later", pa.int32())), buckets(3))
    assert found(table) == Counter((id, f"a{id}", None) for id in range(30))
    assert table.check(deep=True) == ()


def test_an_empty_table_and_one_without_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.alter(buckets(3))
    table.write(some(range(10)))
    table.delete([])
    table.alter(buckets(7))
    table.write(some(range(5)))
    assert found(table) == Counter((id, f"a{id}") for id in range(5))
    assert table.check(deep=True) == ()


def test_old_states_are_read_where_their_rows_lay(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "8", "snapshot.num-retained.min": "100"})
    states = {}
    for turn, count in enumerate([8, 2, 5, 1, 8]):
        table.alter(buckets(count))
        table.write(some(range(turn * 10, turn * 10 + 20), str(turn)))
        states[table.snapshot().id] = found(table)
    for id, state in states.items():
        old = table.snapshot(id)
        assert Counter(tuple(row.values()) for row in old.scan().to_pylist()) == state
        keys = pa.table({"id": [key for key, _ in state]})
        assert Counter(tuple(row.values()) for row in old.lookup(["id"], keys).to_pylist()) == state
        for key, text in state:
            assert old.scan(where=[("id", "=", key)]).to_pylist() == [{"id": key, "v": text}]


def test_a_state_is_read_by_its_id_without_all_definitions_that_there_were(tmp_path: Path) -> None:
    """In an object store each of them is a request, in each process."""
    table = Table.create(tmp_path / "t", KEYED, {"write-only": "true"})
    for number in range(9):
        table.alter(SetComment("v", str(number)))
    for id in range(3):
        table.write(some([id]))
    table.compact()
    copy = copytree(tmp_path / "t", tmp_path / "copy")
    for number in range(1, 9):
        (copy / f"definition/definition-{number:020}").unlink()
    last = table.snapshot().info.data_version
    assert [Table.open(copy).snapshot(id).scan().num_rows for id in (last - 1, last)] == [2, 3]


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_table_is_rolled_back_across_it(tmp_path: Path, back: int) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    states = {}
    for turn in range(4):
        table.write(some(range(turn * 5, turn * 5 + 30), str(turn)))
        states[turn] = table.snapshot().id, found(table)
        if turn in (1, 2):
            table.alter(buckets(turn * 3))
    id, rows = states[3 - back]
    table.rollback_to(id)
    assert found(table) == rows
    assert table.check(deep=True) == ()


def test_changes_of_one_row_on_both_sides_are_one_change(tmp_path: Path) -> None:
    for schema in (KEYED, COUNTED):
        table = Table.create(tmp_path / f"{bool(schema.primary_key)}", schema, {"bucket": "7"})
        table.write(some(range(30)))
        table.write(some([100]))
        table.alter(buckets(3))
        table.delete([("id", "in", [100, 5])])
        assert table.changes(1).to_pylist() == [{"id": 5, "v": "a5", "_row_kind": "-D"}]


def test_a_reader_in_the_middle_of_a_load_goes_on_where_it_is(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "3"})
    table.write(some(range(100)))
    version, ids, steps = Version.EMPTY, list[int](), 0
    while (end := table.advance(version, max_rows=9)) != version:
        table.hold("reader", end)
        ids += table.changes_between(version, end)["id"].to_pylist()
        assert sorted(table.at(end).scan()["id"].to_pylist()) == sorted(ids)
        version, steps = end, steps + 1
        if steps == 3:
            table.alter(buckets(8))
            table.compact()
            table.expire(keep=1)
    assert sorted(ids) == [*range(100)]


def test_a_reader_whose_snapshot_has_expired_is_told(tmp_path: Path) -> None:
    """Where its rows lay is not known any more, so its place among them means nothing."""
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "3"})
    table.write(some(range(100)))
    middle = table.advance(Version.EMPTY, max_rows=20)
    table.alter(buckets(8))
    table.expire(keep=1)
    for read in (
        lambda: table.advance(middle, max_rows=20),
        lambda: table.changes_between(middle, Version.complete(1)),
        lambda: table.at(middle).scan(),
    ):
        with pytest.raises(SnapshotExpiredError, match="snapshot 1 has expired"):
            read()
    # who has read all of it needs no place
    table.write(some([7], "b"))
    assert table.changes_between(Version.complete(1), table.advance(Version.complete(1))).num_rows == 2


ENGINES = pytest.mark.parametrize(
    "options", [{}, {"merge-engine": "partial-update"}], ids=["last-row", "engine"]
)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 6), (4, 1)])
@pytest.mark.parametrize("stage", ["stage", "stage_raw"])
@ENGINES
def test_rows_that_were_staged_before_are_committed_in_the_new_buckets(
    tmp_path: Path, stage: str, options: Mapping[str, str], before: int, after: int
) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": str(before), **options})
    table.write(some(range(10)))
    gone = [] if options else [0]
    kinds = pa.array(["+I"] * 10 + ["-D"] * len(gone))
    rows = some([*range(5, 15), *gone], "b").append_column(ROW_KIND_COLUMN, kinds)
    staged = [table.stage_raw(rows) if stage == "stage_raw" else table.stage(rows, order="none")]
    table.alter(buckets(after))
    for _ in range(2):  # the second time the transaction is recorded
        table.commit(staged, writer_id="query", transaction=1)
    expected = {id: f"a{id}" for id in range(len(gone), 5)} | {id: f"b{id}" for id in range(5, 15)}
    assert found(table) == Counter(expected.items())
    assert table.check(deep=True) == ()
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def test_counts_that_were_staged_before_are_committed_and_none_becomes_negative(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", COUNTED, {"bucket": "2"})
    table.write(some([*range(10), 1]))
    fewer, none = (
        table.stage(some(ids).append_column(ROW_KIND_COLUMN, pa.array(["-D"] * len(ids))), order="none")
        for ids in ([1, 2], [2])
    )
    table.alter(buckets(3))
    table.commit([fewer])
    with pytest.raises(ChangelogError, match="got -1"):
        table.commit([none])
    table.discard([none])
    assert found(table) == Counter((id, f"a{id}") for id in range(10) if id != 2)
    assert table.check(deep=True) == ()


def test_what_two_tasks_have_staged_before_and_after_it_is_one_commit(tmp_path: Path) -> None:
    for schema in (KEYED, COUNTED):
        table = Table.create(tmp_path / f"{bool(schema.primary_key)}", schema, {"bucket": "2"})
        tasks = [table.stage_raw(some(range(0, 40, 2)))]
        table.alter(buckets(5))
        tasks.append(table.stage_raw(some(range(1, 40, 2))))
        table.alter(buckets(3))
        table.commit(tasks)
        assert found(table) == Counter((id, f"a{id}") for id in range(40))
        assert table.check(deep=True) == ()


def test_a_check_that_came_with_it_refuses_rows_that_were_staged_before(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    staged = [table.stage(some(range(10)), order="none")]
    table.alter(buckets(3))
    table.alter(AddCheck(check_of(read_check(Cursor("CHECK (id >= 0)"), "positive"), table.schema, "t")))
    with pytest.raises(StaleWriterError, match="was added meanwhile"):
        table.commit(staged)
    table.discard(staged)
    assert found(table) == Counter()
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def between(table: Table, action: Any) -> Table:
    """A handle of the table that does something just before each of its attempts to publish."""

    def publish(path: str, content: bytes) -> bool:
        action()
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish, sleep=lambda _: None))
    return slow


@pytest.mark.parametrize(
    ("schema", "change"),
    [(KEYED, buckets(3)), (COUNTED, buckets(3)), (COUNTED, AddColumn(Column("later", pa.int32())))],
    ids=["keyed", "counted", "other keys"],
)
def test_while_others_commit_only_their_files_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: TableSchema, change: Alteration
) -> None:
    table = Table.create(tmp_path / "t", schema, {"bucket": "2"})
    table.write(some(range(1000)))
    turns = iter(range(5))

    def commit() -> None:
        if (turn := next(turns, None)) is not None:
            (tmp_path / "t/commit.lock").unlink(missing_ok=True)  # one of another machine does not see it
            Table.open(table.path).write(some([5000 + turn, 6000 + turn], "b"))

    from upsert.store.commit import rewrite

    cut: list[int] = []
    rows_of_file = rewrite.rows_of_file
    monkeypatch.setattr(
        rewrite, "rows_of_file", lambda *given: (cut.append(given[2].rows), rows_of_file(*given))[1]
    )
    between(table, commit).alter(change)
    expected = {id: f"a{id}" for id in range(1000)} | {
        first + n: f"b{first + n}" for n in range(5) for first in (5000, 6000)
    }
    assert Counter(row[:2] for row in found(table).elements()) == Counter(expected.items())
    # all rows once, and once more where the parts of two buckets are merged; then each commit's two rows
    assert sum(cut) <= 2 * 1000 + 5 * 2 * 2
    assert table.check(deep=True) == ()
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def test_commits_of_this_machine_wait_once_one_of_them_was_first(tmp_path: Path) -> None:
    """Else writers that need less time for a commit than its files need to be brought over win each race."""
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(100)))
    writers: list[Thread] = []

    def commit() -> None:
        if len(writers) < 8:
            writers.append(Thread(target=Table.open(table.path).write, args=[some([len(writers)], "b")]))
            writers[-1].start()
            writers[-1].join(0.5 if len(writers) > 1 else None)

    between(table, commit).alter(buckets(3))
    assert len(writers) == 2
    for writer in writers:
        writer.join()
    assert found(table) == Counter({id: f"{'ba'[id > 1]}{id}" for id in range(100)}.items())
    assert table.check(deep=True) == ()


def test_a_first_attempt_of_hours_may_lose_its_race_and_its_snapshot(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(100)))
    hours = iter([2, 1, 0])
    clock = [0.0]

    def publish(path: str, content: bytes) -> bool:
        if hour := next(hours, 0):
            clock[0] += hour * 3600
            (tmp_path / "t/commit.lock").unlink(missing_ok=True)
            for _ in range(hour):
                Table.open(table.path).write(some([1000 + hour]))
            if hour == 2:
                Table.open(table.path).expire(keep=1)
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    environment = Environment(put_if_absent=publish, sleep=lambda _: None, monotonic=lambda: clock[0])
    slow._committer = Committer(slow.published, environment)
    slow.alter(buckets(3))
    assert found(table) == Counter({id: f"a{id}" for id in (*range(100), 1001, 1002)}.items())
    assert table.check(deep=True) == ()


def test_it_comes_between_a_deletion_and_its_commit(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(100)))
    counts = iter([5, 3])

    def rescale() -> None:
        if (count := next(counts, None)) is not None:
            Table.open(table.path).alter(buckets(count))

    between(table, rescale).delete([("id", ">=", 10)])
    assert found(table) == Counter((id, f"a{id}") for id in range(10))
    assert table.check(deep=True) == ()


def test_it_comes_between_a_compaction_and_its_commit(tmp_path: Path) -> None:
    from upsert.store.upkeep import compaction

    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2", "write-only": "true"})
    for turn in range(3):
        table.write(some(range(100), str(turn)))
    jobs = compaction.full(table.published.files(table.published.latest()), table.options)
    slow = between(table, lambda: None)
    layout, base = table.layout, table.published.latest().id
    written = [
        [file for group in job.groups for file in compaction.write(table.root, layout, base, job, group)]
        for job in jobs
    ]
    table.alter(buckets(3))
    assert compaction.publish(slow._committer, jobs, written) is None
    assert found(table) == Counter((id, f"2{id}") for id in range(100))
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def test_a_change_computed_before_does_not_overwrite_what_others_did_since(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    since = table.write(some(range(6))).id
    table.write(some(range(6), "other"))
    table.alter(buckets(3))
    for id in range(6):  # whose old and new bucket may have one number
        with pytest.raises(CommitConflictError, match="has changed one of them"):
            table.commit([table.stage(some([id], "mine"), order="rows")], unchanged_since=since)
    assert found(table) == Counter((id, f"other{id}") for id in range(6))
    table.commit([table.stage(some([5], "mine"), order="rows")], unchanged_since=table.snapshot().id)


@ENGINES
@pytest.mark.parametrize("stage", ["stage", "stage_raw"])
def test_it_comes_between_two_attempts_to_commit(
    tmp_path: Path, options: Mapping[str, str], stage: str
) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2", **options})
    table.write(some(range(10)))
    turns = iter([3, 5])

    def rescale() -> None:
        if (count := next(turns, None)) is not None:
            Table.open(table.path).alter(buckets(count))

    slow, rows = between(table, rescale), some(range(5, 15), "b")
    slow.commit([slow.stage_raw(rows) if stage == "stage_raw" else slow.stage(rows, order="none")])
    expected = {id: f"a{id}" for id in range(5)} | {id: f"b{id}" for id in range(5, 15)}
    assert found(table) == Counter(expected.items())
    assert table.check(deep=True) == ()
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize("stage", ["stage", "stage_raw"])
@pytest.mark.parametrize("point", ["move.after-write", "publish.before-link", "publish.after-link"])
def test_a_crash_of_a_commit_that_moves_its_rows_loses_nothing(
    tmp_path: Path, point: str, stage: str
) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    rows = some(range(20))
    staged = [table.stage_raw(rows) if stage == "stage_raw" else table.stage(rows, order="none")]
    table.alter(buckets(3))
    own = table.snapshot().id
    assert run(lambda: Table.open(table.path).commit(staged, writer_id="q", transaction=1), point) == KILLED
    Table.open(table.path).commit(staged, writer_id="q", transaction=1)
    assert found(table) == Counter((id, f"a{id}") for id in range(20))
    assert table.snapshot().id == own + 1
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize(
    "point",
    ["alter.after-definition", "alter.after-rewrite", "publish.before-link:2", "publish.after-link:2"],
)
def test_a_crash_leaves_the_old_buckets_or_the_new_ones(tmp_path: Path, point: str) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(200)))
    rows = found(table)
    assert run(lambda: table.alter(buckets(3)), point) == KILLED
    table = Table.open(table.path)
    assert found(table) == rows
    assert not [one for one in table.check(deep=True) if not one.is_information]
    table.alter(buckets(3))
    table.write(some(range(200, 210)))
    assert len(found(table)) == 210
    table.expire(keep=1)
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()


def test_processes_that_write_while_it_is_done_lose_nothing(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(1000)))

    def write(writer: int) -> None:
        own = Table.open(table.path)
        for turn in range(15):
            own.write(some([writer * 100 + 10_000 + turn], str(writer)))

    def rescale() -> None:
        own = Table.open(table.path)
        for count in (5, 3, 8, 1):
            own.alter(buckets(count))

    from tests.upsert.store.disk import finish, start

    children = [start(lambda writer=writer: write(writer)) for writer in (1, 2)]
    assert finish([*children, start(rescale)]) == [0, 0, 0]
    expected = {*range(1000), *(w * 100 + 10_000 + turn for w in (1, 2) for turn in range(15))}
    table = Table.open(table.path)
    assert {id for id, _ in found(table)} == expected
    assert table.options.bucket == 1
    assert table.check(deep=True) == ()


def test_a_log_has_a_partition_for_each_bucket(tmp_path: Path) -> None:
    from upsert.store.alterations import altered

    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    log = SetOptions({"log.system": "kafka", "log.kafka.bootstrap.servers": "nowhere:1"})
    with pytest.raises(ConfigurationError, match=r"gets a log, .* set the number first, and then"):
        altered(table.definition, [log, buckets(3)])
    with pytest.raises(ConfigurationError, match=r"has a log, .* set 'log.system' = 'none', and then"):
        altered(altered(table.definition, [log]), [buckets(3)])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_numbers_of_buckets_rows_and_files(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    table = Table.create(tmp_path / "t", KEYED, {"bucket": "3", "target-file-size": "64 kb"})
    expected: dict[int, str] = {}
    generator = np.random.default_rng(seed)
    for turn in range(25):
        ids = np.unique(generator.integers(0, 20_000, draw.choice([1, 50, 5_000])))
        gone = draw.random() < 0.2
        rows = some(ids.tolist(), str(turn))
        if gone:
            rows = rows.append_column(ROW_KIND_COLUMN, pa.array(["-D"] * len(ids)))
        table.write(rows)
        for id, text in zip(ids.tolist(), rows["v"].to_pylist(), strict=True):
            expected.pop(id, None) if gone else expected.__setitem__(id, text)
        match draw.randrange(5):
            case 0:
                table.alter(buckets(draw.randint(1, 40)))
            case 1:
                table.compact()
        assert found(table) == Counter(expected.items())
    assert table.check(deep=True) == ()


def test_a_table_that_is_dropped_meanwhile_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from upsert.store.commit import rewrite

    table = Table.create(tmp_path / "t", KEYED, {"bucket": "2"})
    table.write(some(range(100)))
    rows_of_file = rewrite.rows_of_file

    def dropped_meanwhile(*given: Any) -> Any:
        rows = rows_of_file(*given)
        shutil.rmtree(table.path, ignore_errors=True)
        return rows

    monkeypatch.setattr(rewrite, "rows_of_file", dropped_meanwhile)
    with pytest.raises(TableNotFoundError, match="was it dropped"):
        table.alter(buckets(3))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
