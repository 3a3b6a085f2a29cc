"""What streaming readers hold, called as Spark calls them: what a restart would read again, and no more."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from deltajoin import DeltaJoinSpec, Side
from deltajoin.spark.source import ChangesReader as JoinReader
from deltajoin.spark.source import SourceOptions
from planner.views import moves
from tests.object_store import ObjectStore
from upsert.errors import ConfigurationError, SnapshotExpiredError
from upsert.managed import stepping
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader, SnapshotReader
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table, Version
from upsert.store.storage.base import RefusedError
from upsert.store.storage.s3 import S3Client
from upsert.views.hidden_tables import release

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])
ALL = ReadAllAvailable()
DAY_S = 86_400.0


def write(table: Table, *ids: int, value: int = 0) -> int:
    return table.write(pa.table({"id": ids, "value": [value] * len(ids)})).id


@pytest.fixture(autouse=True)
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds follow at once."""
    monkeypatch.setattr(stepping, "PACE_S", 0.0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three states."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    for value in range(3):
        write(table, 1, 2, 3, 4, value=value)
    return table


def reader_of(table: Table, **options: str) -> ChangesReader:
    given = {key.replace("_", "."): value for key, value in options.items()}
    given = {{"consumer.id": "consumer-id"}.get(key, key): value for key, value in given.items()}
    parsed = ReadOptions.parse({"path": table.path, **given})
    return ChangesReader(parsed, spark_schema(table.schema, row_kind=True))


def held(table: Table) -> list[Version]:
    return [consumer.version for consumer in table.consumers()]


class Query:
    """A streaming query over one reader, and what Spark's two logs say of it."""

    def __init__(self, reader: Any, logged: list[Any] | None = None) -> None:
        self.reader = reader
        self.logged = logged or []

    def plan(self, limit: ReadLimit = ALL) -> bool:
        """Plan the next micro-batch as Spark does: choose its end, log it, tell of the one before."""
        start = self.logged[-1] if self.logged else self.reader.initialOffset()
        end = self.reader.latestOffset(start, limit)
        if end == start:
            return False
        self.logged.append(end)
        if len(self.logged) > 1:
            self.reader.commit(self.logged[-2])
        return True

    def replay(self, reader: Any) -> Any:
        """The last micro-batch again, in a new process: all of its changes."""
        start = self.logged[-2] if len(self.logged) > 1 else reader.initialOffset()
        partitions = reader.partitions(start, self.logged[-1])
        return pa.Table.from_batches([b for p in partitions for b in reader.read(p)])


def test_a_first_load_is_held_before_it_is_logged_and_until_the_next_one_is(table: Table) -> None:
    query = Query(reader_of(table))
    assert query.plan(ReadMaxRows(2))
    (version,) = held(table)
    assert (version.base, version.target) == (0, 3)
    write(table, 5)
    table.expire(keep=1)
    assert query.replay(reader_of(table)).num_rows > 0
    while query.plan(ReadMaxRows(2)):
        pass
    assert query.logged[-1]["version"]["target"] == 4


def test_what_is_held_follows_one_micro_batch_behind(table: Table) -> None:
    query = Query(reader_of(table))
    for number in range(4, 8):
        query.plan()
        write(table, number)
    told = Version.from_json(query.logged[-2]["version"])
    assert held(table) == [told]
    assert query.replay(reader_of(table)).num_rows == 1


def test_a_query_that_stands_still_loses_nothing_however_much_expires(table: Table) -> None:
    query = Query(reader_of(table))
    query.plan()
    for value in range(10, 15):
        write(table, 1, value=value)
        table.expire(keep=1)
    assert query.plan()
    assert query.replay(reader_of(table))["value"].to_pylist() == [2, 14]


def test_a_restart_is_the_same_consumer_and_the_checkpoint_says_so(table: Table) -> None:
    query = Query(reader_of(table))
    query.plan()
    write(table, 9)
    again = Query(reader_of(table), query.logged)
    again.plan()
    assert len({offset["consumer"] for offset in again.logged}) == len(table.consumers()) == 1


def test_a_named_consumer_is_in_no_offset(table: Table) -> None:
    query = Query(reader_of(table, consumer_id="dashboard"))
    query.plan()
    assert "consumer" not in query.logged[0]
    assert [consumer.name for consumer in table.consumers()] == ["dashboard"]


def test_without_a_lease_nothing_is_held(table: Table) -> None:
    query = Query(reader_of(table, consumer_lease="0 s"))
    query.plan()
    assert table.consumers() == ()
    assert not os.path.exists(os.path.join(table.path, "consumer"))


def test_a_reader_that_comes_back_too_late_is_told_what_is_left_and_what_to_do(table: Table) -> None:
    query = Query(reader_of(table, consumer_id="nightly"))
    query.plan()
    table.release("nightly")
    write(table, 8)
    table.expire(keep=1)
    expected = (
        r"consumer 'nightly' of table 't' must come back within its lease of 259200 s, it has lapsed or was "
        r"released: .*snapshot 3 has expired; the earliest that is left is 4 of 20.*load again with a new"
    )
    with pytest.raises(SnapshotExpiredError, match=expected):
        Query(reader_of(table, consumer_id="nightly"), query.logged).plan()


def test_a_stream_from_now_on_holds_where_it_began(table: Table) -> None:
    query = Query(reader_of(table, scan_mode="latest"))
    query.plan()
    write(table, 8)
    write(table, 9)
    table.expire(keep=1)
    assert query.plan()
    assert sorted(query.replay(reader_of(table))["id"].to_pylist()) == [8, 9]


def test_a_stream_begins_at_a_tag_whose_neighbours_have_expired(table: Table) -> None:
    table.tag("monday", 2)
    write(table, 9)
    table.expire(keep=1)
    options = {"scan.mode": "from-snapshot", "scan.tag-name": "monday"}
    query = Query(reader_of(table, **options))
    query.plan()
    query.plan()
    changed = query.replay(reader_of(table))
    assert changed.num_rows == 9
    with pytest.raises(ConfigurationError, match="reads on from"):
        table.delete_tag("monday")


def test_what_a_step_from_a_tag_leads_to_is_held_while_it_is_under_way(table: Table) -> None:
    """The tag keeps the beginning, and holds nothing that follows."""
    table.tag("monday", 2)
    write(table, 9)
    table.expire(keep=1)
    query = Query(reader_of(table, **{"scan.mode": "from-snapshot", "scan.tag-name": "monday"}))
    query.plan()
    query.plan()
    for value in range(10, 13):
        write(table, 1, value=value)
        table.expire(keep=1)
    assert query.replay(reader_of(table)).num_rows == 9
    assert query.plan()


def test_a_query_that_dies_before_its_second_step_is_logged_finds_where_the_first_one_ended(
    table: Table,
) -> None:
    query = Query(reader_of(table))
    query.plan()
    write(table, 9)
    query.reader.latestOffset(query.logged[-1], ALL)
    table.expire(keep=1)
    again = Query(reader_of(table), query.logged)
    assert again.plan()
    assert again.replay(reader_of(table))["id"].to_pylist() == [9]


def test_a_batch_reads_a_tag(table: Table) -> None:
    table.tag("monday", 2)
    table.expire(keep=1)
    path = {"path": table.path, "scan.mode": "from-snapshot", "scan.tag-name": "monday"}
    reader = SnapshotReader(ReadOptions.parse(path), spark_schema(table.schema, row_kind=True))
    values = [b["value"].to_pylist() for p in reader.partitions() for b in reader.read(p)]
    assert values == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan.tag-name": "x"}, "'scan.tag-name' needs 'scan.mode' = 'from-snapshot'"),
        ({"scan.mode": "from-snapshot"}, "needs the option 'scan.snapshot-id' or 'scan.tag-name'"),
        (
            {"scan.mode": "from-snapshot", "scan.tag-name": "x", "scan.snapshot-id": "1"},
            "needs the option 'scan.snapshot-id' or 'scan.tag-name', got both",
        ),
        ({"consumer-id": "a/b"}, "consumer: a name must be"),
        ({"consumer-id": "a", "consumer.lease": "0"}, "needs a lease"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ReadOptions.parse({"path": "/t", **options})


def test_a_batch_is_no_consumer(table: Table) -> None:
    options = ReadOptions.parse({"path": table.path, "consumer-id": "x"})
    with pytest.raises(ConfigurationError, match="'consumer-id' must go with a stream"):
        SnapshotReader(options, spark_schema(table.schema, row_kind=True))


def test_a_hold_is_written_when_the_place_changes_or_half_of_the_lease_is_over(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written = [0.0], []
    original = Table.hold
    monkeypatch.setattr(Table, "hold", lambda self, *args: written.append(args) or original(self, *args))
    own = stepping.Holding("reader", int(DAY_S * 1000), now=lambda: clock[0])
    for now in (0, 1, DAY_S / 2 - 1, DAY_S / 2, DAY_S / 2 + 1):
        clock[0] = now
        own.keep("reader", [table], [Version.complete(2)])
    assert len(written) == 2
    own.tell("reader", [table], [Version.complete(3)])
    own.keep("reader", [table], [Version.complete(3)])
    assert len(written) == 3


def test_an_earlier_place_is_held_for_a_second_in_place_of_a_later_one_but_never_the_reverse(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "PACE_S", 1.0)
    clock = [0.0]
    own = stepping.Holding("reader", int(DAY_S * 1000), now=lambda: clock[0])
    for now, told, found in ((0.0, 2, 2), (0.5, 3, 2), (0.9, 1, 1), (1.8, 3, 1), (2.0, 3, 3)):
        clock[0] = now
        own.tell("reader", [table], [Version.complete(told)])
        assert held(table) == [Version.complete(found)]
    own.tell("other", [table], [Version.complete(3)])
    assert len(held(table)) == 2, "another consumer waits for nothing"


def test_in_an_object_store_a_hold_follows_ten_seconds_later(s3: ObjectStore) -> None:
    """It is nine requests, and each micro-batch wrote one."""
    table = Table.create(s3.folder(), SCHEMA, {"write-only": "true"})
    for value in range(3):
        write(table, 1, value=value)
    clock = [0.0]
    own = stepping.Holding("reader", int(DAY_S * 1000), now=lambda: clock[0])
    for now, told, found in ((0.0, 1, 1), (5.0, 2, 1), (9.9, 3, 1), (10.0, 3, 3)):
        clock[0] = now
        own.tell("reader", [table], [Version.complete(told)])
        assert held(table) == [Version.complete(found)]


def test_who_may_only_read_an_object_store_is_told_how_a_stream_holds_nothing(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view passes over what it cannot hold, as on a disk."""
    table = Table.create(s3.folder(), SCHEMA)
    write(table, 1)
    table.hold("reader", Version.complete(1))

    def refused(_: S3Client, path: str, *rest: object) -> None:
        raise RefusedError(errno.EACCES, "the server must allow what is asked, got AccessDenied", path)

    for name in ("put", "delete"):
        monkeypatch.setattr(S3Client, name, refused)
    with pytest.raises(ConfigurationError, match=r"got AccessDenied.*'consumer\.lease' = '0 s'"):
        stepping.Holding("other", 60_000).tell("other", [table], [Version.complete(1)])
    release([table.path], "reader".__eq__)
    assert held(table) == [Version.complete(1)]
    assert moves._is_held({table.uuid: table}, {table.uuid: 1}, "view")


def test_a_table_that_is_read_twice_is_held_from_the_earlier_place_on(table: Table) -> None:
    own = stepping.Holding("reader", 60_000)
    own.keep("reader", [table, table], [Version.complete(3), Version(2, 3, (0, 5))])
    assert held(table) == [Version(2, 3, (0, 5))]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[tuple[Table, Table, DeltaJoinSpec]]:
    orders = Table.create(tmp_path / "orders", SCHEMA.index("value"), {"write-only": "true"})
    names = Table.create(tmp_path / "names", SCHEMA, {"write-only": "true"})
    write(orders, 1, 2, value=7)
    write(names, 7)
    spec = DeltaJoinSpec.of(
        "inner", Side(orders.path, ("id", "value"), ("value",)), Side(names.path, ("id", "value"), ("id",))
    )
    return orders, names, spec


def test_a_join_holds_each_of_its_tables_where_it_stands(joined: tuple[Table, Table, DeltaJoinSpec]) -> None:
    orders, names, spec = joined

    def reader() -> JoinReader:
        return JoinReader(SourceOptions(spec, gives_joined=False))

    query = Query(reader())
    query.plan()
    for number in range(3, 7):
        write(orders, number, value=7)
        query.plan()
    for table in joined[:2]:
        table.expire(keep=1)
    assert held(names) == [Version.complete(1)]
    assert held(orders) == [Version.complete(4)]
    again = Query(reader(), query.logged)
    partitions = again.reader.partitions(query.logged[-2], query.logged[-1])
    assert partitions
    consumers = {table.consumers()[0].name for table in joined[:2]}
    assert consumers == {query.logged[-1]["consumer"]}


def test_a_join_that_begins_where_another_has_got_to_is_a_consumer_of_its_own(
    joined: tuple[Table, Table, DeltaJoinSpec],
) -> None:
    orders, names, spec = joined
    first = Query(JoinReader(SourceOptions(spec, gives_joined=False)))
    first.plan()
    second = Query(JoinReader(SourceOptions(spec, gives_joined=False, start=first.logged[-1])))
    assert second.plan()  # an empty micro-batch, by which the checkpoint has the consumer
    assert second.logged[0]["versions"] == first.logged[-1]["versions"]
    assert not second.plan()
    assert len(orders.consumers()) == len(names.consumers()) == 2
