"""Refreshes views by what has changed, one after the other: `refresh_script.py WAREHOUSE VIEW…`."""

import sys

from pyspark.sql import SparkSession

import planner
from upsert import Catalog

if __name__ == "__main__":
    warehouse, *names = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    catalog = Catalog(warehouse, optimize=planner.optimize)
    for name in names:
        catalog.view(name, spark).refresh()
        print("refreshed", name, flush=True)
    spark.stop()
