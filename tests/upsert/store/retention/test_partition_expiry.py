"""Partitions whose time is long ago are dropped: which, when, and what readers, replays and crashes see."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import tzset
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.spec import DeltaJoinSpec, Side
from tests.deltajoin.spark.steps import Steps
from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, run
from tests.upsert.store.samples import ids_of
from upsert.errors import ConfigurationError, SchemaError, UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store import Table, compactor
from upsert.store.alterations import SetOptions, TrackPartition
from upsert.store.commit.committer import Committer, Environment
from upsert.store.retention import partition_expiry
from upsert.store.retention.expiry import ExpiryWarning
from upsert.store.retention.partition_time import PartitionAge, formatter

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)
DAYS = TableSchema.of({"day": pa.date32(), "id": pa.int64()}, ["day", "id"], ["day"])
WEEK = {"partition.expiration-time": "7 d"}


@pytest.fixture(autouse=True)
def no_earlier_look() -> Iterator[None]:
    partition_expiry._looked.clear()
    yield
    partition_expiry._looked.clear()


def at(table: Table, time: datetime) -> Table:
    """The table for a process whose clock says this."""
    table._committer = Committer(table.published, Environment(now=time.timestamp))
    return table


def days(*ages: int) -> pa.Table:
    """A row in the partition of the day so many days before NOW, for each age."""
    return pa.table({"day": [NOW.date() - timedelta(age) for age in ages], "id": list(ages)})


@pytest.mark.parametrize(
    ("columns", "values", "options", "expected"),
    [
        ({"day": pa.date32()}, {"day": "2024-02-29"}, {}, datetime(2024, 2, 29)),
        ({"t": pa.timestamp("us")}, {"t": "2024-02-29 10:11:12"}, {}, datetime(2024, 2, 29, 10, 11, 12)),
        (
            {"t": pa.timestamp("us", "UTC")},
            {"t": "2024-02-29 10:11:12Z"},
            {},
            datetime(2024, 2, 29, 10, 11, 12),
        ),
        ({"d": pa.string()}, {"d": "2024-2-9"}, {}, datetime(2024, 2, 9)),
        ({"d": pa.string()}, {"d": "20240229"}, {"formatter": "yyyyMMdd"}, datetime(2024, 2, 29)),
        ({"d": pa.string()}, {"d": "29/2/24"}, {"formatter": "dd/M/yy"}, datetime(2024, 2, 29)),
        ({"d": pa.int32()}, {"d": 202402}, {"formatter": "yyyyMM"}, datetime(2024, 2, 1)),
        ({"d": pa.string()}, {"d": "day 2024'02"}, {"formatter": "'day 'yyyy''MM"}, datetime(2024, 2, 1)),
        (
            {"d": pa.date32(), "h": pa.int32()},
            {"d": "2024-02-29", "h": 7},
            {"pattern": "$d $h:00:00"},
            datetime(2024, 2, 29, 7),
        ),
        (
            {"a": pa.string(), "y": pa.int32(), "m": pa.int32()},
            {"a": "x", "y": 2024, "m": 2},
            {"pattern": "$y-$m", "formatter": "yyyy-M"},
            datetime(2024, 2, 1),
        ),
        ({"d": pa.string()}, {"d": "3/24"}, {"formatter": "M/yy"}, datetime(2024, 3, 1)),
        ({"d": pa.string()}, {"d": "3.2024"}, {"formatter": "M.y"}, datetime(2024, 3, 1)),
        ({"d": pa.string()}, {"d": "it's 2024"}, {"formatter": "'it''s 'yyyy"}, datetime(2024, 1, 1)),
        ({"d": pa.string()}, {"d": "2024-2-09"}, {"formatter": "yyyy-MM-dd"}, None),
        ({"d": pa.string()}, {"d": "2024-02-30"}, {}, None),
        ({"d": pa.string()}, {"d": "soon"}, {}, None),
        ({"d": pa.string()}, {"d": None}, {}, None),
    ],
)
def test_time_of_a_partition(
    columns: dict[str, pa.DataType],
    values: dict[str, Any],
    options: dict[str, str],
    expected: datetime | None,
) -> None:
    named = {f"partition.timestamp-{name}": value for name, value in options.items()}
    schema = TableSchema.of({**columns, "id": pa.int64()}, partitioned_by=list(columns))
    age = table_age(schema, WEEK | named)
    partition = tuple((name, None if value is None else str(value)) for name, value in values.items())
    wanted = None if expected is None else int(expected.replace(tzinfo=UTC).timestamp() * 1000)
    assert age.time_ms(partition) == wanted


def table_age(schema: TableSchema, options: dict[str, str]) -> PartitionAge:
    from upsert.store.table_options import TableOptions

    found = TableOptions.parse(options, schema).partition_age
    assert found is not None
    return found


def test_the_time_of_a_partition_is_the_same_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    age = table_age(TableSchema.of({"d": pa.date32(), "id": pa.int64()}, partitioned_by=["d"]), WEEK)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        tzset()
        found = age.time_ms((("d", "1970-01-02"),))
    tzset()
    assert found == 86_400_000


@pytest.mark.parametrize("pattern", ["", "dd", "yyyyy", "yyy", "yyyyMMMdd", "yyyy-yyyy", "yyyyQ"])
def test_formatter_that_cannot_be_read_by_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="a pattern"):
        formatter(pattern)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition.expiration-time": "0 s"}, "must be a duration above 0"),
        (
            WEEK | {"partition.timestamp-pattern": "$dya"},
            "must name partition columns, got 'dya'; did you mean 'day'",
        ),
        (
            WEEK | {"partition.timestamp-pattern": "2024"},
            "must name a partition column, as \\$day, got '2024'",
        ),
        (WEEK | {"partition.timestamp-formatter": "QQ"}, "must be a pattern like yyyyMMdd"),
    ],
)
def test_options_that_say_no_time_are_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Table.create(tmp_path / "t", DAYS, options)


def test_table_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a table with PARTITIONED BY"):
        Table.create(tmp_path / "t", TableSchema.of({"id": pa.int64()}), WEEK)
    hubs = TableSchema.of({"hub": pa.int32(), "id": pa.int64()}, partitioned_by=["hub"])
    with pytest.raises(ConfigurationError, match="partition column with a time, got 'hub' of type INT"):
        Table.create(tmp_path / "t", hubs, WEEK)
    table = Table.create(tmp_path / "t", hubs)
    with pytest.raises(ConfigurationError, match="needs an age, got none"):
        table.expire_partitions()
    with pytest.raises(ConfigurationError, match="older_than_s must be finite, got inf"):
        table.expire_partitions(older_than_s=float("inf"))


def test_commits_drop_what_has_expired_and_look_once_in_a_while(tmp_path: Path) -> None:
    table = at(Table.create(tmp_path / "t", DAYS, WEEK | {"num-sorted-run.compaction-trigger": "99"}), NOW)
    first = table.write(days(0, 6, 7, 8, 30))
    assert (first.id, ids_of(table)) == (1, [0, 6])
    assert [info.kind for info in table.history()] == ["append", "delete"]
    table.write(days(40))  # within the hour it stays
    assert ids_of(table) == [0, 6, 40]
    at(table, NOW + timedelta(hours=1)).write(days(1))
    assert ids_of(table) == [0, 1, 6]
    at(table, NOW + timedelta(days=7)).write(days(-1))
    assert ids_of(table) == [-1]


def test_age_counts_from_the_beginning_of_the_partition_and_must_be_exceeded(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", DAYS, WEEK | {"write-only": "true"})
    table.write(days(7))
    midnight = datetime(2024, 3, 1, tzinfo=UTC)
    assert at(table, midnight).expire_partitions() == ()
    assert at(table, midnight + timedelta(milliseconds=1)).expire_partitions() == ("day=2024-02-23",)
    assert at(table, midnight + timedelta(milliseconds=1)).expire_partitions() == ()


def test_the_call_may_say_another_age_and_another_format(tmp_path: Path) -> None:
    schema = TableSchema.of({"d": pa.string(), "id": pa.int64()}, ["d", "id"], ["d"])
    table = at(Table.create(tmp_path / "t", schema, {"PARTITION.timestamp-formatter": "yyyy"}), NOW)
    table.write(pa.table({"d": ["20230101", "20240229", "2020"], "id": [1, 2, 3]}))
    day = 86_400
    assert table.expire_partitions(older_than_s=2000 * day) == ()
    assert table.expire_partitions(older_than_s=2 * day) == ("d=2020",)
    found = table.expire_partitions(
        older_than_s=2 * day, timestamp_formatter="yyyyMMdd", timestamp_pattern="$d"
    )
    assert found == ("d=20230101",)
    assert ids_of(table) == [2]


def test_write_only_tables_leave_it_to_the_service(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", DAYS, WEEK | {"write-only": "true"})
    table.write(days(30))
    assert ids_of(table) == [30]
    compactor.maintain(table.path)
    assert ids_of(table) == []


def test_compaction_drops_what_has_expired(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", DAYS, {"write-only": "true"})
    table.write(days(30))
    table.alter(SetOptions(WEEK))
    table.compact()
    assert ids_of(table) == []


def test_failure_does_not_fail_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = at(Table.create(tmp_path / "t", DAYS, WEEK), NOW)

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(partition_expiry, "drop_expired", fail)
        with pytest.warns(ExpiryWarning, match="expired partitions could not be dropped — OSError"):
            table.write(days(30))
    assert ids_of(table) == [30]
    table.write(days(1))  # it looks again at once
    assert ids_of(table) == [1]


def test_readers_of_changes_see_the_rows_go_unless_they_are_not_tracked(tmp_path: Path) -> None:
    table = at(Table.create(tmp_path / "t", DAYS, {"write-only": "true"}), NOW)
    before = table.write(days(1, 30)).id
    table.expire_partitions(older_than_s=7 * 86_400)
    gone = [{"day": NOW.date() - timedelta(30), "id": 30, "_row_kind": "-D"}]
    assert table.changes(before).to_pylist() == gone
    table.write(days(30))
    table.alter(TrackPartition({"day": NOW.date() - timedelta(30)}, False))
    since = table.snapshot().id
    table.expire_partitions(older_than_s=7 * 86_400)
    assert ids_of(table) == [1]
    with pytest.raises(UntrackedChangesError):
        table.changes(since)
    assert table.changes(since, where=[("day", ">", NOW.date() - timedelta(7))]).num_rows == 0


def test_join_over_a_table_whose_partitions_expire_is_that_of_its_rows(tmp_path: Path) -> None:
    """Random histories of both tables; a silent drop would leave rows that no update takes back."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    facts = TableSchema.of({"day": pa.date32(), "id": pa.int64(), "k": pa.int64()}, ["day", "id"], ["day"])
    left = Table.create(tmp_path / "facts", facts.index("k"))
    right = Table.create(tmp_path / "names", TableSchema.of({"k": pa.int64(), "name": pa.string()}, ["k"]))
    sides = [
        Side(left.path, ("day", "id", "k"), ("k",)),
        Side(right.path, ("k", "name"), ("k",)),
    ]
    steps = Steps(DeltaJoinSpec.of("inner", *sides, shards=2))
    for step in range(12):
        age, id, key = draw.randrange(10), draw.randrange(4), draw.randrange(3)
        day = NOW.date() + timedelta(step) - timedelta(age)
        left.write(pa.table({"day": [day], "id": [id], "k": [key]}))
        right.write(pa.table({"k": [draw.randrange(3)], "name": [f"name {step}"]}))
        if draw.random() < 0.5:
            steps.run()
        at(left, NOW + timedelta(step)).expire_partitions(older_than_s=5 * 86_400)
        if draw.random() < 0.5:
            assert steps.run() == steps.truth()
    assert steps.run() == steps.truth()


