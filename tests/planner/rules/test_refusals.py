"""Queries as users write them that have no right answer: each refused, for its reason."""

import random
from collections.abc import Callable, Iterator, Mapping

import pandas as pd
import pyspark.sql.functions as F
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window

import planner
from planner import PlanError
from upsert.managed import frames
from upsert.store import Table

pytestmark = pytest.mark.spark

Query = Callable[[SparkSession, Mapping[str, DataFrame]], DataFrame]


def _same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from batches


def _as_of(_: SparkSession, t: Mapping[str, DataFrame]) -> DataFrame:
    orders, products = t["orders"], t["products"].withColumn("valid", F.lit("2013-01-01").cast("timestamp"))
    return orders._joinAsOf(products, orders["at"], products["valid"], allowExactMatches=True)


def _rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().select(F.col("value").alias("product_id"))


def _nine_tables(_: SparkSession, t: Mapping[str, DataFrame]) -> DataFrame:
    joined = t["products"].select("product_id")
    for _ in range(8):
        joined = joined.join(t["products"].select("product_id"), "product_id", "left")
    return joined


ROWS = "would treat deleted rows as rows"
UNREPEATABLE = "could not be deleted with the values of its insert"
REFUSED: dict[str, tuple[Query, str]] = {
    "aggregate of an aggregate": (
        lambda _, t: t["orders"].groupBy("product_id").count().groupBy("count").count(),
        "another aggregate over an aggregate of the changes of 'orders': its rows replace each other",
    ),
    "aggregate that no index serves": (
        lambda _, t: t["orders"].groupBy("note").agg(F.max("amount")),
        "Max(amount) is no sum, so the rows of a group that changes must be looked up, and no PRIMARY KEY",
    ),
    "aggregate of a union with one that no index serves": (
        lambda _, t: (
            t["orders"]
            .groupBy("note")
            .agg(F.max("amount").alias("most"))
            .union(t["products"].select("name", "price"))
            .groupBy("note")
            .count()
        ),
        "Max(amount) is no sum, so the rows of a group that changes must be looked up, and no PRIMARY KEY",
    ),
    "dropDuplicates": (
        lambda _, t: t["orders"].dropDuplicates(["note"]),
        f"dropDuplicates by (note) over the changes of 'orders' {ROWS}",
    ),
    "limit": (lambda _, t: t["orders"].limit(3), f"a limit over the changes of 'orders' {ROWS}"),
    "sort": (lambda _, t: t["orders"].sort("note"), f"a sort over the changes of 'orders' {ROWS}"),
    "window": (
        lambda _, t: t["orders"].withColumn("n", F.count("*").over(Window.partitionBy("note"))),
        f"a window function over the changes of 'orders' {ROWS}",
    ),
    "session": (
        lambda _, t: t["orders"].groupBy(F.session_window("at", "1 minute")).count(),
        "session_window over the changes of 'orders': a deleted row may split a session",
    ),
    "first": (
        lambda _, t: t["orders"].groupBy("product_id").agg(F.first("note")),
        "First(note) over the changes of 'orders' depends on the order in which rows come, which changes",
    ),
    "any value": (
        lambda _, t: t["orders"].groupBy("product_id").agg(F.any_value("note")),
        "which changes do not have; use min(value), which is one of them",
    ),
    "dropDuplicates within a watermark": (
        lambda _, t: t["orders"].withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["order_id"]),
        f"dropDuplicatesWithinWatermark over the changes of 'orders' {ROWS}",
    ),
    "offset": (lambda _, t: t["orders"].offset(3), f"an offset over the changes of 'orders' {ROWS}"),
    "sample": (
        lambda _, t: t["orders"].sample(0.5),
        f"a sample over the changes of 'orders' {ROWS}; choose rows by a hash of their key",
    ),
    "union with a stream of rows": (
        lambda spark, t: t["orders"].select("product_id").union(_rows(spark)),
        "a union of the changes of 'orders' with rows that are no changes (input 2 of 2)",
    ),
    "union of misplaced kinds": (
        lambda _, t: t["orders"].select("_row_kind", "note").union(t["products"].select("name", "_row_kind")),
        "have '_row_kind' at different positions",
    ),
    "rollup": (
        lambda _, t: t["orders"].rollup("product_id").count(),
        f"ROLLUP, CUBE or GROUPING SETS over the changes of 'orders' {ROWS}",
    ),
    "unpivot": (
        lambda _, t: t["orders"].unpivot("order_id", ["product_id", "order_id"], "name", "value"),
        f"UNPIVOT over the changes of 'orders' {ROWS}; select with the generator stack",
    ),
    "temporal join": (
        _as_of,
        f"an event-time temporal join over the changes of 'orders' and 'products' {ROWS}",
    ),
    "except": (
        lambda _, t: t["orders"].exceptAll(t["orders"]),
        f"EXCEPT over the changes of 'orders' {ROWS}",
    ),
    "intersect": (
        lambda _, t: t["orders"].intersect(t["orders"]),
        f"INTERSECT over the changes of 'orders' {ROWS}",
    ),
    "explode of the clock": (
        lambda _, t: t["orders"].select(F.explode(F.array(F.current_timestamp()))),
        "CurrentTimestamp(…) reads the clock",
    ),
    "mapInPandas": (
        lambda _, t: t["orders"].mapInPandas(_same, t["orders"].schema),
        "mapInPandas over the changes of 'orders'",
    ),
    "aggregate above a join that needs lookups": (
        lambda _, t: t["orders"].join(t["products"], "product_id").groupBy("name").agg(F.max("amount")),
        "cannot be looked up; write the join into a managed table with INDEX (name), catalog.write",
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
    "kind filled in with all columns": (
        lambda _, t: t["orders"].na.fill("none"),
        "'_row_kind' is replaced by what is computed of it, as na.fill and replace do with all columns; drop",
    ),
    "natural join": (
        lambda spark, _: spark.sql("SELECT * FROM orders NATURAL JOIN products"),
        "as in a NATURAL JOIN of two changelogs; name the join columns: JOIN … USING (product_id)",
    ),
    "join using the kind": (
        lambda _, t: t["orders"].join(t["products"], ["product_id", "_row_kind"]),
        "'_row_kind' is among the join columns",
    ),
    "left join by what is computed": (
        lambda _, t: t["orders"].join(t["products"], F.expr("upper(note) = name"), "left"),
        "(Upper(note#",
    ),
    "left join without index": (
        lambda _, t: t["orders"].join(t["products"], F.expr("note = name"), "left"),
        "no index of 'orders' lies within its join columns (note); ALTER TABLE orders ADD INDEX (note)",
    ),
    "a condition that only Spark knows": (
        lambda _, t: t["orders"].join(
            t["products"],
            (t["orders"].product_id == t["products"].product_id) & F.expr("note rlike name"),
            "anti",
        ),
        "must hold inside the delta join, which cannot evaluate RLike(note, name)",
    ),
    "a filter below an outer join that depends on the time zone": (
        lambda _, t: t["products"].join(t["orders"].filter("hour(at) = 3"), "product_id", "left"),
        "the filter (Hour(at#",
    ),
    "a Python function below an outer join": (
        lambda _, t: t["orders"].join(
            t["products"].withColumn("loud", F.udf(lambda name: name + "!", "string")("name")),
            "product_id",
            "left",
        ),
        "a Python function computes 'loud' below an outer join, where it would be called for rows that are",
    ),
    "nine tables": (_nine_tables, "the query joins 9 tables, a delta join takes 8 at most"),
    "an outer join over an aggregate": (
        lambda _, t: t["orders"].join(t["products"].groupBy("product_id").count(), "product_id", "left"),
        "between the right input and its table lies an aggregate",
    ),
    "cross join": (
        lambda _, t: t["orders"].crossJoin(t["products"]),
        "no equality between a column of 'orders' and one of 'products'",
    ),
    "join by inequality": (
        lambda _, t: t["orders"].join(t["products"], F.expr("amount > price")),
        "no equality between a column of 'orders' and one of 'products'",
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
    assert "report it as a bug" not in str(refused.value)
    with pytest.raises(PlanError):
        planner.check_sink(df)


@pytest.mark.parametrize(
    ("title", "is_for_a_view"),
    [("offset", True), ("rollup", True), ("unpivot", True), ("sample", False), ("mapInPandas", False)],
)
def test_a_view_is_the_remedy_only_of_what_a_view_may_have(
    title: str, is_for_a_view: bool, spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    """A sample is drawn by chance, and a function of Python over rows has no words in SQL."""
    with pytest.raises(PlanError) as refused:
        planner.optimize(REFUSED[title][0](spark, changes))
    assert refused.value.is_for_a_view is is_for_a_view


FORCED: dict[str, tuple[Query, str]] = {
    "join by what is computed": (
        lambda _, t: t["orders"].join(t["products"], F.expr("upper(note) = name")),
        "(Upper(note#",
    ),
    "join without index": (
        lambda _, t: t["orders"].join(t["products"], F.expr("note = name")),
        "no index of 'orders' lies within its join columns (note); ALTER TABLE orders ADD INDEX (note)",
    ),
    "a stream of rows": (
        lambda spark, t: t["orders"].join(_rows(spark), "product_id"),
        "the right input reads no changelog; it is a stream of rows",
    ),
    "a static DataFrame": (
        lambda spark, t: t["orders"].join(spark.range(3).toDF("product_id"), "product_id"),
        "strategy is 'force', and this join is one with static rows",
    ),
    "join of three, one of them without index": (
        lambda spark, _: spark.sql(
            "SELECT * FROM orders o JOIN products p ON o.product_id = p.product_id JOIN shelves s "
            "ON s.product = p.product_id"
        ),
        (
            "no index of 'shelves' lies within its join columns (product); "
            "ALTER TABLE shelves ADD INDEX (product)"
        ),
    ),
}
"""Queries that Spark's own join may run: refused where a delta join is a must."""


def test_subqueries_over_streams_are_refused_by_spark_itself(
    spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    """EXISTS and IN never come to the planner; LEFT SEMI JOIN and LEFT ANTI JOIN say the same."""
    assert changes
    for condition in (
        "EXISTS (SELECT 1 FROM products p WHERE p.product_id = o.product_id)",
        "order_id NOT IN (SELECT product_id FROM products)",
    ):
        with pytest.raises(AnalysisException, match="Streaming query is not allowed in subquery"):
            spark.sql(f"SELECT order_id FROM orders o WHERE {condition}")


@pytest.mark.parametrize("title", FORCED)
def test_join_is_refused_as_a_delta_join(
    title: str, spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    query, reason = FORCED[title]
    df = query(spark, changes)
    with pytest.raises(PlanError) as refused:
        planner.optimize(df, strategy="force")
    assert reason in str(refused.value)
    assert planner.optimize(df).columns[-1] == "_row_kind"


def test_static_rows_are_refused_where_they_need_a_state(
    spark: SparkSession, changes: Mapping[str, DataFrame]
) -> None:
    static = spark.range(3).toDF("product_id")
    for kind, other in (("right", "right outer"), ("full", "full outer")):
        with pytest.raises(PlanError, match=f"with static rows is '{other}'"):
            planner.optimize(changes["orders"].join(static, "product_id", kind))
    with pytest.raises(PlanError, match="the static side of the join with the changes of 'orders'"):
        planner.optimize(changes["orders"].join(static.filter("rand() > 0.5"), "product_id"))


def test_lost_signs_are_refused(spark: SparkSession, empty_tables: Mapping[str, Table]) -> None:
    """A table's schema without the kind makes deleted rows look like rows."""
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
