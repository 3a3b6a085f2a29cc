"""A session with Delta Lake, in a process of its own: `test_delta.py` starts them."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.helpers import SESSION_OPTIONS, use_this_python
from upsert.delta.table import PACKAGE
from upsert.flock import locked

SETTINGS = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
}


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    use_this_python(os.environ, forked=True)
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark"))}
    settings = {**SESSION_OPTIONS, **SETTINGS, **warehouse}
    with locked(tmp_path_factory.getbasetemp().parent / "jars.lock"):  # one process fetches them
        session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _stop_queries(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "delta" in request.fixturenames:
        for query in request.getfixturevalue("delta").streams.active:
            query.stop()
