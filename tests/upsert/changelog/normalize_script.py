"""A query that normalizes Parquet files, one a batch, into Parquet: for a cluster of processes.

Arguments: input folder, output folder, checkpoint, state path.
"""

import sys

from pyspark.sql import SparkSession

import upsert


def main(source: str, target: str, checkpoint: str, state_path: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    rows = (
        spark.readStream.schema("word STRING, n BIGINT, seq BIGINT, _row_kind STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(source)
    )
    changes = upsert.normalize(rows, key=["word"], order_by="seq", state_path=state_path, buckets=4)
    query = (
        changes.writeStream.format("parquet")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
