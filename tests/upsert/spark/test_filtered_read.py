"""What `where` of a read's DataFrame hands to the read: the same rows, and fewer that are read."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

import upsert
from upsert.managed import frames
from upsert.spark.filtered_read import Comparison, FilteredRead, comparisons
from upsert.spark.reads import read_of
from upsert.spark.version import PYSPARK
from upsert.store.alterations import AddColumn

pytestmark = pytest.mark.spark

ROWS = 1_000
NAMES = ("id", "name", "x", "f", "day", "at", "price", "n", "ok")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> upsert.Catalog:
    catalog = upsert.Catalog(tmp_path_factory.mktemp("warehouse"))
    catalog.sql(
        "CREATE TABLE t (id BIGINT, name STRING, x DOUBLE, f FLOAT, day DATE, at TIMESTAMP, "
        "price DECIMAL(10, 2), n INT, ok BOOLEAN, PRIMARY KEY (id) NOT ENFORCED)"
    )
    catalog.table("t").write(rows(ROWS))
    return catalog


def rows(count: int) -> pa.Table:
    ids = range(count)
    specials = [float("nan"), -0.0, 0.0, float("inf"), None]
    return pa.table(
        {
            "id": np.arange(count),
            "name": [None if i % 11 == 0 else f"n{i % 100}" for i in ids],
            "x": pa.array([specials[i % 5] if i % 3 == 0 else i / 3 for i in ids], pa.float64()),
            "f": pa.array([i / 10 for i in ids], pa.float32()),
            "day": [date(2020, 1, 1) + timedelta(days=i % 400) for i in ids],
            "at": pa.array(
                [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=i) for i in ids],
                pa.timestamp("us", "UTC"),
            ),
            "price": pa.array([Decimal(i) / 100 for i in ids], pa.decimal128(10, 2)),
            "n": pa.array([None if i % 5 == 0 else i % 50 for i in ids], pa.int32()),
            "ok": [None if i % 7 == 0 else i % 2 == 0 for i in ids],
        }
    )


def read(spark: SparkSession, catalog: upsert.Catalog, table: str = "t") -> FilteredRead:
    def again(where: object) -> DataFrame:
        return catalog.read(spark, table, where=where)  # type: ignore[arg-type]

    return FilteredRead(catalog.read(spark, table), NAMES, again)


CONDITIONS: dict[str, list[Comparison] | None] = {
    "id = 77": [("id", "=", 77)],
    "77 < id": [("id", ">", 77)],
    "id = '77'": [("id", "=", 77)],
    "id BETWEEN 5 AND 10 AND name = 'n7'": [("id", ">=", 5), ("id", "<=", 10), ("name", "=", "n7")],
    "x < 5": [("x", "<", 5.0)],
    "x > 5": [("x", "is not null", None)],
    "x = 0": [("x", "=", 0.0)],
    "x <> 0": [("x", "is not null", None)],
    "x = double('NaN')": [("x", "is not null", None)],
    "x IN (double('NaN'), 1)": [],
    "f <= float(0.2)": [("f", "<=", float(np.float32(0.2)))],
    "f = float(0.7)": [("f", "=", float(np.float32(0.7)))],
    "NOT (x IN (0, 1))": [],
    "day = '2020-02-01'": [("day", "=", date(2020, 2, 1))],
    "at >= '2020-01-02 03:00:00'": [("at", ">=", datetime(2020, 1, 2, 3, tzinfo=UTC))],
    "price = 3.14": [("price", "=", Decimal("3.14"))],
    "price < 3.145": [("price", "<", Decimal("3.15"))],
    "n IS NULL": [("n", "is null", None)],
    "n IN (1, 2, 3)": [("n", "in", [1, 2, 3])],
    "n NOT IN (1, 2)": [("n", "not in", [1, 2])],
    "n NOT IN (1, NULL)": None,
    "n <> 3 AND ok": [("n", "!=", 3), ("ok", "=", True)],
    "NOT ok": [("ok", "=", False)],
    "NOT (n = 3 OR name = 'n1')": [("n", "!=", 3), ("name", "!=", "n1")],
    "n <=> 3": [],
    "n = 3 OR name = 'n1'": [],
    "name LIKE 'n1%'": [("name", "is not null", None)],
    "name = ''": [("name", "=", "")],
    "id % 7 = 0": [],
    "CAST(id AS STRING) = '7'": [],
    "id = 5 AND id = 6": None,
    "id > 1e3": [],
    "ok = (n > 3)": None,
    "rand() < 2 AND id < 9": [],
    "day < current_date() AND id < 9": [],
    "day < 'today' AND id < 9": [],
    "day < to_date('yesterday') AND id < 9": [],
    "name = current_user() OR id < 9": [],
    "false": None,
}
if PYSPARK != "4.2":  # which has no such cast
    CONDITIONS["at < CAST(TIME'09:00:00' AS TIMESTAMP) AND id < 9"] = []


def test_a_filter_reads_less_and_gives_the_same_rows(spark: SparkSession, catalog: upsert.Catalog) -> None:
    df, whole = read(spark, catalog), catalog.read(spark, "t")
    for condition, expected in CONDITIONS.items():
        if expected is not None:
            found = list(comparisons(whole.where(condition), NAMES))
            assert sorted(found, key=str) == sorted(expected, key=str), condition
    many = list(comparisons(whole.where(F.col("id").isin(*range(40, 60))), NAMES))
    assert [(*one, sorted(values)) for *one, values in many] == [("id", "in", list(range(40, 60)))]

    true = whole.select("id", *(F.expr(each).alias(each) for each in CONDITIONS)).toArrow().to_pylist()
    parts = [df.where(each).select(F.lit(each).alias("condition"), "id") for each in CONDITIONS]
    passed = {(row["condition"], row["id"]) for row in reduce(DataFrame.union, parts).toArrow().to_pylist()}
    assert passed == {(each, row["id"]) for row in true for each in CONDITIONS if row[each]}


def test_what_counts_rows_is_of_all_rows(spark: SparkSession, catalog: upsert.Catalog) -> None:
    """A column that nothing uses may be named by a later call."""
    df, in_order = read(spark, catalog), Window.partitionBy("ok").orderBy("id")
    assert df.withColumn("m", F.monotonically_increasing_id()).where("id > 900 AND m < 5").isEmpty()
    for number in (F.monotonically_increasing_id(), F.row_number().over(in_order)):
        numbered = df.select("id", number.alias("m"))
        assert numbered.select("id").where("id > 900").where(numbered.m < 5).isEmpty()


def where_of(df: DataFrame) -> str | None:
    """The filter of the one read below a DataFrame."""
    node = df._jdf.queryExecution().optimizedPlan()
    while node.children().size():
        if (found := node.children().head()).children().size() == 0:
            break
        node = found
    return read_of(df.sparkSession, node)[1].get("scan.where")


def test_columns_keep_their_ids(spark: SparkSession, catalog: upsert.Catalog) -> None:
    df = read(spark, catalog)
    few = (
        df.where(df.id < 9)
        .select(df.id, df.name)
        .alias("o")
        .where("o.id >= 3")
        .where(F.col("o.name") == "n4")
    )
    assert where_of(few) == '[["id", "<", 9], ["id", ">=", 3], ["name", "=", "n4"]]'
    assert few.collect() == [(4, "n4")]
    assert df.where("id < 9").select("id").orderBy(df.price.desc()).first() == (8,)
    assert df.where("id < 9").select("id").where(df.n == 3).collect() == [(3,)]
    assert df[df.id == 5].withColumn("twice", df.id * 2).where("twice = 10").count() == 1
    one, other = df.where("id < 5").alias("a"), df.where("id < 7").alias("b")
    assert one.join(other, F.col("a.id") == F.col("b.id")).count() == 5
    assert one.union(one).join(df, "id").count() == 10


def test_a_cached_read_is_used(spark: SparkSession, catalog: upsert.Catalog) -> None:
    df = read(spark, catalog)
    df.cache()
    try:
        filtered = df.where("id = 3")
        assert "InMemoryRelation" in filtered._jdf.queryExecution().optimizedPlan().toString()
        assert filtered.count() == 1
    finally:
        df.unpersist()


def test_large_tables_alone_are_read_so(spark: SparkSession, tmp_path: Path) -> None:
    """What is read again is the same state, with the columns and the filter that were named."""
    schema = upsert.TableSchema.of({"id": pa.int64(), "v": pa.int32()}, primary_key=["id"])
    table = upsert.Table.create(tmp_path / "t", schema)
    assert not isinstance(frames.read(spark, table.path), FilteredRead)
    table.write(pa.table({"id": np.arange(200_000), "v": np.arange(200_000, dtype=np.int32) % 9}))
    df = frames.read(spark, table.path, columns=["v", "id"])
    table.write(pa.table({"id": [3], "v": pa.array([-1], pa.int32())}))
    assert isinstance(df, FilteredRead)
    found = df.where("id < 5 AND v > 1")
    assert where_of(found) == '[["id", "<", 5], ["v", ">", 1]]'
    assert sorted(found.collect()) == [(2, 2), (3, 3), (4, 4)]
    named = frames.read(spark, table.path, options={"scan.where": '[["id", ">", 3]]'})
    assert type(named) is ClassicDataFrame
    assert named.where("id < 5").collect() == [(4, 4)]
    every = frames.read(spark, table.path)
    table.alter(AddColumn(upsert.Column("n", pa.int32()), after="id"))
    assert every.where("id = 4").collect() == [(4, 4)]  # in the columns that it was made with
