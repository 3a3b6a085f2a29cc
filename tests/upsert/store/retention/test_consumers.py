"""Consumers: what a lease holds, until when, and what is said when it is over."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.upsert.store.commit.races import beside_an_expiry
from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import CommitConflictError, ConfigurationError, CorruptTableError, SnapshotExpiredError
from upsert.schema import TableSchema
from upsert.store import Table, Version
from upsert.store.commit.committer import Committer, Environment
from upsert.store.retention import consumers, expiry
from upsert.store.retention.consumers import hold
from upsert.store.retention.lock import lifetime_lock
from upsert.store.retention.policy import Retention

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])


def write(table: Table, value: int) -> None:
    table.write(pa.table({"id": [1], "value": [value]}))


def kept(table: Table) -> list[int]:
    return [info.data_version for info in table.history() if info.changes_rows]


def expire_at(table: Table, now_s: float, keep: int = 1) -> int:
    committer = Committer(table.published, Environment(now=lambda: now_s))
    return expiry.expire(committer, Retention(), keep=keep)


@pytest.fixture
def start_s() -> float:
    """When leases begin: they are over by now, and the table's snapshots are not far ahead of it."""
    return time.time() - 3_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Ten states, of which 3 is the third; nothing is compacted."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    for value in range(1, 11):
        write(table, value)
    return table


def test_expiry_stops_at_what_a_consumer_holds(table: Table) -> None:
    """Consumer at 3 of 10, one is to stay: the earliest stays 3."""
    table.hold("reader", Version.complete(3))
    table.hold("other", Version.complete(7))
    assert table.expire(keep=1) == 2
    assert kept(table) == list(range(3, 11))
    assert table.changes(3).num_rows == 2
    table.release("reader")
    table.expire(keep=1)
    assert kept(table) == list(range(7, 11))
    assert_nothing_is_left_over(table)


def test_a_consumer_that_goes_on_holds_the_new_place_only(table: Table) -> None:
    table.hold("reader", Version.complete(3))
    table.hold("reader", Version(4, 6, (0, 7)))
    table.expire(keep=1)
    assert kept(table) == list(range(4, 11))
    (consumer,) = table.consumers()
    assert (consumer.name, consumer.version) == ("reader", Version(4, 6, (0, 7)))
    assert consumer.until_ms - consumer.renewed_ms == consumers.DEFAULT_LEASE_S * 1000


def test_a_first_load_under_way_holds_its_target(table: Table) -> None:
    table.hold("reader", Version(0, 5, (0, 7)))
    table.expire(keep=1)
    assert kept(table) == list(range(5, 11))
    table.hold("idle", Version.EMPTY)
    table.release("reader")
    table.expire(keep=1)
    assert kept(table) == []
    assert table.snapshot().info.data_version == 10


def test_what_a_lease_held_goes_when_the_lease_is_over_and_the_lease_with_it(
    table: Table, start_s: float
) -> None:
    hold(table.published, "reader", Version.complete(3), lease_s=60, now_s=start_s)
    assert expire_at(table, start_s + 60) == 2
    assert [violation.rule for violation in table.check()] == ["lease_goes_on"]
    assert expire_at(table, start_s + 61) > 0
    assert table.consumers() == ()


def test_whoever_comes_back_in_time_or_finds_its_base_goes_on(table: Table, start_s: float) -> None:
    hold(table.published, "reader", Version.complete(3), lease_s=60, now_s=start_s)
    expire_at(table, start_s + 1)
    hold(table.published, "reader", Version.complete(3), lease_s=60, now_s=start_s + 1_000)
    assert expire_at(table, start_s + 1_001) == 0


def test_whoever_comes_back_too_late_is_told_what_is_left(table: Table, start_s: float) -> None:
    hold(table.published, "reader", Version.complete(3), lease_s=60, now_s=start_s)
    expire_at(table, start_s + 1_000)
    expected = "snapshot 3 has expired; the earliest that is left is 10 of 20"
    with pytest.raises(SnapshotExpiredError, match=expected):
        table.hold("reader", Version.complete(3))
    assert table.consumers() == ()


def test_a_hold_of_an_expired_state_that_compaction_stands_for_is_one_of_that_state(table: Table) -> None:
    table.compact()
    table.expire(keep=1)
    table.hold("reader", Version.complete(10))
    for value in range(11, 15):
        write(table, value)
    table.expire(keep=1)
    assert table.changes(10).num_rows == 2


def test_a_consumer_that_reads_on_from_a_tag_does_not_stop_expiry(table: Table) -> None:
    """The tag keeps what it needs; of what has followed there is nothing left to keep."""
    table.tag("third", 3)
    table.expire(keep=3)
    table.hold("reader", Version.complete(3))
    table.expire(keep=1)
    assert kept(table) == []
    assert table.changes(3).num_rows == 2


def test_wrong_holds_are_refused(table: Table) -> None:
    for lease in (0, float("inf"), float("nan"), 1e306, 1e12):
        with pytest.raises(ConfigurationError, match="0 s and no longer than 1000 years, got") as refused:
            table.hold("reader", Version.complete(3), lease)
        assert f"got {lease}; a tag" in str(refused.value)
    with pytest.raises(ConfigurationError, match="consumer: a name must be of 1 to 100 letters"):
        table.hold("a/b", Version.complete(3))
    with pytest.raises(ConfigurationError, match="must be between 0 and the latest"):
        table.hold("reader", Version.complete(11))
    with pytest.raises(ConfigurationError, match="where it reads on must be a Version, got 3; write"):
        table.hold("reader", 3)  # type: ignore[arg-type]
    assert table.release("nobody") is False
    assert table.consumers() == ()


def test_a_damaged_consumer_stops_expiry_before_anything_is_deleted(table: Table) -> None:
    table.hold("reader", Version.complete(3))
    path = Path(table.path, "consumer", "consumer-reader")
    value = json.loads(path.read_bytes())
    value.pop("checksum")  # as if an older release had written it
    for damaged in ("", json.dumps({**value, "until_ms": "soon"}), json.dumps({**value, "until_ms": -1})):
        path.write_text(damaged)
        with pytest.raises(CorruptTableError, match="consumer-reader"):
            table.expire(keep=1)
    assert kept(table) == list(range(1, 11))


def test_a_lock_that_nobody_lets_go_of_is_an_error_and_no_endless_wait(table: Table) -> None:
    with (
        lifetime_lock(table.published),
        pytest.raises(CommitConflictError, match="another process holds it for 0 s"),
        lifetime_lock(table.published, give_up_after_s=0),
    ):
        pass


def test_no_hold_that_was_given_is_broken_by_an_expiry_at_the_same_moment(table: Table) -> None:
    for number in range(30):
        newest = table.snapshot().info.data_version
        write(table, number)
        write(table, number + 1)
        with beside_an_expiry(table):
            try:
                table.hold("reader", Version.complete(newest))
                is_held = True
            except SnapshotExpiredError:
                is_held = False
        if is_held:
            assert table.snapshot(newest).info.data_version == newest
        table.release("reader")


def test_a_table_without_consumers_costs_an_expiry_nothing(table: Table) -> None:
    table.expire(keep=1)
    assert not os.path.exists(os.path.join(table.path, "consumer"))
