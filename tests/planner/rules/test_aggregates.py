"""Aggregates over changes, streamed into tables, which hold what Spark's batch gives after each step."""

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import planner
from tests.planner.in_steps import local
from upsert import Catalog
from upsert.errors import ConfigurationError
from upsert.materializer.micro_batch import WriteBatch

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": pa.int64(),
    "g": pa.string(),
    "h": pa.int32(),
    "x": pa.float64(),
    "n": pa.int64(),
    "d": pa.decimal128(12, 2),
    "flag": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
}
CREATE = """CREATE TABLE {} (id BIGINT, g STRING, h INT, x DOUBLE, n BIGINT, d DECIMAL(12, 2), flag BOOLEAN,
at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED, INDEX (g)) WITH ('bucket' = '2')"""

QUERIES = {
    "sums": """
        SELECT g, count(*) AS n0, count(n) AS n1, count(x, d) AS n2, count_if(x > 1) AS n3, sum(h) AS s0,
        sum(x) AS s1, sum(n) FILTER (WHERE flag) AS s2, sum(d) + 1 AS s3, avg(h) AS a0, avg(n) AS a1,
        avg(d) FILTER (WHERE h > 0) AS a2, bool_and(flag) AS b0, bool_or(flag) AS b1, try_sum(n) AS s4
        FROM {t} GROUP BY g""",
    "sums_of_doubles": """
        SELECT g, count(*) AS n0, sum(x) AS s0, avg(x) / count(*) AS a0, sum(cast(x AS FLOAT)) AS s1
        FROM {t} GROUP BY g""",
    "computed": """
        SELECT upper(k) AS g, h2, concat(upper(k), '!', count(*)) AS label, 10 / count(*) AS share
        FROM (SELECT g AS k, h % 3 AS h2, x FROM {t} WHERE x IS NOT NULL) WHERE h2 IS NOT NULL
        GROUP BY upper(k), h2""",
    "having": """
        SELECT g, m - 1 AS m FROM (SELECT g, sum(h) AS m, count(*) AS c FROM {t} GROUP BY g)
        WHERE m > 2 AND c < 4 AND g <> 'q'""",
    "everything": "SELECT 'all' AS k, count(*) AS c, sum(d) AS s, avg(h) AS a FROM {t}",
    "windows": """
        SELECT window.start AS began, g, count(*) AS c FROM {t} GROUP BY window(at, '5 minutes'), g""",
    "sliding": """
        SELECT window.end AS ended, g, count(*) AS c, sum(h) AS s FROM {t}
        GROUP BY window(at, '5 minutes', '2 minutes'), g HAVING count(*) > 1""",
    "lookups": """
        SELECT g, max(x) + 1 AS m0, min(n) AS m1, max(d) AS m2, min(flag) AS m3, max(at) AS m4, max(g) AS m5,
        count(DISTINCT x, h) AS c0, sort_array(collect_set(h)) AS l0, sort_array(collect_list(n)) AS l1,
        sum(DISTINCT h) AS s0, avg(DISTINCT d) AS a0, sum(x) FILTER (WHERE h > 1) AS s1,
        avg(h) AS a1, count(*) AS c1, max_by(h, n) AS b0, min_by(x, h) AS b1
        FROM {t} WHERE h IS NULL OR h < 5 GROUP BY g""",
    "distinct_of_lookups": """
        SELECT DISTINCT m FROM (SELECT g, max(h) AS m FROM {t} WHERE h IS NOT NULL GROUP BY g, g)""",
}
ALIKE = {"having", "windows", "computed", "distinct_of_lookups", "sliding", "sums_of_doubles", "everything"}
"""Queries whose parts are in others, and in other tests: `make test-long` has them."""
KEYS = {
    "distinct_of_lookups": "m",
    "computed": "g, h2",
    "everything": "k",
    "windows": "began, g",
    "sliding": "ended, g",
}

VALUES: Mapping[str, list[Any]] = {
    "g": ["a", "b", "q"],
    "h": [None, -1, 0, 1, 3, 5],
    "x": [None, 0.25, -1.5, 3.0, math.nan, math.inf, -math.inf],
    "n": [None, 0, 7, -3, 2**60, -(2**60)],
    "d": [None, Decimal("-9.99"), Decimal("0.01"), Decimal("3.33")],
    "flag": [None, True, False],
    "at": [minute * 60_000_000 for minute in range(20)],
}


