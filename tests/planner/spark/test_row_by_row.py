"""Micro-batches whose expressions Arrow computes, in the driver and in tasks: the rows that Spark gives."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery

import planner
from deltajoin.expressions import Call, Const, Field, Ref
from planner.spark.small_plan import rows_in_arrow
from tests.helpers import multiset
from tests.in_duckdb import duckdb_with
from tests.planner.spark.test_small_plan import COLUMNS, columns, condition, counted, random_rows, small_plan
from upsert import Catalog
from upsert.managed import micro_batch
from upsert.managed.frames import read_changes, write_changes
from upsert.managed.micro_batch import WriteStep
from upsert.schema import TableSchema
from upsert.spark.batches import arrow_schema
from upsert.spark.planned_batch import PlannedBatch
from upsert.spark.version import supported
from upsert.store.rows.computed import (
    Figure,
    Filtered,
    InArrow,
    Input,
    NotInArrowError,
    Observation,
    Observed,
)
from upsert.store.table import Table

pytestmark = pytest.mark.spark

Way = Callable[[str], None]
NUMBERS = TableSchema.of({"id": pa.int64(), "v": pa.int64(), "s": pa.string()}, primary_key=["id"])


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which micro-batches Spark computes, in the driver or in tasks."""
    found: list[str] = []
    computed, staged = PlannedBatch.computed, WriteStep._staged_by_spark

    def in_driver(planned: PlannedBatch, *given: Any, **named: Any) -> Any:
        found.append("driver")
        return computed(planned, *given, **named)

    def in_tasks(step: WriteStep, *given: Any) -> Any:
        found.append("tasks")
        return staged(step, *given)

    monkeypatch.setattr(micro_batch, "FEW_EVALUATED_ROWS", 100_000)
    monkeypatch.setattr(PlannedBatch, "computed", in_driver)
    monkeypatch.setattr(WriteStep, "_staged_by_spark", in_tasks)
    return found


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Which way the next micro-batches take."""
    taken: list[str] = []
    wanted: list[str] = []
    own = WriteStep._read_and_staged

    def by_tasks(step: WriteStep, *given: Any) -> Any:
        taken.append("tasks")
        return own(step, *given)

    def choose(name: str) -> None:
        wanted.append(name)
        monkeypatch.setattr(micro_batch, "FEW_ROWS", 100_000 if name == "driver" else -1)

    monkeypatch.setattr(WriteStep, "_read_and_staged", by_tasks)
    yield choose
    assert ("tasks" in taken) == ("tasks" in wanted)


def run(df: DataFrame, sink: Table, checkpoint: Path) -> StreamingQuery:
    writer = write_changes(df, sink.path, {}, rows_in_arrow).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def expressions(spark: SparkSession, random_: Random, pool: pa.Table) -> tuple[str, str]:
    """Columns and a condition that Arrow computes for these rows, and that are no error for them."""
    while True:
        chosen, where = columns(random_), condition(random_, 2)
        text = f"SELECT {chosen} FROM t WHERE {where}"
        plan, _ = small_plan(spark, text, {"t": pool})
        with suppress(NotInArrowError, PySparkException):
            if plan.in_arrow is not None and plan.in_arrow.rows([pool]).num_rows:
                spark.sql(text).toArrow()
                return chosen, where


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(100, 150), marks=pytest.mark.long)])
def test_random_expressions_give_what_spark_gives(
    spark: SparkSession, tmp_path: Path, way: Way, by_spark: list[str], seeds: Sequence[int]
) -> None:
    """Of rows that the driver reads, and of rows that tasks read after a restart."""
    for seed in seeds:
        random_ = Random(seed)
        pool = random_rows(random_, 60)["t"]
        chosen, where = expressions(spark, random_, pool)
        schema = TableSchema.of({"id": pa.int64(), **dict(COLUMNS["t"])}, primary_key=["id"])
        source = Table.create(tmp_path / f"source-{seed}", schema, {"bucket": "3"})
        read_changes(spark, source.path).createOrReplaceTempView("changes")
        query = f"SELECT id AS k, {chosen}, _row_kind FROM changes WHERE {where}"
        stored = arrow_schema(spark.sql(query).drop("_row_kind").schema)
        keyed = TableSchema.of({one.name: one.type for one in stored}, primary_key=["k"])
        sink = Table.create(tmp_path / f"sink-{seed}", keyed, {"bucket": random_.choice(("2", "7"))})
        known: dict[int, int] = {}
        for name in ("driver", "tasks"):
            way(name)
            keys = random_.sample(range(80), 40)
            gone = {key for key in keys if key in known and random_.random() < 0.3}
            known.update({key: random_.randrange(len(pool)) for key in keys})
            rows = pool.take(pa.array([known[key] for key in keys]))
            kinds = ["-D" if key in gone else "+U" for key in keys]
            source.write(rows.append_column("id", pa.array(keys)).append_column("_row_kind", pa.array(kinds)))
            known = {key: row for key, row in known.items() if key not in gone}
            progress = run(spark.sql(query), sink, tmp_path / f"checkpoint-{seed}").recentProgress
            assert sum(each["numInputRows"] for each in progress) >= len(keys) - len(gone)
            spark.createDataFrame(source.snapshot().scan()).createOrReplaceTempView("t")
            asked = spark.sql(f"SELECT id AS k, {chosen} FROM t WHERE {where}").toArrow()
            assert counted(sink.snapshot().scan()) == counted(asked), f"seed {seed}: {chosen} WHERE {where}"
    assert by_spark == []


def test_expressions_above_a_join_give_what_duckdb_gives(
    spark: SparkSession, tmp_path: Path, way: Way, by_spark: list[str]
) -> None:
    catalog = Catalog(tmp_path, optimize=planner.optimize)
    for statement in (
        "CREATE TABLE orders (id BIGINT, sku STRING, n INT, PRIMARY KEY (id) NOT ENFORCED, INDEX (sku))",
        "CREATE TABLE products (sku STRING, price DOUBLE, name STRING, PRIMARY KEY (sku) NOT ENFORCED)",
        """CREATE TABLE lines (id BIGINT, total DOUBLE, dozen DOUBLE, word STRING, big BOOLEAN,
            PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '6')""",
    ):
        catalog.sql(statement)
    query = """
        SELECT id, n * price AS total, price / 12 AS dozen,
            name || '😀' || substring(o.sku, 1, 1) AS word, n > 3 OR price IS NULL AS big
        FROM orders o JOIN products p ON o.sku = p.sku WHERE n * 2 <> 8 AND coalesce(price, 1.0) < 50.0
    """
    random_ = Random(4)
    for name in ("driver", "tasks"):
        way(name)
        ids, skus = random_.sample(range(40), 25), random_.sample(range(8), 5)
        kinds = ["+U" if random_.random() < 0.8 else "-D" for _ in ids]
        catalog.table("orders").write(
            pa.table(
                {
                    "id": ids,
                    "sku": [f"k{random_.randrange(8)}" for _ in ids],
                    "n": pa.array([random_.choice((None, *range(7))) for _ in ids], pa.int32()),
                    "_row_kind": kinds,
                }
            )
        )
        catalog.table("products").write(
            pa.table(
                {
                    "sku": [f"k{sku}" for sku in skus],
                    "price": [random_.choice((None, -0.0, 1.1, 0.7, 49.999, 70.0)) for _ in skus],
                    "name": [random_.choice(("é", "", None, "tea\n")) for _ in skus],
                }
            )
        )
        df = catalog.read_changes(spark, "orders").alias("o")
        df.createOrReplaceTempView("orders")
        catalog.read_changes(spark, "products").createOrReplaceTempView("products")
        writer = catalog.write_changes(spark.sql(query), "lines")
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination()
        names = ("orders", "products")
        with duckdb_with({name: catalog.table(name).snapshot().scan() for name in names}) as db:
            asked = db.sql(query).to_arrow_table()
        assert multiset(catalog.table("lines").snapshot().scan()) == multiset(asked)
    assert by_spark == []


@pytest.mark.parametrize(
    ("name", "buckets"),
    [("driver", "2"), *(pytest.param("tasks", n, marks=pytest.mark.long) for n in "62")],
)
def test_an_overflow_is_spark_s_error_and_nothing_is_committed(
    spark: SparkSession, tmp_path: Path, way: Way, by_spark: list[str], name: str, buckets: str
) -> None:
    source = Table.create(tmp_path / "source", NUMBERS, {"bucket": "3"})
    sink = Table.create(tmp_path / "sink", NUMBERS, {"bucket": buckets})
    way(name)
    source.write(pa.table({"id": range(30), "v": range(30), "s": ["x"] * 30}))
    changes = (
        read_changes(spark, source.path).where("v <> 3").selectExpr("id", "v * 2 AS v", "s", "_row_kind")
    )
    run(changes, sink, tmp_path / "checkpoint")
    assert by_spark == []
    before = files_of(sink)
    source.write(pa.table({"id": [7, 8, 90], "v": [1, 1 << 62, 2], "s": ["y"] * 3}))
    with pytest.raises(StreamingQueryException, match="ARITHMETIC_OVERFLOW"):
        run(changes, sink, tmp_path / "checkpoint")
    assert by_spark == [name]
    assert sink.snapshot().id == 1
    assert files_of(sink) == before or name == "tasks"  # a task that has failed may leave files
    sink.clean(older_than_s=0)
    assert files_of(sink) == before


def files_of(table: Table) -> set[str]:
    return {one.relative_to(table.path).as_posix() for one in Path(table.path).rglob("bucket-*/*")}


@pytest.mark.parametrize("name", [pytest.param("driver", marks=pytest.mark.long), "tasks"])
def test_rows_that_arrow_does_not_compute_are_computed_by_spark(
    spark: SparkSession, tmp_path: Path, way: Way, by_spark: list[str], name: str
) -> None:
    """Text that is no UTF-8 has other letters to Spark: the micro-batch is Spark's as a whole, and once."""
    source = Table.create(tmp_path / "source", NUMBERS, {"bucket": "3"})
    sink = Table.create(tmp_path / "sink", NUMBERS, {"bucket": "6"})
    way(name)
    texts = pa.array([b"ab", b"\x80\x80\x80", "😀".encode(), None] * 10, pa.binary()).view(pa.string())
    source.write(pa.table({"id": range(40), "v": range(40), "s": texts}))
    changes = read_changes(spark, source.path).selectExpr(
        "id", "bigint(length(s)) AS v", "'x' AS s", "_row_kind"
    )
    query = run(changes, sink, tmp_path / "checkpoint")
    assert by_spark == [name]
    assert sink.snapshot().id == 1
    found = {row["id"]: row["v"] for row in sink.snapshot().scan().to_pylist()}
    assert found == {id: (2, 3, 1, None)[id % 4] for id in range(40)}
    assert [each["numInputRows"] for each in query.recentProgress] == [40]


