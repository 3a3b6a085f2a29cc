"""A table's changes through its log are those of its files, whoever publishes, restarts or begins when."""

import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.upsert.log import log_content
from tests.upsert.log.followed import Followed, content
from tests.upsert.log.log_content import KEYED, MULTISET, rows
from tests.upsert.store import disk
from upsert.errors import (
    ConfigurationError,
    LogNotPublishedError,
    RecordsExpiredError,
    SnapshotExpiredError,
    UntrackedChangesError,
)
from upsert.log import kafka_log, planning, reading
from upsert.managed import log_reader, stepping
from upsert.schema import Column, TableSchema
from upsert.store.alterations import AddColumn, RenameColumn, SetOptions
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

PARTITIONED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, ["id", "v"], partitioned_by=["v"])

NewTable = Callable[..., Table]


@pytest.fixture
def new_table(kafka: LocalKafka, tmp_path: Path) -> NewTable:
    """Makes a table with a log: `new_table(KEYED, **{"bucket": "2"})`."""

    def make(schema: TableSchema = KEYED, **options: str) -> Table:
        return log_content.new_table(
            tmp_path / uuid.uuid4().hex[:8], kafka.bootstrap_servers, schema, **options
        )

    return make


def random_commit(rng: random.Random, table: Table) -> None:
    """Some upserts and deletions of keys that come again and again; now and then an overwrite."""
    keys = [(key, rng.choice("abc")) for key in rng.sample(range(40), 20)]
    if table.schema.primary_key:
        table.write(rows(*((rng.choice(["+U", "+U", "-D"]), *key) for key in keys)))
    elif rng.random() < 0.2:
        table.overwrite(rows(*(("+I", *key) for key in keys)))
    else:
        gone = rng.sample(sorted(content(table).elements()), min(5, content(table).total()))
        table.write(rows(*(("+I", *key) for key in keys), *(("-D", *row) for row in gone)))


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (KEYED, {}),
        pytest.param(KEYED, {"log.changelog-mode": "all"}, marks=pytest.mark.long),
        pytest.param(MULTISET, {}, marks=pytest.mark.long),
        (PARTITIONED, {"log.format": "canal-json"}),
    ],
    ids=["upsert", "all", "multiset", "partitioned"],
)
@pytest.mark.parametrize("commits", [5, pytest.param(15, marks=pytest.mark.long)], ids=["some", "many"])
def test_readers_that_begin_and_restart_at_any_time_have_the_table(
    new_table: NewTable,
    schema: TableSchema,
    options: dict[str, str],
    commits: int,
    request: pytest.FixtureRequest,
) -> None:
    rng = random.Random(request.node.name)
    table = new_table(schema, **options)
    readers: list[Followed] = []
    for commit in range(commits):
        if commit in (0, 2, 4, 9):
            readers.append(Followed(table))
        random_commit(rng, table)
        if commit == 3:
            table.compact()
        for reader in readers:
            if rng.random() < 0.5:
                reader.drain(rng.choice([7, 30, None]))
            if rng.random() < 0.3:
                reader.restart()
    for reader in readers:
        reader.drain()
        assert reader.rows == content(table)
        assert "log" in reader.offset


def test_later_starts_see_the_changes_that_the_files_show(new_table: NewTable) -> None:
    table = new_table()
    table.write(rows(("+I", 1, "a"), ("+I", 2, "b")))
    named = table.write(rows(("+U", 1, "c"), ("-D", 2, "b")))
    at = str(named.info.time_ms)
    starts = [
        {"scan.mode": "from-snapshot", "scan.snapshot-id": "2"},
        {"scan.mode": "latest"},
        {"log.scan": "from-timestamp", "log.scan.timestamp-mills": at},
    ]
    readers = [Followed(table, **start) for start in starts]
    assert [reader.drain() for reader in readers] == [1, 1, 1], "the first step settles where a stream begins"
    table.write(rows(("+U", 1, "d"), ("+I", 3, "a")))
    for reader in readers:
        reader.restart()
        reader.rows = content(table, snapshot=2)
        reader.drain()
        assert sorted(reader.changes) == sorted(tuple(row.values()) for row in table.changes(2).to_pylist())