IN_BATCH = {
    # a batch's average of BIGINTs rounds with each of them
    "avg(n)": "cast(sum(cast(n AS DECIMAL(19, 0))) AS DOUBLE) / count(n)",
    # of rows that tie, Spark takes any
    "max_by(h, n)": "max(struct(n, h)) FILTER (WHERE n IS NOT NULL).h",
    "min_by(x, h)": "min(struct(h, x)) FILTER (WHERE h IS NOT NULL).x",
}
"""Functions that are functions of the table here and not in a batch, and what says the same there."""


def in_batch(text: str) -> str:
    for own, exact in IN_BATCH.items():
        text = text.replace(own, exact)
    return text.format(t="t_rows")


Step = Mapping[int, dict[str, Any] | None]


def random_steps(seed: int, steps: int) -> Iterator[Step]:
    """Rows by id; later steps delete some, and move others to another group."""
    draw = random.Random(seed)
    for step in range(steps):
        yield {
            key: None
            if step and draw.random() < 0.4
            else {name: draw.choice(values) for name, values in VALUES.items()}
            for key in draw.sample(range(12), 8)
        }


def steps_of_seeds(seeds: range, steps: int) -> Iterator[Step]:
    """The random steps of many seeds, side by side."""
    for together in zip(*(random_steps(seed, steps) for seed in seeds), strict=True):
        yield {
            seed * 100 + key: None if row is None else {**row, "g": f"{row['g']}{seed}"}
            for seed, step in zip(seeds, together, strict=True)
            for key, row in step.items()
        }


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "warehouse", optimize=planner.optimize)


def views(spark: SparkSession, catalog: Catalog, table: str) -> Mapping[str, DataFrame]:
    """Each query as a stream of the table's changes."""
    catalog.read_changes(spark, table).createOrReplaceTempView(f"{table}_changes")
    return {name: spark.sql(text.format(t=f"{table}_changes")) for name, text in QUERIES.items()}


def sink_for(catalog: Catalog, name: str, df: DataFrame) -> None:
    columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in df.schema if f.name != "_row_kind")
    key = KEYS.get(name, "g")
    catalog.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}) NOT ENFORCED)")


def apply(catalog: Catalog, step: Step) -> None:
    """Write rows, and delete those that are None."""
    empty = dict.fromkeys(COLUMNS)
    rows = [{**empty, **(row or {}), "id": key} for key, row in step.items()]
    columns = {name: pa.array([row[name] for row in rows], type_) for name, type_ in COLUMNS.items()}
    kinds = pa.array(["-D" if row is None else "+U" for row in step.values()])
    catalog.table("t").write(pa.table({**columns, "_row_kind": kinds}))


def comparable(rows: list[Any]) -> Counter[str]:
    """Rows as text: NaN equals NaN there, and types show."""
    return Counter(map(repr, rows))


def start(catalog: Catalog, df: DataFrame, name: str, folder: Path) -> StreamingQuery:
    writer = catalog.write_changes(df, name).option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    return writer.start()


def check_sink(spark: SparkSession, folder: Path, name: str, steps: Iterator[Step]) -> None:
    """Stream one query over a table of its own; after each step its sink holds what a batch gives."""
    catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
    catalog.sql(CREATE.format("t"))
    df = views(spark, catalog, "t")[name]
    sink_for(catalog, name, df)
    query = start(catalog, df, name, folder)
    for step in steps:
        apply(catalog, step)
        query.processAllAvailable()
        local(spark, catalog.table("t")).createOrReplaceTempView("t_rows")
        batch = spark.sql(in_batch(QUERIES[name]))
        assert comparable(local(spark, catalog.table(name)).select(*batch.columns).collect()) == comparable(
            batch.collect()
        )
    query.stop()


@pytest.mark.usefixtures("ended_queries")
@pytest.mark.parametrize(
    "name", [n if n not in ALIKE else pytest.param(n, marks=pytest.mark.long) for n in QUERIES]
)
def test_a_sink_holds_what_a_batch_gives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    check_sink(spark, tmp_path, name, random_steps(1, steps=2))