@pytest.mark.parametrize("name", ["driver", pytest.param("tasks", marks=pytest.mark.long)])
def test_the_time_is_that_of_the_micro_batch(
    spark: SparkSession,
    tmp_path: Path,
    way: Way,
    by_spark: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark fills it in; a micro-batch that is done again has the time that was logged."""
    schema = TableSchema.of({"id": pa.int64(), "at": pa.timestamp("us", tz="UTC")}, primary_key=["id"])
    source, sink = Table.create(tmp_path / "source", NUMBERS), Table.create(tmp_path / "sink", schema)
    changes = read_changes(spark, source.path).selectExpr("id", "current_timestamp() AS at", "_row_kind")
    way(name)
    times = []
    for number in range(2):
        source.write(pa.table({"id": [number], "v": [1], "s": ["x"]}))
        with monkeypatch.context() as patched:
            if number:
                patched.setattr(micro_batch, "reach", fail)
                with pytest.raises(StreamingQueryException, match="failed on purpose"):
                    run(changes, sink, tmp_path / "checkpoint")
            else:
                run(changes, sink, tmp_path / "checkpoint")
        run(changes, sink, tmp_path / "checkpoint")
        logged = (tmp_path / "checkpoint" / "offsets" / str(number)).read_text().splitlines()[1]
        times.append(datetime.fromtimestamp(json.loads(logged)["batchTimestampMs"] / 1000, UTC))
    assert multiset(sink.snapshot().scan()) == Counter(enumerate(times))
    assert times[0] < times[1]
    assert by_spark == []


def fail(point: str) -> None:
    if point == micro_batch.POINTS[0]:
        raise RuntimeError("failed on purpose")


OBSERVED = (
    *("count(1)", "count_if(_row_kind LIKE '-%')", "count(s)", "count(s, i)", "sum(i)", "min(i)", "max(j)"),
    *("max(p)", "min(e)", "max(w)", "min(s)", "max(s)", "min(day)", "max(at)", "min(b)"),
    *(
        "coalesce(sum(length(s)) * 2, 0) + count(s)",
        "concat(min(s), max(q))",
        "max(length(s))",
        "min(at) IS NULL",
    ),
)


@pytest.mark.skipif(supported(pyspark.__version__) == "4.2", reason="Spark alone says what is observed")
@pytest.mark.parametrize(
    ("name", "buckets"),
    [("driver", "2"), *(pytest.param("tasks", n, marks=pytest.mark.long) for n in "62")],
)
def test_what_is_observed_is_what_spark_tells(
    spark: SparkSession,
    tmp_path: Path,
    way: Way,
    by_spark: list[str],
    request: pytest.FixtureRequest,
    name: str,
    buckets: str,
) -> None:
    """Below a filter and above it, of micro-batches with many rows, with few and with none."""
    random_ = Random(12)
    request.addfinalizer(lambda: spark.conf.set("spark.sql.session.timeZone", "UTC"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # no time without a zone is of it
    schema = TableSchema.of({"id": pa.int64(), **dict(COLUMNS["t"])}, primary_key=["id"])
    source = Table.create(tmp_path / "source", schema, {"bucket": "3"})
    chosen = random_.sample(OBSERVED, 12)
    below, above = ([expr(one).alias(f"m{n}") for n, one in enumerate(some)] for some in (chosen, OBSERVED))
    read = read_changes(spark, source.path).observe("below", *below).where("i > 0 OR s = 'a'")
    changes = read.observe("above", *above).selectExpr("id", "concat(s, 'x') AS s", "j AS v", "_row_kind")
    told = []
    versions = [random_rows(random_, count)["t"] for count in (50, 3, 3)]
    for in_arrow in (rows_in_arrow, None):
        source.overwrite(pa.table(versions[0]).append_column("id", pa.array(range(50), pa.int64())))
        way(name)
        sink = Table.create(tmp_path / f"sink-{len(told)}", NUMBERS, {"bucket": buckets})
        writer = write_changes(changes, sink.path, {}, in_arrow)
        query = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{len(told)}")).start()
        try:
            query.processAllAvailable()
            for rows in (versions[1], versions[1].slice(0, 0), versions[2]):
                source.write(rows.append_column("id", pa.array(range(len(rows)), pa.int64())))
                query.processAllAvailable()
        finally:
            query.stop()
        batches = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
        told.append([(each["numInputRows"], repr(each["observedMetrics"])) for each in batches])
        assert by_spark == ([] if in_arrow else [name] * len(batches))
    assert told[0] == told[1]
    assert len(told[0]) > 2


@pytest.mark.parametrize(
    "text",
    [
        "sum(f)",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("min(f)", "avg(i)", "collect_set(i)")),
    ],
)
def test_what_depends_on_the_order_of_rows_is_observed_by_spark(
    spark: SparkSession, tmp_path: Path, by_spark: list[str], text: str
) -> None:
    schema = TableSchema.of({"id": pa.int64(), **dict(COLUMNS["t"])}, primary_key=["id"])
    source, sink = Table.create(tmp_path / "source", schema), Table.create(tmp_path / "sink", NUMBERS)
    rows = random_rows(Random(2), 9)["t"]
    source.write(rows.append_column("id", pa.array(range(9), pa.int64())))
    read = read_changes(spark, source.path).observe("o", expr(text).alias("m"))
    query = run(read.selectExpr("id", "j AS v", "s", "_row_kind"), sink, tmp_path / "checkpoint")
    assert by_spark == ["driver"]
    assert query.recentProgress[0]["observedMetrics"]["o"]["m"] is not None


@pytest.mark.parametrize("text", ["initcap(s) AS s", "rand() > 0.5 AS b", "array(v) AS a", "uuid() AS s"])
def test_what_is_not_surely_exact_is_left_to_spark(spark: SparkSession, text: str) -> None:
    rows = pa.table({"s": ["straße"], "v": [1]})
    plan, _ = small_plan(spark, f"SELECT {text} FROM t", {"t": rows.append_column("kind", pa.array(["+I"]))})
    assert plan.why_spark


def test_figures_of_parts_make_those_of_all_rows() -> None:
    """A task makes them a batch at a time; sums of parts may overflow where they are put together."""
    i, type_ = Field(Ref(0, "1")), pa.int64()
    of_sum = (("-3", Figure("sum", (i,))), ("-3 at most", Figure("sum at most", (i,))))
    below, above = (("-2", Figure("count", ())), *of_sum), (("-1", Figure("min", (i,))),)
    some = Filtered(Observed(Input(0, (("1", "i", type_),)), below), Call(">", (i, Const(0, type_))), ("1",))
    told = {"count": "-2", "sum": "-3"}
    observations = (
        Observation(above, (("m", Field(Ref(0, "-1"))),), pa.schema({"m": type_})),
        Observation(
            below,
            tuple((n, Field(Ref(0, ref))) for n, ref in told.items()),
            pa.schema(dict.fromkeys(told, type_)),
        ),
    )
    made = InArrow(Observed(some, above), ("1",), pa.schema({"i": type_}), observations)
    rows = pa.table({"i": pa.array([5, None, -1, 3, 8, -7, None], type_)})
    parts = [made.made([rows.slice(at, 2)]).told for at in range(0, 8, 2)]
    assert made.observed(made.merged(parts[::-1])) == made.observed(made.made([rows]).told)
    assert [one.to_pylist() for one in made.observed(made.merged(parts))] == [
        [{"m": 3}],
        [{"count": 7, "sum": 8}],
    ]
    large = made.made([pa.table({"i": pa.array([1 << 62], type_)})]).told
    assert made.observed(made.merged([large, parts[0]]))
    with pytest.raises(NotInArrowError, match="overflow on the way"):
        made.merged([large, large])


def test_what_tasks_compute_can_be_pickled(spark: SparkSession) -> None:
    rows = random_rows(Random(5), 20)
    plan, _ = small_plan(spark, "SELECT d * 2 AS c, d * 2 + 1 AS e, xxhash64(s) AS h FROM t WHERE b", rows)
    assert isinstance(plan.in_arrow, InArrow)
    again = pickle.loads(pickle.dumps(plan.in_arrow))
    assert again == plan.in_arrow
    assert again.made([rows["t"]]).told is None
    assert again.rows([rows["t"]]) == plan.in_arrow.rows([rows["t"]])
