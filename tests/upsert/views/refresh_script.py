"""Refreshes a view, or creates it: `refresh_script.py WAREHOUSE VIEW [QUERY]`.

By a Spark of its own, or, where the environment names the JVM of another one (`of_the_jvm`), by that.
"""

import os
import sys

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from upsert import Catalog

PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def of_the_jvm(spark: SparkSession) -> dict[str, str]:
    """Environment of a driver in Python whose JVM is that of a session."""
    parameters = spark.sparkContext._gateway.java_parameters  # type: ignore[union-attr]
    return {PORT: str(parameters.port), SECRET: parameters.auth_token}


def session() -> SparkSession:
    if PORT not in os.environ:
        return SparkSession.builder.getOrCreate()
    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    of_java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    conf = SparkConf(_jconf=running.getConf(), _jvm=gateway.jvm)
    return SparkSession(SparkContext(gateway=gateway, jsc=of_java, conf=conf)).newSession()


if __name__ == "__main__":
    warehouse, name, *query = sys.argv[1:]
    spark = session()
    if query:
        Catalog(warehouse).create_view(name, *query, spark=spark)
    else:
        Catalog(warehouse).view(name, spark).refresh()
    if PORT not in os.environ:
        spark.stop()
