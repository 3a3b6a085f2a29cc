"""State of one shape in every micro-batch, whichever sides are silent, and checkpoints that had another."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import planner
from planner import PlanError
from planner.spark.state import STATE_MARK, agree, with_state_of_one_shape
from tests.planner.in_steps import local
from tests.planner.spark.state_shapes import state_shapes
from upsert import Catalog
from upsert.rowkind import RowKind
from upsert.spark.version import PYSPARK

pytestmark = pytest.mark.spark

TABLES = {
    "a": "CREATE TABLE a (id BIGINT, g INT NOT NULL, v INT, flag BOOLEAN, PRIMARY KEY (id) NOT ENFORCED)",
    "b": "CREATE TABLE b (id BIGINT, g INT, v INT NOT NULL, flag BOOLEAN, PRIMARY KEY (id) NOT ENFORCED)",
}
TYPES = {"id": pa.int64(), "g": pa.int32(), "v": pa.int32(), "flag": pa.bool_()}
BOTH = "(SELECT id, g, v, flag FROM a UNION ALL SELECT id, g, v, flag FROM b)"

AGGREGATES = {
    "issue": f"SELECT g, count(*) AS y, count(g) AS z, sum(v) AS x FROM {BOTH} GROUP BY g",
}
MORE_AGGREGATES = {
    "everything": f"SELECT 1 AS g, count(*) AS y, count(g) AS z, count(v) AS w, sum(v) AS x FROM {BOTH}",
    "sums": """SELECT g, count(*) AS n0, count(g) AS n1, count(v) AS n2, count(c) AS n3, sum(v) AS s0,
        sum(c) AS s1, count_if(c > 1) AS n4, count(*) FILTER (WHERE v IS NOT NULL) AS n5, avg(c) AS a0,
        bool_and(flag) AS b0, sum(v) FILTER (WHERE g IS NOT NULL) AS s2
        FROM (SELECT g, v, flag, 1 AS c FROM a UNION ALL SELECT g, v, flag, v AS c FROM b) GROUP BY g""",
    "distinct": "SELECT DISTINCT g, c FROM (SELECT g, 1 AS c FROM a UNION ALL SELECT g, v AS c FROM b)",
    "one column twice": """SELECT g, h, count(*) AS y, count(g) AS z, count(h) AS x FROM
        (SELECT g, g AS h FROM a UNION ALL SELECT g, v AS h FROM b) GROUP BY g, h""",
    "a group of one side": """SELECT g, v, count(*) AS y, count(g) AS z FROM
        (SELECT 1 AS g, v FROM a UNION ALL SELECT g, v FROM b) GROUP BY g, v""",
}
KEYS = {"one column twice": ["g", "h"], "distinct": ["g", "c"], "a group of one side": ["g", "v"]}
JOINS = {
    "two unions": f"""SELECT q.v, p.v AS w FROM {BOTH} q JOIN
        (SELECT id, v AS g, 1 AS v FROM b UNION ALL SELECT id, g, v FROM a) p
        ON q.g = p.g AND q.v + 1 > p.v""",
}
MORE_JOINS = {
    "tables": "SELECT a.v, b.flag FROM a JOIN b ON a.g = b.g",
    "a union": """SELECT q.g, q.c, a.v FROM
        (SELECT g, 1 AS c, id FROM a UNION ALL SELECT g, v, id FROM b) q
        JOIN a ON q.g = a.g AND q.c <= a.v""",
}
SILENCES = (["ab", "a"], ["b"])
"""Which tables change in a step, by run: the others are silent in its micro-batch, also in a run's first."""


@dataclass
class Changing:
    """Two tables whose rows change step by step, as their changes or as they are."""

    spark: SparkSession
    catalog: Catalog

    def change(self, names: str, step: int) -> None:
        for name in names:
            rows = [
                {"id": step, "g": 1, "v": step % 3, "flag": True},
                {"id": step - 1, "g": 2, "v": 5, "flag": None},
                {"id": 100 + step, "g": None if name == "b" else 1, "v": 3, "flag": step % 2 == 0},
                {"id": 98 + step, "g": 1, "v": 0, "flag": False},
            ]
            columns = {key: pa.array([row[key] for row in rows], type_) for key, type_ in TYPES.items()}
            kinds = pa.array(["+U", "+U", "+U", "-D"])
            self.catalog.table(name).write(pa.table({**columns, "_row_kind": kinds}))

    def changes(self, texts: Mapping[str, str]) -> dict[str, DataFrame]:
        for name in TABLES:
            self.catalog.read_changes(self.spark, name).createOrReplaceTempView(name)
        return {title: planner.optimize(self.spark.sql(text)) for title, text in texts.items()}

    def rows(self, texts: Mapping[str, str]) -> dict[str, DataFrame]:
        for name in TABLES:
            local(self.spark, self.catalog.table(name)).createOrReplaceTempView(name)
        return {title: self.spark.sql(text) for title, text in texts.items()}