POINTS = ["commit.before-manifest", "commit.after-manifest", "publish.before-link", "publish.after-link"]


def test_a_process_whose_clock_is_ahead_drops_what_has_expired_by_the_storages(tmp_path: Path) -> None:
    """The files of its commits have the storage's time, which is right."""
    now = datetime.now(UTC)
    rows = pa.table({"day": [now.date() - timedelta(age) for age in (0, 1, 9)], "id": [0, 1, 9]})
    table = at(Table.create(tmp_path / "t", DAYS, WEEK), now + timedelta(30))
    with pytest.warns(ExpiryWarning, match=r"got one that is 2\d{6} s ahead of it; partitions expire by"):
        table.write(rows)
    assert ids_of(table) == [0, 1]
    with pytest.warns(ExpiryWarning):
        assert table.expire_partitions() == ()
    right = at(Table.open(table.path), now)  # commits of others whose clock was ahead say nothing of this one
    right.write(pa.table({"day": [now.date() - timedelta(age) for age in (2, 9)], "id": [2, 9]}))
    assert ids_of(right) == [0, 1, 2]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_partitions_expire(point: str, tmp_path: Path) -> None:
    """All of them go or none; the micro-batch before is committed once, also by a replay."""
    table = Table.create(tmp_path / "t", DAYS, WEEK)

    def batch() -> None:
        writer = at(Table.open(table.path), NOW)
        writer.write(days(0, 30, 31), writer_id="query", transaction=1)

    assert run(batch, f"{point}:2") == KILLED  # the first commit is that of the rows
    assert ids_of(table) in ([0, 30, 31], [0])
    assert ids_of(table) == [0] or point != "publish.after-link"
    batch()
    again = at(Table.open(table.path), NOW)
    again.write(days(1), writer_id="query", transaction=2)
    assert ids_of(again) == [0, 1]
    again = Table.open(table.path)  # files have the time of the real clock
    again.clean(older_than_s=0)
    assert again.check(deep=True) == ()
    assert_nothing_is_left_over(again)


