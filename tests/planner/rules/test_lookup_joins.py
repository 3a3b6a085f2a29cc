"""Joins of streams with lookups through Spark: found in a plan, rewritten or refused, right in a table."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import deltajoin
import planner
import upsert
from deltajoin.lookup import TableLookup
from planner.refusals import PlanError
from tests.helpers import multiset

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("ended_queries")]


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

    writer = catalog.write_changes(planner.optimize(joined, sink_key=["oid"]), "found")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def follow() -> set[tuple[object, ...]]:
        query.processAllAvailable()
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
        orders.join(users, "user").groupBy("name").count(): "aggregate over a lookup join of .* give state",
        orders.groupBy("user").count(): r"an aggregate over a stream with TableLookup.*: its rows replace",
    }.items():
        with pytest.raises(PlanError, match=reason):
            planner.optimize(df)


@pytest.mark.long
def test_an_aggregate_above_and_a_sink_without_a_key_are_given_every_kind_of_change(
    spark: SparkSession, catalog: upsert.Catalog, tmp_path: Path
) -> None:
    """The join remembers what it has given, and takes that back."""
    catalog.sql("CREATE TABLE totals (who STRING, n BIGINT, v BIGINT, PRIMARY KEY (who) NOT ENFORCED)")
    catalog.sql("CREATE TABLE kept (id INT, who STRING)")
    orders, users = sides(spark, catalog)
    joined = orders.join(users, "user").where("v < 100").select("id", F.col("name").alias("who"), "v")
    totals = joined.groupBy("who").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    options = {"state_path": str(tmp_path / "given"), "shards": 2}
    report = str(planner.explain(totals, **options))
    assert "for an aggregate must know which rows are replaced; of each" in report

    wanted = {"totals": totals, "kept": joined.select("id", "who")}
    queries: dict[str, StreamingQuery] = {}

    def follow(name: str) -> set[tuple[object, ...]]:
        if name not in queries:
            key = catalog.table(name).schema.primary_key
            df = planner.optimize(wanted[name], sink_key=key, **options)
            writer = catalog.write_changes(df, name).option("checkpointLocation", str(tmp_path / name))
            queries[name] = writer.start()
        queries[name].processAllAvailable()
        return set(multiset(catalog.table(name).snapshot().scan()))

    assert follow("totals") == {("ann", 2, 40)}
    assert follow("kept") == {(1, "ann"), (3, "ann")}
    catalog.table("orders").write(table("orders", (1, 7, 100), (4, 8, 5)))
    catalog.table("orders").write(table("orders", (3, 7, 30), kinds="-D"))
    catalog.table("users").write(table("users", (8, "bob")))
    assert follow("totals") == {("bob", 2, 25)}
    assert follow("kept") == {(2, "bob"), (4, "bob")}


def test_a_join_that_gives_every_kind_of_change_is_known_as_such(
    spark: SparkSession, catalog: upsert.Catalog, tmp_path: Path
) -> None:
    orders, users = sides(spark, catalog)
    options = {"changelog": "all", "state_path": str(tmp_path / "given")}
    for joined in (
        deltajoin.lookup_delta_join(orders, users, on="user", **options),
        planner.optimize(orders.join(users, "user"), **options),
    ):
        again = planner.optimize(joined)
        assert again is joined
        assert planner.optimize(joined.groupBy(joined.columns[1]).count()).columns[-1] == "_row_kind"


def test_a_sink_of_another_key_is_refused(spark: SparkSession, catalog: upsert.Catalog) -> None:
    orders, users = sides(spark, catalog)
    with pytest.raises(PlanError, match="would leave replaced rows in the sink"):
        planner.optimize(orders.join(users, "user").select("id", "name"), sink_key=["name"])
