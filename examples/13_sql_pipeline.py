"""SQL only: two tables, a streaming join into a third that the statement creates, and a look at its past."""

import tempfile

from pyspark.sql import SparkSession

import planner
import upsert

TABLES = (
    "CREATE TABLE products (product_id BIGINT, name STRING, PRIMARY KEY (product_id) NOT ENFORCED)",
    """CREATE TABLE orders (order_id BIGINT, product_id BIGINT, amount DOUBLE,
                            PRIMARY KEY (order_id) NOT ENFORCED, INDEX (product_id))""",
    "INSERT INTO products VALUES (1, 'tea'), (2, 'coffee')",
    "INSERT INTO orders VALUES (10, 1, 3.5), (11, 2, 4.0), (12, 2, 2.5)",
)
SALES = """
    CREATE TABLE sales (PRIMARY KEY (order_id) NOT ENFORCED) AS
    SELECT order_id, name, amount FROM orders JOIN products USING (product_id)
"""
CHANGES = (
    "INSERT INTO products VALUES (2, 'espresso')",  # an update: the key is there
    "DELETE FROM orders WHERE order_id = 12",
)


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse", optimize=planner.optimize)
        for statement in TABLES:
            print(catalog.sql(statement, spark))

        catalog.options.update({"execution.runtime-mode": "streaming", "pipeline.name": "sales"})
        sales = catalog.sql(SALES, spark)  # seen by others from its first commit on
        sales.query.processAllAvailable()
        catalog.options["execution.runtime-mode"] = "batch"

        for statement in CHANGES:
            catalog.sql(statement, spark)
        sales.query.processAllAvailable()
        sales.query.stop()

        for state in ("FOR SYSTEM_VERSION AS OF 1", ""):
            found = catalog.sql(f"SELECT * FROM sales {state} ORDER BY order_id", spark).rows
            print(*(tuple(row.values()) for row in found.to_pylist()))
        print(catalog.sql("SHOW CREATE TABLE sales"))
    spark.stop()


if __name__ == "__main__":
    main()

# Output:
# <CREATE TABLE products: created>
# <CREATE TABLE orders: created>
# <INSERT INTO products: written, snapshot 1: 2 rows>
# <INSERT INTO orders: written, snapshot 1: 3 rows>
# (10, 'tea', 3.5) (11, 'coffee', 4.0) (12, 'coffee', 2.5)
# (10, 'tea', 3.5) (11, 'espresso', 4.0)
# CREATE TABLE `sales` (
#   `order_id` BIGINT NOT NULL,
#   `name` STRING,
#   `amount` DOUBLE,
#   PRIMARY KEY (`order_id`) NOT ENFORCED
# )
