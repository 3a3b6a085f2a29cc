"""Materialized views: queries over managed tables whose rows another managed table holds."""

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
