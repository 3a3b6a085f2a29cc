"""An upsert topic as a table: its rows now, and each change together with the row that it replaces."""

import json
import tempfile
import uuid

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import upsert
from upsert.testing import LocalKafka

ARRIVE = [(1, "Bob", "Beijing"), (2, "Alice", "Shanghai"), (3, "Greg", "Berlin")]
CHANGE = [(1, "Bob", "Beijing"), (2, "Alice", "Hangzhou"), (3, None, None), (4, None, None)]


def show(rows: DataFrame, _batch: int = 0) -> None:
    """Print rows in the order in which they came to the topic."""
    for row in rows.orderBy("at").collect():
        print("   ", *row)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    topic = f"users-{uuid.uuid4().hex[:8]}"
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        server = kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": server})
        kafka.create_topic(topic, config={"cleanup.policy": "compact"})
        catalog = upsert.Catalog(f"{folder}/warehouse")
        catalog.sql(f"""
            CREATE TABLE users (id BIGINT, name STRING, region STRING,
                                at BIGINT METADATA FROM 'offset' VIRTUAL, PRIMARY KEY (id) NOT ENFORCED)
            WITH ('connector' = 'upsert-kafka', 'topic' = '{topic}',
                  'key.format' = 'json', 'value.format' = 'json',
                  'properties.bootstrap.servers' = '{server}')""")

        for title, users in (("users arrive", ARRIVE), ("Alice moves, Greg goes, and no more", CHANGE)):
            for id_, name, region in users:
                value = json.dumps({"id": id_, "name": name, "region": region}) if name else None
                producer.produce(topic, key=json.dumps({"id": id_}), value=value)
            producer.flush()
            print(title)
            changes = catalog.read_changes(spark, "users").writeStream.foreachBatch(show)
            changes = changes.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            changes.start().awaitTermination()
        print("users now")
        show(catalog.read(spark, "users"))
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# users arrive
#     1 Bob Beijing 0 +I
#     2 Alice Shanghai 1 +I
#     3 Greg Berlin 2 +I
# Alice moves, Greg goes, and no more
#     2 Alice Shanghai 1 -U
#     3 Greg Berlin 2 -D
#     2 Alice Hangzhou 4 +U
# users now
#     1 Bob Beijing 3
#     2 Alice Hangzhou 4
