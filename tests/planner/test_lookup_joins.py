"""Joins of streams with lookups through Spark: found in a plan, rewritten or refused, right in a table."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltajoin
import planner
import upsert
from deltajoin.lookup import TableLookup
from planner.errors import PlanError
from tests.helpers import multiset

pytestmark = pytest.mark.spark


@pytest.fixture
def catalog(tmp_path: Path) -> upsert.Catalog:
    catalog = upsert.Catalog(str(tmp_path / "warehouse"), optimize=planner.optimize)
    catalog.sql("CREATE TABLE orders (id INT, user INT, v INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (user))")
    catalog.sql("CREATE TABLE users (user INT, name STRING, PRIMARY KEY (user) NOT ENFORCED)")
    catalog.sql("CREATE TABLE found (oid INT, who STRING, v INT, PRIMARY KEY (oid) NOT ENFORCED)")
    catalog.table("orders").write(table("orders", (1, 7, 10), (2, 8, 20), (3, 7, 30)))
    catalog.table("users").write(table("users", (7, "ann")))
    return catalog


def table(name: str, *rows: tuple[object, ...], kinds: str | None = None) -> pa.Table:
    names = {"orders": ["id", "user", "v"], "users": ["user", "name"]}[name]
    made = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    return made if kinds is None else made.append_column("_row_kind", pa.array([kinds] * len(rows)))


def side(spark: SparkSession, catalog: upsert.Catalog, name: str, **more: object) -> DataFrame:
    changes = catalog.read_changes(spark, name).where("_row_kind <> '-U'")
    source = TableLookup.of(catalog.table(name).path, ["user"])
    return deltajoin.with_lookup(changes, source, keys="user", **more)  # type: ignore[arg-type]


def sides(spark: SparkSession, catalog: upsert.Catalog) -> tuple[DataFrame, DataFrame]:
    orders = side(spark, catalog, "orders", upsert_key="id", immutable=["user"])
    return orders, side(spark, catalog, "users", upsert_key="user", kinds=["+I", "+U"])


def test_a_join_with_a_filter_and_renamed_columns_goes_into_a_table(
    spark: SparkSession, catalog: upsert.Catalog, tmp_path: Path
) -> None:
    """An update that makes a row fail the filter takes it away, though no -U says so."""
    orders, users = sides(spark, catalog)
    joined = orders.where("v < 100").join(users, "user", "left")
    joined = joined.select(F.col("id").alias("oid"), F.col("name").alias("who"), "v")
    assert [str(report.form) for report in planner.explain(joined).joins] == ["stateful"]

    def follow() -> set[tuple[object, ...]]:
        writer = catalog.write_changes(planner.optimize(joined, sink_key=["oid"]), "found")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return set(multiset(catalog.table("found").snapshot().scan()))

    assert follow() == {(1, "ann", 10), (2, None, 20), (3, "ann", 30)}
    catalog.table("orders").write(table("orders", (1, 7, 100)))
    catalog.table("orders").write(table("orders", (3, 7, 30), kinds="-D"))
    catalog.table("users").write(table("users", (8, "bob")))
    assert follow() == {(2, "bob", 20)}


def test_refusals_have_their_remedies(spark: SparkSession, catalog: upsert.Catalog) -> None:
    orders, users = sides(spark, catalog)
    plain = catalog.read_changes(spark, "users")
    for df, reason in {
        orders.join(plain, "user"): "the right one is not; give that one a source as well",
        orders.join(
            users.where("name > 'b'"), "user", "left"
        ): "right input of the left outer join is filtered",
        orders.join(users, "user", "left_semi"): "a left semi join of streams with lookups",
        orders.join(users, "user", "right"): "bring the padded row back when the last match is deleted",
        orders.join(users, "user").groupBy("name").count(): "its rows replace each other",
    }.items():
        with pytest.raises(PlanError, match=reason):
            planner.optimize(df)


def test_a_sink_of_another_key_is_refused(spark: SparkSession, catalog: upsert.Catalog) -> None:
    orders, users = sides(spark, catalog)
    with pytest.raises(PlanError, match="would leave replaced rows in the sink"):
        planner.optimize(orders.join(users, "user").select("id", "name"), sink_key=["name"])
