"""A delta join: two changing tables, joined into a third one that follows every change."""

import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

import planner
import upsert


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse")
        catalog.sql("CREATE TABLE orders (id INT, sku STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (sku))")
        catalog.sql("CREATE TABLE products (sku STRING, price DOUBLE, PRIMARY KEY (sku) NOT ENFORCED)")
        catalog.sql("CREATE TABLE priced (id INT, sku STRING, price DOUBLE, PRIMARY KEY (id) NOT ENFORCED)")
        orders, products = catalog.table("orders"), catalog.table("products")

        # An ordinary join of two streams; Spark alone would keep all rows of both for ever.
        joined = catalog.read_changes(spark, "orders").join(catalog.read_changes(spark, "products"), "sku")
        joined = joined.select("id", "sku", "price")
        (join,) = planner.explain(joined).joins
        print("delta join: orders by {}, products by {}".format(*join.indexes))

        def follow(title: str) -> None:
            """Bring the joined table up to date, as a query without a trigger would do all the time."""
            writer = catalog.write_changes(planner.optimize(joined), "priced")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()
            print(title)
            for row in catalog.table("priced").snapshot().scan().sort_by("id").to_pylist():
                print("   ", *row.values())

        products.write(pa.table([["cup", "tea"], [7.5, 5.0]], ["sku", "price"]))
        orders.write(pa.table([[1, 2, 3], ["tea", "cup", "pot"]], ["id", "sku"]))
        follow("two orders have a product")

        orders.write(pa.table([[1], ["cup"]], ["id", "sku"]))
        products.write(pa.table([["tea", "pot"], [5.5, 30.0]], ["sku", "price"]))
        follow("order 1 moves to another product, and the pot arrives")

        products.write(pa.table([["cup"], [7.5], ["-D"]], ["sku", "price", "_row_kind"]))
        follow("the cup is withdrawn")
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# delta join: orders by INDEX_sku, products by PRIMARY KEY
# two orders have a product
#     1 tea 5.0
#     2 cup 7.5
# order 1 moves to another product, and the pot arrives
#     1 cup 7.5
#     2 cup 7.5
#     3 pot 30.0
# the cup is withdrawn
#     3 pot 30.0
