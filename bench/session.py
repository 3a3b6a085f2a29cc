"""Sessions of Spark as benchmarks start them, each for two cores unless it says otherwise.

Also the seconds that the micro-batches of a stream take in one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

CORES: Final = 2
SILENT: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
STREAMING: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.shuffle.partitions": str(CORES),
    # the default one starts ten processes a micro-batch for a checkpoint in a local folder
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of streaming queries, the same for all systems that are compared."""


def started(
    title: str, settings: Mapping[str, str], master: str = f"local[{CORES}]", *, logged: str = "ERROR"
) -> SparkSession:
    """A session with some settings, silent but for errors."""
    # where the environment forbids compiled files, each process that Spark starts compiles a checkout again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master(master).appName(f"bench: {title}")
    for key, value in {**SILENT, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(logged)
    return spark


def for_sinks(title: str) -> SparkSession:
    """A session whose settings let few columns of many rows pass at once, for a stream into a sink.

    It logs nothing: tasks of a stream that is stopped within a micro-batch tell of it as of an error, and a
    stream that fails raises what it failed with.
    """
    settings = {
        **STREAMING,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        # without a limit on bytes Spark does not ask for the size of the whole batch at every row
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    return started(title, settings, logged="OFF")


def untuned(title: str) -> SparkSession:
    """A session with Spark's settings, as a user would start it on this machine."""
    return started(title, {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(CORES)})


def batch_seconds(
    writer: DataStreamWriter,
    checkpoint: str,
    *,
    rows: int,
    warm_up: int,
    batches: int,
) -> list[float]:
    """Seconds of each micro-batch of so many rows, without those of the warm-up."""
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        _await_batches(query, warm_up + batches)
        progress: list[dict[str, Any]] = [json.loads(each.json) for each in query.recentProgress]
    finally:
        query.stop()
    found = [p["durationMs"]["triggerExecution"] / 1000 for p in progress if p["numInputRows"] == rows]
    return found[warm_up : warm_up + batches]


def _await_batches(query: StreamingQuery, count: int) -> None:
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < count):
        time.sleep(0.2)
    if failure := query.exception():
        raise failure