@pytest.fixture
def changing(spark: SparkSession, ended_queries: None, tmp_path: Path) -> Changing:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    for text in TABLES.values():
        catalog.sql(text)
    return Changing(spark, catalog)


def in_one(frames: Mapping[str, DataFrame]) -> DataFrame:
    """All results in one query, whose micro-batches are theirs: title, key, row and kind."""
    parts = []
    for title, df in frames.items():
        names = [name for name in df.columns if name != "_row_kind"]
        kind = F.col("_row_kind") if "_row_kind" in df.columns else F.lit("+I")
        row, key = (
            F.to_json(F.struct(*some), {"ignoreNullFields": "false"})
            for some in (names, KEYS.get(title, ["g"] if "g" in names else names))
        )
        parts.append(df.select(F.lit(title), key, row, kind))
    return reduce(DataFrame.unionAll, parts)


def nothing(batch: DataFrame, _: int) -> None:
    """Take the rows, without which no state is kept."""
    batch.collect()


def state_of(query: StreamingQuery) -> list[Any]:
    """Operator, types and nullability of all state that the last micro-batch had."""
    streams = query._jsq.sparkSession().streams()  # type: ignore[attr-defined]
    found = []

    def look(node: Any) -> None:
        name = node.getClass().getSimpleName()
        inputs = items(node.children())
        if "State" in name or name in ("StreamingSymmetricHashJoinExec", "StreamingDeduplicateExec"):
            fields = [node.expressions(), *(child.output() for child in inputs)]
            found.append((name, [[field(one) for one in items(some)] for some in fields]))
        for child in inputs:
            look(child)

    def items(some: Any) -> list[Any]:
        return [some.apply(number) for number in range(some.size())]

    def field(one: Any) -> tuple[str, bool]:
        return str(one.dataType().simpleString()), bool(one.nullable())

    look(streams.get(query._jsq.id()).streamingQuery().lastExecution().executedPlan())
    return found


def started(df: DataFrame, folder: Path, mode: str, take: Any) -> StreamingQuery:
    writer = df.writeStream.outputMode(mode).foreachBatch(take)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def states_of(changing: Changing, texts: Mapping[str, str], folder: Path, mode: str, check: Any) -> list[Any]:
    """The state in every micro-batch of a query and of its restart; ``check`` sees what it wrote."""
    states = []
    written: list[Any] = []
    for run, silences in enumerate(SILENCES):
        query = started(
            in_one(changing.changes(texts)), folder, mode, lambda batch, _: written.extend(batch.collect())
        )
        for step, names in enumerate(silences):
            changing.change(names, 10 * run + step)
            query.processAllAvailable()
            states.append(state_of(query))
            check(written, in_one(changing.rows(texts)).collect())
        query.stop()
    return states


def newest_are_the_batch(written: list[Any], batch: list[Any]) -> None:
    held = {(title, key): (row, kind) for title, key, row, kind in written}
    rows = {key: row for key, (row, kind) in held.items() if kind != "-D"}
    assert rows == {(title, key): row for title, key, row, _ in batch}


def net_rows_are_the_batch(written: list[Any], batch: list[Any]) -> None:
    net: Counter[tuple[str, str]] = Counter()
    for title, _, row, kind in written:
        net[title, row] += RowKind(kind).sign
    assert {key: count for key, count in net.items() if count} == Counter((r[0], r[2]) for r in batch)


def test_sums_and_distinct_keep_one_shape(changing: Changing, tmp_path: Path) -> None:
    states = states_of(changing, AGGREGATES, tmp_path, "update", newest_are_the_batch)
    assert len(states[0]) == 2 * len(AGGREGATES)
    assert all(state == states[0] for state in states)


@pytest.mark.long
def test_joins_keep_one_shape(changing: Changing, tmp_path: Path) -> None:
    states = states_of(changing, JOINS, tmp_path, "append", net_rows_are_the_batch)
    assert len(states[0]) == len(JOINS)
    assert all(state == states[0] for state in states)


