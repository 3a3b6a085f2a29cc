"""UPDATE, DELETE and MERGE without Spark beside other writers and kill -9: done as a whole or not at all."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from tests.deltajoin.cli.test_sql import environment
from tests.upsert.catalog.run.without_spark.beside_spark import without
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from upsert.catalog.catalog import Catalog
from upsert.catalog.run import insert, row_changes
from upsert.catalog.run.without_spark import statements
from upsert.errors import SnapshotExpiredError
from upsert.failpoints import POINTS
from upsert.managed import frames
from upsert.store.commit.change import Change
from upsert.store.commit.committer import TURN_AFTER, Committer
from upsert.store.metadata import folding
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.snapshot import Snapshot

KEYED = "id INT, n INT, m INT, PRIMARY KEY (id) NOT ENFORCED"
KEYLESS = "id INT, n INT, m INT"
ROWS = 20


def made(folder: Path, columns: str = KEYED) -> Catalog:
    """A table whose rows are in several files of two buckets, merged and expired by the next commits."""
    catalog = Catalog(folder / "warehouse")
    options = "'bucket' = '2', 'num-sorted-run.compaction-trigger' = '2', 'snapshot.num-retained.min' = '1'"
    retained = "'snapshot.num-retained.max' = '2', 'snapshot.time-retained' = '1 ms'"
    catalog.sql(f"CREATE TABLE t ({columns}) WITH ({options}, {retained})")
    for start in range(0, ROWS, 5):
        ids = pa.array(range(start, start + 5), pa.int32())
        catalog.table("t").write(pa.table({"id": ids, "n": pa.nulls(5, pa.int32()).fill_null(0), "m": ids}))
    return catalog


def rows_of(catalog: Catalog) -> list[tuple[int, int, int]]:
    rows = catalog.table("t").snapshot().scan().sort_by("id").to_pydict()
    return list(zip(rows["id"], rows["n"], rows["m"], strict=True))


OF_NONE = [(id, 0, id) for id in range(ROWS)]


def execute(catalog: Catalog, statement: str) -> None:
    without(catalog, statement)


UPDATE = "UPDATE t SET n = n + 1 WHERE m < 15"
MERGE = (
    "MERGE INTO t USING (VALUES (3, 7), (15, 7), (16, 7), (90, 7)) AS s(id, n) ON t.id = s.id "
    "WHEN MATCHED AND t.m > 15 THEN DELETE WHEN MATCHED THEN UPDATE SET n = s.n "
    "WHEN NOT MATCHED THEN INSERT (id, n, m) VALUES (id, n, id)"
)
STATEMENTS = {
    UPDATE: [(id, int(id < 15), id) for id in range(ROWS)],
    "DELETE FROM t WHERE n + m >= 15": [(id, 0, id) for id in range(15)],
    "DELETE FROM t WHERE m >= 15": [(id, 0, id) for id in range(15)],
    MERGE: [(id, 7 * (id in (3, 15, 90)), id) for id in (*range(16), *range(17, ROWS), 90)],
}

SUBJECTS = ("data", "delete", "commit", "fold", "publish", "compact", "expire")
REACHED = [point for point in POINTS if point.split(".")[0] in SUBJECTS]


@pytest.fixture(autouse=True, scope="module")
def few_manifests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folding, "MAX_MANIFESTS", 2)
        patched.setattr(folding, "_FEWEST_TO_FOLD", 2)
        patched.setattr(folding, "_ENTRIES_OF_PART", 4)
        yield


@pytest.mark.parametrize(
    ("columns", "statement"),
    [
        (KEYED, UPDATE),
        *(pytest.param(KEYED, other, marks=pytest.mark.long) for other in STATEMENTS if other != UPDATE),
        *(pytest.param(KEYLESS, other, marks=pytest.mark.long) for other in STATEMENTS if other != MERGE),
    ],
)
def test_killed_at_any_point_a_statement_has_changed_all_of_its_rows_or_none(
    tmp_path: Path, columns: str, statement: str
) -> None:
    made(tmp_path / "before", columns)
    killed = dict[str, bool]()
    for point in REACHED:
        catalog = Catalog(shutil.copytree(tmp_path / "before", tmp_path / point) / "warehouse")
        ended = run(partial(execute, catalog, statement), point)
        table, found = catalog.table("t"), rows_of(catalog)
        assert found in (OF_NONE, STATEMENTS[statement]), point
        if ended == KILLED:
            killed[point] = found != OF_NONE
        else:
            assert (ended, found) == (0, STATEMENTS[statement])
        table.clean(older_than_s=0)
        assert_nothing_is_left_over(table)
        assert table.check(deep=True) == ()
        if found == OF_NONE:
            without(catalog, statement)
        assert rows_of(catalog) == STATEMENTS[statement]
    before = ("data.before-file", "data.after-file", "commit.before-manifest", "publish.before-link")
    after = ("publish.after-link", "publish.after-sync", "compact.after-write", "expire.after-publish")
    expected = dict.fromkeys(before, False) | dict.fromkeys(after, True)
    assert {point: killed.get(point) for point in expected} == expected


def test_a_statement_that_is_overtaken_five_times_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = made(tmp_path)
    own, others = frames.write_rows, list[Thread]()

    def overtaken(rows: pa.Table, path: str, options: dict[str, str]) -> Snapshot:
        change = pa.table({name: pa.array([len(others)], pa.int32()) for name in ("id", "n", "m")})
        others.append(Thread(target=catalog.table("t").write, args=[change], daemon=True))
        others[-1].start()
        others[-1].join(0.5 if len(others) > TURN_AFTER else 60)
        return own(rows, path, options)

    monkeypatch.setattr(frames, "write_rows", overtaken)
    without(catalog, "UPDATE t SET n = n + 100")
    assert [other.is_alive() for other in others[:TURN_AFTER]] == [False] * TURN_AFTER
    for other in others:
        other.join()
    assert len(others) == TURN_AFTER + 1
    expected = dict.fromkeys(range(ROWS), 100) | {id: id + 100 for id in range(TURN_AFTER)}
    expected[TURN_AFTER] = TURN_AFTER  # it came after the statement
    assert {id: n for id, n, _ in rows_of(catalog)} == expected


OF_ONE_COLUMN = (
    "UPDATE t SET n = n + 1 WHERE id < 3",
    "DELETE FROM t WHERE id + n >= 15",
    "MERGE INTO t USING (VALUES (3, 7)) AS s(id, n) ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = s.n",
)


BESIDE = "DELETE FROM t WHERE id = 6"


@pytest.mark.parametrize("change", ["ADD COLUMN x INT", "DROP COLUMN m"])
@pytest.mark.parametrize(
    ("columns", "statement"),
    [*((KEYED, one) for one in OF_ONE_COLUMN), *((KEYLESS, one) for one in OF_ONE_COLUMN[:2])],
)
def test_a_statement_whose_table_is_altered_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, statement: str, change: str
) -> None:
    catalog, expected = made(tmp_path / "beside", columns), made(tmp_path / "after", columns)
    for text in (others := (f"ALTER TABLE t {change}", BESIDE)) + (statement,):
        without(expected, text)
    own, tries = frames.write_rows, list[str]()

    def altered(rows: pa.Table, path: str, options: dict[str, str]) -> Snapshot:
        tries.append(path)
        if len(tries) == 1:
            for text in others:
                execute_elsewhere(catalog, text)
        return own(rows, path, options)

    monkeypatch.setattr(frames, "write_rows", altered)
    without(catalog, statement)
    assert len(tries) == 2
    found, wanted = (one.table("t").snapshot().scan().sort_by("id") for one in (catalog, expected))
    assert found.equals(wanted)


@pytest.mark.parametrize("change", ["ADD COLUMN x INT", "DROP COLUMN m"])
@pytest.mark.parametrize(
    ("way", "rows"), [("listed", "VALUES (30, 1), (31, 1)"), ("copied", "SELECT id + 30 AS id, n FROM t")]
)
def test_an_insert_whose_table_is_altered_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, rows: str, change: str
) -> None:
    catalog, expected = made(tmp_path / "beside"), made(tmp_path / "after")
    statement = f"INSERT INTO t (id, n) {rows}"
    for text in (others := (f"ALTER TABLE t {change}", BESIDE)) + (statement,):
        without(expected, text)
    own, tries = getattr(insert, way), list[str]()

    def altered(*given: Any) -> pa.Table | None:
        found = own(*given)
        tries.append(way)
        if len(tries) == 1:
            for text in others:
                execute_elsewhere(catalog, text)
        return found

    monkeypatch.setattr(insert, way, altered)
    without(catalog, statement)
    assert len(tries) == 2
    found, wanted = (one.table("t").snapshot().scan().sort_by("id") for one in (catalog, expected))
    assert found.equals(wanted)


def execute_elsewhere(catalog: Catalog, statement: str) -> None:
    """As another process, which has looked at other tables a moment ago."""
    thread = Thread(target=without, args=[catalog, statement])
    thread.start()
    thread.join()


def test_an_update_of_rows_without_a_key_begins_again_after_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, own, tries = made(tmp_path, KEYLESS), frames.write_rows, list[dict[str, str]]()

    def overtaken(rows: pa.Table, path: str, options: dict[str, str]) -> Snapshot:
        tries.append(options)
        if len(tries) == 1:
            without(catalog, "UPDATE t SET m = m + 100")
        return own(rows, path, options)

    monkeypatch.setattr(frames, "write_rows", overtaken)
    without(catalog, "UPDATE t SET n = n + 1")
    assert rows_of(catalog) == [(id, 1, id + 100) for id in range(ROWS)]
    assert len(tries) == 3


def test_a_statement_whose_snapshot_expires_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, own, bases = made(tmp_path), statements.updated, list[int]()

    def late(*given: Any) -> pa.Table | None:
        bases.append(given[-1])
        if len(bases) == 1:
            table = catalog.table("t")
            table.write(pa.table({name: pa.array([0], pa.int32()) for name in ("id", "n", "m")}))
            table.expire(keep=1)
        return own(*given)

    monkeypatch.setattr(row_changes, "updated", late)
    without(catalog, "UPDATE t SET n = n + 1")
    assert rows_of(catalog) == [(id, 1, id) for id in range(ROWS)]
    assert len(bases) == 2


@pytest.mark.parametrize("columns", [KEYED, KEYLESS])
def test_a_statement_that_stalls_past_an_expiry_or_a_clean_up_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Nothing was committed, and nobody has rows that could be written again."""
    catalog, publish, tries = made(tmp_path, columns), Committer.publish, list[int]()

    def late(committer: Committer, info: SnapshotInfo, change: Change) -> bool:
        if change.kind == "append" and change.added[0].rows > 1:
            tries.append(info.id)
            table = catalog.table("t")
            if len(tries) == 1:
                for _ in range(3):
                    table.write(pa.table({name: pa.array([99], pa.int32()) for name in ("id", "n", "m")}))
                table.expire(keep=1)
            elif len(tries) == 2:
                table.clean(older_than_s=0)
        return publish(committer, info, change)

    monkeypatch.setattr(Committer, "publish", late)
    without(catalog, "UPDATE t SET n = n + 1 WHERE id < 99")
    assert rows_of(catalog)[:ROWS] == [(id, 1, id) for id in range(ROWS)]
    assert len(tries) == 3


