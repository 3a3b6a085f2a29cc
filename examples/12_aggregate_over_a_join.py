"""Revenue by region over a join of two changing tables: a delta join below, sums of signs above."""

import tempfile
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import SparkSession

import planner
import upsert


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        catalog.sql("CREATE TABLE shops (shop INT, region STRING, PRIMARY KEY (shop) NOT ENFORCED)")
        catalog.sql(
            "CREATE TABLE orders (id BIGINT, shop INT, amount DECIMAL(10, 2), "
            "PRIMARY KEY (id) NOT ENFORCED, INDEX (shop))"
        )
        catalog.sql(
            "CREATE TABLE revenue (region STRING, orders BIGINT, total DECIMAL(20, 2), "
            "PRIMARY KEY (region) NOT ENFORCED)"
        )
        for name in ("orders", "shops"):
            catalog.read_changes(spark, name).createOrReplaceTempView(name)
        revenue = spark.sql(
            "SELECT region, count(*) AS orders, sum(amount) AS total FROM orders JOIN shops USING (shop) "
            "GROUP BY region HAVING count(*) > 1"
        )
        print(planner.explain(revenue).aggregates[0])
        query = catalog.write_changes(revenue, "revenue").option("checkpointLocation", f"{folder}/c").start()

        def show(title: str) -> None:
            query.processAllAvailable()
            print(title)
            for row in catalog.read(spark, "revenue").orderBy("region").collect():
                print("   ", *row)

        catalog.table("shops").write(pa.table({"shop": [1, 2, 3], "region": ["north", "north", "south"]}))
        amounts = pa.array(map(Decimal, ("1000.00", "250.00", "70.50", "80.00")), pa.decimal128(10, 2))
        catalog.table("orders").write(pa.table({"id": [1, 2, 3, 4], "shop": [1, 2, 3, 3], "amount": amounts}))
        show("four orders")
        catalog.table("shops").write(pa.table({"shop": [2], "region": ["south"]}))
        show("shop 2 moves south: one order is left in the north, which HAVING takes away")
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()

# Output:
# aggregate Count(1), Sum(amount) by (region) over the changes of 'orders' and 'shops'
#   form: signed sums
#   written with catalog.write_changes into a table with the PRIMARY KEY (region), in output mode update
#   Spark's state has one row for each group, also for those that are gone
# four orders
#     north 2 1250.00
#     south 2 150.50
# shop 2 moves south: one order is left in the north, which HAVING takes away
#     south 3 400.50
