"""A job for a cluster, see tests/test_cluster.py: a join whose executors die between two micro-batches.

A micro-batch has more rows than the driver joins by itself, so executors read, join and write them.

`spark-submit … cluster_script.py WAREHOUSE CHECKPOINT SIGNAL`; it prints where executors find the packages,
waits for the file SIGNAL (`spark-submit` passes no standard input on), and compares the joined rows with
those of a batch.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import planner
import upsert
from upsert.managed import compaction
from upsert.managed.micro_batch import FEW_ROWS

ORDERS = FEW_ROWS + 1000


def main(warehouse: str, checkpoint: str, signal: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    catalog = upsert.Catalog(warehouse, optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE products (product_id BIGINT, name STRING, PRIMARY KEY (product_id) NOT ENFORCED)"
    )
    catalog.sql("""CREATE TABLE orders (order_id BIGINT, product_id BIGINT, amount BIGINT,
                   PRIMARY KEY (order_id) NOT ENFORCED, INDEX (product_id)) WITH ('bucket' = '2')""")
    catalog.sql("""CREATE TABLE sales (order_id BIGINT, name STRING, amount BIGINT,
                   PRIMARY KEY (order_id) NOT ENFORCED) WITH ('bucket' = '2', 'write-only' = 'true')""")

    def places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Where a task finds the packages, by an alias."""
        import deltajoin.upsert

        for batch in batches:
            yield pa.record_batch({"place": [deltajoin.upsert.__file__] * batch.num_rows})

    for row in spark.range(2, numPartitions=2).mapInArrow(places, "place STRING").distinct().collect():
        print("executor:", row.place, flush=True)

    orders, products = (catalog.read_changes(spark, name) for name in ("orders", "products"))
    joined = orders.join(products, "product_id").select("order_id", "name", "amount")
    query = catalog.write_changes(joined, "sales").option("checkpointLocation", checkpoint).start()

    def jobs() -> int:
        """How many jobs the query has run."""
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))

    def step(number: int) -> None:
        """Change rows on both sides, and wait until the query has joined them."""
        catalog.sql(f"INSERT INTO products SELECT id, concat('name ', {number}, id) FROM range(5)", spark)
        catalog.sql(f"INSERT INTO orders SELECT id, id % 5, {number} FROM range({number}, {ORDERS})", spark)
        catalog.sql(f"DELETE FROM orders WHERE order_id = {number}")
        before = jobs()
        query.processAllAvailable()
        assert jobs() > before, "the driver has joined the rows, not the executors"

    step(1)
    print("ready", flush=True)
    while not Path(signal).exists():
        time.sleep(0.1)
    step(2)
    query.stop()

    compaction.compact(spark, catalog.table("sales").path)
    expected = catalog.sql(
        "SELECT order_id, name, amount FROM orders JOIN products USING (product_id)", spark
    ).rows
    sales = catalog.table("sales").snapshot()
    assert {len(runs) for runs in sales.files.groups.values()} == {1}
    found = sales.scan()
    order = [("order_id", "ascending")]
    assert found.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    print("equal:", found.num_rows, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
