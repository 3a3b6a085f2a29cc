"""Several committers on one table, slow ones, and publications whose outcome is not reported."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, finish, run, start
from tests.upsert.store.samples import ids_of
from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptTableError,
    DuplicateKeyError,
    SnapshotExpiredError,
    StaleWriterError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from upsert.flock import FileLock
from upsert.schema import Column, TableSchema
from upsert.store import Table, paths
from upsert.store.alterations import AddColumn
from upsert.store.commit import committer, staging
from upsert.store.commit.change import Change
from upsert.store.commit.committer import TURN_AFTER, Committer, Environment
from upsert.store.commit.turn import LongTurnWarning, Turn
from upsert.store.files import writing
from upsert.store.files.data_file import DataFile, forget_open_files
from upsert.store.files.writing import write_data_file
from upsert.store.metadata import table_file
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet
from upsert.store.metadata.folding import MAX_MANIFESTS
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.rows.layout import Layout
from upsert.store.storage import local, put_if_absent
from upsert.store.storage.local import LocalStorage
from upsert.store.upkeep import orphans
from upsert.store.upkeep.compaction import execute, full
from upsert.store.version import Version

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])
QUIET = {"write-only": "true"}
PROCESSES = 6


def rows(*ids: int, value: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array([value] * len(ids), pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table whose snapshot ids are those of the test's own commits: nothing is compacted."""
    return Table.create(tmp_path / "table", SCHEMA, QUIET)


def commit_many(path: str, process: int, commits: int) -> None:
    table = Table.open(path)
    for number in range(commits):
        table.write(rows(process * commits + number), writer_id=f"writer-{process}", transaction=number)


def check_processes(table: Table, commits: int) -> None:
    """Every commit of every process is there, in a snapshot of its own."""
    children = [start(partial(commit_many, table.path, process, commits)) for process in range(PROCESSES)]
    assert finish(children) == [0] * PROCESSES
    table = Table.open(table.path)
    assert ids_of(table) == list(range(PROCESSES * commits))
    appends = [info for info in table.history() if info.kind == "append"]
    assert sum(info.delta_rows for info in appends) == len(appends) == PROCESSES * commits
    assert dict(table.snapshot().info.writers) == {f"writer-{n}": commits - 1 for n in range(PROCESSES)}
    parents = [info.parent for info in table.history()]
    assert parents == [None, *(info.uuid for info in table.history()[:-1])]
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def test_no_commit_of_six_processes_is_lost(tmp_path: Path) -> None:
    """While each of them also compacts what has become due."""
    check_processes(Table.create(tmp_path / "table", SCHEMA), 10)


@pytest.mark.long
@pytest.mark.minutes
def test_none_of_three_thousand_commits_of_six_processes_is_lost(tmp_path: Path) -> None:
    check_processes(Table.create(tmp_path / "table", SCHEMA), 500)


def test_two_first_commits_race_and_both_are_there(table: Table) -> None:
    other = Table.open(table.path)
    staged, others = table.stage(rows(1), order="rows"), other.stage(rows(2), order="rows")
    assert [table.commit([staged]).id, other.commit([others]).id] == [1, 2]
    assert ids_of(table) == [1, 2]


def test_a_table_is_created_though_another_process_drops_one_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a bare FileNotFoundError."""
    made, acts = local.make_parent, ["drop"]

    def make_parent(path: str) -> None:
        made(path)
        if acts:
            acts.clear()
            shutil.rmtree(tmp_path / "t")

    monkeypatch.setattr(local, "make_parent", make_parent)
    table = Table.create(tmp_path / "t", SCHEMA, QUIET)
    table.write(rows(1))
    assert ids_of(Table.open(tmp_path / "t")) == [1]


def test_a_table_is_created_if_not_exists_though_another_process_creates_and_drops_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said not to exist."""
    publish, acts = table_file.publish, ["create and drop"]
    monkeypatch.setattr(table_file, "publish", lambda table: not (acts and acts.pop()) and publish(table))
    Table.create(tmp_path / "t", SCHEMA, QUIET, if_not_exists=True).write(rows(1))
    assert ids_of(Table.open(tmp_path / "t")) == [1]


def test_of_two_writers_of_one_key_the_later_commit_wins(table: Table) -> None:
    """Whichever staged first: the order is that of the snapshots."""
    late = table.stage(rows(1, value=1), order="rows")
    table.write(rows(1, value=2))
    table.commit([late])
    assert table.snapshot().scan()["value"].to_pylist() == [1]


