"""Reads an upsert topic as a changelog in several micro-batches, and prints it; for a master of its own.

Arguments: the brokers, the topic, a folder for checkpoint and state.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession

import upsert


def main(brokers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    upsert.register(spark)
    changes = (
        spark.readStream.format("upsert-kafka")
        .option("columns", "word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED")
        .option("topic", topic)
        .option("properties.bootstrap.servers", brokers)
        .option("key.format", "json")
        .option("value.format", "json")
        .option("max-rows-per-trigger", "3")
        .option("state.path", f"{folder}/state")
        .load()
    )
    found: list[list[object]] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(list(row) for row in batch.collect())

    writer = changes.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    print("rows:", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
