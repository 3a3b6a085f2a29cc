"""Streams joined with the rows of a managed table: FLIP-149's dimension join, written as anybody would."""

import json
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from planner.refusals import PlanError
from upsert import Catalog
from upsert.kafka.client.admin import create_topic
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.testing import LocalKafka

pytestmark = pytest.mark.spark

VIEWS = "user_id BIGINT, page_id BIGINT, viewtime TIMESTAMP"
JOIN = "SELECT p.*, u.region AS user_region FROM pageviews AS p LEFT JOIN users AS u ON p.user_id = u.user_id"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE users (user_id BIGINT, user_name STRING, region STRING, "
        "PRIMARY KEY (user_id) NOT ENFORCED, INDEX (region))"
    )
    catalog.sql(f"CREATE TABLE pageviews_enriched ({VIEWS}, user_region STRING)")
    return catalog


def users(*rows: tuple[int, str, str]) -> pa.Table:
    ids, names, regions = zip(*rows, strict=True)
    return pa.table({"user_id": ids, "user_name": names, "region": regions})


@pytest.mark.kafka
def test_page_views_look_up_the_regions_of_their_users(
    spark: SparkSession, catalog: Catalog, kafka: LocalKafka, tmp_path: Path
) -> None:
    """A user that moves later leaves the rows alone that are out already."""
    topic = f"pageviews-{uuid.uuid4().hex[:8]}"
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers})
    create_topic(connection, topic, 1, {})
    catalog.sql(
        f"CREATE TABLE pageviews ({VIEWS}) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
        f"'properties.bootstrap.servers' = '{kafka.bootstrap_servers}', 'value.format' = 'json')"
    )
    catalog.table("users").write(
        users((100, "Bob", "Beijing"), (101, "Alice", "Hangzhou"), (102, "Greg", "Berlin"))
    )
    views = [(100, 10001, 1), (102, 10002, 2), (101, 10002, 4), (102, 10004, 6), (103, 10003, 8)]

    def view(*rows: tuple[int, int, int]) -> None:
        values = [
            json.dumps(
                {"user_id": user, "page_id": page, "viewtime": f"2020-10-01 08:0{minute}:00Z"}
            ).encode()
            for user, page, minute in rows
        ]
        produce(connection, topic, [pa.table({"value": pa.array(values, pa.binary())})])

    view(*views)
    catalog.read_changes(spark, "pageviews").createOrReplaceTempView("pageviews")
    catalog.read(spark, "users").createOrReplaceTempView("users")
    joined = spark.sql(JOIN)
    (report,) = planner.explain(joined).joins
    assert (report.form, "looks the table up when it is processed" in str(report)) == ("lookup", True)
    checkpoint = str(tmp_path / "checkpoint")
    writer = catalog.write_changes(joined, "pageviews_enriched").option("checkpointLocation", checkpoint)
    query = writer.start()
    query.processAllAvailable()
    catalog.table("users").write(users((102, "Greg", "Rome")))
    view((102, 10009, 9))
    query.processAllAvailable()
    query.stop()
    found = catalog.table("pageviews_enriched").snapshot().scan().sort_by("viewtime").to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (user, page, datetime(2020, 10, 1, 8, minute, tzinfo=UTC), region)
        for (user, page, minute), region in zip(
            [*views, (102, 10009, 9)], ["Beijing", "Berlin", "Hangzhou", "Berlin", None, "Rome"], strict=True
        )
    ]


class TestShapes:
    """The rewritten query gives the rows of Spark's own join."""

    def rows(self, query: DataFrame, name: str) -> Counter[tuple[Any, ...]]:
        started = query.writeStream.format("memory").queryName(name).start()
        started.processAllAvailable()
        started.stop()
        return Counter(tuple(row) for row in query.sparkSession.table(name).collect())

    @pytest.mark.parametrize(
        "query",
        [
            pytest.param("SELECT * FROM views JOIN users USING (user_id)", marks=pytest.mark.long),
            "SELECT u.region, v.* FROM users u RIGHT JOIN views v ON v.place = u.region",
            """SELECT v.page, upper(u.name) FROM views v JOIN (
                SELECT user_id AS id, user_name AS name FROM users WHERE region <> 'Rome'
            ) u ON v.user_id = u.id AND v.page > u.name""",
        ],
    )
    def test_as_spark_joins(self, spark: SparkSession, catalog: Catalog, tmp_path: Path, query: str) -> None:
        catalog.table("users").write(users((1, "A", "Rome"), (2, "B", "Oslo"), (3, "C", "Rome")))
        views = [(1, "a", "Rome"), (2, "b", "Oslo"), (None, "c", None), (9, "d", "Paris"), (3, "B", "Oslo")]
        schema = "user_id INT, page STRING, place STRING"
        spark.createDataFrame(views, schema).write.parquet(str(tmp_path / "views"))
        spark.readStream.schema(schema).parquet(str(tmp_path / "views")).createOrReplaceTempView("views")
        catalog.read(spark, "users").createOrReplaceTempView("users")
        joined = spark.sql(query)
        optimized = planner.optimize(joined)
        assert optimized.columns == joined.columns
        assert [report.form for report in planner.explain(joined).joins] == ["lookup"]
        name = f"rows_{uuid.uuid4().hex[:8]}"
        assert self.rows(optimized, name) == self.rows(joined, f"own_{name}") != Counter()

    def test_of_changes_only_one_snapshot_is_joined(self, spark: SparkSession, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE orders (id BIGINT, user_id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
        pinned = catalog.table("users").write(users((1, "A", "Rome"))).id
        orders = catalog.read_changes(spark, "orders")
        with pytest.raises(PlanError, match="is the managed table 'users', whose rows may change"):
            planner.optimize(orders.join(catalog.read(spark, "users"), "user_id"))
        joined = orders.join(catalog.read(spark, "users", snapshot=pinned), "user_id")
        assert [report.form for report in planner.explain(joined).joins] == ["static"]