class Rival:
    """An environment in which another process does something just before the first attempt to publish."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.acts = [act]
        self.attempts = 0

    def put_if_absent(self, path: str, content: bytes) -> bool:
        self.attempts += 1
        if self.acts:
            self.acts.pop()()
        return put_if_absent(path, content)


def in_another_thread(act: Callable[[], object]) -> None:
    """As of another process: what this thread does to files, and has seen of them, is not its own."""
    rival = threading.Thread(target=act)
    rival.start()
    rival.join()


def in_environment(table: Table, environment: Environment) -> Table:
    """The table in a process of its own, as it were: nothing remembered, and another clock and disk."""
    other = Table.open(table.path)
    other.published = table.published.reread()
    other._committer = Committer(other.published, environment)
    return other


def test_a_lost_race_is_run_again_on_the_new_snapshot(table: Table) -> None:
    rival = Rival(lambda: table.write(rows(2)))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    assert writer.write(rows(1)).id == 2
    assert rival.attempts == 2
    assert ids_of(table) == [1, 2]
    table.write(rows(3))
    assert [info.conflicts for info in table.history()] == [0, 1, 1]


def test_an_overwrite_replaces_what_came_in_between_too(table: Table) -> None:
    table.write(rows(1))
    rival = Rival(lambda: table.write(rows(2)))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    writer.overwrite(rows(3))
    assert ids_of(table) == [3]


def test_a_clean_up_that_stalled_past_an_expiry_begins_again(table: Table) -> None:
    """It told its caller to write rows again, and it has none."""
    table.write(rows(1))
    table.stage(rows(9), order="rows")

    def outrun() -> None:
        for number in range(2, 5):
            table.write(rows(number))
        table.expire(keep=1)

    rival = Rival(outrun)
    in_environment(table, Environment(put_if_absent=rival.put_if_absent)).clean(older_than_s=0)
    assert_nothing_is_left_over(table)
    assert ids_of(table) == [1, 2, 3, 4]
    assert table.check(deep=True) == ()


def test_a_commit_gives_up_late_and_says_so(table: Table) -> None:
    """Time and chance are injected: minutes of lost races take no time here, and pauses grow to a bound."""
    clock, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        pauses.append(seconds)

    def lose(path: str, content: bytes) -> bool:
        return False

    environment = Environment(
        monotonic=lambda: clock[0], sleep=sleep, uniform=lambda _low, high: high, put_if_absent=lose
    )
    with pytest.raises(CommitConflictError, match="lost every race for the next id in 300 s"):
        in_environment(table, environment).write(rows(1))
    assert pauses[:4] == [0.005, 0.01, 0.02, 0.04]
    assert pauses[4:7] == [0.005, 0.01, 0.02]  # it has its turn
    assert max(pauses) == 2.0
    assert len(pauses) > 100
    assert_nothing_is_left_over(table)


def write_before_each_attempt(table: Table, most: int) -> tuple[Table, list[threading.Thread]]:
    """A handle of the table, and who commits just before it publishes, each in a process of its own."""
    writers: list[threading.Thread] = []

    def act() -> None:
        if len(writers) < most:
            number = len(writers)
            other = in_environment(table, Environment())
            writers.append(threading.Thread(target=lambda: other.write(rows(100 + number))))
            writers[-1].start()
            writers[-1].join(30 if number < TURN_AFTER else 0.2)

    def publish(path: str, content: bytes) -> bool:
        act()
        return put_if_absent(path, content)

    return in_environment(table, Environment(put_if_absent=publish, sleep=lambda _: None)), writers


def test_a_merge_beside_a_writer_without_pauses_gets_its_turn(table: Table) -> None:
    """Else the writer wins each race, for minutes: the merge takes longer to try again than a commit."""
    for number in range(3):
        table.write(rows(number))
    slow, writers = write_before_each_attempt(table, most=20)
    (job,) = full(slow.published.files(slow.published.latest()), slow.options)
    execute(slow._committer, [job])
    assert len(writers) == TURN_AFTER + 1  # the last one waits for the merge
    for writer in writers:
        writer.join()
    assert ids_of(table) == [0, 1, 2, *range(100, 100 + TURN_AFTER + 1)]
    assert [info.kind for info in table.history()][-2:] == ["compact", "append"]
    assert table.check(deep=True) == ()


@pytest.mark.parametrize("commits", [1, MAX_MANIFESTS])
def test_an_attempt_that_lost_leaves_no_manifest(table: Table, commits: int) -> None:
    """Neither its own nor the one that it has folded others into."""
    for number in range(commits):
        table.write(rows(number))
    rival = Rival(lambda: table.write(rows(commits)))
    in_environment(table, Environment(put_if_absent=rival.put_if_absent)).overwrite(rows(99))
    assert (rival.attempts, ids_of(table)) == (2, [99])
    assert_nothing_is_left_over(table)


def test_a_publication_that_raises_after_the_link_counts_as_committed(table: Table) -> None:
    def link_then_fail(path: str, content: bytes) -> bool:
        put_if_absent(path, content)
        raise OSError("connection lost")

    writer = in_environment(table, Environment(put_if_absent=link_then_fail))
    assert writer.write(rows(1)).id == 1
    assert ids_of(table) == [1]


def test_a_publication_that_raises_before_the_link_is_an_error_and_commits_nothing(table: Table) -> None:
    def fail(path: str, content: bytes) -> bool:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        in_environment(table, Environment(put_if_absent=fail)).write(rows(1))
    assert table.snapshot().id == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda writer: writer.write(rows(3)),
        lambda writer: writer.delete([("id", "=", 1)]),
        Table.compact,
        lambda writer: writer.alter(AddColumn(Column("more", pa.int64()))),
    ],
)
def test_what_an_interrupted_request_of_a_store_publishes_later_is_whole(
    tmp_path: Path, act: Callable[[Table], object]
) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64(), "value": pa.int64()}), QUIET)
    for number in range(2):
        table.write(rows(number))
    sent: list[tuple[str, bytes]] = []

    def interrupted(path: str, content: bytes) -> bool:
        sent.append((path, content))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act(in_environment(table, Environment(put_if_absent=interrupted)))
    assert put_if_absent(*sent[0])
    assert not [one for one in table.check(deep=True) if not one.is_information]


def test_a_publication_that_raises_after_somebody_else_took_the_id_is_an_error(table: Table) -> None:
    def lose_then_fail(path: str, content: bytes) -> bool:
        table.write(rows(2))
        raise OSError("connection lost")

    with pytest.raises(OSError, match="connection lost"):
        in_environment(table, Environment(put_if_absent=lose_then_fail)).write(rows(1))
    assert ids_of(table) == [2]


def test_a_writer_that_stalls_past_expiry_fails_and_leaves_nothing(table: Table) -> None:
    """Its id was used and has expired, so its link succeeds; the history goes on elsewhere."""
    for number in range(3):
        table.write(rows(number))

    def meanwhile() -> None:
        for number in range(3, 6):
            table.write(rows(number))
        table.expire(keep=1)

    writer = in_environment(table, Environment(put_if_absent=Rival(meanwhile).put_if_absent))
    with pytest.raises(StaleWriterError, match="snapshot 3 has expired, the latest is 7"):
        writer.write(rows(99))
    assert ids_of(Table.open(table.path)) == list(range(6))
    assert table.write(rows(6)).id == 8
    assert writer.write(rows(99)).id == 9  # a new attempt sees the table as it is
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


@pytest.mark.parametrize("act", [lambda writer: writer.write(rows(9)), Table.compact])
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_commit_leaves_nothing_in_a_table_that_was_created_again_meanwhile(
    table: Table, tmp_path: Path, act: Callable[[Table], object], commits: int
) -> None:
    """Its snapshot has the id that follows the newest one there, or one that comes later."""
    for number in range(2):
        table.write(rows(number))

    def create_again() -> None:
        Path(table.path).rename(tmp_path / "dropped")
        other = Table.create(table.path, SCHEMA, QUIET)
        for number in range(commits):
            other.write(rows(number))

    meanwhile = partial(in_another_thread, create_again)
    writer = in_environment(table, Environment(put_if_absent=Rival(meanwhile).put_if_absent))
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        act(writer)
    other = Table.open(table.path)
    for number in range(commits, 4):
        other.write(rows(number))
    assert ids_of(other) == [0, 1, 2, 3]
    assert_nothing_is_left_over(other)


def test_a_commit_that_finds_its_number_in_a_table_that_was_created_again_says_so(
    table: Table, tmp_path: Path
) -> None:
    """It was told that nobody knows whether it was published: what lies there is not of its table."""

    def create_again() -> None:
        Path(table.path).rename(tmp_path / "dropped")
        Table.create(table.path, SCHEMA, {**QUIET, "bucket": "2"}).write(rows(1, 2, 3, 4))
        shutil.rmtree(Path(table.path, "bucket-0"))

    meanwhile = partial(in_another_thread, create_again)
    writer = in_environment(table, Environment(put_if_absent=Rival(meanwhile).put_if_absent))
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        writer.write(rows(9))


class _Killed(BaseException):
    """What a process does not do any more."""


@pytest.mark.parametrize(
    ("dropped_at", "end"),
    [("before its folder is opened", TableNotFoundError), ("publish.before-link", _Killed)],
)
def test_a_writer_that_is_killed_leaves_nothing_in_a_table_that_was_created_again_right_then(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped_at: str, end: type[BaseException]
) -> None:
    """Its snapshot was the new table's first one, which could not be read: it is named in the old folder."""
    created: list[Table] = []

    def create_again() -> None:
        Path(table.path).rename(tmp_path / "dropped")
        created.append(Table.create(table.path, SCHEMA, QUIET))
        for folder in ("bucket-0", paths.MANIFEST_FOLDER):  # a writer of the new table is at work
            Path(table.path, folder).mkdir()

    acts = [create_again]

    def reach(point: str) -> None:
        if point == dropped_at and acts:
            in_another_thread(acts.pop())
        if point == "publish.after-link" and created:
            raise _Killed

    into = LocalStorage.publishing_into

    def reached_before(*given: Any) -> AbstractContextManager[None]:
        reach("before its folder is opened")
        return into(*given)

    with monkeypatch.context() as patch:
        patch.setattr(local, "reach", reach)
        patch.setattr(LocalStorage, "publishing_into", reached_before)
        with pytest.raises(end):
            table.write(rows(9))
    (other,) = created
    assert ids_of(other) == []
    other.write(rows(1))
    assert ids_of(other) == [1]


