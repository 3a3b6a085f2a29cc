"""Keyed sinks whose key does not tell the rows of the query apart hold what it gives: decision 0028."""

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import planner
from planner import PlanError
from tests.helpers import LOCAL_CLUSTER, lent, output_of, run_spark_script, spark_script
from tests.planner import materialize_script
from tests.upsert.kafka.written import records_in, table_of, values_by_key
from upsert import Catalog
from upsert.catalog.results import Running
from upsert.errors import ConfigurationError
from upsert.kafka.client.connection import Connection
from upsert.materializer import micro_batch
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.spark

Row = dict[str, Any]

ORDERS = "CREATE TABLE o (id BIGINT, cust BIGINT, amt BIGINT, PRIMARY KEY (id) NOT ENFORCED, INDEX (cust))"
CUSTOMERS = "CREATE TABLE c (cust BIGINT, name STRING, PRIMARY KEY (cust) NOT ENFORCED)"
JOINED = "SELECT cust, name, amt FROM o JOIN c USING (cust)"
PLAIN = "SELECT cust, 'n' AS name, amt FROM o"
SCRIPT = Path(__file__).parent / "materialize_script.py"


class Pipeline:
    """A catalog in streaming mode, whose statements end with what is there."""

    def __init__(self, folder: Path, spark: SparkSession, bucket: int = 1) -> None:
        self.catalog = Catalog(folder / "warehouse", optimize=planner.optimize)
        self.spark = spark
        self.folder = folder
        self.sql("SET 'execution.runtime-mode' = 'streaming'")
        self.sql("SET 'execution.trigger' = 'available-now'")
        self.sql(f"SET 'checkpoint.location' = '{folder}/checkpoints'")
        self.sql(ORDERS)
        self.sql(CUSTOMERS)
        self.create_sink(f"'bucket' = '{bucket}'")
        self.write("c", {"cust": 1, "name": "n"}, {"cust": 2, "name": "n"}, {"cust": 3, "name": "n"})

    def sql(self, text: str) -> Any:
        return self.catalog.sql(text, self.spark)

    def create_sink(self, options: str, name: str = "s") -> None:
        columns = "cust BIGINT, name STRING, amt BIGINT, PRIMARY KEY (cust) NOT ENFORCED"
        self.sql(f"CREATE TABLE {name} ({columns}) WITH ({options})")

    def write(self, name: str, *rows: Row) -> None:
        self.catalog.table(name).write(pa.Table.from_pylist(list(rows)))

    def order(self, id: int, cust: int, amt: int) -> None:
        self.write("o", {"id": id, "cust": cust, "amt": amt})

    def cancel(self, id: int) -> None:
        self.write("o", {"id": id, "cust": None, "amt": None, ROW_KIND_COLUMN: "-D"})

    def run(self, query: str, hint: str = "", sink: str = "s") -> None:
        running = self.sql(f"INSERT INTO {sink} {hint} {query}")
        assert isinstance(running, Running)
        running.query.awaitTermination()

    @property
    def hidden(self) -> list[Table]:
        """The hidden tables of the sink."""
        folder = Path(self.catalog.table("s").path) / "materialized"
        return [Table.open(path) for path in sorted(folder.iterdir())] if folder.exists() else []

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        scanned = self.catalog.table("s").snapshot().scan().to_pylist()
        return sorted(tuple(row.values()) for row in scanned)


@pytest.fixture
def pipeline(tmp_path: Path, spark: SparkSession) -> Pipeline:
    return Pipeline(tmp_path, spark)


BOTH = (pytest.param(JOINED, id="join"), pytest.param(PLAIN, id="no join", marks=pytest.mark.long))


