"""FLIP-149's aggregate on an upsert table, through a real broker: region -> sum of views."""

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WITH = """WITH ('connector' = 'upsert-kafka', 'topic' = '{}', 'topic.partitions' = '2', 'key.format' = 'json',
'value.format' = 'json', 'properties.bootstrap.servers' = '{}'{})"""
ONCE = ", 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'regions'"
LEVELS = "CREATE TABLE pageviews_per_level_region (level STRING, region STRING, view_count BIGINT, "
REGIONS = "CREATE TABLE pageviews_per_region (region STRING, view_count BIGINT, "
QUERY = """SELECT region, sum(view_count) AS view_count FROM pageviews_per_level_region
GROUP BY region HAVING count(*) > 0"""


def test_views_per_region(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    """Berlin's count is replaced, not added to; a region whose last row goes is deleted."""
    topic, server = f"levels-{uuid.uuid4().hex[:8]}", kafka.bootstrap_servers
    kafka.create_topic(topic, config={"cleanup.policy": "compact"})
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql(f"{LEVELS}PRIMARY KEY (level, region) NOT ENFORCED) {WITH.format(topic, server, '')}")
    catalog.sql(
        f"{REGIONS}PRIMARY KEY (region) NOT ENFORCED) {WITH.format(f'{topic}-regions', server, ONCE)}"
    )
    catalog.read_changes(spark, "pageviews_per_level_region").createOrReplaceTempView(
        "pageviews_per_level_region"
    )
    producer = Producer({"bootstrap.servers": server})

    def seen(*rows: tuple[str, str, int | None]) -> dict[str, int]:
        for level, region, views in rows:
            key = {"level": level, "region": region}
            value = None if views is None else json.dumps({**key, "view_count": views})
            producer.produce(topic, key=json.dumps(key), value=value)
        producer.flush()
        writer = catalog.write_changes(spark.sql(QUERY), "pageviews_per_region")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return {row.region: row.view_count for row in catalog.read(spark, "pageviews_per_region").collect()}

    first = seen(("gold", "Beijing", 1), ("gold", "Berlin", 7), ("basic", "Berlin", 1), ("gold", "Oslo", 4))
    assert first == {"Beijing": 1, "Berlin": 8, "Oslo": 4}
    second = seen(("gold", "Berlin", 2), ("basic", "Hangzhou", 1), ("gold", "Oslo", None))
    assert second == {"Beijing": 1, "Berlin": 3, "Hangzhou": 1}
