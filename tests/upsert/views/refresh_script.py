"""Refreshes a view, or creates it: `refresh_script.py WAREHOUSE VIEW [QUERY]`."""

import sys

from pyspark.sql import SparkSession

from upsert import Catalog

if __name__ == "__main__":
    warehouse, name, *query = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    if query:
        Catalog(warehouse).create_view(name, *query, spark=spark)
    else:
        Catalog(warehouse).view(name, spark).refresh()
    spark.stop()
