"""What commits send to a table's log: every change once, whatever wrote it and whatever failed meanwhile."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.log.log_content import (
    KEYED,
    MULTISET,
    assert_log_is_the_table,
    content,
    last_by_key,
    log_of,
    new_table,
    rows,
)
from upsert.errors import ConfigurationError, LogNotPublishedError, SnapshotExpiredError
from upsert.log import kafka_log, publisher
from upsert.schema import Column, TableSchema
from upsert.store.alterations import AddColumn, SetOptions
from upsert.store.read import changes
from upsert.store.retention.expiry import CONSUMER
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

PARTITIONED = TableSchema.of(
    {"id": pa.int64(), "v": pa.string()}, primary_key=["id", "v"], partitioned_by=["v"]
)
ALL = {"log.changelog-mode": "all"}

NewTable = Callable[..., Table]


@pytest.fixture
def make(kafka: LocalKafka, tmp_path: Path) -> NewTable:
    """Makes a table with a log: `make(KEYED, **options)`."""

    def made(schema: TableSchema = KEYED, **options: str) -> Table:
        return new_table(tmp_path / "orders", kafka.bootstrap_servers, schema, **options)

    return made


@pytest.mark.parametrize(
    ("schema", "options"),
    [pytest.param(KEYED, ALL, marks=pytest.mark.long), (KEYED, {}), (MULTISET, {}), (PARTITIONED, ALL)],
    ids=["all", "upsert", "multiset", "partitions"],
)
def test_every_way_of_writing_is_in_the_log_once(
    make: NewTable, schema: TableSchema, options: dict[str, str]
) -> None:
    table = make(schema, **options)
    table.write(rows(("+I", 1, "a"), ("+I", 2, "a"), ("+I", 3, "b")))
    table.write(rows(("-U", 1, "a"), ("+U", 1, "b"), ("-D", 2, "a")), writer_id="w", transaction=1)
    table.write(rows(("+I", 9, "z")), writer_id="w", transaction=1)  # a replay
    table.commit([table.stage_raw(rows(("+I", 4, "c"), ("+I", 5, "c")))])
    table.delete([("id", "=", 4)])
    table.compact()
    if schema is PARTITIONED:
        table.drop_partition({"v": "c"})
        table.write(rows(("+I", 7, "2020-01-01"), ("+I", 8, "2020-01-02"), ("+I", 9, "z")))
        assert table.expire_partitions(older_than_s=86_400) == ("v=2020-01-01", "v=2020-01-02")
        table.alter(SetOptions({"partition.expiration-time": "1 d"}))
        table.write(rows(("+I", 7, "2020-01-03")))  # and is dropped after its commit
        assert [one.name for one in table.partitions()] == ["v=b", "v=z"]
    table.overwrite(rows(("+I", 1, "b"), ("+I", 6, "d")))
    table.overwrite(rows())
    assert_log_is_the_table(table)
    assert table.publish_log() == 0


@pytest.mark.parametrize(("schema", "options"), [(KEYED, ALL), (MULTISET, {})], ids=["all", "multiset"])
def test_a_large_commit_is_read_some_keys_at_a_time(
    make: NewTable, schema: TableSchema, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PIECE_ROWS", 7)
    read, sizes = changes.changes_between, list[int]()

    def counted(*args: Any, **kwargs: Any) -> pa.Table:
        found = read(*args, **kwargs)
        sizes.append(found.num_rows)
        return found

    monkeypatch.setattr(publisher, "changes_between", counted)
    table = make(schema, **options)
    for value in "ab":
        table.overwrite(rows(*(("+I", id, value) for id in range(30))))
    table.delete([("id", "<", 20)])
    assert max(sizes) <= 2 * 7
    assert_log_is_the_table(table)


def test_keys_are_in_the_partition_of_their_bucket(make: NewTable) -> None:
    table = make(**ALL)
    for value in "ab":
        table.write(rows(*(("+U", id, value) for id in range(30))))
    by_partition = [{message.key for message in messages} for messages, _ in log_of(table)]
    assert not by_partition[0] & by_partition[1]
    assert by_partition[0] | by_partition[1] == {f'{{"id":{id}}}'.encode() for id in range(30)}
    assert all(by_partition)


def test_rows_without_a_key_have_none_in_the_log(make: NewTable) -> None:
    table = make(MULTISET)
    table.write(rows(("+I", 1, "a"), ("+I", 1, "a")))
    messages = [message for messages, _ in log_of(table) for message in messages]
    assert [(m.kind, m.row, m.key) for m in messages] == [("+I", (1, "a"), None)] * 2


def test_a_commit_that_is_not_tracked_leaves_a_mark(make: NewTable) -> None:
    table = make(PARTITIONED, **ALL)
    table.write(rows(("+I", 1, "a")))
    table.write(rows(("+I", 2, "a")), tracked=False)
    table.write(rows(("+I", 3, "a")))
    marks = [(mark.snapshot, mark.untracked) for mark in log_of(table)[0][1]]
    assert marks == [(1, None), (2, ()), (3, None)]
    assert {message.row[0] for messages, _ in log_of(table) for message in messages} == {1, 3}


def test_of_a_commit_to_some_tracked_partitions_these_are_in_the_log(make: NewTable) -> None:
    from upsert.store.alterations import TrackPartition

    table = make(PARTITIONED, **ALL)
    table.write(rows(("+I", 1, "a")))
    table.alter(TrackPartition({"v": "b"}, False))
    table.write(rows(("+I", 2, "a"), ("+I", 2, "b")))
    assert [mark.untracked for mark in log_of(table)[1][1]] == [None, ("v=b",)]
    assert {message.row for messages, _ in log_of(table) for message in messages} == {(1, "a"), (2, "a")}


def test_snapshots_name_offsets_below_which_only_earlier_ones_lie(make: NewTable) -> None:
    table = make(**ALL)
    for number in range(6):
        table.write(rows(*(("+I", id, f"{number}") for id in range(8))))
    partitions = log_of(table)
    history = table.history()
    assert [len(info.log_offsets) for info in history].count(2) >= 6
    for info in history:
        for partition, offset in info.log_offsets.items():
            below = [m.snapshot for m in partitions[int(partition)][0] if m.offset < offset]
            assert all(snapshot < info.id for snapshot in below)
    assert table.history()[-1].log_offsets["0"] > 0, "and they follow the log"


def test_a_column_that_was_added_is_in_the_log_from_then_on(make: NewTable) -> None:
    table = make(**ALL)
    table.write(rows(("+I", 1, "a")))
    table.alter(AddColumn(Column("n", pa.int32())))
    table.write(pa.table({"id": [1], "v": ["b"], "n": pa.array([5], pa.int32())}))
    assert sorted(m.row for messages, _ in log_of(table) for m in messages if m.kind == "+U") == [(1, "b", 5)]


def unreachable(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table think that its brokers are elsewhere, where nobody answers."""
    monkeypatch.setattr(kafka_log, "ENDS_PATIENCE_S", 0.1)
    monkeypatch.setattr(kafka_log, "PATIENCE_S", 0.2)
    table.alter(SetOptions({"log.kafka.bootstrap.servers": "127.0.0.1:9"}))


