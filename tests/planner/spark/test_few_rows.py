"""Few rows computed in the driver: what Spark gives, without a job of Spark's, and nothing is left behind.

Code that Spark has compiled for kept plans stays, however many there are.
"""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.few_rows import FewRows, OneTask, make_room
from planner.spark.template import Template
from upsert.spark.java import class_name
from upsert.views.session import small_session

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
ROWS = {
    "t": pa.table(
        {
            "id": pa.array(range(40), pa.int64()),
            "k": pa.array([None if n % 7 == 0 else n % 5 for n in range(40)], pa.int32()),
            "v": [0.0, -0.0, float("nan"), 1.5] * 10,
            "d": pa.array([Decimal(n) / 4 for n in range(40)], pa.decimal128(12, 2)),
            "s": [None, "x", "yy", "x"] * 10,
            "at": pa.array([NOON] * 40, pa.timestamp("us", "UTC")),
            "a": [[1, None], [], None, [3]] * 10,
            "r": [{"p": 1, "q": "u"}, None] * 20,
        }
    ),
    "u": pa.table({"k": pa.array([None, 1, 1, 3, 9], pa.int32()), "w": [1, 2, 3, 4, 5]}),
}
NONE = {name: rows.slice(0, 0) for name, rows in ROWS.items()}

IN_PLACE = (
    "SELECT id + 1, upper(s), to_date(at) AS day, r.q, get(a, 0) AS a FROM t WHERE k > 1 OR s IS NULL",
    "SELECT k, v, count(*), sum(d), avg(d), avg(v), max(s), min(at) FROM t GROUP BY k, v",
    "SELECT count(*), sum(id), bool_and(k > 0), collect_set(s) FROM t",
    "SELECT k, count(DISTINCT s), percentile(id, 0.5), sort_array(collect_list(id)) FROM t GROUP BY k",
    "SELECT id, w FROM t JOIN u ON t.k = u.k AND id > w",
    "SELECT id, w FROM t FULL JOIN u ON t.k = u.k",
    "SELECT id FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "SELECT id, w FROM t JOIN u ON id < w",
    "SELECT k, s, grouping_id(), sum(id) FROM t GROUP BY ROLLUP (k, s)",
    "SELECT id, one FROM t LATERAL VIEW explode(a) AS one",
    "SELECT id, rank() OVER (PARTITION BY k ORDER BY s, id), lag(id) OVER (ORDER BY id) FROM t",
    "SELECT k, id FROM t ORDER BY d DESC LIMIT 3",
    "SELECT w, k FROM u WHERE w = 3 LIMIT 2",
    "SELECT k, count(*) FROM (SELECT k FROM u UNION ALL SELECT k FROM t) GROUP BY k",
    "SELECT k, w AS n FROM u UNION ALL SELECT k, id FROM t",
    "SELECT DISTINCT r, a FROM t",
    "SELECT map(s, k) AS m FROM t WHERE s IS NOT NULL",
    "SELECT m, count(*) AS n FROM (SELECT map(s, k) AS m FROM t WHERE s > '' AND k > 0) GROUP BY m",
    "SELECT transform(a, n -> n + 1) AS b, filter(a, n -> n IS NULL) AS c FROM t",
    # twelve orders at one time, each with a page of Spark's
    "SELECT k, count(*) FROM u JOIN "
    + " JOIN ".join(f"(SELECT k FROM u WHERE w < {n}) USING (k)" for n in range(3, 14))
    + " GROUP BY k",
)


def few_rows(spark: SparkSession, query: str) -> FewRows:
    """A plan over rows of the tables, which are none yet."""
    for name, rows in ROWS.items():
        spark.createDataFrame(rows).createOrReplaceTempView(name)
    df = spark.sql(query)
    catalyst = Catalyst(df)

    def input_of(node: JavaObject) -> JavaObject | None:
        return node if class_name(node) == "LocalRelation" else None

    template = Template(catalyst, lambda: catalyst.analyzed(df), input_of)
    leaves = [(leaf, catalyst.struct(catalyst.output(leaf))) for leaf in template.inputs]
    return FewRows(catalyst, template, leaves, OneTask(small_session(spark)))


def test_the_plan_of_a_template_is_made_once_and_when_it_is_wanted(spark: SparkSession) -> None:
    """Of the two plans of a hidden table, by changes and by all rows, a process may never run one."""
    catalyst, made = Catalyst(df := spark.range(3)), list[JavaObject]()

    def plan() -> JavaObject:
        made.append(catalyst.analyzed(df))
        return made[-1]

    template = Template(catalyst, plan, lambda node: node if not catalyst.children(node) else None)
    assert not made
    (leaf,) = template.inputs
    assert catalyst.dataframe(template.over([leaf])).count() == 3
    assert len(made) == 1


def of_each_input(plan: FewRows, rows: Mapping[str, pa.Table]) -> list[pa.Table]:
    """Rows for the inputs of a plan, found by their columns."""
    by_columns = {tuple(each.column_names): each for each in rows.values()}
    return [by_columns[tuple(schema.names)] for _, schema in plan.leaves]


