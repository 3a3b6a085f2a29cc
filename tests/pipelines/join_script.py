"""Run as a script: orders of a warehouse with the names of their customers into `joined`, by INSERT.

    python join_script.py WAREHOUSE CHECKPOINTS [TRIGGER]

It says when it has started, and each time that it has finished micro-batches.
"""

import os
import sys
import time

from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.catalog.results import Running


def main(warehouse: str, checkpoints: str, trigger: str = "") -> None:
    os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    catalog = Catalog(warehouse, optimize=planner.optimize)
    settings = {"execution.runtime-mode": "streaming", "checkpoint.location": checkpoints}
    if trigger:
        settings["execution.trigger"] = trigger
    for name, value in settings.items():
        catalog.sql(f"SET '{name}' = '{value}'", spark)
    running = catalog.sql("INSERT INTO joined SELECT id, name, n FROM orders JOIN names USING (c)", spark)
    assert isinstance(running, Running)
    seen = None
    while running.query.isActive:
        if (last := running.query.lastProgress) is not None and last.batchId != seen:
            seen = last.batchId
            print("finished", seen, flush=True)
        time.sleep(0.05)
    running.query.awaitTermination()
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