@pytest.mark.parametrize("query", BOTH)
def test_a_row_comes_back_when_the_one_that_replaced_it_goes(pipeline: Pipeline, query: str) -> None:
    """Of two that came in one micro-batch, which has no order, the highest counts as the newest."""
    one_after_the_other, together = 1, 2
    pipeline.order(10, one_after_the_other, 100)
    pipeline.order(20, together, 100)
    pipeline.order(21, together, 50)
    pipeline.run(query)
    assert pipeline.rows == [(1, "n", 100), (2, "n", 100)]
    pipeline.order(11, one_after_the_other, 50)
    pipeline.cancel(20)
    pipeline.run(query)
    assert pipeline.rows == [(1, "n", 50), (2, "n", 50)]
    pipeline.cancel(11)
    pipeline.cancel(21)
    pipeline.run(query)
    assert pipeline.rows == [(1, "n", 100)]


class Newest:
    """A model of the sink: of the rows of each customer that are left the one that came last.

    Of those that came in one micro-batch the highest counts as the last.
    """

    def __init__(self) -> None:
        self.before = Counter[tuple[Any, ...]]()
        self.arrival: dict[tuple[Any, ...], int] = {}

    def rows(self, after: Counter[tuple[Any, ...]], batch: int) -> list[tuple[Any, ...]]:
        for row in after.keys() | self.before.keys():
            if after[row] > self.before[row]:
                self.arrival[row] = batch
        self.before = +after
        found = {row[0]: row for row in sorted(self.before, key=lambda row: (self.arrival[row], row))}
        return sorted(found.values())


@pytest.mark.long
@pytest.mark.parametrize("bucket", [1, 7])
def test_random_histories_of_a_join(tmp_path: Path, spark: SparkSession, bucket: int) -> None:
    """Orders come, change hands and go, customers are renamed and go; each statement restarts the query."""
    pipeline, model, rng = Pipeline(tmp_path, spark, bucket), Newest(), random.Random(bucket)
    orders: dict[int, tuple[int, int]] = {}
    names = dict.fromkeys((1, 2, 3), "n")
    for batch in range(5 if bucket == 1 else 25):
        for id in rng.sample(range(9), 4):
            if id in orders and rng.random() < 0.4:
                del orders[id]
                pipeline.cancel(id)
            else:
                orders[id] = rng.randrange(1, 4), rng.randrange(3)
                pipeline.order(id, *orders[id])
        cust = rng.randrange(1, 4)
        if cust in names and rng.random() < 0.3:
            del names[cust]
            pipeline.write("c", {"cust": cust, "name": None, ROW_KIND_COLUMN: "-D"})
        elif rng.random() < 0.5:
            names[cust] = rng.choice("nmo")
            pipeline.write("c", {"cust": cust, "name": names[cust]})
        pipeline.run(JOINED)
        result = Counter((cust, names[cust], amt) for cust, amt in orders.values() if cust in names)
        assert pipeline.rows == model.rows(result, batch), batch
    assert pipeline.catalog.table("s").check(deep=True) == ()


@pytest.mark.parametrize(
    "point",
    [micro_batch.POINTS[0], *(pytest.param(one, marks=pytest.mark.long) for one in micro_batch.POINTS[1:])],
)
def test_a_failure_between_any_two_steps_is_made_up_for(
    pipeline: Pipeline, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.order(10, 1, 100)
    pipeline.order(12, 2, 7)
    pipeline.run(PLAIN)
    pipeline.order(11, 1, 50)
    pipeline.cancel(12)

    def fail(reached: str) -> None:
        if reached == point:
            raise RuntimeError(f"failed at {point}")

    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "reach", fail)
        with pytest.raises(StreamingQueryException, match=f"failed at {point}"):
            pipeline.run(PLAIN)
    assert pipeline.rows == (
        [(1, "n", 50)] if point == micro_batch.POINTS[-1] else [(1, "n", 100), (2, "n", 7)]
    )
    pipeline.run(PLAIN)
    assert pipeline.rows == [(1, "n", 50)]
    (hidden,) = pipeline.hidden
    assert hidden.snapshot().scan(["count"]).to_pylist() == [{"count": 1}] * 2  # nothing was counted twice


