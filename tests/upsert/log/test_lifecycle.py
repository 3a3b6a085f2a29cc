"""A log comes and goes with its table: created, described, altered, written by Spark, and dropped."""

import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.upsert.log.log_content import assert_log_is_the_table
from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, TableExistsError
from upsert.kafka.client import admin
from upsert.kafka.client.admin import settings
from upsert.kafka.client.connection import Connection
from upsert.log import kafka_log
from upsert.store.alterations import SetOptions
from upsert.store.commit.append import LeftoverWarning
from upsert.store.metadata import table_file
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka


@pytest.fixture
def catalog(kafka: LocalKafka, tmp_path: Path) -> Catalog:
    """A catalog whose tables have logs."""
    catalog = Catalog(tmp_path / "warehouse")
    catalog.options["table-storage.log.system"] = "kafka"
    catalog.options["table-storage.log.kafka.bootstrap.servers"] = kafka.bootstrap_servers
    catalog.options["table-storage.log.kafka.client.id"] = "the-test"
    return catalog


@pytest.fixture
def connection(kafka: LocalKafka) -> Connection:
    return Connection({"bootstrap.servers": kafka.bootstrap_servers}, patience_s=60)


def topics_of(connection: Connection, table: str) -> dict[str, int]:
    found = admin.topics(connection, pattern=f"{table}-[0-9a-f]+")
    return {name: info.partitions for name, info in found.items()}


RUN = uuid.uuid4().hex[:8]


def name(table: str) -> str:
    """The name of a table of this run: a broker may have topics of others."""
    return f"{table}_{RUN}"


CREATE = (
    "CREATE TABLE {} (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '3', "
    "'log.retention' = '1 d')"
)


def wait_for_retention(connection: Connection, topic: str, expected: str) -> None:
    """A broker shows a changed setting a moment after it was accepted."""
    given_up = time.monotonic() + 60
    while (shown := settings(connection, topic)["retention.ms"]) != expected:
        assert time.monotonic() < given_up, shown


def test_the_topic_is_created_described_altered_and_dropped(catalog: Catalog, connection: Connection) -> None:
    catalog.sql(CREATE.format(name("lived")))
    [(topic, partitions)] = topics_of(connection, name("lived")).items()
    assert partitions == 3
    wait_for_retention(connection, topic, "86400000")
    [told] = catalog.sql(f"DESCRIBE TABLE EXTENDED {name('lived')}").rows.to_pylist()
    assert (told["log.system"], told["log.kafka.topic"], told["log.retention"]) == (
        "kafka",
        topic,
        "86400000 ms",
    )
    assert dict(told["log.kafka.bootstrap.servers"]) == {"bootstrap.servers": connection.bootstrap_servers}
    catalog.sql(f"ALTER TABLE {name('lived')} SET ('log.retention' = '2 d')")
    wait_for_retention(connection, topic, "172800000")
    catalog.sql(f"DROP TABLE {name('lived')}")
    assert topics_of(connection, name("lived")) == {}


def test_a_database_goes_with_the_topics_of_its_tables(catalog: Catalog, connection: Connection) -> None:
    catalog.sql(f"CREATE DATABASE {name('shop')}")
    catalog.sql(CREATE.format(f"{name('shop')}.{name('sold')}"))
    assert len(topics_of(connection, name("sold"))) == 1
    catalog.sql(f"DROP DATABASE {name('shop')} CASCADE")
    assert topics_of(connection, name("sold")) == {}


def test_a_table_that_could_not_be_created_leaves_no_topic(
    catalog: Catalog, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(table_file, "put_if_absent", full)
        with pytest.raises(OSError, match="the disk is full"):
            catalog.sql(CREATE.format(name("unborn")))
    with pytest.raises(ConfigurationError, match="'eventual' needs"):
        catalog.sql(f"CREATE TABLE {name('unborn')} (id BIGINT) WITH ('log.consistency' = 'eventual')")
    assert topics_of(connection, name("unborn")) == {}
    catalog.sql(CREATE.format(name("unborn")))
    with pytest.raises(TableExistsError):
        catalog.sql(CREATE.format(name("unborn")))
    assert len(topics_of(connection, name("unborn"))) == 1


def test_a_topic_that_is_there_is_nobody_s_log(catalog: Catalog, connection: Connection) -> None:
    catalog.sql(CREATE.format(name("owner")))
    [topic] = topics_of(connection, name("owner"))
    with pytest.raises(ConfigurationError, match="is there already; delete it, or leave"):
        catalog.sql(f"CREATE TABLE thief (id BIGINT) WITH ('log.kafka.topic' = '{topic}')")
    assert catalog.tables() == (name("owner"),)


def test_a_topic_that_could_not_be_deleted_goes_later(
    catalog: Catalog, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.sql(CREATE.format(name("left")))
    servers = connection.bootstrap_servers
    catalog.sql(f"ALTER TABLE {name('left')} SET ('log.kafka.bootstrap.servers' = '127.0.0.1:9')")
    with monkeypatch.context() as patch:
        patch.setattr(kafka_log, "DROP_PATIENCE_S", 0.3)
        with pytest.warns(LeftoverWarning, match="its log could not be"):
            catalog.sql(f"DROP TABLE {name('left')}")
    assert catalog.tables() == ()
    assert len(topics_of(connection, name("left"))) == 1
    [dropped] = Path(catalog.warehouse).glob(".dropped-*")
    Table.open(dropped).alter(SetOptions({"log.kafka.bootstrap.servers": servers}))
    catalog.sql(CREATE.format(name("next")))
    catalog.sql(f"DROP TABLE {name('next')}")
    assert topics_of(connection, name("left")) == topics_of(connection, name("next")) == {}
    assert list(Path(catalog.warehouse).glob(".dropped-*")) == []


@pytest.mark.spark
def test_what_spark_writes_is_in_the_log(
    catalog: Catalog, connection: Connection, spark: SparkSession
) -> None:
    """A table from a query has a log of its own, and so has the one that takes its place."""
    squares = name("squares")
    catalog.sql(f"CREATE TABLE {squares} AS SELECT id, id * id AS square FROM range(20)", spark)
    assert_log_is_the_table(catalog.table(squares))
    first = topics_of(connection, squares)
    options = catalog.options.table_defaults()
    catalog.create_table_as(squares, spark.range(3), primary_key=["id"], options=options, or_replace=True)
    catalog.sql(f"DELETE FROM {squares} WHERE id = 2")
    assert_log_is_the_table(catalog.table(squares))
    assert len(topics_of(connection, squares)) == 1
    assert not topics_of(connection, squares).keys() & first.keys()
