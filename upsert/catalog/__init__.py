"""A catalog: names, the tables that they refer to, and what SQL statements do with them."""

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