def _orders(folder: Path, spark: SparkSession) -> tuple[Pipeline, list[tuple[Any, ...]]]:
    """A warehouse with a history of orders, and what a query leaves that takes one commit at a time."""
    pipeline, model, rng = Pipeline(folder, spark, 2), Newest(), random.Random(1)
    orders: dict[int, tuple[int, int]] = {}
    expected: list[tuple[Any, ...]] = []
    for batch in range(6):
        for id in rng.sample(range(9), 5):
            orders[id] = rng.randrange(1, 4), rng.randrange(3)
        rows = [{"id": id, "cust": cust, "amt": amt} for id, (cust, amt) in orders.items()]
        pipeline.write("o", *rows)
        expected = model.rows(Counter((cust, "n", amt) for cust, amt in orders.values()), batch)
    return pipeline, expected


@pytest.mark.long
def test_executors_of_a_cluster_keep_the_rows(tmp_path: Path, spark: SparkSession) -> None:
    pipeline, _ = _orders(tmp_path, spark)
    run_spark_script(SCRIPT, tmp_path, master=LOCAL_CLUSTER)
    rows = pipeline.catalog.table("o").snapshot().scan().to_pylist()
    assert {row[0] for row in pipeline.rows} == {row["cust"] for row in rows}
    assert set(pipeline.rows) <= {(row["cust"], "n", row["amt"]) for row in rows}
    (hidden,) = pipeline.hidden
    assert sum(row["count"] for row in hidden.snapshot().scan().to_pylist()) == len(rows)


@pytest.mark.long
@pytest.mark.parametrize("point", micro_batch.POINTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_driver_that_is_killed_between_any_two_steps(
    tmp_path: Path, spark: SparkSession, point: str, nth: int
) -> None:
    """After a restart the sink is the one of a query that nobody killed."""
    pipelines = [_orders(tmp_path / name, spark)[0] for name in ("killed", "undisturbed")]
    process = spark_script(
        SCRIPT, tmp_path / "killed", environment={"UPSERT_STORE_FAILPOINT": f"{point}:{nth}"}
    )
    output = output_of(process)
    assert process.returncode == -9, output
    with lent(spark):
        for name in ("killed", "undisturbed"):
            materialize_script.main(str(tmp_path / name))
    assert pipelines[0].rows == pipelines[1].rows
    kept = [Counter(map(str, p.hidden[0].snapshot().scan().to_pylist())) for p in pipelines]
    assert kept[0] == kept[1]


def test_a_key_that_tells_the_rows_apart_costs_nothing(pipeline: Pipeline) -> None:
    pipeline.order(10, 1, 100)
    columns = "id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED"
    pipeline.sql(f"CREATE TABLE by_id ({columns})")
    pipeline.run("SELECT id, name FROM o JOIN c USING (cust)", sink="by_id")
    table = pipeline.catalog.table("by_id")
    assert table.snapshot().scan().num_rows == 1
    assert not (Path(table.path) / "materialized").exists()


def test_none_believes_the_user_and_force_does_not(pipeline: Pipeline) -> None:
    pipeline.order(10, 1, 100)
    pipeline.order(11, 1, 50)
    with pytest.raises(StreamingQueryException) as caught:
        pipeline.run(PLAIN, "/*+ OPTIONS('sink.materialize' = 'none') */")
    message = str(caught.value)
    assert "table 's': key {'cust': 1}" in message
    assert "'sink.materialize' = 'force'" in message
    pipeline.create_sink("'sink.materialize' = 'force'", "forced")
    pipeline.run("SELECT cust, name, 1 AS amt FROM c", sink="forced")
    table = pipeline.catalog.table("forced")
    assert table.snapshot().scan().num_rows == 3
    assert (Path(table.path) / "materialized").exists()


@pytest.mark.parametrize(
    ("options", "query", "expected"),
    [
        (
            "'merge-engine' = 'aggregation'",
            "FROM c",
            "needs a table in which a row replaces the earlier one of its key",
        ),
        ("'sequence.field' = 'amt'", "FROM c", "needs a table in which a row replaces the earlier one"),
        ("'bucket' = '1'", "FROM o GROUP BY cust", "needs every kind of change"),
    ],
)
def test_force_is_refused_where_it_means_nothing(
    pipeline: Pipeline, options: str, query: str, expected: str
) -> None:
    pipeline.create_sink(f"{options}, 'sink.materialize' = 'force'", "forced")
    selected = "cust, 'n' AS name, count(*) AS amt" if "GROUP" in query else "cust, name, 1L AS amt"
    with pytest.raises((ConfigurationError, PlanError), match=expected):
        pipeline.run(f"SELECT {selected} {query}", sink="forced")


def test_a_table_that_combines_rows_itself_keeps_none(pipeline: Pipeline) -> None:
    pipeline.create_sink("'sequence.field' = 'amt'", "combined")
    pipeline.order(10, 1, 100)
    pipeline.order(11, 1, 50)
    pipeline.run(PLAIN, sink="combined")
    table = pipeline.catalog.table("combined")
    assert [row["amt"] for row in table.snapshot().scan().to_pylist()] == [100]
    assert not (Path(table.path) / "materialized").exists()


def test_a_raw_write_of_such_a_query_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    orders = pipeline.catalog.read_changes(pipeline.spark, "o").selectExpr("cust", "'n' AS name", "amt")
    path = pipeline.catalog.table("s").path
    changes = planner.optimize(orders)

    def started(**options: str) -> None:
        writer = changes.writeStream.format("upsert-table").option("path", path).options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "raw")).trigger(availableNow=True)
        writer.start().awaitTermination()

    with pytest.raises(StreamingQueryException, match=r"use catalog\.write_changes"):
        started()
    started(**{"sink.materialize": "none"})


