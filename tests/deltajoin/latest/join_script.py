"""Run as a script: two tables joined by lookups into a third, until all that is there has been read.

    python join_script.py WAREHOUSE CHECKPOINT [POINT BATCH]

At the given point of the given micro-batch the driver, its JVM and the Python worker get a SIGKILL.
"""

import os
import sys

from pyspark.sql import SparkSession

import deltajoin
import upsert
from deltajoin.lookup import TableLookup
from tests.upsert.managed.pipeline import BATCH, GROUP, POINT, KilledSource

COLUMNS = ("left_id", "left_user", "left_v", "right_name", "_row_kind")


def main(warehouse: str, checkpoint: str, point: str = "", batch: str = "-1") -> None:
    os.environ |= {POINT: point, BATCH: batch, GROUP: str(os.getpgid(0))}
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    catalog = upsert.Catalog(warehouse)
    sides = []
    for name, key, kinds in (("orders", "id", None), ("users", "user", ["+I", "+U"])):
        changes = catalog.read_changes(spark, name, max_rows_per_trigger=40).where("_row_kind <> '-U'")
        source = TableLookup.of(catalog.table(name).path, ["user"])
        sides.append(
            deltajoin.with_lookup(
                changes, source, keys="user", upsert_key=key, kinds=kinds, immutable=["user"]
            )
        )
    joined = deltajoin.lookup_delta_join(*sides, on="user", how="left")
    writer = catalog.write_changes(joined.select(*COLUMNS), "joined")
    if point:
        spark.dataSource.register(KilledSource)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    main(*sys.argv[1:])
