"""Kafka topics as tables: sources and sinks for Spark."""

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