def counted(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def jobs(spark: SparkSession) -> int:
    scheduler: Any = spark.sparkContext._jsc.sc()
    return int(scheduler.dagScheduler().numTotalJobs())


LONG = {3, 6, 8, 12, 14, 15, 16}
"""Queries of which others have the operators, or ones like them."""


@pytest.mark.parametrize(
    "query",
    [pytest.param(query, marks=pytest.mark.long if n in LONG else ()) for n, query in enumerate(IN_PLACE)],
)
def test_rows_are_those_that_spark_gives_and_no_job_runs(spark: SparkSession, query: str) -> None:
    plan = few_rows(spark, query)
    asked = spark.sql(query).toArrow()
    before = jobs(spark)
    found = plan.computed(of_each_input(plan, ROWS))
    assert counted(found) == counted(asked)
    nothing = plan.computed(of_each_input(plan, NONE))
    again = plan.computed(of_each_input(plan, ROWS))
    assert jobs(spark) == before
    assert counted(again) == counted(asked)
    assert nothing.schema == found.schema
    assert nothing.num_rows == ("count(*), sum(id), bool_and" in query)


def test_threads_that_run_one_plan_get_the_results_of_their_own_rows(spark: SparkSession) -> None:
    plan = few_rows(spark, "SELECT sum(id) AS ids, max(w) AS w FROM t JOIN u ON t.k = u.k")
    parts = [ROWS["t"].slice(0, count) for count in range(2, 40, 3)]

    def computed(part: pa.Table) -> list[dict[str, Any]]:
        return plan.computed(of_each_input(plan, {**ROWS, "t": part})).to_pylist()

    alone = [*map(computed, parts)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(computed, parts)] == alone


@pytest.mark.parametrize("query", [IN_PLACE[1], pytest.param(IN_PLACE[2], marks=pytest.mark.long)])
def test_code_is_compiled_by_the_first_run(spark: SparkSession, query: str) -> None:
    plan = few_rows(spark, query)
    plan.computed(of_each_input(plan, ROWS))
    jvm: Any = spark._jvm
    metrics = getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$")
    generated = getattr(metrics, "MODULE$").METRIC_COMPILATION_TIME()
    before = generated.getCount()
    assert plan.computed(of_each_input(plan, NONE)).num_rows <= 1
    assert generated.getCount() == before


@pytest.mark.parametrize("query", [pytest.param(IN_PLACE[5], marks=pytest.mark.long), IN_PLACE[10]])
def test_a_kept_plan_keeps_no_rows_of_its_last_run(spark: SparkSession, query: str) -> None:
    """Its orders would keep a page of up to 64 MB each, and its leaves the bytes that they have read."""
    plan = few_rows(spark, query)
    assert plan.computed(of_each_input(plan, ROWS)).num_rows > 0
    assert plan.is_empty
    assert counted(plan.computed(of_each_input(plan, ROWS))) == counted(spark.sql(query).toArrow())


def test_a_plan_that_needs_a_job_has_one(spark: SparkSession) -> None:
    query = "SELECT id, w FROM t LEFT JOIN u ON id < w"
    plan = few_rows(spark, query)
    before = jobs(spark)
    assert counted(plan.computed(of_each_input(plan, ROWS))) == counted(spark.sql(query).toArrow())
    assert jobs(spark) > before


def test_settings_are_those_of_the_session(spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    own.conf.set("spark.sql.ansi.enabled", "false")
    plan = few_rows(own, "SELECT DISTINCT to_date(at) AS day, hour(at) AS h, CAST(s AS INT) AS n FROM t")
    (row,) = plan.computed(of_each_input(plan, ROWS)).to_pylist()
    assert (str(row["day"]), row["h"], row["n"]) == ("2026-03-02", 8, None)


def test_what_fails_leaves_no_task_and_no_memory_behind(spark: SparkSession) -> None:
    plan = few_rows(spark, "SELECT k, sum(id DIV (w - 1)) FROM t JOIN u USING (k) GROUP BY k")
    rows = of_each_input(plan, {**ROWS, "u": pa.table({"k": pa.array([1], pa.int32()), "w": [1]})})
    jvm: Any = spark._jvm
    for _ in range(2):
        with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
            plan.computed(rows)
        assert jvm.org.apache.spark.TaskContext.get() is None
        assert plan.task.memory_used == 0
        assert plan.is_empty
    assert plan.computed(of_each_input(plan, ROWS)).num_rows == 2


TEXTS = 300


def test_what_was_compiled_once_is_not_compiled_again(spark: SparkSession) -> None:
    """Spark itself remembers 100 texts, which a handful of views needs."""
    assert make_room(spark)
    jvm: Any = spark._jvm
    metrics = getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$")
    counted = getattr(metrics, "MODULE$").METRIC_COMPILATION_TIME()
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    generator = getattr(getattr(codegen, "CodeGenerator$"), "MODULE$")
    comments = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()

    def compile_all() -> int:
        before = counted.getCount()
        for number in range(TEXTS):
            body = f'public Object generate(Object[] references) {{ return "{number} of {TEXTS}"; }}'
            generator.compile(codegen.CodeAndComment(body, comments))
        return int(counted.getCount() - before)

    assert compile_all() == TEXTS
    assert compile_all() == 0
