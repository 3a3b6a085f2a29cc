"""Where the steps of a log's reader end, by what a broker answers while it ends a transaction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.upsert.log.log_content import KEYED, rows
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.records import TopicPartition
from upsert.log import planning
from upsert.log.offset import LogOffset
from upsert.log.planning import LogPlanner
from upsert.store.table import Table
from upsert.store.version import Version


class Broker:
    """A topic of two partitions, of which one has not heard yet that a transaction is committed."""

    name = "t-log"
    connection = Connection({"bootstrap.servers": "nowhere:1"})
    partitions = (TopicPartition("t-log", 0), TopicPartition("t-log", 1))

    def __init__(self) -> None:
        self.committed: Iterator[dict[int, int]] = iter([])

    def ends(self) -> dict[int, int]:
        return next(self.committed)

    def id(self) -> str | None:
        return None

    def ends_of_all(self) -> dict[int, int]:
        return {0: 4, 1: 4}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "t", KEYED)
    for key in range(3):
        table.write(rows(("+I", key, "a")))
    return table


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> LogPlanner:
    monkeypatch.setattr(planning, "published_at_least", lambda *_: 3)
    earliest = "upsert.kafka.client.admin.earliest_offsets"
    monkeypatch.setattr(earliest, lambda _, partitions: dict.fromkeys(partitions, 0))
    broker: Any = Broker()
    return LogPlanner(broker, is_eventual=False)


@pytest.mark.parametrize(("second", "reached"), [({0: 4, 1: 2}, 1), ({0: 4, 1: 4}, 3)])
def test_snapshot_counts_as_read_when_every_partition_shows_its_changes(
    planner: LogPlanner,
    table: Table,
    second: dict[int, int],
    reached: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its marker may be seen before: changes that come later would be passed over."""
    monkeypatch.setattr(planning, "SETTLE_S", 0.0)
    planner.topic.committed = iter([{0: 4, 1: 2}, second])  # type: ignore[attr-defined]
    start = LogOffset(table.uuid, Version.complete(1), {0: 2, 1: 2}, "t-log")
    end = planner.next(table, start, None, moves=True)
    assert (end.version, end.at) == (Version.complete(reached), second)


def test_who_stops_at_the_end_waits_for_what_is_being_committed(
    planner: LogPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SETTLE_S", 600.0)
    planner.topic.committed = iter([{0: 4, 1: 2}, {0: 4, 1: 2}, {0: 4, 1: 4}])  # type: ignore[attr-defined]
    planner.stop_here()
    assert planner._until == {0: 4, 1: 4}
