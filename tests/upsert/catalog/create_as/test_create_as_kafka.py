"""CREATE TABLE AS into a topic: defined when its rows are sent; the topic goes if the attempt made it."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import planner
from tests.upsert.catalog.create_as.test_create_as import wait_until
from upsert import Catalog
from upsert.errors import ConfigurationError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


@pytest.fixture
def connection(kafka: LocalKafka) -> Connection:
    return Connection({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def options(kafka: LocalKafka) -> dict[str, str]:
    """Those of a table whose topic does not exist."""
    return {
        "connector": "upsert-kafka",
        "topic": f"words-{uuid4().hex[:8]}",
        "topic.partitions": "1",
        "properties.bootstrap.servers": kafka.bootstrap_servers,
        "key.format": "json",
        "value.format": "json",
    }


def words(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1), ("b", 2)], "word STRING NOT NULL, n BIGINT")


def failing(spark: SparkSession) -> DataFrame:
    return words(spark).withColumn("n", F.expr("bigint(assert_true(n < 2, 'too large'))"))


def rows(catalog: Catalog, spark: SparkSession, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in catalog.read(spark, name).collect())


def test_a_batch_makes_the_topic_and_the_table(
    catalog: Catalog, spark: SparkSession, options: dict[str, str], connection: Connection
) -> None:
    catalog.create_table_as("words", words(spark), primary_key=["word"], options=options)
    assert rows(catalog, spark, "words") == [("a", 1), ("b", 2)]
    assert options["topic"] in admin.topics(connection, [options["topic"]])


@pytest.mark.parametrize("is_there", [False, True])
def test_after_a_failure_the_topic_goes_away_only_if_the_attempt_made_it(
    catalog: Catalog, spark: SparkSession, options: dict[str, str], connection: Connection, is_there: bool
) -> None:
    if is_there:
        admin.create_topic(connection, options["topic"], 1, {"cleanup.policy": "compact"})
    with pytest.raises(Exception, match="too large"):
        catalog.create_table_as("words", failing(spark), primary_key=["word"], options=options)
    assert catalog.tables() == ()
    assert bool(admin.topics(connection, [options["topic"]])) == is_there


def test_a_missing_topic_that_nobody_may_create_is_one_clear_error(
    catalog: Catalog, spark: SparkSession, options: dict[str, str]
) -> None:
    del options["topic.partitions"]
    with pytest.raises(ConfigurationError, match="let the query do so with option"):
        catalog.create_table_as("words", words(spark), primary_key=["word"], options=options)
    assert catalog.tables() == ()


def test_a_stream_shows_its_table_with_the_first_micro_batch(
    catalog: Catalog, spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    catalog.sql("CREATE TABLE source (word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED)")
    catalog.table("source").write(pa.table({"word": ["a", "b"], "n": [1, 2]}))
    query = catalog.create_table_as(
        "words",
        catalog.read_changes(spark, "source"),
        primary_key=["word"],
        options=options,
        checkpoint=tmp_path / "checkpoint",
    )
    assert query is not None
    try:
        wait_until(lambda: "words" in catalog.tables())
        assert rows(catalog, spark, "words") == [("a", 1), ("b", 2)]
    finally:
        query.stop()
    wait_until(lambda: not _is_followed(spark, query.id))
    assert catalog.tables() == ("source", "words")


def _is_followed(spark: SparkSession, query: str) -> bool:
    return any(active.id == query for active in spark.streams.active)
