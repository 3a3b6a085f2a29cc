"""Joins say how many keys they looked up in each table, in whatever form and process."""

from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import deltajoin
import planner
from deltajoin.observe.measures import samples
from deltajoin.observe.observer import Observer
from deltajoin.ui import pages
from upsert import Catalog

pytestmark = pytest.mark.spark

QUERY = "SELECT o.id, p.name FROM orders o JOIN products p ON o.product = p.id"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE orders (id INT, product INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (product))")
    catalog.sql("CREATE TABLE products (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE sold (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("products").write(pa.table({"id": [1, 2], "name": ["tea", "rum"]}))
    order(catalog, 1, 1)
    order(catalog, 2, 2)
    order(catalog, 3, 9)
    return catalog


def order(catalog: Catalog, id: int, product: int) -> None:
    catalog.table("orders").write(pa.table({"id": [id], "product": [product]}))


def joined(catalog: Catalog, spark: SparkSession, **options: Any) -> DataFrame:
    catalog.read_changes(spark, "orders").createOrReplaceTempView("orders_of_lookups")
    catalog.read_changes(spark, "products").createOrReplaceTempView("products_of_lookups")
    query = QUERY.replace(" orders ", " orders_of_lookups ").replace(" products ", " products_of_lookups ")
    return planner.optimize(spark.sql(query), sink_key=["id"], **options)


def in_batches(query: StreamingQuery) -> list[Mapping[str, int] | None]:
    return [batch.lookups for batch in deltajoin.metrics(query).batches if batch.rows_in]


FIRST = {"t1_keys": 3, "t1_rows": 2}
"""The orders drive the first load, and look their products up where these are at its end."""

BOTH = {"t1_keys": 3, "t0_keys": 2, "t0_rows": 2}
"""Where all tables move, orders look up products before the first one, and products all orders."""


@pytest.mark.parametrize(
    ("physical", "first"),
    [("fused", FIRST), pytest.param("shuffled", BOTH, marks=pytest.mark.long), ("stateful", BOTH)],
)
def test_tasks_count_what_each_micro_batch_looks_up(
    catalog: Catalog, spark: SparkSession, tmp_path: Path, physical: str, first: dict[str, int]
) -> None:
    stream = joined(catalog, spark, physical=physical, shards=1)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        order(catalog, 4, 2)
        query.processAllAvailable()
        order(catalog, 4, 8)
        query.processAllAvailable()
        assert in_batches(query) == [first, {"t1_keys": 1, "t1_rows": 1}, {"t1_keys": 2, "t1_rows": 1}]
    finally:
        query.stop()


def test_queries_that_end_at_the_same_versions_count_for_themselves(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    queries = [
        joined(catalog, spark, physical="shuffled", shards=1)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / name))
        .trigger(availableNow=True)
        .start()
        for name in ("one", "two")
    ]
    for query in queries:
        query.awaitTermination()
    assert [in_batches(query) for query in queries] == [[BOTH], [BOTH]]


