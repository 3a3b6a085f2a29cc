"""A Debezium topic into a compacted topic, exactly once: the first example of FLIP-149."""

import json
import tempfile
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import planner
import upsert
from upsert.testing import LocalKafka

BOB, ALICE, MOVED = (100, "Bob", "Beijing"), (101, "Alice", "Shanghai"), (101, "Alice", "Hangzhou")


def change(*images: tuple[int, str, str] | None) -> str:
    """What Debezium writes about a row before and after a change."""
    columns = ("user_id", "name", "region")
    before, after = (row and dict(zip(columns, row, strict=True)) for row in images)
    return json.dumps({"before": before, "after": after, "op": "d" if not after else "u" if before else "c"})


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    dbz, topic = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("dbz_users", "users"))
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        server = kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": server})
        kafka.create_topic(dbz)
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        catalog.sql(f"""
            CREATE TABLE dbz_users (user_id INT PRIMARY KEY NOT ENFORCED, name STRING, region STRING)
            WITH ('connector' = 'kafka', 'topic' = '{dbz}', 'format' = 'debezium-json',
                  'properties.bootstrap.servers' = '{server}')""")
        catalog.sql(f"""
            CREATE TABLE users (user_id INT, name STRING, region STRING, PRIMARY KEY (user_id) NOT ENFORCED)
            WITH ('connector' = 'upsert-kafka', 'topic' = '{topic}', 'topic.partitions' = '1',
                  'key.format' = 'csv', 'value.format' = 'json', 'properties.bootstrap.servers' = '{server}',
                  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{topic}')""")

        for first, second in (((None, BOB), (None, ALICE)), ((ALICE, MOVED), (BOB, None))):
            for images in (first, second):
                producer.produce(dbz, change(*images))
            producer.flush()
            users = catalog.write_changes(catalog.read_changes(spark, "dbz_users"), "users")
            users = users.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            users.start().awaitTermination()
        consumer = Consumer({"bootstrap.servers": server, "group.id": topic})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = [(m.key() or b"", m.value() or b"is a tombstone") for m in consumer.consume(4, timeout=60)]
        for key, value in sorted(found, key=lambda record: record[0]):
            print(key.decode(), value.decode())
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# 100 {"user_id":100,"name":"Bob","region":"Beijing"}
# 100 is a tombstone
# 101 {"user_id":101,"name":"Alice","region":"Shanghai"}
# 101 {"user_id":101,"name":"Alice","region":"Hangzhou"}
