"""Managed tables in Spark: the format ``upsert-table``, and DataFrames of tables for ``Catalog``.

``datasource`` is the wiring, ``reader`` and ``writer`` turn Spark's partitions into calls of the store,
``frames`` is what other packages use.
"""

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
