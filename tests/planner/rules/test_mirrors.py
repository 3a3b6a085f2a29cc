"""A topic that takes part in a join is joined through its mirror: through a real broker."""

import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.sql import SparkSession

import planner
from tests.helpers import multiset
from upsert import Catalog
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"users-{uuid.uuid4().hex[:8]}"
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    create_topic(connection, name, 1, {"cleanup.policy": "compact"})
    return name


@pytest.fixture
def catalog(kafka: LocalKafka, topic: str, tmp_path: Path) -> Catalog:
    """With the topic as the table `users`."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE users (name STRING, region STRING, PRIMARY KEY (name) NOT ENFORCED, INDEX (region)) "
        f"WITH ('connector' = 'upsert-kafka', 'topic' = '{topic}', 'key.format' = 'raw', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'value.format' = 'raw', "
        "'value.fields-include' = 'EXCEPT_KEY')"
    )
    return catalog


def send(kafka: LocalKafka, topic: str, **users: str | None) -> None:
    """Regions of users; None: the user is gone."""
    keys = [name.encode() for name in users]
    values = [region and region.encode() for region in users.values()]
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    produce(
        connection,
        topic,
        [pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})],
    )


def test_join_with_a_topic_and_its_maxima_run_over_its_mirror(
    spark: SparkSession, kafka: LocalKafka, catalog: Catalog, topic: str, tmp_path: Path
) -> None:
    """A maximum falls back to the one before, which no sum of signs could know."""
    catalog.sql("CREATE TABLE views (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (name))")
    catalog.sql("CREATE TABLE seen (id BIGINT, region STRING, PRIMARY KEY (id) NOT ENFORCED)")
    views = catalog.read_changes(spark, "views")
    users = catalog.read_changes(spark, "users")
    joined = views.join(users, "name", "left").select("id", "region")
    (refused,) = planner.explain(joined).joins
    assert refused.remedy == "mirror the topic in a managed table: start catalog.mirror(spark, 'users')"

    (unmade,) = planner.explain(users.groupBy("region").agg(F.max("name"))).aggregates
    assert (unmade.form, unmade.remedy) == ("refused", refused.remedy)

    send(kafka, topic, ann="Berlin", bob="Rome", zoe="Berlin")
    mirror = catalog.mirror(spark, "users")
    mirror.processAllAvailable()
    users = catalog.read_changes(spark, "users", max_rows_per_trigger=10)
    joined = views.join(users, "name", "left").select("id", "region")
    explained = planner.explain(joined)
    assert [report.form for report in explained.joins] == ["fused"]
    assert f"topic {topic}: the changes of its mirror, a managed table" in str(explained)
    catalog.table("views").write(pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "cy"]}))
    checkpoint = str(tmp_path / "checkpoint")
    query = catalog.write_changes(joined, "seen").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    catalog.sql(
        "CREATE TABLE lasts (region STRING, last STRING, n BIGINT, PRIMARY KEY (region) NOT ENFORCED)"
    )
    lasts = users.groupBy("region").agg(F.max("name").alias("last"), F.count_distinct("name").alias("n"))
    assert [report.form for report in planner.explain(lasts).aggregates] == ["lookups"]
    checkpoint = str(tmp_path / "checkpoint of lasts")
    maxima = catalog.write_changes(lasts, "lasts").option("checkpointLocation", checkpoint).start()
    maxima.processAllAvailable()
    assert multiset(catalog.table("lasts").snapshot().scan()) == {
        ("Berlin", "zoe", 2): 1,
        ("Rome", "bob", 1): 1,
    }
    assert multiset(catalog.table("seen").snapshot().scan()) == {
        (1, "Berlin"): 1,
        (2, "Rome"): 1,
        (3, None): 1,
    }
    send(kafka, topic, ann="Berlin", bob=None, cy="Oslo", zoe="Oslo")
    for running in (mirror, query, maxima):
        running.processAllAvailable()
    assert multiset(catalog.table("lasts").snapshot().scan()) == {
        ("Berlin", "ann", 1): 1,
        ("Oslo", "zoe", 2): 1,
    }
    send(kafka, topic, ann="Paris")
    for running in (mirror, query):
        running.processAllAvailable()
    assert multiset(catalog.table("seen").snapshot().scan()) == {
        (1, "Paris"): 1,
        (2, None): 1,
        (3, "Oslo"): 1,
    }
    for running in (query, maxima, mirror):
        running.stop()


def test_stream_joined_with_the_rows_of_a_topic_looks_its_mirror_up(
    spark: SparkSession, kafka: LocalKafka, catalog: Catalog, topic: str
) -> None:
    """FLIP-149's dimension join; `catalog.read` would read the whole topic in every micro-batch."""
    send(kafka, topic, ann="Berlin")
    views = spark.readStream.format("rate").load().selectExpr("value AS id", "'ann' AS name")
    joined = views.join(catalog.read(spark, "users"), "name", "left")
    assert [report.form for report in planner.explain(joined).joins] == ["spark"]
    catalog.mirror(spark, "users", {"availableNow": True}).awaitTermination()
    assert [report.form for report in planner.explain(joined).joins] == ["lookup"]
    query = planner.optimize(joined).writeStream.format("memory").queryName("enriched_by_topic").start()
    try:
        deadline = time.monotonic() + 120
        while not (rows := spark.sql("SELECT DISTINCT name, region FROM enriched_by_topic").collect()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()
    assert [tuple(row) for row in rows] == [("ann", "Berlin")]


def test_options_that_change_the_rows_read_the_topic_itself(spark: SparkSession, catalog: Catalog) -> None:
    catalog.mirror(spark, "users", {"availableNow": True}).awaitTermination()
    one = catalog.read_changes(spark, "users")
    other = catalog.read_changes(spark, "users", bad_records="skip")
    joined = one.join(other, "name")
    assert [report.mode for report in planner.explain(joined).topics] == ["mirror", "all"]
