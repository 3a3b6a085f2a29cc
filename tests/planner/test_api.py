"""What `optimize`, `explain` and `check_sink` promise beyond single queries."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from planner import PlanError
from upsert import Catalog
from upsert.catalog.query_records import DECISIONS_MARK
from upsert.errors import ConfigurationError
from upsert.registration import register
from upsert.stream_keys import UniqueKeys

pytestmark = pytest.mark.spark


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets options of the session, which are unset after the test."""
    names: list[str] = []

    def configured(name: str, value: str) -> None:
        spark.conf.set(name, value)
        names.append(name)

    yield configured
    for name in names:
        spark.conf.unset(name)


def test_plan_without_changelog_comes_back_as_it_was(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    joined = rates.join(rates.withColumnRenamed("value", "v"), F.expr("value = v"), "inner")
    for df in (spark.range(3), spark.range(3).groupBy("id").count(), rates, joined):
        assert planner.optimize(df) is df
        planner.check_sink(df)


def test_force_also_concerns_joins_of_no_changelog(spark: SparkSession) -> None:
    with pytest.raises(PlanError, match="strategy is 'force', and this join reads no changes"):
        planner.optimize(spark.range(3).join(spark.range(3), "id"), strategy="force")


def test_none_refuses_what_spark_would_get_wrong(changes: Mapping[str, DataFrame]) -> None:
    with pytest.raises(PlanError, match="strategy is 'none'"):
        planner.optimize(changes["orders"].join(changes["products"], "product_id", "left"), strategy="none")


def test_none_leaves_to_spark_what_it_gets_right(changes: Mapping[str, DataFrame]) -> None:
    joined = changes["orders"].join(changes["products"], "product_id")
    (join,) = planner.explain(joined, strategy="none").joins
    assert (join.form, join.reason) == ("regular", "strategy is 'none'")


def test_optimized_query_comes_back_as_it_was(changes: Mapping[str, DataFrame]) -> None:
    """So that it may pass through `Catalog(optimize=…)` once more."""
    optimized = planner.optimize(changes["orders"].join(changes["products"], "product_id"))
    assert planner.optimize(optimized) is optimized
    planner.check_sink(optimized)


def test_aggregate_over_an_optimized_join_is_of_its_changes(changes: Mapping[str, DataFrame]) -> None:
    """The result of a delta join is a changelog like any other."""
    optimized = planner.optimize(changes["orders"].join(changes["products"], "product_id"))
    counts = planner.optimize(optimized.groupBy("name").count())
    assert counts.columns == ["name", "count", "_row_kind"]


def test_changelog_without_join_keeps_its_kind(changes: Mapping[str, DataFrame]) -> None:
    orders = changes["orders"]
    assert planner.optimize(orders) is orders
    chosen = planner.optimize(
        orders.filter("amount > 1").selectExpr("_row_kind", "upper(note) AS n", "order_id")
    )
    assert chosen.columns == ["n", "order_id", "_row_kind"]
    assert planner.optimize(orders.select("note").withColumn("n", F.length("note"))).columns == [
        "note",
        "n",
        "_row_kind",
    ]


def test_sink_check_wants_the_kind_and_no_raw_join(changes: Mapping[str, DataFrame]) -> None:
    orders, products = changes["orders"], changes["products"]
    planner.check_sink(orders)
    planner.check_sink(orders.filter("amount > 1").select("order_id", "_row_kind"))
    for df in (orders.drop("_row_kind"), orders.join(products.drop("_row_kind"), "product_id")):
        with pytest.raises(PlanError, match=r"write planner.optimize\(df\) instead of df"):
            planner.check_sink(df)


def test_result_can_be_queried_by_the_names_of_the_inputs(changes: Mapping[str, DataFrame]) -> None:
    joined = (
        changes["orders"]
        .alias("o")
        .join(changes["products"].alias("p"), F.expr("o.product_id = p.product_id"))
    )
    assert planner.optimize(joined).select("o.order_id", "p.name", "_row_kind").columns == [
        "order_id",
        "name",
        "_row_kind",
    ]


def test_explain_tells_form_index_and_lookups(changes: Mapping[str, DataFrame]) -> None:
    df = (
        changes["orders"]
        .filter("order_id > 3")
        .join(changes["products"], "product_id")
        .select("note", "name")
    )
    found = planner.explain(df)
    (join,) = found.joins
    assert (join.form, join.indexes) == ("fused", ("INDEX_product_id", "PRIMARY KEY"))
    assert (join.reason, join.remedy, found.refusals) == (None, None, ())
    assert join.estimated_lookups is not None
    assert join.estimated_lookups.limit == 1_000_000
    text = str(found)
    assert "t0: orders(note, order_id, product_id) where order_id > 3, about 0 rows" in text
    assert "changes of t1 products:\n    look up t0 orders by (product_id) with INDEX_product_id" in text


def test_explain_tells_why_not_and_how_to_change_that(changes: Mapping[str, DataFrame]) -> None:
    joined = changes["orders"].join(changes["products"], F.expr("order_id = price"))
    found = planner.explain(joined.limit(3), strategy="force")
    (join,) = found.joins
    assert join.form == "refused"
    assert join.reason is not None
    assert join.reason in str(found)
    assert {refused.reason.split(" over ")[0] for refused in found.refusals} == {"a limit", join.reason}


def test_explain_of_a_join_that_is_left_to_spark(spark: SparkSession) -> None:
    (join,) = planner.explain(spark.range(3).join(spark.range(3), "id")).joins
    assert join.form == "spark"


def test_session_options_count_unless_given(
    configure: Callable[[str, str], None], changes: Mapping[str, DataFrame]
) -> None:
    joined = changes["orders"].join(changes["products"], "product_id", "semi")
    configure("spark.deltajoin.strategy", "NONE")
    with pytest.raises(PlanError, match="strategy is 'none'"):
        planner.optimize(joined)
    assert planner.optimize(joined, strategy="auto").columns[-1] == "_row_kind"


def test_flink_name_of_the_strategy_is_known(
    configure: Callable[[str, str], None], changes: Mapping[str, DataFrame]
) -> None:
    configure("table.optimizer.delta-join.strategy", "NONE")
    with pytest.raises(PlanError, match="strategy is 'none'"):
        planner.optimize(changes["orders"].join(changes["products"], "product_id", "anti"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stategy": "auto"}, "unknown option 'stategy'; did you mean 'strategy'?"),
        ({"strategy": "maybe"}, "option 'strategy' must be one of auto, force, none, got 'maybe'"),
        ({"shards": 0}, "option 'shards' must be a positive integer, got '0'"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        planner.optimize(spark.range(3), **options)
    assert message in str(wrong.value)


def test_wrong_session_option_is_named(spark: SparkSession, configure: Callable[[str, str], None]) -> None:
    configure("spark.deltajoin.shard", "2")
    with pytest.raises(ConfigurationError, match="unknown option 'shard'; did you mean 'shards'"):
        planner.optimize(spark.range(3))


def test_observe_above_a_join_is_no_obstacle(changes: Mapping[str, DataFrame]) -> None:
    joined = planner.optimize(changes["orders"].join(changes["products"], "product_id"))
    observed = joined.observe("joined", F.count("*").alias("rows"))
    assert planner.optimize(observed) is observed


def test_catalog_with_the_planner_writes_joins_that_are_exact(spark: SparkSession, tmp_path: Path) -> None:
    """`Catalog(optimize=…)`: the query needs no call of its own, and a wrong one is not even started."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE a (id BIGINT, k INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (k))")
    catalog.sql("CREATE TABLE b (k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.sql("CREATE TABLE joined (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED)")
    a, b = (catalog.read_changes(spark, name) for name in ("a", "b"))
    with pytest.raises(PlanError, match="no equality"):
        catalog.write_changes(a.join(b, a.k > b.k, "left").select("id", "v"), "joined")
    writer = catalog.write_changes(a.join(b, "k").select("id", "v"), "joined").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    catalog.table("a").write(pa.table({"id": [1, 2, 3], "k": pa.array([7, 8, None], pa.int32())}))
    catalog.table("b").write(pa.table({"k": [7, 8], "v": ["seven", "eight"]}))
    writer.start().awaitTermination()
    catalog.table("a").write(pa.table({"id": [1], "k": pa.array([8], pa.int32())}))
    catalog.table("b").write(pa.table({"k": [8], "v": ["EIGHT"]}))
    writer.start().awaitTermination()
    found = catalog.table("joined").snapshot().scan().sort_by("id").to_pylist()
    assert found == [{"id": 1, "v": "EIGHT"}, {"id": 2, "v": "EIGHT"}]


def test_keys_that_an_earlier_call_has_found_stay(spark: SparkSession) -> None:
    """Also where the later one has something to tell of the query; no broker is asked."""
    columns = "id BIGINT, n INT, part INT METADATA FROM 'partition' VIRTUAL, PRIMARY KEY (id) NOT ENFORCED"
    given = {"columns": columns, "topic": "t", "properties.bootstrap.servers": "localhost:1"}
    register(spark)
    reader = spark.readStream.format("kafka-changelog").options(**given, **{"value.format": "debezium-json"})
    first = planner.optimize(reader.load(), sink_key=["id"])
    keys = UniqueKeys.of_schema(first.schema.jsonValue())
    later = planner.optimize(first.where("part = 0"))
    metadata = later.schema["_row_kind"].metadata
    assert (str(keys), DECISIONS_MARK in metadata) == ("(id)", True)
    assert UniqueKeys.of_schema(later.schema.jsonValue()) == keys
