"""kill -9 at each step of sending to a log, and several processes that send: no hole, and nothing twice."""

from collections import Counter
from pathlib import Path

import pytest

from tests.upsert.log.log_content import (
    KEYED,
    assert_log_is_the_table,
    content,
    last_by_key,
    new_table,
)
from tests.upsert.log.write_script import started, write
from tests.upsert.store.disk import KILLED
from upsert.errors import TableNotFoundError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.log.publisher import POINTS
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

OF_PUBLISHING = [point for point in POINTS if point.startswith("log.")]
ALL = {"log.changelog-mode": "all"}


@pytest.mark.parametrize(
    "point",
    [
        "publish.after-sync",
        "transaction.after-marker",
        # a fork is killed there by test_publisher_that_is_killed_leaves_neither_gap_nor_double
        pytest.param("log.after-transaction", marks=pytest.mark.long),
        pytest.param("log.after-marks", marks=pytest.mark.long),
        pytest.param("log.before-transaction", marks=pytest.mark.long),
        pytest.param("log.after-bucket", marks=pytest.mark.long),
        pytest.param("log.after-hold", marks=pytest.mark.long),
    ],
)
def test_killed_at(point: str, kafka: LocalKafka, tmp_path: Path) -> None:
    """In the second commit of a writer, which then comes again and replays it; another one commits first."""
    table = new_table(tmp_path / "t", kafka.bootstrap_servers, KEYED, **ALL)
    nth = 3 if point == "log.after-bucket" else 2  # the first of two buckets of the second commit
    assert started("write", table.path, "query", 1, 3, failpoint=f"{point}:{nth}").wait(120) == KILLED
    table.delete([("id", "=", 2)])
    assert_log_is_the_table(table)
    write(table.path, "query", "1", "3")
    assert_log_is_the_table(table)


@pytest.mark.parametrize(
    ("where", "commits"),
    [
        ("elsewhere", 2),
        pytest.param("elsewhere", 20, marks=pytest.mark.long),
        pytest.param("write", 30, marks=pytest.mark.long),
    ],
)
def test_processes_that_publish_at_once(where: str, commits: int, kafka: LocalKafka, tmp_path: Path) -> None:
    """They wait for each other, or, on different hosts, lock each other out."""
    table = new_table(tmp_path / "t", kafka.bootstrap_servers, KEYED, **ALL)
    children = [started(where, table.path, name, 1, commits) for name in ("one", "other")]
    assert [child.wait(300) for child in children] == [0, 0]
    assert len(table.history()) >= 2 * commits
    assert_log_is_the_table(table)


@pytest.mark.long
@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("point", OF_PUBLISHING)
def test_killed_again_and_again(point: str, nth: int, kafka: LocalKafka, tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", kafka.bootstrap_servers, KEYED, **ALL)
    ended = list[int]()
    for _ in range(4):
        children = [
            started("write", table.path, name, 1, 7, failpoint=f"{point}:{nth + number}")
            for number, name in enumerate(("one", "other"))
        ]
        ended += [child.wait(300) for child in children]
    assert KILLED in ended
    assert set(ended) <= {0, KILLED}
    table.publish_log()
    assert_log_is_the_table(table)


@pytest.mark.long
def test_an_announcement_that_was_killed_is_made_again(kafka: LocalKafka, tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", kafka.bootstrap_servers, KEYED, **{"log.consistency": "eventual"})
    assert (
        started("write", table.path, "query", 1, 3, failpoint="commit.after-announcement:2").wait(120)
        == KILLED
    )
    write(table.path, "query", "1", "3")
    assert Counter(last_by_key(table).values()) == content(table)


def test_a_table_whose_creation_was_killed_leaves_nothing_but_an_empty_topic(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    path, topic = tmp_path / "t", f"killed-{tmp_path.name}"
    creation = started("create", path, kafka.bootstrap_servers, topic, failpoint="create.after-log")
    assert creation.wait(120) == KILLED
    with pytest.raises(TableNotFoundError):
        Table.open(path)
    table = new_table(path, kafka.bootstrap_servers)
    write(table.path, "query", "1", "1")
    assert_log_is_the_table(table)
    admin.delete_topic(Connection(table.options.log.properties), topic)