@pytest.mark.long
@pytest.mark.usefixtures("ended_queries")
@pytest.mark.parametrize("name", QUERIES)
def test_sinks_hold_what_a_batch_gives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Of many seeds in one stream: their rows have other ids, and other groups, which end in the seed."""
    check_sink(spark, tmp_path, name, steps_of_seeds(range(2, 52), steps=4))


@pytest.mark.usefixtures("ended_queries")
def test_a_micro_batch_that_comes_again_is_committed_once(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """The query's id and the batch's number are the transaction, as in every other sink."""
    catalog.sql(CREATE.format("t"))
    df = views(spark, catalog, "t")["having"]
    sink_for(catalog, "having", df)
    apply(catalog, {1: {"g": "a", "h": 3}, 2: {"g": "b", "h": 5}})
    sink = catalog.table("having")
    write = WriteBatch(sink.path, sink.uuid, sink.options.bucket)
    commits = []

    def twice(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            write(rows, batch)
            commits.append(sink.snapshot().info.data_version)

    query = planner.optimize(df).writeStream.outputMode("update").foreachBatch(twice)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    apply(catalog, {1: None})
    query.processAllAvailable()
    assert commits == [1, 1, 2, 2]
    assert [tuple(row) for row in catalog.read(spark, "having").collect()] == [("b", 4)]


def test_spark_refuses_append_mode_itself(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql(CREATE.format("t"))
    writer = planner.optimize(views(spark, catalog, "t")["sums"]).writeStream.format("memory").queryName("m")
    with pytest.raises(AnalysisException, match="append"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start()


def test_an_optimized_aggregate_comes_back_as_it_is(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql(CREATE.format("t"))
    for name, df in views(spark, catalog, "t").items():
        if name in ALIKE:
            continue
        once = planner.optimize(df)
        assert planner.optimize(once) is once
        assert once.columns == [*df.columns, "_row_kind"]
        assert once.drop("_row_kind").dtypes == df.dtypes


@pytest.mark.long
def test_what_follows_an_optimized_aggregate_is_right_too(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """A filter above marked upserts takes groups away, and they keep their key."""
    catalog.sql(CREATE.format("t"))
    catalog.sql("CREATE TABLE o (name STRING, twice BIGINT, PRIMARY KEY (name) NOT ENFORCED)")
    optimized = planner.optimize(views(spark, catalog, "t")["sums"])
    df = optimized.selectExpr("g AS name", "n0 * 2 AS twice", "_row_kind").filter("twice > 2")
    query = start(catalog, df, "o", tmp_path)
    apply(catalog, {1: {"g": "a"}, 2: {"g": "a"}, 3: {"g": "b"}})
    query.processAllAvailable()
    assert [tuple(row) for row in catalog.read(spark, "o").collect()] == [("a", 4)]
    apply(catalog, {2: {"g": "b"}})
    query.processAllAvailable()
    query.stop()
    assert [tuple(row) for row in catalog.read(spark, "o").collect()] == [("b", 4)]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ((), "the sink has no primary key"),
        pytest.param(("n0",), "the sink's key column 'n0' is no group column", marks=pytest.mark.long),
        (("g", "n0"), "the sink's key column 'n0' is no group column"),
    ],
)
def test_a_sink_by_another_key_is_refused(
    spark: SparkSession, catalog: Catalog, key: tuple[str, ...], reason: str
) -> None:
    catalog.sql(CREATE.format("t"))
    df = views(spark, catalog, "t")["sums"]
    for query in (df, planner.optimize(df)):
        with pytest.raises(planner.PlanError, match=reason):
            planner.optimize(query, sink_key=key)


def test_a_catalog_without_the_planner_refuses_a_sink_by_another_key(
    spark: SparkSession, catalog: Catalog
) -> None:
    catalog.sql(CREATE.format("t"))
    catalog.sql("CREATE TABLE o (g STRING, n0 BIGINT, PRIMARY KEY (n0) NOT ENFORCED)")
    optimized = planner.optimize(views(spark, catalog, "t")["sums"]).select("g", "n0", "_row_kind")
    with pytest.raises(ConfigurationError, match=r"replace each other by \(g\), .* PRIMARY KEY is \(n0\)"):
        Catalog(catalog.warehouse).write_changes(optimized, "o")


def test_rows_that_were_never_counted_cannot_be_taken_away(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql(CREATE.format("t"))
    late = catalog.read_changes(spark, "t", scan_mode="latest")
    with pytest.raises(planner.PlanError, match="'latest', would delete rows"):
        planner.optimize(late.groupBy("g").count())


def test_explain_says_how_an_aggregate_is_written(spark: SparkSession, catalog: Catalog) -> None:
    catalog.sql(CREATE.format("t"))
    df = catalog.read_changes(spark, "t").withWatermark("at", "1 minute").groupBy("g").agg({"x": "sum"})
    (report,) = planner.explain(df).aggregates
    assert (report.form, report.reason) == ("signed sums", None)
    assert str(report).splitlines() == [
        "aggregate Sum(x) by (g) over the changes of 't'",
        "  form: signed sums",
        "  written with catalog.write_changes into a table with the PRIMARY KEY (g), in output mode update",
        "  Spark's state has one row for each group, also for those that are gone",
        "  the watermark is left out: changes that come late count, and no group is ever forgotten",
        "  Sum(x): exact, whatever came and went; its state has a number for each limb, 66 for DOUBLE",
    ]
    (lookups,) = planner.explain(views(spark, catalog, "t")["lookups"]).aggregates
    assert lookups.form == "lookups"


def test_an_aggregate_of_a_join(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    """The delta join below keeps no state, the aggregate one row for each group."""
    catalog.sql(CREATE.format("t"))
    catalog.sql("CREATE TABLE shops (g STRING, region STRING, PRIMARY KEY (g) NOT ENFORCED)")
    catalog.sql("CREATE TABLE o (region STRING, c BIGINT, s BIGINT, PRIMARY KEY (region) NOT ENFORCED)")
    catalog.table("shops").write(pa.table({"g": ["a", "b"], "region": ["north", "north"]}))
    apply(catalog, {1: {"g": "a", "h": 1}, 2: {"g": "b", "h": 2}, 3: {"g": "q", "h": 3}})
    for name in ("t", "shops"):
        catalog.read_changes(spark, name).createOrReplaceTempView(name)
    df = spark.sql(
        "SELECT coalesce(region, '?') AS region, count(*) AS c, sum(h) AS s "
        "FROM t LEFT JOIN shops USING (g) GROUP BY 1"
    )
    query = start(catalog, df, "o", tmp_path)
    query.processAllAvailable()
    assert comparable(catalog.table("o").snapshot().scan().to_pylist()) == comparable(
        [{"region": "north", "c": 2, "s": 3}, {"region": "?", "c": 1, "s": 3}]
    )
    catalog.table("shops").write(pa.table({"g": ["b", "q"], "region": ["south", "north"]}))
    apply(catalog, {1: None})
    query.processAllAvailable()
    query.stop()
    assert comparable(catalog.table("o").snapshot().scan().to_pylist()) == comparable(
        [{"region": "north", "c": 1, "s": 3}, {"region": "south", "c": 1, "s": 2}]
    )


@pytest.mark.long
def test_a_maximum_over_a_join_is_right_where_the_remedy_of_its_refusal_is_followed(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    """Word by word: the index of the remedy, a table with it, the aggregate of that table's changes."""
    catalog.sql(CREATE.format("t"))
    catalog.sql("CREATE TABLE shops (g STRING, region STRING, PRIMARY KEY (g) NOT ENFORCED)")
    aggregated = "SELECT region, max(h) AS m, count(DISTINCT g) AS c, collect_list(h) AS l FROM {} GROUP BY 1"
    joined = "SELECT id, t.g, h, region FROM {t} t LEFT JOIN {shops} shops ON t.g = shops.g"
    for name in ("t", "shops"):
        catalog.read_changes(spark, name).createOrReplaceTempView(f"{name}_changes")
    changes = joined.format(t="t_changes", shops="shops_changes")
    (report,) = planner.explain(spark.sql(aggregated.format(f"({changes})"))).aggregates
    assert report.form == "refused"
    assert report.remedy == (
        "write the join into a managed table with INDEX (region), catalog.write_changes, and aggregate that "
        "table's changes, catalog.read_changes"
    )
    catalog.sql(
        "CREATE TABLE joined (id BIGINT, g STRING, h INT, region STRING, PRIMARY KEY (id) NOT ENFORCED, "
        f"{re.findall(r'INDEX [(].*?[)]', report.remedy)[0]})"
    )
    catalog.sql("CREATE TABLE o (region STRING, m INT, c BIGINT, l ARRAY<INT>)")
    catalog.read_changes(spark, "joined").createOrReplaceTempView("joined_changes")
    maxima = spark.sql(aggregated.format("joined_changes"))
    queries = [start(catalog, spark.sql(changes), "joined", tmp_path), start(catalog, maxima, "o", tmp_path)]
    rows = {n: {"g": g, "h": h} for n, (g, h) in enumerate(zip("aabbq", (1, 5, 2, None, 7), strict=True))}
    for step, shops in (
        (rows, {"g": ["a", "b"], "region": ["north", "north"]}),
        ({1: None, 2: {"g": "a", "h": 2}}, {"g": ["b", "q"], "region": ["south", None]}),
    ):
        apply(catalog, step)
        catalog.table("shops").write(pa.table(shops))
        for query in queries:
            query.processAllAvailable()
        for name in ("t", "shops"):
            catalog.read(spark, name).createOrReplaceTempView(f"{name}_rows")
        batch = spark.sql(aggregated.format(f"({joined.format(t='t_rows', shops='shops_rows')})"))
        assert in_order(catalog.read(spark, "o")) == in_order(batch)
    for query in queries:
        query.stop()


def in_order(df: DataFrame) -> Counter[str]:
    return comparable(df.withColumn("l", F.sort_array("l")).collect())