@pytest.mark.parametrize(
    "act", [lambda table: table.tag("first"), lambda table: table.hold("reader", Version.complete(1))]
)
def test_what_holds_a_snapshot_is_none_in_a_table_that_was_created_again_right_then(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], object]
) -> None:
    """The new table could expire and clean nothing: it had a tag or a consumer that it could not read."""
    table.write(rows(1))
    make_parent, acts = local.make_parent, ["create again"]

    def create_again() -> None:
        Path(table.path).rename(tmp_path / "dropped")
        Table.create(table.path, SCHEMA, QUIET)

    def made(path: str) -> None:
        if acts:
            acts.clear()
            in_another_thread(create_again)
        make_parent(path)

    monkeypatch.setattr(local, "make_parent", made)
    with pytest.raises(TableNotFoundError, match="was replaced by another one"):
        act(table)
    other = Table.open(table.path)
    assert other.tags() == other.consumers() == ()
    other.write(rows(2))
    other.expire(keep=1)


@pytest.mark.parametrize(
    "act",
    [lambda writer: writer.write(rows(9)), lambda writer: writer.delete([("id", "=", 0)]), Table.compact],
)
def test_a_commit_whose_table_is_dropped_meanwhile_says_so(
    table: Table, tmp_path: Path, act: Callable[[Table], object]
) -> None:
    for number in range(2):
        table.write(rows(number))
    drop = Rival(lambda: Path(table.path).rename(tmp_path / "dropped"))
    writer = in_environment(table, Environment(put_if_absent=drop.put_if_absent))
    with pytest.raises(TableNotFoundError, match="was it dropped"):
        act(writer)


