"""The best-selling product of each shop as a materialized view that follows sales, returns and prices."""

import tempfile

from pyspark.sql import SparkSession

import upsert

TABLES = """
    CREATE TABLE sales (id INT, shop STRING, sku STRING, n INT, PRIMARY KEY (id) NOT ENFORCED);
    CREATE TABLE prices (sku STRING, price INT, PRIMARY KEY (sku) NOT ENFORCED);
    INSERT INTO sales VALUES (1, 'Ulm', 'tea', 3), (2, 'Ulm', 'cup', 1), (3, 'Bonn', 'tea', 1);
    INSERT INTO prices VALUES ('tea', 5), ('cup', 9)"""
BEST = """
    CREATE MATERIALIZED VIEW best PRIMARY KEY (shop) AS
    SELECT shop, sku, worth FROM (
        SELECT shop, sku, sum(n * price) AS worth,
               row_number() OVER (PARTITION BY shop ORDER BY sum(n * price) DESC, sku) AS place
        FROM sales JOIN prices USING (sku) GROUP BY shop, sku)
    WHERE place = 1"""


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        catalog = upsert.Catalog(f"{folder}/warehouse")
        for statement in [*TABLES.split(";"), BEST]:
            catalog.sql(statement, spark)
        show(catalog)

        catalog.sql("UPDATE prices SET price = 20 WHERE sku = 'cup'", spark)
        catalog.sql("DELETE FROM sales WHERE shop = 'Bonn'")
        print(catalog.sql("REFRESH MATERIALIZED VIEW best", spark))
        show(catalog)
    spark.stop()


def show(catalog: upsert.Catalog) -> None:
    view = catalog.view("best")
    for row in view.table.snapshot().scan().sort_by("shop").to_pylist():
        print(row)
    print("of", view.base_versions)


if __name__ == "__main__":
    main()

# Output:
# {'shop': 'Bonn', 'sku': 'tea', 'worth': 5}
# {'shop': 'Ulm', 'sku': 'tea', 'worth': 15}
# of {'default.sales': 1, 'default.prices': 1}
# <REFRESH MATERIALIZED VIEW best: refreshed>
# {'shop': 'Ulm', 'sku': 'cup', 'worth': 20}
# of {'default.sales': 2, 'default.prices': 2}