def test_random_lives_against_a_dict(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    for primary_key in (("hour", "hub", "id"), ()):
        schema = TableSchema.of(
            {"hour": pa.string(), "hub": pa.string(), "id": pa.int64()}, primary_key, ["hub", "hour"]
        )
        options = {
            "partition.expiration-time": "5 h",
            "partition.timestamp-pattern": "$hour",
            "partition.timestamp-formatter": "yyyyMMdd'T'HH",
            "partition.expiration-check-interval": "2 h",
            "bucket": "2",
        }
        table = Table.create(tmp_path / f"t{len(primary_key)}", schema, options)
        rows: Counter[tuple[Any, ...]] = Counter()
        looked: datetime | None = None
        followed: Counter[tuple[Any, ...]] = Counter()
        seen = 0
        for hour in range(15):
            now = NOW + timedelta(hours=hour, minutes=1)
            new = [
                (
                    f"{now - timedelta(hours=draw.randrange(9)):%Y%m%dT%H}",
                    draw.choice("ab"),
                    draw.randrange(3),
                )
                for _ in range(3)
            ]
            names = ("hour", "hub", "id")
            at(table, now).write(pa.table(dict(zip(names, map(list, zip(*new, strict=True)), strict=True))))
            rows += Counter(new)
            if primary_key:
                rows = Counter(set(rows))
            if looked is None or now >= looked + timedelta(hours=2):
                looked = now
                oldest = now - timedelta(hours=5)
                rows = Counter({row: n for row, n in rows.items() if time_of(row[0]) >= oldest})
            found = Counter(tuple(row.values()) for row in table.snapshot().scan().to_pylist())
            assert found == rows
            for row in table.changes(seen).to_pylist():
                kind = row.pop("_row_kind")
                followed[tuple(row.values())] += 1 if kind.startswith("+") else -1
            seen = table.snapshot().id
            assert +followed == rows


def time_of(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y%m%dT%H").replace(tzinfo=UTC)


def test_partition_columns_decide_what_may_expire(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="PRIMARY KEY must contain every partition column"):
        TableSchema.of({"day": pa.date32(), "id": pa.int64()}, ["id"], ["day"])