@contextmanager
def renamed_at(point: str, table: Table, target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the table gets another folder where a file of its is published."""

    def reach(point_reached: str) -> None:
        if point_reached == point:
            Path(table.path).rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(local, "reach", reach)
        yield


@pytest.mark.parametrize("point", ["publish.after-link", "publish.after-sync"])
def test_a_commit_whose_table_is_renamed_when_it_is_published_is_not_told_as_none(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Its rows are there, and a writer that was told that they are not would write them again."""
    table.write(rows(1))
    with (
        renamed_at(point, table, tmp_path / "renamed", monkeypatch),
        pytest.raises(UnknownOutcomeError, match="if it has another name now, it has the rows"),
    ):
        table.write(rows(2))
    assert ids_of(Table.open(tmp_path / "renamed")) == [1, 2]


@pytest.mark.parametrize(
    ("file", "point"), [(writing, "data.before-file"), (committer, "commit.before-manifest")]
)
def test_the_name_of_a_table_is_free_though_it_was_dropped_while_others_wrote(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: ModuleType, point: str
) -> None:
    """A writer makes the folder of its next file, which is gone then, once more."""

    def reach(point_reached: str) -> None:
        if point_reached == point and not (tmp_path / "dropped").exists():
            Path(table.path).rename(tmp_path / "dropped")

    monkeypatch.setattr(file, "reach", reach)
    with pytest.raises(TableNotFoundError, match="was it dropped"):
        table.write(rows(1))
    assert Path(table.path).is_dir()
    other = Table.create(table.path, SCHEMA, QUIET)
    other.write(rows(2))
    assert ids_of(other) == [2]
    assert_nothing_is_left_over(other)


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.write(rows(1)),
        lambda table: table.stage(rows(1), order="none"),
        lambda table: table.stage_raw(rows(1)),
        Table.compact,
    ],
)
def test_rows_whose_table_is_dropped_while_they_are_staged_are_refused(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], object]
) -> None:
    for _ in range(2):
        table.write(rows(1))

    def make_parent(_: str) -> None:
        if not (tmp_path / "dropped").exists():
            Path(table.path).rename(tmp_path / "dropped")

    monkeypatch.setattr(local, "make_parent", make_parent)
    with pytest.raises(TableNotFoundError, match="was it dropped"):
        act(table)


