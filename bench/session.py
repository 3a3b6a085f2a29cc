"""Sessions of Spark as benchmarks start them, each for two cores unless it says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

CORES: Final = 2
SILENT: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


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


def untuned(title: str) -> SparkSession:
    """A session with Spark's settings, as a user would start it on this machine."""
    return started(title, {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(CORES)})
