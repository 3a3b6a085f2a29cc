"""Queries as users write them that have no right answer: each refused, for its reason."""

import random
from collections.abc import Callable, Iterator, Mapping

import pandas as pd
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession, Window

import planner
from planner import PlanError
from upsert.managed import frames
from upsert.store import Table

pytestmark = pytest.mark.spark

Query = Callable[[SparkSession, Mapping[str, DataFrame]], DataFrame]


def _same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from batches


def _rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().select(F.col("value").alias("product_id"))


ROWS = "would count rows taken away as rows"
UNREPEATABLE = "could not be taken away as it came"
REFUSED: dict[str, tuple[Query, str]] = {
    "aggregate": (
        lambda _, t: t["orders"].groupBy("product_id").count(),
        f"an aggregate over the changes of 'orders' {ROWS}",
    ),
    "distinct": (
        lambda _, t: t["orders"].select("note").distinct(),
        f"dropDuplicates over the changes of 'orders' {ROWS}",
    ),
    "dropDuplicates": (
        lambda _, t: t["orders"].dropDuplicates(["note"]),
        f"dropDuplicates over the changes of 'orders' {ROWS}",
    ),
    "limit": (lambda _, t: t["orders"].limit(3), f"a limit over the changes of 'orders' {ROWS}"),
    "sort": (lambda _, t: t["orders"].sort("note"), f"a sort over the changes of 'orders' {ROWS}"),
    "window": (
        lambda _, t: t["orders"].withColumn("n", F.count("*").over(Window.partitionBy("note"))),
        f"a window function over the changes of 'orders' {ROWS}",
    ),
    "window of time": (
        lambda _, t: t["orders"].withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count(),
        f"an aggregate over the changes of 'orders' {ROWS}",
    ),
    "union": (lambda _, t: t["orders"].union(t["orders"]), f"a union over the changes of 'orders' {ROWS}"),
    "except": (
        lambda _, t: t["orders"].exceptAll(t["orders"]),
        f"EXCEPT over the changes of 'orders' {ROWS}",
    ),
    "intersect": (
        lambda _, t: t["orders"].intersect(t["orders"]),
        f"INTERSECT over the changes of 'orders' {ROWS}",
    ),
    "explode": (
        lambda _, t: t["orders"].select(F.explode(F.split("note", " "))),
        f"a generator over the changes of 'orders' {ROWS}",
    ),
    "mapInPandas": (
        lambda _, t: t["orders"].mapInPandas(_same, t["orders"].schema),
        "the operator 'MapInPandas' over the changes of 'orders'",
    ),
    "aggregate above a join": (
        lambda _, t: t["orders"].join(t["products"], "product_id").groupBy("name").count(),
        f"an aggregate over the changes of 'orders' and 'products' {ROWS}",
    ),
    "clock": (
        lambda _, t: t["orders"].withColumn("now", F.current_timestamp()),
        f"CurrentTimestamp(…) reads the clock, so a row over the changes of 'orders' {UNREPEATABLE}",
    ),
    "clock in sql": (
        lambda spark, _: spark.sql("SELECT * FROM orders WHERE at > now() - INTERVAL 1 DAY"),
        "Now(…) reads the clock",
    ),
    "clock as a word": (
        lambda spark, _: spark.sql("SELECT * FROM orders WHERE at > cast('yesterday' AS timestamp)"),
        "reads the clock",
    ),
    "random": (lambda _, t: t["orders"].filter(F.rand() > 0.5), "Rand(…) is not deterministic"),
    "uuid": (lambda _, t: t["orders"].withColumn("id", F.expr("uuid()")), "Uuid(…) is not deterministic"),
    "random Python": (
        lambda _, t: t["products"].withColumn(
            "p", F.udf(lambda price: price * random.random(), "double").asNondeterministic()("price")
        ),
        "PythonUDF(…) is not deterministic",
    ),
    "subquery": (
        lambda spark, _: spark.sql("SELECT * FROM orders WHERE amount > (SELECT avg(id) FROM range(10))"),
        "Subquery(…) reads rows that may change",
    ),
    "filter on the kind": (
        lambda _, t: t["orders"].filter("_row_kind = '+I'"),
        "'_row_kind' is used in a condition",
    ),
    "computed from the kind": (
        lambda _, t: t["orders"].withColumn("sign", F.left("_row_kind", F.lit(1))),
        "'_row_kind' is used to compute column 'sign'",
    ),
    "kind renamed": (
        lambda _, t: t["orders"].withColumnRenamed("_row_kind", "kind"),
        "'_row_kind' is used to compute column 'kind'",
    ),
    "kind overwritten": (
        lambda _, t: t["orders"].withColumn("_row_kind", F.lit("+I")),
        "is called '_row_kind', which is reserved",
    ),
    "natural join": (
        lambda spark, _: spark.sql("SELECT * FROM orders NATURAL JOIN products"),
        "as in a NATURAL JOIN of two changelogs; name the join columns: JOIN … USING (product_id)",
    ),
    "join using the kind": (
        lambda _, t: t["orders"].join(t["products"], ["product_id", "_row_kind"]),
        "'_row_kind' is among the join columns",
    ),
    "left join": (
        lambda _, t: t["orders"].join(t["products"], "product_id", "left"),
        "the join over the changes of 'orders' and 'products' is 'left outer', a delta join must be 'inner'",
    ),
    "full join": (lambda _, t: t["orders"].join(t["products"], "product_id", "full"), "is 'full outer'"),
    "semi join": (lambda _, t: t["orders"].join(t["products"], "product_id", "semi"), "is 'left semi'"),
    "anti join": (lambda _, t: t["orders"].join(t["products"], "product_id", "anti"), "is 'left anti'"),
    "cross join": (
        lambda _, t: t["orders"].crossJoin(t["products"]),
        "no equality between a column of 'orders' and one of 'products'",
    ),
    "join by inequality": (
        lambda _, t: t["orders"].join(t["products"], F.expr("amount > price")),
        "no equality between a column of 'orders' and one of 'products'",
    ),
    "join by what is computed": (
        lambda _, t: t["orders"].join(t["products"], F.expr("upper(note) = name")),
        "(Upper(note#",
    ),
    "join without index": (
        lambda _, t: t["orders"].join(t["products"], F.expr("note = name")),
        "join columns orders.note = products.name; add INDEX (note) to orders and INDEX (name) to products",
    ),
    "three tables": (
        lambda spark, _: spark.sql(
            "SELECT * FROM orders o JOIN products p ON o.product_id = p.product_id JOIN shelves s "
            "ON s.shop = p.shop AND s.product = p.product_id"
        ),
        "the left input is itself a join",
    ),
    "a stream of rows": (
        lambda spark, t: t["orders"].join(_rows(spark), "product_id"),
        "the right input reads no changelog; it is a stream of rows",
    ),
    "a static DataFrame": (
        lambda spark, t: t["orders"].join(spark.range(3).toDF("product_id"), "product_id"),
        "the right input reads no changelog; it is a static DataFrame",
    ),
    "an aggregate below a join": (
        lambda _, t: t["orders"].groupBy("product_id").count().join(t["products"], "product_id"),
        "between the left input and its table lies an aggregate",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_query_is_refused(title: str, spark: SparkSession, changes: Mapping[str, DataFrame]) -> None:
    query, reason = REFUSED[title]
    df = query(spark, changes)
    with pytest.raises(PlanError) as refused:
        planner.optimize(df)
    assert reason in str(refused.value)
    with pytest.raises(PlanError):
        planner.check_sink(df)


def test_lost_signs_are_refused(spark: SparkSession, empty_tables: Mapping[str, Table]) -> None:
    """A table's schema without the kind makes rows taken away look like rows."""
    path = empty_tables["orders"].path
    df = spark.readStream.format("upsert-table").schema("order_id BIGINT, note STRING").load(path)
    with pytest.raises(PlanError, match="the changes of 'orders' are read without '_row_kind'"):
        planner.optimize(df)


def test_join_needs_all_rows_as_changes(spark: SparkSession, empty_tables: Mapping[str, Table]) -> None:
    """Without a join, changes from now on are as good as all of them."""
    orders = frames.read_changes(spark, empty_tables["orders"].path, scan_mode="latest")
    products = frames.read_changes(spark, empty_tables["products"].path)
    with pytest.raises(PlanError, match=r"table 'orders' is read with scan\.mode 'latest'"):
        planner.optimize(orders.join(products, "product_id"))
    assert planner.optimize(orders) is orders