def test_time_of_which_no_snapshot_is_left_is_found_in_the_log(new_table: NewTable) -> None:
    table = new_table(**{"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"})
    at = [table.write(rows(("+U", 1, value))).info.time_ms for value in "abc"]
    table.expire()
    start = {"scan.mode": "from-timestamp", "scan.timestamp-millis": str(at[0])}
    upserts = Followed(table, changelog="upsert", **start)
    upserts.drain()
    assert upserts.rows == content(table)
    with pytest.raises(SnapshotExpiredError, match="has expired; the earliest snapshot left"):
        Followed(table, **start).drain()


def test_filter_and_columns_are_those_of_the_read(new_table: NewTable) -> None:
    rng = random.Random(6)
    where = {"scan.where": '[["v", "in", ["a", "b"]]]'}
    table = new_table()
    all_kinds = Followed(table, **where, columns=["v", "id"])
    upserts = Followed(table, **where, changelog="upsert")
    for commit in range(4):
        random_commit(rng, table)
        all_kinds.drain()
        if commit % 2:
            upserts.drain()
    expected = content(table, where=[("v", "in", ["a", "b"])])
    assert upserts.rows == expected
    assert all_kinds.rows == Counter({row[::-1]: count for row, count in expected.items()})


def test_columns_are_found_whatever_they_are_called_now(new_table: NewTable) -> None:
    table = new_table(**{"log.changelog-mode": "all"})
    reader = Followed(table)
    reader.drain()
    table.write(rows(("+I", 1, "a")))
    table.alter(RenameColumn("v", "w"), AddColumn(Column("n", pa.int64())))
    late = Followed(table, **{"scan.mode": "from-snapshot", "scan.snapshot-id": "0"})
    table.write(pa.table({"id": [1, 2], "w": ["b", "c"], "n": [5, 6]}))
    reader.drain()
    late.drain()
    assert reader.rows == Counter({(1, "b"): 1, (2, "c"): 1})
    assert late.changes[0] == (1, "a", None, "+I")
    assert late.rows == content(table)


def test_publisher_that_is_killed_leaves_neither_gap_nor_double(new_table: NewTable) -> None:
    table = new_table()
    reader = Followed(table)
    for number, point in enumerate(("log.after-bucket", "log.after-transaction")):
        reader.drain()
        commit = rows(*(("+U", key, f"{number}") for key in range(20)))
        assert disk.run(lambda: table.write(commit), failpoint=point) == disk.KILLED  # noqa: B023
        reader.drain()
        assert reader.rows in (Counter(), content(table), Counter({(k, "0"): 1 for k in range(20)}))
    table.publish_log()
    reader.drain()
    assert reader.rows == content(table)
    assert len(reader.changes) == 60


def test_commit_without_tracking_stops_the_reader_and_is_named(new_table: NewTable) -> None:
    table = new_table()
    reader, skipping = Followed(table), Followed(table, **{"scan.untracked": "skip"})
    for each in (reader, skipping):
        each.drain()
    table.write(rows(("+I", 1, "a")))
    table.commit([table.stage(rows(("+I", 2, "b")), order="rows")], tracked=False)
    table.write(rows(("+I", 3, "c")))
    with pytest.raises(UntrackedChangesError, match=r"snapshot 2 was committed with change-tracking = false"):
        reader.drain()
    skipping.drain()
    assert skipping.rows == Counter({(1, "a"): 1, (3, "c"): 1})


def test_log_that_is_too_short_stops_the_reader_which_is_told_what_to_do(
    new_table: NewTable, kafka: LocalKafka
) -> None:
    table = new_table()
    reader = Followed(table)
    reader.drain()
    table.write(rows(*(("+I", key, "a") for key in range(10))))
    topic = table.options.log.topic
    assert topic is not None
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, -1), TopicPartition(topic, 1, -1)]).values():
        future.result()
    reader.restart()
    with pytest.raises(
        RecordsExpiredError, match=r"new checkpoint.*'scan\.source' = 'files'.*'log\.retention'"
    ):
        reader.drain()
    afresh = Followed(table)
    afresh.drain()
    assert afresh.rows == content(table)