def test_create_table_as_keeps_the_rows_and_drop_takes_them_away(pipeline: Pipeline) -> None:
    pipeline.order(10, 1, 100)
    pipeline.order(11, 1, 50)
    create = f"CREATE TABLE made (PRIMARY KEY (cust) NOT ENFORCED) AS {PLAIN}"
    pipeline.sql(create).query.awaitTermination()
    table = pipeline.catalog.table("made")
    assert [row["amt"] for row in table.snapshot().scan().to_pylist()] == [100]
    assert (Path(table.path) / "materialized").exists()
    shown = set(pipeline.catalog.tables())
    assert shown == {"c", "made", "o", "s"}
    pipeline.cancel(10)
    pipeline.run(PLAIN, sink="made")
    assert pipeline.catalog.table("made").clean(older_than_s=0) == 0
    pipeline.sql("DROP TABLE made")
    assert not Path(table.path).exists()


@pytest.mark.long
def test_a_query_that_began_without_its_rows_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    """As one of an older release did; it may go on as before."""
    orders = pipeline.catalog.read_changes(pipeline.spark, "o").selectExpr("cust", "'n' AS name", "amt")

    def run(mode: str) -> None:
        writer = pipeline.catalog.write_changes(orders, "s", sink_materialize=mode)
        writer = writer.option("checkpointLocation", str(tmp_path / "older")).trigger(availableNow=True)
        writer.start().awaitTermination()

    pipeline.order(10, 1, 100)
    run("none")
    pipeline.order(11, 1, 50)
    with pytest.raises(StreamingQueryException, match=r"table 's': the rows of its keys must be kept since"):
        run("auto")
    run("none")
    assert pipeline.rows == [(1, "n", 50)]


