"""Orders with their customer, product and voucher, if any: four changing tables as one delta join."""

import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

import planner
import upsert

TABLES = """
    CREATE TABLE orders (id INT, who INT, sku STRING, code STRING, PRIMARY KEY (id) NOT ENFORCED,
                         INDEX (who), INDEX (sku), INDEX (code));
    CREATE TABLE customers (who INT, name STRING, PRIMARY KEY (who) NOT ENFORCED);
    CREATE TABLE products (sku STRING, price DOUBLE, PRIMARY KEY (sku) NOT ENFORCED);
    CREATE TABLE vouchers (code STRING, off DOUBLE, PRIMARY KEY (code) NOT ENFORCED);
    CREATE TABLE bills (id INT, name STRING, due DOUBLE, PRIMARY KEY (id) NOT ENFORCED)"""
BILLS = """
    SELECT o.id, c.name, p.price - coalesce(v.off, 0) AS due
    FROM orders o JOIN customers c ON o.who = c.who JOIN products p ON o.sku = p.sku
                  LEFT JOIN vouchers v ON o.code = v.code"""


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        for statement in TABLES.split(";"):
            catalog.sql(statement)
        for name in ("orders", "customers", "products", "vouchers"):
            catalog.read_changes(spark, name).createOrReplaceTempView(name)
        bills = spark.sql(BILLS)

        def write(table: str, **columns: list[object]) -> None:
            catalog.table(table).write(pa.table(columns))

        def follow(title: str) -> None:
            writer = catalog.write_changes(bills, "bills").trigger(availableNow=True)
            writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
            print(title, *catalog.table("bills").snapshot().scan().sort_by("id").to_pylist(), sep="\n    ")

        write("customers", who=[1, 2], name=["Ada", "Bob"])
        write("products", sku=["tea", "pot"], price=[5.0, 30.0])
        write("orders", id=[10, 11], who=[1, 2], sku=["tea", "pot"], code=[None, "TEN"])
        follow("two bills")

        write("vouchers", code=["TEN"], off=[10.0])
        write("products", sku=["tea"], price=[5.5])
        write("customers", who=[2], name=["Robert"])
        follow("three tables have changed")
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# two bills
#     {'id': 10, 'name': 'Ada', 'due': 5.0}
#     {'id': 11, 'name': 'Bob', 'due': 30.0}
# three tables have changed
#     {'id': 10, 'name': 'Ada', 'due': 5.5}
#     {'id': 11, 'name': 'Robert', 'due': 20.0}