@pytest.mark.long
def test_more_sums_and_joins_keep_one_shape(changing: Changing, tmp_path: Path) -> None:
    for title, text in MORE_AGGREGATES.items():
        states = states_of(changing, {title: text}, tmp_path / title, "update", newest_are_the_batch)
        assert len(states[0]) == 2, title
        assert all(state == states[0] for state in states), title
    for title, text in MORE_JOINS.items():
        states = states_of(changing, {title: text}, tmp_path / title, "append", net_rows_are_the_batch)
        assert len(states[0]) == 1, title
        assert all(state == states[0] for state in states), title


@pytest.mark.parametrize("equality", ["a.flag = b.flag", "a.flag <=> b.flag"])
def test_a_join_whose_equality_another_condition_contradicts_is_refused_in_words(
    changing: Changing, equality: str
) -> None:
    """Spark's optimizer leaves a join without an equality, which Spark refuses with its plan."""
    text = f"SELECT a.v, b.v AS w FROM a JOIN b ON {equality} WHERE NOT {equality}"
    with pytest.raises(PlanError, match=r"as a stream: Stream-stream join without equality .* contradicts"):
        changing.changes({"none": text})


def files(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    """A stream of rows from a folder, in which nothing is known to be not NULL."""
    (folder / name).mkdir(exist_ok=True)
    df = spark.readStream.schema("id INT, g INT, v INT, at TIMESTAMP").json(str(folder / name))
    df.createOrReplaceTempView(name)
    return df


def put(folder: Path, name: str, number: int, *rows: Mapping[str, Any]) -> None:
    (folder / f"hidden-{number}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"hidden-{number}").rename(folder / name / f"{number}.json")


COUNTED = """SELECT g, count(*) AS y, count(c) AS z, sum(c) AS x FROM
    (SELECT g, 1 AS c FROM p UNION ALL SELECT g, v AS c FROM q) GROUP BY g"""


def test_a_checkpoint_whose_state_may_differ_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The older plan is Spark's own: rows that are only added needed no rewrite."""
    for name in "pq":
        files(spark, tmp_path, name)
    older = spark.sql(COUNTED)
    query = started(older, tmp_path, "update", nothing)
    put(tmp_path, "p", 0, {"g": 1}, {"g": 1})
    query.processAllAvailable()
    query.stop()
    newer = planner.optimize(older)
    put(tmp_path, "q", 1, {"g": 1})
    query = started(newer, tmp_path, "update", nothing)
    with pytest.raises(StreamingQueryException, match="start with a new checkpoint"):
        query.processAllAvailable()
    assert planner.optimize(newer) is newer
    with pytest.raises(PlanError, match=r"write planner\.optimize"):
        planner.check_sink(older, ["g"])


def test_rows_that_are_only_added_are_counted_right(spark: SparkSession, tmp_path: Path) -> None:
    for name in "pq":
        files(spark, tmp_path, name)
    held: dict[int, tuple[Any, ...]] = {}

    def take(batch: DataFrame, _: int) -> None:
        held.update({row[0]: tuple(row) for row in batch.collect()})

    query = started(planner.optimize(spark.sql(COUNTED)), tmp_path, "update", take)
    states = []
    for number, name in enumerate("pq"):
        put(tmp_path, name, number, {"g": 1, "v": None}, {"g": 1, "v": 5})
        query.processAllAvailable()
        states.append(state_of(query))
    query.stop()
    assert held == {1: (1, 4, 3, 7)}
    assert all(state == states[0] for state in states)


def test_time_alone_does_not_change_the_state(spark: SparkSession, tmp_path: Path) -> None:
    """When the watermark moves, Spark runs a micro-batch without any rows for the windows that are over."""
    files(spark, tmp_path, "p").withWatermark("at", "1 minute").createOrReplaceTempView("p")
    text = """SELECT window.start, count(*) AS y, count(v) AS z, sum(v) AS x FROM p WHERE v > 1
        GROUP BY window(at, '1 minute')"""
    found: list[Any] = []
    df = planner.optimize(spark.sql(text))
    query = started(df, tmp_path, "append", lambda batch, _: found.extend(batch.drop("start").collect()))
    put(tmp_path, "p", 0, *({"v": v, "at": "2020-01-01T00:00:10Z"} for v in (1, 2, 3)))
    query.processAllAvailable()
    put(tmp_path, "p", 1, {"v": 7, "at": "2020-01-01T01:00:00Z"})
    query.processAllAvailable()
    query.stop()
    assert [tuple(row) for row in found] == [(2, 2, 5)]


PLAIN = {
    "distinct": ("""SELECT DISTINCT g, c FROM
        (SELECT g, 1 AS c FROM p UNION ALL SELECT g, v FROM q)""", PYSPARK == "4.2"),
    "total": ("SELECT count(*), count(c) FROM (SELECT 1 AS c FROM p UNION ALL SELECT v FROM q)", True),
    "one source": ("SELECT g, count(*) AS y, count(v) AS z FROM p WHERE v > 1 GROUP BY g", False),
    "join": ("SELECT p.v, q.v AS w FROM p JOIN q ON p.g = q.g", False),
    "outer join": ("""SELECT p.c, q.v FROM (SELECT g, 1 AS c, id FROM p UNION ALL SELECT g, v, id FROM q) p
        LEFT JOIN q ON p.g = q.g AND p.id < q.id""", True),
    "a filtered join": ("SELECT p.v, q.v AS w FROM p JOIN q ON p.g = q.g WHERE p.v > 1 AND q.v > p.v", False),
    "three": ("""SELECT g, count(*) AS y, count(c) AS z FROM (SELECT g, 1 AS c FROM p UNION ALL
        SELECT g, v FROM q UNION ALL SELECT g, id FROM r) GROUP BY g""", True),
}  # fmt: skip
"""Queries of rows, and whether number or types of their state's fields could differ (DISTINCT: in 4.2)."""


@pytest.mark.parametrize("title", PLAIN)
def test_plans_of_micro_batches_have_one_state(spark: SparkSession, tmp_path: Path, title: str) -> None:
    """As Spark plans them, with any of their sources silent; a plan with one state anyway is left alone."""
    for name in "pqr":
        files(spark, tmp_path, name)
    text, differs = PLAIN[title]
    df = spark.sql(text)
    made = with_state_of_one_shape(df)
    assert (made is df) == agree(state_shapes(df))
    assert made is df or len(state_shapes(made)) == 1
    assert (STATE_MARK in made._jdf.queryExecution().analyzed().toString()) == differs
    assert made.schema.names == df.schema.names


def test_dropped_duplicates_have_one_state(spark: SparkSession, tmp_path: Path) -> None:
    p, q = (files(spark, tmp_path, name) for name in "pq")
    both = p.select("id", F.lit(1).alias("c")).union(q.select("id", "v"))
    for df in (both.dropDuplicates(["c"]), both.dropDuplicates()):
        assert agree(state_shapes(planner.optimize(df)))
    many = reduce(DataFrame.union, [p, *(files(spark, tmp_path, name) for name in "qrst")])
    for df in (many.dropDuplicates(["v"]), many.dropDuplicatesWithinWatermark(["v"])):
        assert planner.optimize(df)._jdf.queryExecution().analyzed().toString().count(STATE_MARK) > 1


def test_an_older_checkpoint_of_state_that_cannot_differ_goes_on(
    changing: Changing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {"g": "SELECT g, count(*) AS y, count(g) AS z, sum(v) AS x FROM a GROUP BY g"}
    written: list[Any] = []
    for run in range(2):
        with monkeypatch.context() as older:
            if run == 0:
                older.setattr("planner.api.with_state_of_one_shape", lambda df: df)
            df = in_one(changing.changes(text))
        query = started(df, tmp_path, "update", lambda batch, _: written.extend(batch.collect()))
        changing.change("a", run)
        query.processAllAvailable()
        query.stop()
    newest_are_the_batch(written, in_one(changing.rows(text)).collect())


@pytest.mark.parametrize("first", [True, False])
def test_a_union_with_an_aggregate_is_counted_or_refused(changing: Changing, first: bool) -> None:
    """The aggregate's input has its kind late: one side of the union has a column less than the other."""
    sides = ["SELECT g, v FROM a", "SELECT g, n AS v FROM (SELECT g, count(v) AS n FROM b GROUP BY g)"]
    both = " UNION ALL ".join(sides if first else reversed(sides))
    for function in ("sum(v)", "bool_and(v > 1)", "count_if(v > 1)"):
        with pytest.raises(PlanError, match="its rows replace each other"):
            changing.changes({"g": f"SELECT g, {function} AS x FROM ({both}) GROUP BY g"})
