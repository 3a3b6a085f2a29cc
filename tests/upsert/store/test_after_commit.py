"""What fails after a commit does not deny it: whoever believed that would write the rows twice."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.samples import ids_of
from upsert.errors import ConfigurationError, LogNotPublishedError, UnknownOutcomeError
from upsert.schema import Column, TableSchema
from upsert.store import Table, Version, compactor
from upsert.store.alterations import AddColumn, DropColumn, SetOptions
from upsert.store.commit import append, committer, staging
from upsert.store.log import lifecycle, publishing
from upsert.store.log.base import LoggedTable
from upsert.store.metadata import table_file
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.retention import consumers, expiry

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows without a key: two writes are twice the rows."""
    return Table.create(tmp_path / "rows", TableSchema.of({"id": pa.int64()}), {"write-only": "true"})


def no_answer(*_: object, **__: object) -> None:
    raise OSError("the object store did not answer")


def no_right(*_: object, **__: object) -> None:
    raise ConfigurationError("the server must allow what is asked")


@pytest.mark.parametrize("is_away", [False, True])
def test_a_log_that_fails_in_whatever_way_says_that_the_rows_are_there(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """Publishing reads the files, and the disk or the object store may fail at that, and from then on."""
    with monkeypatch.context() as patched:

        class _NoLog:
            @staticmethod
            def publish(*_: object, **__: object) -> None:
                if is_away:
                    patched.setattr(History, "latest", no_answer)
                no_answer()

        patched.setattr(publishing, "before_commit", lambda _: None)
        patched.setattr(publishing, "announcer", lambda *_: None)
        patched.setattr(publishing, "log_system", lambda _: _NoLog)
        with pytest.raises(LogNotPublishedError, match=r"committed as snapshot 1; .* did not answer"):
            table.write(ROWS)
    assert ids_of(table) == [1, 2]


def test_a_compaction_service_goes_on_while_the_log_is_away_and_sends_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own commit, which drops a partition, has no commit after it that would repair the log."""
    schema = TableSchema.of({"day": pa.date32(), "id": pa.int64()}, ["day", "id"], ["day"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    table.write(pa.table({"day": [date(2000, 1, 1), date.max], "id": [1, 2]}))
    table.alter(SetOptions({"partition.expiration-time": "7 d"}))
    rounds, sent = [], []

    class _Log:
        @staticmethod
        def publish(logged: LoggedTable, **_: object) -> int:
            sent.append(logged.published.latest().id)
            if len(sent) < 3:
                no_answer()
            return 1

    def pause(_: float) -> None:
        rounds.append(ids_of(table))
        if len(rounds) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "before_commit", lambda _: None)
    monkeypatch.setattr(publishing, "claim", lambda *_: None)
    monkeypatch.setattr(publishing, "log_system", lambda _: _Log)
    with pytest.raises(KeyboardInterrupt):
        compactor.watch(table.path, 0.0, sleep=pause)
    newest = table.snapshot().id
    assert (rounds, sent) == ([[2]] * 5, [newest] * 3)
    assert capsys.readouterr().err.count("its log messages were not published: the object store") == 1


@pytest.mark.parametrize("fails", [no_answer, no_right])
def test_files_that_cannot_be_deleted_are_left_to_the_clean_up(
    table: Table, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., None]
) -> None:
    staged = table.stage_raw(ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "remove", fails)
        with pytest.warns(append.LeftoverWarning, match="deletes them"):
            table.commit([staged])
    assert ids_of(table) == [1, 2]
    assert table.clean(older_than_s=0) == 1


def test_what_cannot_be_deleted_hides_neither_an_altered_table_nor_why_a_commit_failed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.alter(AddColumn(Column("n", pa.int64())))
    for n in (1, 2):
        table.write(ROWS.append_column("n", pa.array([n, n])))
    monkeypatch.setattr(staging, "remove", no_answer)
    with pytest.warns(append.LeftoverWarning, match="did not answer.*deletes them"):
        table.alter(DropColumn("n"))
    assert ids_of(table) == [1, 1, 2, 2]
    monkeypatch.setattr(committer.CommitRules, "check", no_right)
    with (
        pytest.warns(append.LeftoverWarning, match="did not answer.*deletes them"),
        pytest.raises(ConfigurationError, match="must allow what is asked"),
    ):
        table.write(ROWS)


@pytest.mark.parametrize("fails", [no_answer, no_right])
def test_a_snapshot_that_cannot_be_read_back_is_not_called_a_failure(
    table: Table, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., None]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Table, "_snapshot_of", fails)
        with pytest.raises(
            UnknownOutcomeError, match=r"committed as snapshot 1, .* do not write the rows again"
        ):
            table.write(ROWS)
    assert ids_of(table) == [1, 2]


@pytest.mark.parametrize("fails", [no_answer, no_right])
def test_a_snapshot_of_which_nobody_can_see_what_became_keeps_its_files(
    table: Table, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., None]
) -> None:
    latest = History.latest

    def fails_when_published(self: History) -> SnapshotInfo:
        found = latest(self)
        return found if found.id == 0 else fails()  # type: ignore[return-value,func-returns-value]

    with monkeypatch.context() as patched:
        patched.setattr(History, "latest", fails_when_published)
        with pytest.raises(
            UnknownOutcomeError, match=r"snapshot 1 was published, .* look at the table's history"
        ):
            table.write(ROWS)
    assert ids_of(table) == [1, 2]


def test_a_snapshot_without_changes_names_no_later_place_in_the_log(table: Table) -> None:
    """With ``log.consistency = eventual`` changes may lie there that follow in the next commit."""
    for _ in range(2):
        table.write(ROWS)
    committer.note_ends(table.uuid, None, {"0": 7})
    table.compact()
    table.expire(keep=1)
    assert table.snapshot().info.log_offsets == {}
    table.write(ROWS)
    assert table.snapshot().info.log_offsets == {"0": 7}


def test_how_far_a_log_has_come_is_known_also_when_nothing_is_held_for_it_any_more(table: Table) -> None:
    for _ in range(2):
        table.write(ROWS)
    for name in (expiry.CONSUMER, "reader"):
        consumers.hold(table.published, name, Version.complete(1), 1, now_s=1.0)
    assert table.expire(keep=1) == 1
    assert [(found.name, found.version.base) for found in table.consumers()] == [(expiry.CONSUMER, 1)]


@pytest.mark.parametrize(
    ("failure", "is_dropped"), [(UnknownOutcomeError("?"), False), (OSError("full"), True)]
)
def test_the_log_of_a_table_that_may_be_there_yet_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_dropped: bool
) -> None:
    options = {"log.system": "kafka", "log.kafka.bootstrap.servers": "k:1", "log.kafka.topic": "t-log"}
    calls = list[str]()

    class Log:
        named = staticmethod(lambda given, _: dict(given))
        create = staticmethod(lambda *_: calls.append("created"))
        drop = staticmethod(lambda *_: calls.append("dropped"))

    def fails(*_: object) -> None:
        raise failure

    monkeypatch.setattr(lifecycle, "log_system", lambda _: Log)
    monkeypatch.setattr(table_file, "create", fails)
    with pytest.raises(type(failure)):
        Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}), options)
    assert calls == ["created", "dropped"][: 1 + is_dropped]