def test_hold_on_the_files_goes_on_with_the_reader(
    new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are needed to tell what a change replaces, and no longer than that."""
    monkeypatch.setattr(planning, "MOVE_EVERY_S", 0.0)
    monkeypatch.setattr(stepping, "PACE_S", 0.0)
    table = new_table()
    all_kinds = Followed(table, **{"consumer-id": "k"})
    upserts = Followed(table, changelog="upsert", **{"consumer-id": "u"})
    held = []
    for number in range(6):
        table.write(rows(("+U", 1, str(number)), ("+U", 2, str(number))))
        for reader in (all_kinds, upserts):
            reader.drain()
        held.append({consumer.name: consumer.version.base for consumer in table.consumers()})
    assert held[-1]["k"] == 5, "where the last step began"
    assert "u" not in held[-1]


def test_reader_that_begins_before_the_first_commit_holds_what_it_needs(new_table: NewTable) -> None:
    """An empty table has nothing to hold, and later nothing less than another one."""
    table = new_table(**{"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"})
    reader = Followed(table)
    reader.drain()
    for number in range(3):
        for value in "abc":
            table.write(rows(("+U", 1, f"{value}{number}"), ("+U", number, value)))
        reader.restart()
        reader.drain()
        assert reader.rows == content(table)


def test_eventual_log_is_made_whole_by_what_the_query_remembers(
    new_table: NewTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "task_property", lambda _: "q")
    rng = random.Random(3)
    table = new_table(**{"log.consistency": "eventual"})
    with pytest.raises(ConfigurationError, match=r"needs the option 'state\.path'"):
        Followed(table)
    random_commit(rng, table)
    readers = [
        Followed(table, changelog="upsert"),
        Followed(table, **{"state.path": str(tmp_path / "state")}),
    ]
    for _ in range(4):
        random_commit(rng, table)
        for reader in readers:
            reader.drain(rng.choice([7, None]))
            reader.restart()
    assert [reader.rows for reader in readers] == [content(table)] * 2


def test_files_are_read_where_they_are_asked_for(new_table: NewTable) -> None:
    table = new_table(**{"log.scan": "latest"})
    table.write(rows(("+I", 1, "a")))
    log, files = Followed(table), Followed(table, **{"scan.source": "files"})
    table.write(rows(("+U", 1, "b")))
    log.drain()
    files.drain()
    assert (log.rows, files.rows) == (Counter(), content(table)), "log.scan is of the log"
    files.offset = log.offset
    with pytest.raises(ConfigurationError, match="belongs to a stream that reads the log of table"):
        files.step()
    with pytest.raises(
        ConfigurationError, match=r"option 'changelog' needs a stream that reads a table's log"
    ):
        Followed(table, changelog="upsert", **{"scan.source": "files"})


def test_stream_of_files_goes_on_with_the_log(new_table: NewTable) -> None:
    """A checkpoint of files says which snapshot was reached, and that snapshot, where its log goes on."""
    table = new_table()
    table.write(rows(("+I", 1, "a"), ("+I", 2, "a")))
    files, log = Followed(table, **{"scan.source": "files"}), Followed(table)
    files.drain()
    table.write(rows(("+U", 1, "b")))
    log.offset, log.rows = files.offset, files.rows
    log.drain()
    assert log.rows == content(table)
    assert sorted(log.changes) == [(1, "a", "-U"), (1, "b", "+U")]


@pytest.mark.parametrize("max_rows", [None, pytest.param(15, marks=pytest.mark.long)])
def test_a_step_over_expired_commits_is_read_however_many_rows_it_has(
    new_table: NewTable, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, max_rows: int | None
) -> None:
    """What tells where it starts lies behind its changes, many chunks or even micro-batches further on."""
    monkeypatch.setattr(reading, "CHUNK_ROWS", 10)
    table = new_table()
    table.write(rows(*(("+I", key, "0") for key in range(60))))
    query = Followed(table)
    query.drain()
    table.tag("read", 1)
    with monkeypatch.context() as patch:
        patch.setattr(kafka_log, "PATIENCE_S", 0.2)
        patch.setattr(kafka_log, "ENDS_PATIENCE_S", 0.1)
        table.alter(SetOptions({"log.kafka.bootstrap.servers": "127.0.0.1:9"}))
        for number in range(1, 3):
            with pytest.raises(LogNotPublishedError):
                table.write(rows(*(("+U", key, f"{number}") for key in range(number, 60))))
    table.tag("just-before", table.history()[-2].id)
    for consumer in table.consumers():
        table.release(consumer.name)
    table.expire(keep=1)
    table.alter(SetOptions({"log.kafka.bootstrap.servers": kafka.bootstrap_servers}))
    assert table.publish_log() == 1
    query.restart()
    query.drain(max_rows)
    assert query.rows == content(table)
