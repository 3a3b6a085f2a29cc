"""A stream that runs for weeks holds after many micro-batches what it held after a few."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

import planner
from upsert.catalog.catalog import Catalog
from upsert.spark.java import java_of
from upsert.spark.settings import set_for_now

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("ended_queries"), pytest.mark.long]

FEW = 60
"""So many micro-batches before the first look, and again before the second."""

FEW_KEPT = ("minBatchesToRetain", "numRecentProgressUpdates")
"""Settings of how many micro-batches Spark keeps files and progress: a hundred, by default."""

RETENTION = "'snapshot.num-retained.min' = '2', 'snapshot.num-retained.max' = '5'"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Orders of products, and what they become together, of which few snapshots are kept."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    for name, columns in {
        "products": "product BIGINT, name STRING, PRIMARY KEY (product) NOT ENFORCED",
        "orders": "id BIGINT, product BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (product)",
        "sales": "id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED",
    }.items():
        catalog.sql(f"CREATE TABLE {name} ({columns}) WITH ({RETENTION})")
    return catalog


def change(catalog: Catalog, numbers: range) -> Iterator[None]:
    """One order changes its product, again and again; a product has another name each time."""
    for number in numbers:
        product = number % 3
        catalog.table("products").write(pa.table({"product": [product], "name": [f"name {number}"]}))
        catalog.table("orders").write(pa.table({"id": [number % 7], "product": [product]}))
        yield


def live_in_jvm(spark: SparkSession) -> dict[str, int]:
    """How many objects of Spark's classes are left after a collection, by class."""
    java, lang = java_of(spark), java_of(spark).java.lang

    def array(kind: Any, *items: Any) -> Any:
        made = spark.sparkContext._gateway.new_array(kind, len(items))
        for place, item in enumerate(items):
            made[place] = item
        return made

    # by reflection: py4j sees no method of a class that is not exported
    name = java.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    given = array(lang.Object, array(lang.String)), array(lang.String, "[Ljava.lang.String;")
    types = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    connection = lang.Class.forName("javax.management.MBeanServerConnection")
    invoke = connection.getMethod("invoke", array(lang.Class, *map(lang.Class.forName, types)))
    server = lang.management.ManagementFactory.getPlatformMBeanServer()
    told = invoke.invoke(server, array(lang.Object, name, "gcClassHistogram", *given))
    rows = [row for row in map(str.split, told.splitlines()) if len(row) > 3]
    spark_sql = {row[3]: int(row[1]) for row in rows if row[3].startswith("org.apache.spark.sql.")}
    # of what its page shows, Spark keeps a thousand executions
    return {name: count for name, count in spark_sql.items() if ".execution.ui." not in name}


def held(spark: SparkSession, folder: Path) -> dict[str, int]:
    """What a driver may have too much of, by what it is."""
    gc.collect()
    session, context = spark._jsparkSession, spark.sparkContext._jsc
    gateway = spark.sparkContext._gateway.java_gateway_server.getGateway()
    return {
        **live_in_jvm(spark),
        "objects of the JVM that Python has": sum(isinstance(one, JavaObject) for one in gc.get_objects()),
        "objects that the JVM holds for Python": gateway.getBindings().size(),
        "listeners": context.sc().listenerBus().listeners().size(),
        "RDDs": context.getPersistentRDDs().size(),
        "temporary views": session.sessionState().catalog().listLocalTempViews("*").size(),
        "threads": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
        "files": sum(path.is_file() for path in folder.rglob("*")),
    }


def test_twice_as_many_micro_batches_leave_no_more(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    joined = (
        catalog.read_changes(spark, "orders")
        .join(catalog.read_changes(spark, "products"), "product")
        .select("id", "name")
    )
    writer = catalog.write_changes(joined, "sales").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with set_for_now(spark, {f"spark.sql.streaming.{name}": "5" for name in FEW_KEPT}):
        query = writer.start()
    looks = []
    for numbers in (range(FEW), range(FEW, 2 * FEW)):
        for _ in change(catalog, numbers):
            query.processAllAvailable()
        looks.append(held(spark, tmp_path))
    last = query.lastProgress
    assert last is not None
    assert last["batchId"] >= 2 * FEW
    before, after = looks
    # one more of anything for each micro-batch would be as many more as there were micro-batches
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    assert {name: more for name, more in grown.items() if more > FEW // 2} == {}
    products, sales = (catalog.table(name).snapshot().scan().to_pylist() for name in ("products", "sales"))
    assert {row["name"] for row in sales} <= {row["name"] for row in products}