def reachable(table: Table, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it know where they are."""
    monkeypatch.undo()
    table.alter(SetOptions({"log.kafka.bootstrap.servers": kafka.bootstrap_servers}))


def test_brokers_that_are_away_do_not_undo_a_commit(
    make: NewTable, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(**ALL)
    table.write(rows(("+I", 1, "a")))
    unreachable(table, monkeypatch)
    with pytest.raises(LogNotPublishedError, match="committed as snapshot 3; its log messages were not"):
        table.write(rows(("+I", 2, "a")), writer_id="w", transaction=0)
    with pytest.raises(LogNotPublishedError, match="the next commit or publish_log"):
        table.delete([("id", "=", 1)])
    assert content(table) == Counter([(2, "a")])
    assert len(table.history()) > 1, "what the log lacks has not expired"
    reachable(table, kafka, monkeypatch)
    table.write(rows(("+I", 2, "a")), writer_id="w", transaction=0)  # the writer tries again
    assert_log_is_the_table(table)


def test_changes_that_the_log_lacks_do_not_expire(
    make: NewTable, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(**ALL)
    table.write(rows(("+I", 1, "a")))
    unreachable(table, monkeypatch)
    for number in range(2):
        with pytest.raises(LogNotPublishedError):
            table.write(rows(("+U", 1, f"{number}")))
    table.expire(keep=1)
    assert table.history()[0].data_version == 1
    reachable(table, kafka, monkeypatch)
    assert table.publish_log() == 2
    assert_log_is_the_table(table)
    table.expire(keep=1)
    assert table.history()[0].data_version == 4, "and then they may"


@pytest.mark.long
def test_changes_that_expired_are_a_gap_that_is_said_and_can_be_accepted(
    make: NewTable, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(**ALL)
    table.write(rows(("+I", 1, "a")))
    unreachable(table, monkeypatch)
    for number in range(3):
        with pytest.raises(LogNotPublishedError):
            table.write(rows(("+U", 1, f"{number}")))
    table.release(CONSUMER)
    table.expire(keep=1)
    reachable(table, kafka, monkeypatch)
    with pytest.raises(SnapshotExpiredError, match="complete up to snapshot 1, the earliest that is left"):
        table.publish_log()
    assert table.publish_log(accept_gap=True) == 1
    table.write(rows(("+I", 2, "b")))
    assert [mark.untracked for mark in log_of(table)[0][1]] == [None, (), None]


def test_commits_that_expired_before_the_first_message_are_their_sum(
    make: NewTable, kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of a log that has nothing; the rows that are there are all that happened so far."""
    table = make(**ALL)
    unreachable(table, monkeypatch)
    for number in range(2):
        with pytest.raises(LogNotPublishedError):
            table.write(rows(("+U", 1, f"{number}"), ("+I", 10 + number, "x")))
    table.expire(keep=1)
    reachable(table, kafka, monkeypatch)
    assert table.publish_log() == 1
    messages = [message for messages, _ in log_of(table) for message in messages]
    assert Counter(message.row for message in messages) == content(table)
    assert {message.kind for message in messages} == {"+I"}


def test_kafka_forgetting_the_group_of_a_log_does_not_send_anything_twice(
    make: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does a week after the last commit. The newest mark in the topic tells then, or what is held."""
    table = make(**ALL)
    for number in range(3):
        table.write(rows(("+U", 1, f"{number}")))
    monkeypatch.setattr(publisher, "read_marker", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "earliest_offsets", lambda _, places: dict.fromkeys(places, 10**9))
        assert table.publish_log() == 0
    table.release(CONSUMER)
    assert table.publish_log() == 0
    table.write(rows(("+U", 2, "a")))
    assert_log_is_the_table(table)


def test_a_copy_of_a_table_cannot_write_into_its_log(make: NewTable, tmp_path: Path) -> None:
    import shutil

    table = make(**ALL)
    table.write(rows(("+I", 1, "a")))
    shutil.copytree(table.path, tmp_path / "copy")
    table.write(rows(("+I", 2, "a")))
    copy = Table.open(tmp_path / "copy")
    with pytest.raises(LogNotPublishedError, match="of another history, as if the table was copied"):
        copy.write(rows(("+I", 3, "a")))
    assert_log_is_the_table(table)


def test_only_a_table_with_a_log_publishes(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="publish_log needs a table with a log"):
        Table.create(tmp_path / "plain", KEYED).publish_log()


def test_with_eventual_changes_are_in_the_log_before_their_commit(
    make: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(**{"log.consistency": "eventual"})
    table.write(rows(("+I", 1, "a"), ("+I", 2, "b")))
    seen = list[int]()

    def refused(*_: object, **__: object) -> None:
        seen.append(sum(len(messages) for messages, _ in log_of(table)))
        raise OSError("the disk is full")

    staged = table.stage(pa.table({"id": [1], "v": [None], "_row_kind": ["-D"]}), order="rows")
    with monkeypatch.context() as patch:
        patch.setattr(table._committer, "commit", refused)
        with pytest.raises(OSError, match="the disk is full"):
            table.commit([staged])
    assert seen == [3]
    deleted = [m for messages, _ in log_of(table) for m in messages if m.kind == "-D"]
    assert [(m.snapshot, m.row) for m in deleted] == [(0, (1, "a"))], "a whole row, of no snapshot"


def test_with_eventual_a_reader_has_the_table_in_the_end(make: NewTable) -> None:
    """Two writers whose commits come in the other order than their messages, and what is no plain write."""
    table = make(**{"log.consistency": "eventual"})
    rng = random.Random(7)
    for _ in range(6):
        first, second = (
            table.stage(rows(*(("+U", rng.randrange(6), rng.choice("abc")) for _ in range(4))), order="rows")
            for _ in range(2)
        )
        table.commit([second])
        table.commit([first])
        table.delete([("id", "=", rng.randrange(6))])
    table.overwrite(rows(("+I", 1, "z"), ("+I", 7, "z")))
    assert Counter(last_by_key(table).values()) == content(table)


def test_a_name_of_a_topic_is_one_that_kafka_takes() -> None:
    assert kafka_log.new_name("größe 1")[:8] == "gr--e-1-"
    assert len(kafka_log.new_name("x" * 300)) < 249
