"""Refreshes a view: `refresh_script.py WAREHOUSE VIEW`."""

import sys

from pyspark.sql import SparkSession

from upsert import Catalog

if __name__ == "__main__":
    warehouse, name = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    Catalog(warehouse).view(name, spark).refresh()
    spark.stop()
