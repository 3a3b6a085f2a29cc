"""A Debezium topic into a managed table, with the database's own time of each change in a column."""

import json
import tempfile
import uuid
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import planner
import upsert
from upsert.testing import LocalKafka

ALICE, BOB = {"id": 1, "name": "Alice", "region": "Shanghai"}, {"id": 2, "name": "Bob", "region": "Berlin"}
MOVED = ALICE | {"region": "Berlin"}


def change(before: dict[str, Any] | None, after: dict[str, Any] | None, second: int) -> str:
    """What Debezium writes about a row, and when the database changed it."""
    op = "d" if not after else "u" if before else "c"
    return json.dumps({"before": before, "after": after, "op": op, "source": {"ts_ms": second * 1000}})


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    topic = f"shop.users-{uuid.uuid4().hex[:8]}"
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        server = kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": server})
        kafka.create_topic(topic)
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        catalog.sql(f"""
            CREATE TABLE log (id INT PRIMARY KEY NOT ENFORCED, name STRING, region STRING,
                              at TIMESTAMP METADATA FROM 'value.source.timestamp' VIRTUAL)
            WITH ('connector' = 'kafka', 'topic' = '{topic}', 'format' = 'debezium-json',
                  'properties.bootstrap.servers' = '{server}')""")
        catalog.sql("""CREATE TABLE users (id INT, name STRING, region STRING, at TIMESTAMP,
                                           PRIMARY KEY (id) NOT ENFORCED, INDEX (region))""")

        for changes in ([(None, ALICE, 10), (None, BOB, 20)], [(ALICE, MOVED, 30), (BOB, None, 40)]):
            for images in changes:
                producer.produce(topic, change(*images))
            producer.flush()
            writer = catalog.write_changes(catalog.read_changes(spark, "log"), "users")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()
            users = catalog.table("users").snapshot()
            print("all", *[f"{row['name']} ({row['at']:%T})" for row in users.scan().to_pylist()])
            in_berlin = users.lookup(["region"], pa.table({"region": ["Berlin"]}))
            print("in Berlin, by the index", *in_berlin["name"].to_pylist())
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# all Alice (00:00:10) Bob (00:00:20)
# in Berlin, by the index Bob
# all Alice (00:00:30)
# in Berlin, by the index Alice
