"""Run as a script: the orders of a warehouse by customer into its sink, until all has been read.

    python materialize_script.py FOLDER

With a point of ``upsert.failpoints`` in the environment the driver and its JVM get a SIGKILL there.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import planner
from upsert import Catalog, failpoints


def killed_with_its_jvm(point: str) -> None:
    """As `failpoints.reach`, for all processes of the driver."""
    wanted, _, nth = os.environ.get(failpoints.ENVIRONMENT_VARIABLE, "").partition(":")
    if point == wanted:
        seen[point] = seen.get(point, 0) + 1
        if seen[point] == int(nth or "1"):
            os.killpg(os.getpgid(0), signal.SIGKILL)


seen: dict[str, int] = {}


def main(folder: str) -> None:
    """Work off the orders; a test may do so in its own session."""
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    catalog = Catalog(Path(folder) / "warehouse", optimize=planner.optimize)
    orders = catalog.read_changes(spark, "o", max_rows_per_trigger=5).selectExpr("cust", "'n' AS name", "amt")
    writer = catalog.write_changes(orders, "s").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    failpoints.reach = killed_with_its_jvm
    main(*sys.argv[1:])
