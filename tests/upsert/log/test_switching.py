"""A log that a table gets and gives up by ALTER TABLE: readers, writers, and kill -9 at each step."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltajoin.cli.app import app
from tests.upsert.log import log_content
from tests.upsert.log.followed import Followed, content
from tests.upsert.log.log_content import KEYED, MULTISET, log_of, rows
from tests.upsert.log.write_script import started
from tests.upsert.store.disk import KILLED
from upsert.catalog.catalog import Catalog
from upsert.errors import (
    ConfigurationError,
    KafkaUnavailableError,
    RecordsExpiredError,
    SnapshotExpiredError,
)
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.log import kafka_log
from upsert.schema import TableSchema
from upsert.store.alterations import ResetOptions, SetOptions
from upsert.store.log import publishing
from upsert.store.log.files import LogBeginning, beginnings
from upsert.store.log.lifecycle import POINTS, drop_log
from upsert.store.retention.expiry import CONSUMER
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

OFF = SetOptions({"log.system": "none"})


@pytest.fixture
def servers(kafka: LocalKafka) -> str:
    return kafka.bootstrap_servers


def on(servers: str, **options: str) -> SetOptions:
    return SetOptions({"log.system": "kafka", "log.kafka.bootstrap.servers": servers, **options})


def plain(folder: Path, schema: TableSchema = KEYED, **options: str) -> Table:
    """A table of two buckets without a log, which two commits have made."""
    table = Table.create(folder, schema, {"bucket": "2", **options})
    table.write(rows(("+I", 1, "a"), ("+I", 2, "a"), ("+I", 3, "a")))
    table.write(rows(("+I", 4, "b"), ("-D", 2, "a")))
    return table


def topic_of(table: Table) -> str:
    topic = Table.open(table.path).options.log.topic
    assert topic is not None
    return topic


def topics_like(servers: str, table: Table) -> set[str]:
    found = admin.topics(Connection({"bootstrap.servers": servers}, 60), pattern=f"{table.name}-[0-9a-f]+")
    return set(found)


def marks_of(table: Table) -> list[tuple[int, int]]:
    return [(mark.since, mark.snapshot) for mark in log_of(table)[0][1]]


@pytest.mark.parametrize(
    ("schema", "options", "changelog"),
    [
        (KEYED, {}, "all"),
        pytest.param(KEYED, {"log.consistency": "eventual"}, "upsert", marks=pytest.mark.long),
        pytest.param(KEYED, {}, "upsert", marks=pytest.mark.long),
        pytest.param(KEYED, {"log.changelog-mode": "all"}, "all", marks=pytest.mark.long),
        pytest.param(MULTISET, {}, "all", marks=pytest.mark.long),
    ],
)
def test_readers_of_any_beginning_have_the_table(
    schema: TableSchema, options: dict[str, str], changelog: str, servers: str, tmp_path: Path
) -> None:
    """Of states before the log began the files tell what has changed until then."""
    table = plain(tmp_path / "t", schema)
    read = {"changelog": changelog} if changelog == "upsert" else {}
    files = Followed(table)
    files.drain()
    table.write(rows(("+I", 7, "before")))
    table.alter(on(servers, **options))
    starts: list[dict[str, str]] = [{}, {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}, {}]
    readers = [Followed(table, **read, **start) for start in starts]
    readers[1].rows = content(table, snapshot=1)
    readers[2].offset, readers[2].rows = files.offset, files.rows
    rng = random.Random(5)
    for step in range(3):
        table.write(rows(("+I", 100 + step, "x"), ("-D", 7, "before") if step == 1 else ("+I", 20, "y")))
        for reader in readers:
            reader.drain(rng.choice([2, None]))
            reader.restart()
    for reader in readers:
        reader.drain()
        assert "log" in reader.offset
        assert reader.rows == content(table)
    assert {message.snapshot for messages, _ in log_of(table) for message in messages} <= {0, 5, 6, 7, 8, 9}
    assert marks_of(table)[0][0] == 3, "the log begins behind the last commit before it"


def test_log_that_is_off_ends_its_readers_and_its_topic(servers: str, tmp_path: Path) -> None:
    table = log_content.new_table(tmp_path / "ended", servers)
    table.write(rows(("+I", 1, "a")))
    reader = Followed(table)
    reader.drain()
    first = topic_of(table)
    table.alter(ResetOptions(("log.system",)))
    assert topics_like(servers, table) == set()
    assert table.options.log.topic is None
    assert [each.name for each in table.consumers() if each.name == CONSUMER] == []
    table.write(rows(("+U", 1, "b")))
    with pytest.raises(RecordsExpiredError, match="was turned off; begin with a new checkpoint"):
        reader.drain()
    with pytest.raises(ConfigurationError, match="the log is off: choose another checkpoint"):
        reader.restart()
    with pytest.raises(ConfigurationError, match=r"ALTER TABLE … SET \('log.system' = 'kafka'\) gives it"):
        table.publish_log()
    table.alter(OFF)  # again, which does nothing
    with pytest.raises(ConfigurationError, match="another name than the logs that the table had"):
        table.alter(on(servers, **{"log.kafka.topic": first}))
    table.alter(on(servers))
    table.write(rows(("+I", 2, "c")))
    with pytest.raises(RecordsExpiredError, match=f"the log '{first}' was turned off"):
        reader.restart()
    fresh = Followed(table)
    fresh.drain()
    table.write(rows(("-D", 1, "b")))
    fresh.drain()
    assert fresh.rows == content(table) == Counter({(2, "c"): 1})
    assert topics_like(servers, table) == {topic_of(table)} != {first}
    assert table.check() == ()


def test_time_before_the_log_is_not_looked_for_in_it(servers: str, tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t", KEYED, {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    )
    first = table.write(rows(("+I", 1, "a")))
    table.write(rows(("+U", 1, "b")))
    table.alter(on(servers))
    table.write(rows(("+U", 1, "c")))
    table.expire()
    start = {"scan.mode": "from-timestamp", "scan.timestamp-millis": str(first.info.time_ms - 1)}
    with pytest.raises((RecordsExpiredError, SnapshotExpiredError)):
        Followed(table, changelog="upsert", **start).drain()


def test_topic_of_others_is_neither_taken_nor_deleted(servers: str, tmp_path: Path) -> None:
    table, other = plain(tmp_path / "t"), log_content.new_table(tmp_path / "other", servers)
    theirs = topic_of(other)
    with pytest.raises(ConfigurationError, match="is there already; delete it, or leave"):
        table.alter(on(servers, **{"log.kafka.topic": theirs}))
    assert table.options.log.is_kafka is False
    assert beginnings(table.root, table.uuid) == ()
    table.alter(OFF)
    drop_log(table.path)
    assert theirs in topics_like(servers, other)


def test_topic_that_could_not_be_deleted_is_deleted_by_the_same_statement(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = log_content.new_table(tmp_path / "far", servers)
    table.alter(SetOptions({"log.kafka.bootstrap.servers": "127.0.0.1:9"}))
    with monkeypatch.context() as patch:
        patch.setattr(kafka_log, "DROP_PATIENCE_S", 0.3)
        with pytest.raises(KafkaUnavailableError, match=r"could not be deleted: .*; repeat ALTER TABLE"):
            table.alter(OFF)
    table.write(rows(("+I", 1, "a")))
    [left] = beginnings(table.root, table.uuid)
    LogBeginning(left.topic, state=left.state, properties={"bootstrap.servers": servers}).write(
        table.root, table.uuid
    )
    table.alter(OFF)
    assert topics_like(servers, table) == set()


def test_statements_turn_it_on_publish_what_it_lacks_and_turn_it_off(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process does that dies after its commit, none of the statements' is published by itself."""
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE parcels (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    table = catalog.table("parcels")
    table.write(rows(("+I", 1, "a")))
    with pytest.raises(ConfigurationError, match=r"needs 'log\.kafka\.bootstrap\.servers', got none"):
        catalog.sql("ALTER TABLE parcels SET ('log.system' = 'kafka')")
    catalog.sql(
        f"ALTER TABLE parcels SET ('log.system' = 'kafka', 'log.kafka.bootstrap.servers' = '{servers}')"
    )
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "after_commit", lambda *_: None)
        catalog.sql("DELETE FROM parcels WHERE id = 1")
    result = CliRunner().invoke(app, ["publish-log", "parcels", "--json", "-w", str(catalog.warehouse)])
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"commits published": 1})
    assert "the log lacked nothing" in str(catalog.sql("ALTER TABLE parcels PUBLISH LOG"))
    assert marks_of(table) == [(1, 3)]
    catalog.sql("ALTER TABLE parcels RESET ('log.system')")
    result = CliRunner().invoke(app, ["publish-log", "parcels", "-w", str(catalog.warehouse)])
    assert result.exit_code == 1
    assert "gives it one" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "point",
    [
        "switch.after-topic",
        "switch.after-off",
        *(
            pytest.param(point, marks=pytest.mark.long)
            for point in ("alter.after-definition", "publish.after-link", *POINTS)
            if point not in ("switch.after-topic", "switch.after-off")
        ),
    ],
)
def test_killed_at(point: str, servers: str, tmp_path: Path) -> None:
    """The table goes on as it is, the statement may come again, and no topic is left."""
    table = plain(tmp_path / f"at-{point}")
    begins = POINTS.index(point) < POINTS.index("switch.after-end") if point in POINTS else True
    if not begins:
        table.alter(on(servers))
    assert (
        started("switch", table.path, "on" if begins else "off", servers, failpoint=point).wait(120) == KILLED
    )
    table.write(rows(("+I", 50, "between")))
    table.alter(on(servers) if begins else OFF)
    assert len(topics_like(servers, table)) == begins
    table.write(rows(("+I", 51, "after")))
    if begins:
        assert marks_of(table)[0][0] in (2, 3)
        reader = Followed(table)
        reader.drain()
        table.write(rows(("-D", 51, "after")))
        reader.drain()
        assert reader.rows == content(table)
        table.alter(OFF)
    assert topics_like(servers, table) == set()
    assert all(found.is_information for found in table.check())


@pytest.mark.long
def test_dropped_after_a_kill_the_table_takes_its_topics_along(servers: str, tmp_path: Path) -> None:
    for point in ("switch.after-topic", "switch.after-off"):
        table = plain(tmp_path / point.replace(".", "_"))
        if point == "switch.after-off":
            table.alter(on(servers))
        how = "on" if point == "switch.after-topic" else "off"
        assert started("switch", table.path, how, servers, failpoint=point).wait(120) == KILLED
        assert len(topics_like(servers, table)) == 1
        drop_log(table.path)
        assert topics_like(servers, table) == set()
