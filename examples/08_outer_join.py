"""A LEFT join of two changing tables: a row without a match goes when its match comes, and returns later."""

import tempfile

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import planner
import upsert


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse")
        catalog.sql("CREATE TABLE orders (id INT, sku STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (sku))")
        catalog.sql("CREATE TABLE products (sku STRING, price DOUBLE, PRIMARY KEY (sku) NOT ENFORCED)")
        orders, products = (catalog.read_changes(spark, name) for name in ("orders", "products"))
        joined = orders.join(products, "sku", "left").select("id", "sku", "price")

        def show(rows: DataFrame, _batch: int) -> None:
            for row in sorted(rows.collect(), key=lambda row: (row.id, row._row_kind)):
                print("   ", row._row_kind, row.id, row.sku, row.price)

        def follow(title: str) -> None:
            """Print the changes of the joined rows since the last call."""
            print(title)
            writer = planner.optimize(joined).writeStream.foreachBatch(show)
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()

        catalog.table("orders").write(pa.table({"id": [1, 2], "sku": ["tea", "pot"]}))
        catalog.table("products").write(pa.table({"sku": ["tea"], "price": [5.0]}))
        follow("two orders, one product")

        catalog.table("products").write(pa.table({"sku": ["pot"], "price": [30.0]}))
        follow("the pot arrives")

        gone = pa.table({"sku": ["tea"], "price": [5.0], "_row_kind": ["-D"]})
        catalog.table("products").write(gone)
        follow("tea is withdrawn")
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# two orders, one product
#     +I 1 tea 5.0
#     +I 2 pot None
# the pot arrives
#     +I 2 pot 30.0
#     -D 2 pot None
# tea is withdrawn
#     +I 1 tea None
#     -D 1 tea 5.0
