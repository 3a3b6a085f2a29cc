"""Sessions of Spark as benchmarks start them, each for two cores unless it says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

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


def started(title: str, settings: Mapping[str, str], master: str = f"local[{CORES}]") -> SparkSession:
    """A session with some settings, silent but for errors."""
    # where the environment forbids compiled files, each process that Spark starts compiles a checkout again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    builder = SparkSession.builder.master(master).appName(f"bench: {title}")
    for key, value in {**SILENT, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def for_sinks(title: str) -> SparkSession:
    """A session whose settings let few columns of many rows pass at once, for a stream into a sink."""
    settings = {
        **STREAMING,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        # without a limit on bytes Spark does not ask for the size of the whole batch at every row
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    return started(title, settings)


def untuned(title: str) -> SparkSession:
    """A session with Spark's settings, as a user would start it on this machine."""
    return started(title, {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(CORES)})
