"""A session with Delta Lake and managed tables; its arguments are a folder and Delta's package."""

import json
import sys

from pyspark.sql import SparkSession

import planner
from upsert import Catalog
from upsert.errors import ConfigurationError


def main(folder: str, package: str) -> None:
    settings = {
        "spark.jars.packages": package,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": f"{folder}/spark",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    spark.sql("CREATE TABLE products (product_id BIGINT, name STRING) USING delta")
    spark.sql("INSERT INTO products VALUES (1, 'tea'), (2, 'coffee')")

    catalog = Catalog(f"{folder}/warehouse", optimize=planner.optimize)
    catalog.sql(
        "CREATE TABLE orders (order_id BIGINT, product_id BIGINT, PRIMARY KEY (order_id) NOT ENFORCED)"
    )
    catalog.sql("INSERT INTO orders VALUES (10, 1), (11, 2), (12, 3)", spark)
    catalog.sql(f"""CREATE TABLE delta_products (product_id BIGINT, name STRING)
                    WITH ('connector' = 'delta', 'path' = '{folder}/spark/products')""")
    orders, products = catalog.read(spark, "orders"), spark.table("products")
    joined = {
        "sql": catalog.sql(
            "SELECT order_id, name FROM orders JOIN delta_products USING (product_id)", spark
        ).df,
        "dataframes": orders.join(products, "product_id").select("order_id", "name"),
    }
    found = {way: sorted(map(list, df.collect())) for way, df in joined.items()}

    catalog.sql("CREATE TABLE names (product_id BIGINT, name STRING, PRIMARY KEY (product_id) NOT ENFORCED)")
    stream = catalog.write_changes(spark.readStream.table("products"), "names")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.start().awaitTermination()
    names = catalog.table("names").snapshot().scan().to_pylist()
    found["stream"] = sorted([row["product_id"], row["name"]] for row in names)
    try:
        catalog.expose(spark)
    except ConfigurationError as error:
        found["expose"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