@pytest.mark.parametrize("point", ["publish.before-link", "publish.after-link"])
def test_a_tag_whose_table_is_renamed_when_it_is_published_goes_with_it(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It was told as the tag of no table."""
    table.write(rows(1))
    with renamed_at(point, table, tmp_path / "renamed", monkeypatch):
        table.tag("first")
    assert [tag.name for tag in Table.open(tmp_path / "renamed").tags()] == ["first"]


def test_a_clean_up_whose_table_is_dropped_meanwhile_says_so(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = orphans.hidden_tables

    def hidden_tables(root: str) -> Iterator[str]:
        Path(root).rename(tmp_path / "dropped")
        return own(root)

    monkeypatch.setattr(orphans, "hidden_tables", hidden_tables)
    with pytest.raises(TableNotFoundError, match="was it dropped"):
        table.clean()


@pytest.mark.parametrize("commits", [0, 1])
def test_a_look_at_a_table_that_was_created_again_right_then_is_no_damage(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    table.write(rows(1))
    own = History.check_identity

    def check_identity(history: History) -> None:
        own(history)
        if not (tmp_path / "dropped").exists():
            Path(table.path).rename(tmp_path / "dropped")
            other = Table.create(table.path, SCHEMA, QUIET)
            for number in range(commits):
                other.write(rows(number))

    with monkeypatch.context() as patch:
        patch.setattr(History, "check_identity", check_identity)
        with pytest.raises(TableNotFoundError, match="replaced by another one"):
            table.history()
    Path(table.path).rename(tmp_path / "other")
    (tmp_path / "dropped").rename(table.path)  # as where two tables change their names
    assert ids_of(table) == [1]


def test_a_first_commit_that_stalls_past_expiry_fails(table: Table) -> None:
    def meanwhile() -> None:
        for number in range(3):
            table.write(rows(number))
        table.expire(keep=1)

    writer = in_environment(table, Environment(put_if_absent=Rival(meanwhile).put_if_absent))
    with pytest.raises(StaleWriterError):
        writer.write(rows(99))
    assert ids_of(table) == [0, 1, 2]


def test_what_a_dead_stalled_writer_left_under_an_expired_id_is_never_seen(table: Table) -> None:
    """It died between link and check, and says to have removed files that are live in the real history."""
    for number in range(3):
        table.write(rows(number))

    def meanwhile() -> None:
        for number in range(3, 6):
            table.write(rows(number))
        table.expire(keep=1)

    def stall() -> None:
        writer = in_environment(table, Environment(put_if_absent=Rival(meanwhile).put_if_absent))
        writer.overwrite(rows(99))

    own_publication = 5  # after three commits and an expiry in between
    assert run(stall, f"publish.after-link:{own_publication}") == KILLED
    assert table.published.listed_ids() == [4, 6, 7]
    assert table.snapshot().id == 7
    with pytest.raises(SnapshotExpiredError, match="snapshot 4 has expired; the earliest that is left is 6"):
        table.snapshot(4)
    table.write(rows(6))
    table.expire(keep=1)
    assert table.published.listed_ids() == [8, 9]
    assert ids_of(Table.open(table.path)) == list(range(7))
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def test_a_transaction_whose_snapshot_was_swept_from_under_an_expired_id_is_not_committed(
    table: Table,
) -> None:
    """Its writer takes the id again that expiry has freed, and a clean-up deletes the file as left over."""

    def take_an_expired_id(path: str, content: bytes) -> bool:
        for number in range(3):
            table.write(rows(number))
        table.expire(keep=1)
        won = put_if_absent(path, content)
        table.clean(older_than_s=0)
        return won

    writer = in_environment(table, Environment(put_if_absent=take_an_expired_id))
    with pytest.raises(StaleWriterError, match=r"snapshot 1 has expired, .* write the rows again"):
        writer.write(rows(99), writer_id="query", transaction=1)
    assert ids_of(table) == [0, 1, 2]
    assert dict(table.snapshot().info.writers) == {}


def linked_then_expired(table: Table, is_merged: bool = False) -> Table:
    """A writer whose snapshot and its successor are published and expired before it looks again."""

    def link_and_stall(path: str, content: bytes) -> bool:
        won = put_if_absent(path, content)
        for number in (50, 51):
            table.write(rows(number))
        if is_merged:
            table.compact()
        table.expire(keep=1)
        return won

    return in_environment(table, Environment(put_if_absent=link_and_stall))


def test_a_transaction_that_expired_before_its_writer_looked_is_known_to_be_committed(table: Table) -> None:
    table.write(rows(1))
    writer = linked_then_expired(table, is_merged=True)
    assert writer.write(rows(2), writer_id="query", transaction=1).id == 2
    assert ids_of(table) == [1, 2, 50, 51]


def test_a_commit_that_expired_before_its_writer_looked_is_known_by_its_files(table: Table) -> None:
    table.write(rows(1))
    assert linked_then_expired(table).write(rows(2)).id == 2
    assert ids_of(Table.open(table.path)) == [1, 2, 50, 51]


def test_a_commit_that_expired_before_its_writer_looked_may_not_be_told(table: Table) -> None:
    """Its rows are there, in files of a merge: what says that nothing was committed would double them."""
    table.write(rows(1))
    with pytest.raises(UnknownOutcomeError, match="cannot be told whether"):
        linked_then_expired(table, is_merged=True).write(rows(2))
    assert ids_of(Table.open(table.path)) == [1, 2, 50, 51]


def test_a_published_commit_is_not_told_as_expired_where_what_follows_it_expires_too(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that others overtake begins again at that error, and would be done twice."""
    table.write(rows(1))
    writer, files = linked_then_expired(table), History.files

    def late(history: History, info: SnapshotInfo) -> FileSet:
        if history is writer.published and info.id == 5:
            for number in range(MAX_MANIFESTS):
                table.write(rows(100 + number))
            table.expire(keep=1)
        return files(history, info)

    monkeypatch.setattr(History, "files", late)
    with pytest.raises(UnknownOutcomeError, match="snapshot 2 was published"):
        writer.write(rows(2))
    assert ids_of(Table.open(table.path))[:4] == [1, 2, 50, 51]


def test_files_staged_before_a_clean_up_cannot_be_committed(table: Table) -> None:
    table.write(rows(1))
    for staged in (table.stage(rows(2), order="none"), table.stage_raw(rows(2))):
        table.clean(older_than_s=0)
        with pytest.raises(StaleWriterError, match="write the rows again"):
            table.commit([staged])
        table.write(rows(3))  # so that the next files are begun after the fence
    assert ids_of(table) == [1, 3]
    assert_nothing_is_left_over(table)


def lose_raw_file(table: Table) -> None:
    (path,) = Path(table.path).glob("staging/*")
    path.unlink()


who_takes_a_raw_file = pytest.mark.parametrize(
    ("act", "error"),
    [(lambda table: table.clean(older_than_s=0), StaleWriterError), (lose_raw_file, CorruptTableError)],
)


@who_takes_a_raw_file
def test_a_fold_of_what_tasks_have_staged_and_a_clean_up_takes_is_stale(
    table: Table, act: Callable[[Table], object], error: type[Exception]
) -> None:
    table.write(rows(1))
    staged = table.stage_raw(rows(2))
    act(table)
    with pytest.raises(error, match="write the rows again"):
        table.folded(staged)
    assert_nothing_is_left_over(table)


@who_takes_a_raw_file
def test_a_large_write_whose_raw_file_a_clean_up_takes_is_stale(
    table: Table, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], object], error: type[Exception]
) -> None:
    """It is no damage, unless no clean-up has been there."""
    monkeypatch.setattr(staging, "PIECE_BYTES", 1)
    table.write(rows(1))

    def large() -> Iterator[pa.RecordBatch]:
        for number in range(2, 6):
            yield from rows(number).to_batches()
        act(table)
        yield from rows(6).to_batches()

    with pytest.raises(error, match="write the rows again"):
        table.write(pa.RecordBatchReader.from_batches(rows().schema, large()))
    assert table.snapshot().scan()["id"].to_pylist() == [1]
    assert_nothing_is_left_over(table)


