"""What Spark says of the queries of a process."""

import time
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from upsert.spark.queries import query_with_checkpoint

pytestmark = pytest.mark.spark


def test_query_of_a_checkpoint_is_found_in_each_session_until_it_is_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun, may_end = Event(), Event()

    def write(*_: object) -> None:
        begun.set()
        may_end.wait(60)

    folder = tmp_path / "a%20b c"
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = numbers.writeStream.option("checkpointLocation", f"file://{folder}").foreachBatch(write)
    query = writer.start()
    stop = Thread(target=query.stop)
    try:
        assert begun.wait(60)
        assert (folder / "metadata").is_file()
        for session in (spark, spark.newSession()):
            for checkpoint in (f"{folder}/", f"file:{folder}", f"file://{folder}"):
                assert query_with_checkpoint(session, checkpoint) == str(query.id)
        assert query_with_checkpoint(spark, f"{folder}2") is None

        stop.start()
        while query.isActive:
            time.sleep(0.01)
        assert query.id in [one.id for one in spark.streams.active]
        assert query_with_checkpoint(spark, str(folder)) is None
    finally:
        may_end.set()
        query.stop()
    stop.join(60)
