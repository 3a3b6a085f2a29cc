"""Queries over changelogs with operators other than delta joins; over snapshots each is its own oracle."""

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from tests.planner.shapes import Shape, Tables


def _sql(text: str) -> Shape:
    return lambda spark, _: spark.sql(text)


def prices(spark: SparkSession) -> DataFrame:
    rows = [(i, "pqr"[i % 3], float(i)) for i in (1, 2, 3, 5, 5, 11)]
    return spark.createDataFrame(rows, "id BIGINT, grade STRING, fee DOUBLE")


def _two_joins(_: SparkSession, t: Tables) -> DataFrame:
    joined = t["orders"].join(t["products"], "product_id").select("order_id", "name")
    shelved = t["products"].join(
        t["shelves"], (t["products"].shop == t["shelves"].shop) & (F.col("product_id") == F.col("product"))
    )
    return joined.union(shelved.select("product", "name"))


PASSED: dict[str, Shape] = {
    "union all": _sql("SELECT order_id, note FROM orders UNION ALL SELECT product_id, name FROM products"),
    "union with itself": lambda _, t: t["orders"].union(t["orders"]).select("note"),
    "union by name": lambda _, t: (
        t["orders"].select("note", "order_id").unionByName(t["orders"].select("order_id", "note"))
    ),
    "union by name with missing columns": lambda _, t: (
        t["orders"]
        .select("order_id", "note")
        .unionByName(t["products"].select("name"), allowMissingColumns=True)
    ),
    "union of two joins": _two_joins,
    "filter above a union of unions": lambda _, t: (
        t["orders"]
        .select("order_id")
        .union(t["products"].select("product_id"))
        .union(t["shelves"].select("product"))
        .filter("order_id > 3")
    ),
    "explode": lambda _, t: t["orders"].select("order_id", F.explode(F.split("note", " ")).alias("word")),
    "lateral view": _sql(
        "SELECT * FROM (SELECT order_id, note FROM orders) LATERAL VIEW OUTER posexplode(split(note, ' ')) w"
    ),
    "explode above a join": lambda _, t: (
        t["orders"].join(t["products"], "product_id").select("name", F.explode(F.split("note", " ")))
    ),
    "DISTINCT with the key": _sql("SELECT DISTINCT order_id, note FROM orders"),
    "dropDuplicates by the key": lambda _, t: t["shelves"].dropDuplicates(["shop", "product"]),
    "static rows": lambda spark, t: (
        t["orders"].join(prices(spark), F.expr("product_id = id")).select("order_id", "grade", "fee")
    ),
    "static rows, all changes kept": lambda spark, t: (
        t["orders"].join(prices(spark), F.expr("product_id = id"), "left").select("order_id", "grade")
    ),
    "static rows on the left": lambda spark, t: (
        prices(spark).join(t["products"], F.expr("product_id = id"), "right").select("name", "fee")
    ),
    "static rows decide": lambda spark, t: (
        t["orders"].join(prices(spark), F.expr("product_id = id"), "semi").select("order_id", "note")
    ),
    "static rows decide otherwise": lambda spark, t: (
        t["orders"].join(prices(spark), F.expr("product_id = id"), "anti").select("order_id")
    ),
    "static rows in sql": _sql(
        "SELECT * FROM (SELECT order_id, product_id FROM orders) o JOIN prices p ON o.product_id = p.id"
    ),
    "static rows above a join": lambda spark, t: (
        t["orders"]
        .join(t["products"], "product_id")
        .join(prices(spark), F.expr("product_id = id"), "left")
        .select("order_id", "name", "grade")
    ),
}
"""Right as they are, or with less of them."""

REGULAR: dict[str, Shape] = {
    "by what is computed": lambda _, t: (
        t["orders"]
        .join(t["products"].withColumnRenamed("product_id", "p"), F.expr("substr(note, 6, 1) = string(p)"))
        .select("order_id", "name")
    ),
    "equal or NULL": lambda _, t: (
        t["orders"]
        .alias("o")
        .join(t["products"].alias("p"), F.expr("o.note <=> p.shop AND price > amount"))
        .select("order_id", "name", "price")
    ),
    "columns of one name, no index": _sql(
        "SELECT a.note, b.note, a.amount FROM orders a JOIN orders b ON a.note = b.note WHERE b.order_id < 20"
    ),
    "above a delta join": lambda _, t: (
        t["orders"]
        .join(t["products"].withColumnRenamed("shop", "s"), "product_id")
        .join(t["shelves"], F.expr("upper(s) = upper(shop)"))
        .filter("count > 1")
        .select("order_id", "name", "count")
    ),
    "with itself, renamed on one side": _sql(
        "SELECT q.x, o.order_id FROM (SELECT product_id + 1 AS x FROM orders) q"
        " JOIN orders o ON q.x = o.parent"
    ),
    "with a union of itself": _sql(
        "SELECT q.x, o.order_id FROM (SELECT product_id + 0 AS x FROM orders"
        " UNION ALL SELECT parent FROM orders LEFT ANTI JOIN products USING (product_id)) q"
        " JOIN orders o ON q.x = o.parent"
    ),
}
"""Without an index that could serve a delta join."""

ALIKE = {
    "columns of one name, no index",
    "static rows in sql",
    "union of two joins",
    "union with itself",
    "union by name",
    "union by name with missing columns",
    "filter above a union of unions",
    "dropDuplicates by the key",
    "lateral view",
    "explode above a join",
    "static rows",
    "static rows on the left",
    "static rows decide",
    "static rows decide otherwise",
    "static rows above a join",
    "equal or NULL",
    "with itself, renamed on one side",
}
"""Shapes that are like others: checked by `make test-long` only."""
