"""Compaction of a table: when it happens, that nobody sees it, and what becomes of its failures."""

import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers import multiset, of_kind
from tests.upsert.store.disk import assert_nothing_is_left_over, finish, start
from upsert import flock
from upsert.schema import TableSchema
from upsert.store import Table, compactor, paths
from upsert.store.alterations import SetOptions
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.upkeep import background, compaction
from upsert.store.upkeep.background import CompactionWarning, LongCompactionWarning, compaction_lock

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])


def rows(*ids: int, value: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array([value] * len(ids), pa.int64())})


def deletes(*ids: int) -> pa.Table:
    return of_kind(rows(*ids), "-D")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", SCHEMA, {"num-sorted-run.compaction-trigger": "3"})


@pytest.fixture
def write_only(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", SCHEMA, {"write-only": "true"})


def shape(table: Table) -> list[tuple[int, int, int]]:
    """Level, rows and deletions of each live file, newest first."""
    return [(e.level, e.rows, e.deletes) for e in table.snapshot().files.entries]


def await_compactors() -> None:
    """Those that other tests have started, of other tables."""
    while background._children:
        background._children.pop().wait(120)


def test_a_commit_merges_what_it_made_due(table: Table) -> None:
    for number in range(3):
        table.write(rows(1, 10 + number, value=number))
    assert [info.kind for info in table.history()] == ["append"] * 3 + ["compact"]
    assert shape(table) == [(3, 4, 0)]
    assert table.snapshot().info.data_version == 3


def test_the_merge_goes_on_level_by_level(table: Table) -> None:
    table.write(rows(*range(1000)))
    for number in range(9):
        table.write(rows(2000 + number))
        levels = [level for level, _, _ in shape(table)]
        assert len(levels) <= 3
        assert levels == sorted(levels)
    assert table.snapshot().scan().num_rows == 1009


def test_nobody_sees_a_compaction(write_only: Table) -> None:
    table = write_only
    for number in range(4):
        table.write(rows(number, number + 1, value=number))
    table.write(deletes(0))
    before = multiset(table.snapshot().scan())
    states = [multiset(table.snapshot(id).scan()) for id in range(1, 6)]
    steps = [multiset(table.changes(id - 1, id)) for id in range(1, 6)]
    compacted = table.compact()
    assert compacted is not None
    assert compacted.info.data_version == 5
    assert multiset(table.snapshot().scan()) == before
    assert [multiset(table.snapshot(id).scan()) for id in range(1, 6)] == states
    assert [multiset(table.changes(id - 1, id)) for id in range(1, 6)] == steps
    assert table.changes(5).num_rows == 0


def test_full_compaction_drops_deletions_and_then_has_nothing_to_do(write_only: Table) -> None:
    write_only.write(rows(1, 2, 3))
    write_only.write(deletes(2, 9))
    assert write_only.compact() is not None
    assert shape(write_only) == [(8, 2, 0)]
    assert write_only.compact() is None


def test_a_bucket_of_nothing_but_deletions_has_no_files_afterwards(write_only: Table) -> None:
    write_only.write(rows(1))
    write_only.write(deletes(1))
    write_only.compact()
    assert shape(write_only) == []
    write_only.write(rows(1))
    assert write_only.snapshot().scan().num_rows == 1


def test_deletions_stay_while_an_older_run_may_need_them(table: Table) -> None:
    """The first two are merged with the large run, then on level 0; the next two only with each other."""
    table.write(rows(*range(1000)))
    for number in range(4):
        table.write(deletes(number))
    assert shape(table) == [(2, 2, 2), (3, 998, 0)]
    assert table.snapshot().scan().num_rows == 996


def test_counts_are_summed_and_vanish_at_zero(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"a": pa.int64()}), {"write-only": "true"})
    table.write(pa.table({"a": [1, 1, 2]}))
    table.write(pa.table({"a": [1, 2], "_row_kind": ["-D", "-D"]}))
    table.compact()
    assert shape(table) == [(8, 1, 0)]
    assert table.snapshot().scan()["a"].to_pylist() == [1]