def test_a_clean_up_between_check_and_link_is_noticed(table: Table) -> None:
    rival = Rival(lambda: table.clean(older_than_s=0))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    with pytest.raises(StaleWriterError):
        writer.write(rows(1))
    assert table.snapshot().scan().num_rows == 0
    assert_nothing_is_left_over(table)


def test_a_commit_that_loses_a_race_to_a_fence_leaves_no_manifest(table: Table) -> None:
    table.write(rows(1))
    rival = Rival(lambda: Committer(table.published).commit(lambda head: Change("clean", fence=head.id + 1)))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    with pytest.raises(StaleWriterError):
        writer.write(rows(2))
    assert table.check() == ()


def test_a_commit_that_loses_a_race_to_its_own_unique_value_leaves_no_manifest(tmp_path: Path) -> None:
    schema = SCHEMA.index("value", unique=True)
    table = Table.create(tmp_path / "unique", schema, {"write-only": "true"})
    rival = Rival(lambda: Table.open(table.path).write(rows(1, value=7)))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    with pytest.raises(DuplicateKeyError):
        writer.write(rows(2, value=7))
    assert ids_of(table) == [1]
    assert table.check() == ()


def test_a_fold_of_files_that_are_all_gone_leaves_no_manifest(table: Table, few_manifests: None) -> None:
    for _ in range(4):
        table.write(rows(1))
        table.delete([])
    assert table.snapshot().scan().num_rows == 0
    assert table.check() == ()


