"""Views per region and five minutes, counted by Spark, into an upsert topic: as FLIP-149 shows it."""

import json
import tempfile
import uuid

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, lit, window

import planner
import upsert
from upsert.testing import LocalKafka


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    topic = f"pageviews-{uuid.uuid4().hex[:8]}"
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        server = kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": server})
        kafka.create_topic(topic)
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        catalog.sql(f"""
            CREATE TABLE pageviews (user_id BIGINT, region STRING, viewtime TIMESTAMP)
            WITH ('connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json',
                  'properties.bootstrap.servers' = '{server}')""")
        catalog.sql(f"""
            CREATE TABLE pageviews_per_region_5min (window_start TIMESTAMP, region STRING, view_count BIGINT,
                                                    PRIMARY KEY (window_start, region) NOT ENFORCED)
            WITH ('connector' = 'upsert-kafka', 'topic' = '{topic}-counted', 'topic.partitions' = '2',
                  'key.format' = 'json', 'value.format' = 'json',
                  'properties.bootstrap.servers' = '{server}')""")

        views = catalog.read_changes(spark, "pageviews")
        five_minutes = window("viewtime", "5 minutes").start.alias("window_start")
        counts = views.groupBy(five_minutes, "region").agg(count(lit(1)).alias("view_count"))

        for seen in (("08:01 Beijing", "08:02 Berlin", "08:04 Hangzhou"), ("08:03 Berlin", "08:06 Berlin")):
            for minute, region in (view.split() for view in seen):
                view = {"user_id": 100, "region": region, "viewtime": f"2020-10-01 {minute}:00Z"}
                producer.produce(topic, json.dumps(view))
            producer.flush()
            writer = catalog.write_upsert(counts, "pageviews_per_region_5min").outputMode("update")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()
            print("views, as the topic has them now")
            for row in (
                catalog.read(spark, "pageviews_per_region_5min").orderBy("window_start", "region").collect()
            ):
                print("   ", *row)
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# views, as the topic has them now
#     2020-10-01 08:00:00 Beijing 1
#     2020-10-01 08:00:00 Berlin 1
#     2020-10-01 08:00:00 Hangzhou 1
# views, as the topic has them now
#     2020-10-01 08:00:00 Beijing 1
#     2020-10-01 08:00:00 Berlin 2
#     2020-10-01 08:00:00 Hangzhou 1
#     2020-10-01 08:05:00 Berlin 1