def test_commits_go_on_while_a_compaction_is_at_work(
    write_only: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append between reading and publishing stays on top; an overwrite makes the work vain, not wrong."""
    table = write_only
    table.write(rows(1, value=1))
    table.write(rows(1, value=2))
    in_between = [lambda: table.write(rows(1, value=3)), lambda: table.overwrite(rows(7))]
    write = compaction.write

    def slow_write(*arguments: object) -> list[FileEntry]:
        written = write(*arguments)  # type: ignore[arg-type]
        if in_between:
            in_between.pop(0)()
        return written

    monkeypatch.setattr(compaction, "write", slow_write)
    merges = compaction.full(table.snapshot().files, table.options)
    info = compaction.execute(table._committer, merges)
    assert info is not None
    assert shape(table) == [(0, 1, 0), (8, 1, 0)]
    assert table.snapshot().scan()["value"].to_pylist() == [3]

    merges = compaction.full(table.snapshot().files, table.options)
    assert compaction.execute(table._committer, merges) is None
    assert table.snapshot().scan()["id"].to_pylist() == [7]
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def test_who_does_not_get_the_lock_goes_on_without(table: Table) -> None:
    with compaction_lock(table.path, wait=False):
        for number in range(4):
            table.write(rows(number))
    assert [info.kind for info in table.history()] == ["append"] * 4
    table.write(rows(4))
    assert table.history()[-1].kind == "compact"


def stop_within_a_compaction(path: str) -> None:
    with compaction_lock(path, wait=True):
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("act", [Table.compact, lambda table: table.alter(SetOptions({"bucket": "3"}))])
def test_who_is_stopped_in_its_compaction_is_named_to_those_who_wait(
    table: Table, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], object]
) -> None:
    monkeypatch.setattr(flock, "TOLD_AFTER_S", 0.05)
    for number in range(2):
        table.write(rows(number))
    stopped = start(partial(stop_within_a_compaction, table.path))
    os.waitpid(stopped, os.WUNTRACED)
    with warnings.catch_warnings(record=True, action="always") as warned:

        def let_it_continue() -> None:
            for _ in range(1000):
                if not warned:
                    time.sleep(0.01)
            os.kill(stopped, signal.SIGCONT)

        continuing = Thread(target=let_it_continue)
        continuing.start()
        act(table)
        continuing.join()
    assert {one.category for one in warned} == {LongCompactionWarning}
    told = f"table 'table': a compaction must end first — it is that of process {stopped} on "
    assert str(warned[0].message).startswith(told)
    assert finish([stopped]) == [0]
    assert table.snapshot().id == 3


def test_larger_merges_are_left_to_a_child_process(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_FOREGROUND_ROWS", 10)
    await_compactors()
    for number in range(3):
        table.write(rows(*range(100 * number, 100 * number + 100)))
    assert [child.wait(60) for child in background._children] == [0]
    assert [info.kind for info in table.history()] == ["append"] * 3 + ["compact"]
    assert shape(table) == [(3, 300, 0)]


def test_a_child_process_holds_the_lock_from_its_start_to_its_end(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits come while it is being started, which it is here until it is told to go on."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    os.mkfifo(gate)
    python.write_text(f'#!/bin/sh\nread _ < "{gate}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(background, "MAX_FOREGROUND_ROWS", 10)
    await_compactors()
    with open(gate, "r+b", buffering=0) as waited_for:
        for number in range(6):
            table.write(rows(*range(100 * number, 100 * number + 100)))
        (child,) = background._children
        with compaction_lock(table.path, wait=False) as lock:
            assert lock is None
        assert Path(table.path, paths.COMPACTION_LOCK).read_text().startswith(f"process {child.pid} on ")
        waited_for.write(b"go on\n")
        assert child.wait(60) == 0
    assert table.history()[-1].kind == "compact"
    with compaction_lock(table.path, wait=False) as lock:
        assert lock is not None


def test_the_compactor_merges_all_that_is_due_and_ends(write_only: Table) -> None:
    for number in range(9):
        write_only.write(rows(number))
    assert (compactor.run(write_only.path), compactor.run(write_only.path)) == (1, 0)


def break_a_data_file(table: Table) -> None:
    path = Path(table.path, table.snapshot().files.entries[-1].file)
    path.unlink()
    path.write_bytes(b"")


def test_a_failed_compaction_warns_and_the_commit_stands(table: Table) -> None:
    for number in range(2):
        table.write(rows(number))
    break_a_data_file(table)
    with pytest.warns(CompactionWarning, match="reads get slower — CorruptTableError"):
        snapshot = table.write(rows(2))
    assert snapshot.id == table.snapshot().id == 3


def test_the_compactor_as_a_service_expires_too_since_the_writers_do_not(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t",
        SCHEMA,
        {"write-only": "true", "snapshot.num-retained.max": "2", "snapshot.num-retained.min": "1"},
    )
    for value in range(8):
        table.write(rows(1, value=value))
    assert [info.id for info in table.history() if info.changes_rows] == list(range(1, 9))
    compactor.maintain(table.path)
    assert [info.id for info in table.history() if info.changes_rows] == [7, 8]
    assert table.snapshot().scan().num_rows == 1


def test_a_round_of_the_service_expires_what_any_number_of_commits_have_left(tmp_path: Path) -> None:
    """A commit expires no more than a limit; a table with more commits between two rounds grew for ever."""
    retention = {"num-retained.max": "2", "num-retained.min": "1", "expire.limit": "3"}
    options = {f"snapshot.{name}": value for name, value in retention.items()}
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true", **options})
    for value in range(20):
        table.write(rows(1, value=value))
    compactor.maintain(table.path)
    assert [info.id for info in table.history() if info.changes_rows] == [19, 20]
    assert table.check() == ()


def test_a_round_of_the_service_ends_though_commits_come_as_fast_as_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It merged for as long as there was something to merge, so no snapshot of such a table ever expired."""
    options = {"num-sorted-run.compaction-trigger": "2", "snapshot.num-retained.max": "2"}
    options |= {"snapshot.num-retained.min": "1", "write-only": "true"}
    table = Table.create(tmp_path / "t", SCHEMA, options)
    commits, merge = iter(range(100)), compaction.execute

    def merge_beside_a_writer(*args: Any, **given: Any) -> Any:
        done = merge(*args, **given)
        for value in islice(commits, 4):
            table.write(rows(1, value=value))
        return done

    for _ in range(4):
        table.write(rows(1, value=-1))
    monkeypatch.setattr(compaction, "execute", merge_beside_a_writer)
    assert compactor.maintain(table.path)
    assert next(commits) == 4
    states = [info.id for info in table.history() if info.changes_rows]
    assert [table.snapshot(state).scan()["value"].to_pylist() for state in states] == [[2], [3]]


def test_a_compactor_that_failed_is_heard_of_at_the_next_commit(table: Table) -> None:
    for number in range(2):
        table.write(rows(number))
    with compaction_lock(table.path, wait=False):
        table.write(rows(2))
    break_a_data_file(table)
    assert compactor.main([table.path]) == 1
    with compaction_lock(table.path, wait=False), pytest.warns(CompactionWarning, match="CorruptTableError"):
        table.write(rows(3))
    assert not Path(table.path, paths.COMPACTION_ERROR).exists()
    with warnings.catch_warnings(), compaction_lock(table.path, wait=False):
        warnings.simplefilter("error")
        table.write(rows(4))


def test_a_compactor_of_a_dropped_table_ends_quietly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compactor.main([str(tmp_path / "gone")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/gone", "no table lies at '/gone'"),
        ("s3://x", "table path must be s3://bucket/folder, with a bucket's"),
    ],
)
def test_a_service_without_a_table_says_so(
    path: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compactor.main([path, "--watch", "1"]) == 1
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "ten"])
def test_a_service_has_pauses(write_only: Table, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compactor.main([write_only.path, "--watch", seconds])
    assert (
        f"argument --watch: invalid number of seconds above 0 value: '{seconds}'" in capsys.readouterr().err
    )


def test_a_service_tells_of_a_full_disk_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each round begins a file of another name."""
    options = {"write-only": "true", "num-sorted-run.compaction-trigger": "3", "file.compression": "none"}
    table = Table.create(tmp_path / "t", SCHEMA, options)
    for value in range(8):
        table.write(rows(*range(999), value=value))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    pauses = iter((None, None))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StopIteration):
            compactor.watch(table.path, 1, sleep=lambda _: next(pauses))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"the next round tries again: '{table.path}/bucket-0/")
    assert "File too large" in line


def test_a_service_tells_once_what_it_cannot_do_and_does_it_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commits of a table with write-only tell nothing of it. What is due expires all the same."""
    options = {
        "write-only": "true",
        "num-sorted-run.compaction-trigger": "3",
        "snapshot.num-retained.max": "2",
        "snapshot.num-retained.min": "1",
    }
    table = Table.create(tmp_path / "t", SCHEMA, options)
    for value in range(8):
        table.write(rows(1, value=value))
    files = {entry.file for run in table.snapshot().files.groups[(), 0] for entry in run}
    hidden = tmp_path / "hidden"
    Path(table.path, "bucket-0").rename(hidden)

    def rounds() -> Iterator[None]:
        yield
        assert [info.id for info in table.history() if info.changes_rows] == [7, 8]
        hidden.rename(table.path + "/bucket-0")
        yield
        assert {entry.file for run in table.snapshot().files.groups[(), 0] for entry in run}.isdisjoint(files)
        shutil.rmtree(table.path)
        yield

    pauses = rounds()
    compactor.watch(table.path, 1, sleep=lambda _: next(pauses))
    failed, dropped = capsys.readouterr().err.splitlines()
    assert failed.startswith(f"the next round tries again: data file '{table.path}/bucket-0/")
    assert dropped.startswith(f"the service ends: no table lies at {table.path!r}")