def before_a_file_is_opened(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Another process does something when this one has looked which files are live, and opens the first."""
    acts, opened = [act], DataFile.open

    def open_(root: str | Path, layout: Layout, entry: FileEntry) -> DataFile:
        if acts:
            acts.pop()()
            forget_open_files()
        return opened(root, layout, entry)

    monkeypatch.setattr(DataFile, "open", open_)


def give_up_older_files(path: str) -> None:
    table = Table.open(path)
    table.compact()
    table.expire(keep=1)


@pytest.fixture
def ordered(tmp_path: Path) -> Table:
    """A table of which commits look the stored rows up, with a row in two files."""
    table = Table.create(tmp_path / "ordered", SCHEMA, {"write-only": "true", "sequence.field": "value"})
    table.write(rows(1, value=1))
    table.write(rows(1, value=3))
    return table


def test_a_commit_looks_again_where_the_files_that_it_checks_have_expired(
    ordered: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_a_file_is_opened(monkeypatch, partial(give_up_older_files, ordered.path))
    ordered.write(rows(1, 2, value=2))
    assert ordered.snapshot().scan().to_pylist() == [{"id": 1, "value": 3}, {"id": 2, "value": 2}]
    assert ordered.check(deep=True) == ()


def test_a_file_that_is_missing_still_is_told_beside_a_busy_writer(table: Table) -> None:
    looks = count()

    def propose(latest: SnapshotInfo) -> Change:
        look = next(looks)
        assert look < 5, latest.id
        Table.open(table.path).write(rows(look))
        raise CorruptTableError("file 'a' is missing")

    with pytest.raises(CorruptTableError, match="'a' is missing"):
        Committer(table.published).commit(propose)
    assert ids_of(table) == [0, 1]


def test_raw_changes_that_a_clean_up_takes_from_a_commit_are_told_as_such(
    ordered: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = ordered.stage_raw(rows(2))
    before_a_file_is_opened(monkeypatch, partial(ordered.clean, older_than_s=0))
    with pytest.raises(StaleWriterError, match="write the rows again"):
        ordered.commit([staged])
    assert ids_of(ordered) == [1]
    assert_nothing_is_left_over(ordered)


def test_rows_without_a_key_that_a_clean_up_takes_before_the_commit_are_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "bag", TableSchema.of({"id": pa.int64(), "value": pa.int64()}), QUIET)
    table.write(rows(1))

    def write_and_clean(*arguments: Any, **named: Any) -> FileEntry:
        entry = write_data_file(*arguments, **named)
        Table.open(table.path).clean(older_than_s=0)
        forget_open_files()
        return entry

    monkeypatch.setattr(staging, "write_data_file", write_and_clean)
    with pytest.raises(StaleWriterError, match="write the rows again"):
        table.write(rows(2))
    assert ids_of(table) == [1]
    assert_nothing_is_left_over(table)


def test_rows_in_memory_outlive_a_clean_up(ordered: Table) -> None:
    ordered.stage_raw(rows(7))  # which is never committed
    in_memory = ordered.stage(rows(2), order="rows", is_committed_here=True)
    assert ordered.clean(older_than_s=0) == 1
    ordered.commit([in_memory])
    assert ids_of(ordered) == [1, 2]
    assert_nothing_is_left_over(ordered)


def test_a_deletion_is_computed_again_after_a_clean_up(table: Table) -> None:
    table.write(rows(1, 2))
    rival = Rival(lambda: (table.write(rows(3)), table.clean(older_than_s=0)))
    writer = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    writer.delete([("id", "!=", 2)])
    assert ids_of(table) == [2]
    assert_nothing_is_left_over(table)


def test_a_compaction_goes_on_where_its_files_were_replaced_and_have_expired(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table.write(rows(number))

    def replace_all() -> None:
        other = Table.open(table.path)
        other.overwrite(rows(7))
        other.write(rows(8))
        other.expire(keep=1)

    before_a_file_is_opened(monkeypatch, replace_all)
    table.compact()
    assert ids_of(table) == [7, 8]
    assert [info.kind for info in table.history()][-1] == "compact"
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def test_a_commit_between_listing_and_fence_keeps_its_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = table.stage(rows(1), order="rows")
    other = Table.open(table.path)
    rival = Rival(lambda: other.commit([staged]))
    cleaner = in_environment(table, Environment(put_if_absent=rival.put_if_absent))
    assert cleaner.clean(older_than_s=0) == 0
    assert ids_of(table) == [1]


def test_young_files_are_spared(table: Table) -> None:
    staged = table.stage(rows(1), order="rows")
    assert table.clean() == 0
    table.commit([staged])
    assert ids_of(table) == [1]


def test_the_files_of_a_commit_cannot_be_committed_again(table: Table) -> None:
    staged = table.stage(rows(1), order="rows")
    table.commit([staged])
    with pytest.raises(CommitConflictError, match=r"snapshot 1 \(append\) has already added"):
        table.commit([staged])


def test_a_conflict_names_both_commits(table: Table) -> None:
    table.write(rows(1))
    (entry,) = table.published.live(table.snapshot().info).values()
    table.overwrite(rows(2))
    merged = table.stage(rows(1), order="rows").files

    def propose(head: SnapshotInfo) -> Change:
        return Change("compact", merged, (entry,))

    expected = r"this compact, begun at snapshot 2, cannot .*: snapshot 2 \(overwrite\) has already"
    with pytest.raises(CommitConflictError, match=expected):
        committer.Committer(table.published).commit(propose)


def test_two_tasks_may_not_stage_finished_files_for_one_bucket(table: Table) -> None:
    staged = [table.stage(rows(number), order="none") for number in (1, 2)]
    with pytest.raises(ConfigurationError, match="use stage_raw"):
        table.commit(staged)


def test_others_wait_no_more_for_a_statement_that_is_committed(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    with Turn(table.root) as turn:
        turn.take()
        assert FileLock.take(turn.path, is_shared=True) is None
        table.write(rows(1))
        lock = FileLock.take(turn.path, is_shared=True)
        assert lock is not None
        lock.release()


def stop_within_a_turn(path: str) -> None:
    with Turn(path) as turn:
        turn.take()
        os.kill(os.getpid(), signal.SIGSTOP)
        Table.open(path).write(rows(1))


def test_who_is_stopped_in_its_turn_is_named_and_holds_others_up_once(table: Table) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += max(seconds, 0.05)

    writer = in_environment(table, Environment(monotonic=lambda: clock[0], sleep=sleep))
    stopped = start(partial(stop_within_a_turn, table.path))
    try:
        os.waitpid(stopped, os.WUNTRACED)
        told = f"table 'table': a commit waits .* it is that of process {stopped} on .*, since 20"
        with pytest.warns(LongTurnWarning, match=told) as warned:
            writer.write(rows(2))
        assert len({str(one.message) for one in warned}) == 1
        assert 300 <= clock[0] < 301
        writer.write(rows(3))
        assert clock[0] < 302
    finally:
        os.kill(stopped, signal.SIGCONT)
        assert finish([stopped]) == [0]
    assert ids_of(table) == [1, 2, 3]
