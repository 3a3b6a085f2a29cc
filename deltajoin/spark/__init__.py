"""The format ``delta-join``: a join's tables, its offsets, and the physical forms in which Spark runs it."""

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