@pytest.mark.parametrize(
    "point", [micro_batch.POINTS[1], pytest.param(micro_batch.POINTS[2], marks=pytest.mark.long)]
)
def test_a_forgotten_query_that_comes_again_begins_with_its_first_micro_batch_or_is_refused(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Whether its first micro-batch had reached the sink or not."""

    def fail(reached: str) -> None:
        if reached == point:
            raise OSError("interrupted")

    def forget() -> None:
        (kept,) = pipeline.hidden
        called = pipeline.sql(
            f"CALL forget_queries(s, TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}Z')"
        )
        assert called.rows.to_pylist() == [{"query_id": Path(kept.path).name}]

    pipeline.order(10, 1, 100)
    pipeline.order(11, 1, 50)
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "reach", fail)
        with pytest.raises(StreamingQueryException, match="interrupted"):
            pipeline.run(PLAIN)
    forget()
    pipeline.run(PLAIN)
    pipeline.cancel(10)
    pipeline.run(PLAIN)
    assert pipeline.rows == [(1, "n", 50)]
    forget()
    pipeline.run(PLAIN)  # there is nothing to do
    pipeline.cancel(11)
    refusal = "got none in .* at micro-batch 2; begin with a new checkpoint and an empty sink; only a query"
    with pytest.raises(StreamingQueryException, match=refusal):
        pipeline.run(PLAIN)
    assert pipeline.rows == [(1, "n", 50)]


def test_explain_says_which_and_why(pipeline: Pipeline) -> None:
    orders = pipeline.catalog.read_changes(pipeline.spark, "o").select("cust", "amt")
    found = planner.explain(orders, sink_key=["cust"])
    assert found.sink is not None
    assert (found.sink.form, str(found.sink.keys)) == ("materialized", "no columns")
    assert "sink with PRIMARY KEY (cust)\n  form: materialized\n" in str(found)
    assert "form: materialized" in found._repr_html_()
    customers = pipeline.catalog.read_changes(pipeline.spark, "c")
    joined = orders.drop("_row_kind").join(customers, "cust")
    assert planner.explain(joined, sink_key=["cust"]).sink is not None
    by_cust = planner.explain(customers, sink_key=["cust"]).sink
    assert by_cust is not None
    assert (by_cust.form, by_cust.reason) == (
        "as it is",
        "PRIMARY KEY (cust) tells the rows of the query apart",
    )
    forced = planner.explain(customers, sink_key=["cust"], sink_materialize="force").sink
    assert forced is not None
    assert forced.form == "materialized"
    grouped = orders.groupBy("cust").count()
    upserts = planner.explain(grouped, sink_key=["cust"]).sink
    assert upserts is not None
    assert upserts.form == "as it is"
    assert planner.explain(customers).sink is None
    with pytest.raises(ConfigurationError, match=r"'sink\.materialize' must be one of auto, force, none"):
        planner.explain(customers, sink_key=["cust"], sink_materialize="yes")


@pytest.mark.kafka
@pytest.mark.parametrize("guarantee", [pytest.param("at-least-once", marks=pytest.mark.long), "exactly-once"])
def test_a_topic_gets_the_newest_row_that_is_left(
    pipeline: Pipeline, kafka: LocalKafka, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"materialized-{guarantee}"
    options = {
        "connector": "upsert-kafka",
        "topic": topic,
        "topic.partitions": "2",
        "key.format": "json",
        "value.format": "json",
        "sink.delivery-guarantee": guarantee,
        "properties.bootstrap.servers": kafka.bootstrap_servers,
    }
    if guarantee == "exactly-once":
        options["sink.transactional-id-prefix"] = topic
    pipeline.create_sink(", ".join(f"'{key}' = '{value}'" for key, value in options.items()), "k")
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers}, patience_s=30)
    for id, cust, amt in ((10, 1, 100), (12, 2, 7)):
        pipeline.order(id, cust, amt)
    pipeline.run(JOINED, sink="k")
    pipeline.order(11, 1, 50)
    pipeline.run(JOINED, sink="k")
    pipeline.cancel(11)
    pipeline.cancel(12)

    def fail(reached: str) -> None:
        if reached == "materialize.after-rows":
            raise RuntimeError("failed between the two commits")

    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "reach", fail)
        with pytest.raises(StreamingQueryException, match="failed between the two commits"):
            pipeline.run(JOINED, sink="k")
    pipeline.run(JOINED, sink="k")
    records = records_in(connection, topic, 5)
    assert values_by_key(records, "cust", "amt") == {1: [100, 50, 100], 2: [7, None]}
    assert table_of(records, "cust", "amt") == {1: 100}
    folder = Path(pipeline.catalog.warehouse) / "k"
    assert len(list((folder / "state" / "materialized").iterdir())) == 1
    pipeline.sql("DROP TABLE k")
    assert not folder.exists()