def test_lookups_of_a_lookup_join_are_counted_by_the_name_of_the_table(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    """Each row of the stream looks up, and the one of another product finds nothing."""
    recorder, folder = catalog.record_queries(spark), tmp_path / "orders"
    folder.mkdir()
    rows = spark.readStream.schema("id INT, product INT").csv(str(folder))
    stream = deltajoin.lookup_join(rows, catalog.table("products"), on=[("product", "id")], how="left")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    for name, text in (("first", "1,1\n2,2\n3,9\n"), ("second", "4,2\n")):
        (folder / f"{name}.csv").write_text(text)
        query.processAllAvailable()
    query.stop()
    assert in_batches(query) == [
        {"lookup products_keys": 3, "lookup products_rows": 2},
        {"lookup products_keys": 1, "lookup products_rows": 1},
    ]
    assert deltajoin.metrics(query).table_lookups == [("lookup products", 4, 3)]
    recorder.close()
    page = pages.snapshot_file(Observer(catalog.warehouse).look(0))
    assert '<tr><td>lookup products</td><td class="n">4</td><td class="n">3</td></tr>' in page


def test_lookups_in_one_table_are_counted_apart(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    """The second one looks up by another column; the outermost name of a plan is the last one."""
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "first.csv").write_text("1,1\n2,2\n9,2\n")
    rows, products = (
        spark.readStream.schema("id INT, product INT").csv(str(folder)),
        catalog.table("products"),
    )
    stream = deltajoin.lookup_join(rows, products, on=[("product", "id")]).withColumnRenamed("name", "bought")
    stream = deltajoin.lookup_join(stream, products, on="id").where("name <> 'beer'")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert deltajoin.metrics(query).table_lookups == [("lookup products", 3, 3), ("lookup products 2", 3, 2)]


def test_a_thread_of_foreach_batch_counts_if_it_inherits_the_micro_batch(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number, text in enumerate(("1,1\n2,2\n3,9\n", "4,2\n")):
        (folder / f"{number}.csv").write_text(text)

    def write(rows: DataFrame, batch: int) -> None:
        inherits = inheritable_thread_target(rows.sparkSession)
        thread = Thread(target=inherits(rows.collect) if batch else rows.collect)
        thread.start()
        thread.join()

    rows = spark.readStream.schema("id INT, product INT").option("maxFilesPerTrigger", 1).csv(str(folder))
    stream = deltajoin.lookup_join(rows, catalog.table("products"), on=[("product", "id")])
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert in_batches(query) == [None, {"lookup products_keys": 1, "lookup products_rows": 1}]


@pytest.mark.parametrize(
    "group",
    [
        None,
        pytest.param("nightly", marks=pytest.mark.long),
        pytest.param("00000000-0000-4000-8000-000000000001", marks=pytest.mark.long),
    ],
)
def test_a_micro_batch_that_failed_does_not_count(
    catalog: Catalog, spark: SparkSession, tmp_path: Path, group: str | None
) -> None:
    """Its tasks have looked up when the sink fails; the restarted query does it again, and counts it once.

    So it is where the user's function puts its jobs in a group of its own.
    """
    folder = tmp_path / "orders"
    folder.mkdir()
    (folder / "first.csv").write_text("1,1\n2,2\n3,9\n")
    failures = iter([RuntimeError("full")])

    def write(rows: DataFrame, _: int) -> None:
        if group is not None:
            spark.sparkContext.setJobGroup(group, "of the user")
        rows.collect()
        for failure in failures:
            raise failure

    def started() -> StreamingQuery:
        rows = spark.readStream.schema("id INT, product INT").csv(str(folder))
        stream = deltajoin.lookup_join(rows, catalog.table("products"), on=[("product", "id")])
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c"))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException, match="full"):
        started().awaitTermination()
    again = started()
    again.awaitTermination()
    assert in_batches(again) == [{"lookup products_keys": 3, "lookup products_rows": 2}]


def test_what_the_driver_looks_up_counts_too_and_is_a_metric(
    catalog: Catalog, spark: SparkSession, tmp_path: Path
) -> None:
    recorder = catalog.record_queries(spark)
    stream = joined(catalog, spark)
    query = catalog.write_changes(stream, "sold").option("checkpointLocation", str(tmp_path / "c")).start()
    query.processAllAvailable()
    order(catalog, 4, 2)
    query.processAllAvailable()
    query.stop()
    assert in_batches(query) == [FIRST, {"t1_keys": 1, "t1_rows": 1}]
    assert deltajoin.metrics(query).table_lookups == [("t1", 4, 3)]
    recorder.close()
    seen = Observer(catalog.warehouse).look(0)
    found = {(one.name, one.labels[2]): one.value for one in samples(seen) if ".lookup." in one.name}
    assert found == {("query.lookup.keys", "t1"): 4, ("query.lookup.rows", "t1"): 3}
    page = pages.snapshot_file(seen)
    assert '<tr><td>t1</td><td class="n">4</td><td class="n">3</td></tr>' in page
    assert "Lookups and caches" not in page
