"""Queries that join two changelogs in every shape that users write; over snapshots each is its own oracle.

A shape is a function of a session and the tables as DataFrames, which are also temp views of the same names.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from upsert.schema import TableSchema

Tables = Mapping[str, DataFrame]
Shape = Callable[[SparkSession, Tables], DataFrame]

_LONG, _TEXT = pa.int64(), pa.string()
SCHEMAS = {
    "orders": TableSchema.of(
        {
            "order_id": _LONG,
            "product_id": _LONG,
            "amount": pa.float64(),
            "note": _TEXT,
            "parent": _LONG,
            "at": pa.timestamp("us", tz="UTC"),
        },
        primary_key=["order_id"],
    )
    .index("product_id")
    .index("parent"),
    "products": TableSchema.of(
        {"product_id": pa.int32(), "name": _TEXT, "price": pa.float64(), "shop": _TEXT}, ["product_id"]
    ),
    "shelves": TableSchema.of({"shop": _TEXT, "product": _LONG, "count": pa.int16()}, ["shop", "product"]),
}
"""`orders.product_id` is a BIGINT, `products.product_id` an INT: join keys of different widths."""


def _sql(text: str) -> Shape:
    return lambda spark, _: spark.sql(text)


def _by_column(spark: SparkSession, t: Tables) -> DataFrame:
    orders, products = t["orders"], t["products"]
    return orders.join(products, orders["product_id"] == products["product_id"]).select(
        products["name"], orders["order_id"]
    )


def _renamed_and_computed(spark: SparkSession, t: Tables) -> DataFrame:
    orders = t["orders"].withColumnRenamed("product_id", "p").withColumn("twice", F.col("amount") * 2)
    products = t["products"].select(F.col("product_id").cast("bigint").alias("k"), F.upper("name").alias("N"))
    joined = orders.join(products, F.col("p") == F.col("k"))
    return (
        joined.withColumn("label", F.concat("N", F.lit("-"), "order_id"))
        .drop("p", "_row_kind")
        .filter("twice > 2")
    )


def _python_function(spark: SparkSession, t: Tables) -> DataFrame:
    shout = F.udf(lambda text: None if text is None else text + "!", "string")
    products = t["products"].withColumn("loud", shout("name"))
    return (
        t["orders"].join(products.filter(shout("shop") != "north!"), "product_id").select("order_id", "loud")
    )


SHAPES: dict[str, Shape] = {
    "using": lambda _, t: t["orders"].join(t["products"], "product_id"),
    "columns of the DataFrames": _by_column,
    "names of the inputs": lambda _, t: (
        t["orders"]
        .alias("o")
        .join(t["products"].alias("p"), F.expr("o.product_id = p.product_id"))
        .select("o.order_id", "p.*")
    ),
    "no projection at all": lambda _, t: t["orders"].join(
        t["products"].withColumnRenamed("product_id", "id"), F.expr("product_id = id")
    ),
    "renamed and computed": _renamed_and_computed,
    "a Python function": _python_function,
    "filters on both inputs": lambda _, t: (
        t["orders"]
        .filter("order_id between 2 and 40 and note is not null")
        .join(
            t["products"].filter("price > 1.5 and shop in ('north', 'south') and product_id <> 3"),
            "product_id",
        )
        .filter("amount < 900")
    ),
    "a filter on time": lambda _, t: (
        t["orders"].filter("at >= '2013-01-01 00:00:10'").join(t["products"], "product_id")
    ),
    "a condition beyond the keys": lambda _, t: (
        t["orders"]
        .join(
            t["products"],
            (t["orders"].product_id == t["products"].product_id) & (F.col("amount") > F.col("price")),
        )
        .select("order_id", "amount", "price")
    ),
    "a watermark below": lambda _, t: (
        t["orders"].withWatermark("at", "1 minute").join(t["products"], "product_id").select("at", "name")
    ),
    "a table with itself": lambda _, t: (
        t["orders"]
        .alias("child")
        .join(t["orders"].alias("parent"), F.expr("child.parent = parent.order_id"))
        .select("child.order_id", F.col("parent.note").alias("of"))
    ),
    "a table with itself, one id on both sides": lambda _, t: (
        t["orders"]
        .select(F.col("order_id").alias("child"), F.col("parent").alias("p"))
        .join(
            t["orders"]
            .filter("amount > 3")
            .select(F.col("order_id").alias("id"), F.upper("note").alias("n")),
            F.expr("p = id"),
        )
    ),
    "two columns": lambda _, t: t["products"].join(
        t["shelves"].filter("count > 1"),
        (t["products"].shop == t["shelves"].shop) & (t["products"].product_id == t["shelves"].product),
    ),
    "sql": _sql(
        "SELECT o.order_id, upper(p.name) AS n FROM orders o JOIN products p "
        "ON o.product_id = p.product_id AND o.amount > p.price WHERE o.amount > 1"
    ),
    "sql with a comma": _sql(
        "SELECT t.k, name FROM (SELECT order_id, product_id AS k FROM orders) t, products p "
        "WHERE t.k = p.product_id AND length(name) > 1"
    ),
    "sql with USING": _sql("SELECT * FROM orders JOIN products USING (product_id)"),
    "sql with everything of one side": _sql(
        "SELECT p.*, o.note FROM orders o JOIN products p ON o.product_id = p.product_id"
    ),
    "sql with common table expressions": _sql(
        "WITH big AS (SELECT * FROM orders WHERE amount > 2) "
        "SELECT a.order_id, b.order_id AS parent_id FROM big a JOIN big b ON a.parent = b.order_id"
    ),
    "sql with a common table expression, and more on top": lambda spark, t: (
        spark.sql("WITH big AS (SELECT * FROM orders WHERE amount > 2) SELECT order_id, product_id FROM big")
        .join(t["products"], "product_id")
        .filter("length(name) > 1")
    ),
    "sql with a view of a view": _sql("SELECT order_id, loud FROM named JOIN orders ON id = product_id"),
    "left join": lambda _, t: t["orders"].join(t["products"], "product_id", "left"),
    "left join with conditions on both sides": _sql(
        "SELECT order_id, name FROM orders o LEFT JOIN products p "
        "ON o.product_id = p.product_id AND o.amount > 2 AND p.price < 4 "
        "AND (p.shop = 'north' OR o.note IS NULL)"
    ),
    "left join, rows without a match alone": _sql(
        "SELECT o.* FROM orders o LEFT JOIN products p ON o.product_id = p.product_id "
        "WHERE p.product_id IS NULL"
    ),
    "left join with what is computed of rows that may be missing": lambda _, t: t["orders"].join(
        t["products"].select(
            "product_id",
            F.lit(1).alias("one"),
            F.coalesce("name", F.lit("?")).alias("label"),
            F.col("price").isNull().alias("free"),
            F.upper("shop").alias("upper"),
        ),
        "product_id",
        "left",
    ),
    "right join": lambda _, t: t["orders"].join(t["products"].filter("price > 1"), "product_id", "right"),
    "full join": lambda _, t: (
        t["orders"].filter("amount > 1").join(t["products"].filter("shop <> 'east'"), "product_id", "full")
    ),
    "semi join": lambda _, t: t["orders"].join(t["products"].filter("price > 2"), "product_id", "semi"),
    "anti join": lambda _, t: t["orders"].join(t["products"].filter("price > 2"), "product_id", "anti"),
    "anti join with a condition of both": _sql(
        "SELECT order_id FROM orders o LEFT ANTI JOIN products p "
        "ON o.product_id = p.product_id AND p.price > o.amount"
    ),
    "three tables": _sql(
        "SELECT order_id, name, count FROM orders o, products p, shelves s "
        "WHERE o.product_id = p.product_id AND s.shop = p.shop AND s.product = p.product_id AND o.amount > 1"
    ),
    "outer joins over inner ones": _sql(
        "SELECT order_id, x.* FROM orders o LEFT JOIN (SELECT p.product_id, s.count, 1 AS one "
        "FROM products p JOIN shelves s ON p.shop = s.shop AND p.product_id = s.product WHERE s.count > 1) x "
        "ON o.product_id = x.product_id WHERE x.count IS NULL OR x.count > 2"
    ),
    "a tree of outer joins": _sql(
        "SELECT o.order_id, p.name, s.count, c.note AS child FROM orders o "
        "LEFT JOIN products p ON o.product_id = p.product_id "
        "LEFT JOIN shelves s ON s.shop = p.shop AND s.product = p.product_id "
        "FULL JOIN orders c ON c.parent = o.order_id"
    ),
    "one table four times": _sql(
        "SELECT a.order_id, b.order_id AS parent, c.order_id AS grandparent, d.note FROM orders a "
        "LEFT JOIN orders b ON a.parent = b.order_id LEFT JOIN orders c ON b.parent = c.order_id "
        "LEFT SEMI JOIN products p ON a.product_id = p.product_id JOIN orders d ON d.order_id = a.order_id"
    ),
}

ALIKE = {
    "a condition beyond the keys",
    "a filter on time",
    "anti join",
    "left join",
    "no projection at all",
    "right join",
    "semi join",
    "three tables",
    "columns of the DataFrames",
    "names of the inputs",
    "a table with itself",
    "sql",
    "sql with USING",
    "sql with everything of one side",
    "sql with a comma",
    "sql with a common table expression, and more on top",
    "sql with a view of a view",
    "two columns",
}
"""Shapes whose plans are those of others but for names: their rows are checked by `make test-long` only."""

VIEWS = (
    "CREATE OR REPLACE TEMP VIEW named AS SELECT product_id AS id, concat(name, '!') AS loud FROM products"
)