def test_an_expired_snapshot_is_told_where_a_statement_needs_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = made(tmp_path)

    def named(*_: Any) -> None:
        catalog.table("t").write(pa.table({name: pa.array([0], pa.int32()) for name in ("id", "n", "m")}))
        raise SnapshotExpiredError("snapshot 1 has expired")

    monkeypatch.setattr(row_changes, "updated", named)
    with pytest.raises(SnapshotExpiredError, match="snapshot 1 has expired"):
        without(catalog, "UPDATE t SET n = n + 1")


@contextmanager
def command(catalog: Catalog, statement: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """`deltajoin sql` in a process of its own, without Java, that executes a statement so many times."""
    bare = {key: text for key, text in environment().items() if key != "SPARK_SUBMIT_OPTS"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "deltajoin",
            "sql",
            "-w",
            str(catalog.warehouse),
            "-e",
            f"{statement};" * count,
        ],
        env=bare | {"JAVA_HOME": "/nowhere", "PATH": os.path.dirname(sys.executable), "TZ": "UTC"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "statement", "told_as"),
    [
        (KEYED, "UPDATE t SET n = n + 1", "UPDATE t: updated, snapshot "),
        (KEYLESS, "UPDATE t SET n = n + 1", "UPDATE t: updated, snapshot "),
        (
            KEYED,
            "MERGE INTO t USING t AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = s.n + 1",
            "MERGE INTO t: merged, snapshot ",
        ),
    ],
    ids=["keyed", "keyless", "merge"],
)
def test_killed_at_any_moment_beside_another_writer_a_statement_has_changed_each_row_once_or_not(
    tmp_path: Path, columns: str, statement: str, told_as: str
) -> None:
    """What the command has told is done; what it was at is done as a whole or not at all."""
    random, catalog = Random(7), made(tmp_path, columns)
    by_killed = by_other = 0
    for _ in range(12):
        with (
            command(catalog, statement, 1000) as killed,
            command(catalog, "UPDATE t SET m = m + 1", 10) as other,
        ):
            assert killed.stdout is not None
            told = [killed.stdout.readline() for _ in range(random.randrange(1, 15))]
            time.sleep(random.random() / 20)
            killed.kill()
            told += killed.stdout.readlines()
            said, _ = other.communicate(timeout=300)
        assert other.returncode == 0, said
        assert all(line.startswith(told_as) for line in told), told
        (n,) = {n for _, n, _ in rows_of(catalog)}
        assert by_killed + len(told) <= n <= by_killed + len(told) + 1
        by_killed, by_other = n, by_other + 10
        assert rows_of(catalog) == [(id, n, id + by_other) for id in range(ROWS)]
    table = catalog.table("t")
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
    assert table.check(deep=True) == ()
