"""Streams through Spark: a table kept equal to another by its changes, whatever happens on the way."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import planner
from tests.helpers import changelog, multiset
from upsert import Catalog
from upsert.managed.frames import read_changes, write_changes
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.string()})
PARTITIONED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, ["id", "v"], partitioned_by=["v"])


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "source", KEYED, {"bucket": "2"})


Started = Callable[[DataStreamWriter], StreamingQuery]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts a query on the test's one checkpoint, and stops it at the end."""
    queries: list[StreamingQuery] = []

    def start(writer: DataStreamWriter) -> StreamingQuery:
        queries.append(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def lines(*changes: str) -> pa.Table:
    return changelog(KEYED.arrow, *changes)


def content(table: Table) -> Counter[tuple[Any, ...]]:
    return multiset(table.snapshot().scan())


def run(started: Started, writer: DataStreamWriter) -> None:
    """Everything that is there now, then the end."""
    query = started(writer.trigger(availableNow=True))
    query.awaitTermination()


def random_changes(rng: random.Random, table: Table) -> None:
    """One commit: some upserts and deletions, now and then an overwrite."""
    keys = rng.sample(range(200), 60)
    kinds = [rng.choice(["+I", "+U", "+U", "-D"]) for _ in keys]
    values = [rng.choice(["a", "b", None]) for _ in keys]
    rows = pa.table(
        {"id": pa.array(keys, pa.int64()), "v": pa.array(values, pa.string()), "_row_kind": kinds}
    )
    (table.overwrite if rng.random() < 0.1 else table.write)(rows)


@pytest.mark.parametrize("path", ["bucketed", pytest.param("raw", marks=pytest.mark.long)])
def test_table_kept_equal_by_its_changes_through_restarts(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started, path: str
) -> None:
    """Small steps, restarts in between, and for ``raw`` the two halves of an update in different tasks."""
    rng = random.Random(path)
    sink = Table.create(tmp_path / "sink", KEYED, {"bucket": "5" if path == "bucketed" else "3"})
    for _ in range(2):
        for _ in range(2):
            random_changes(rng, source)
        changes = read_changes(spark, source.path, max_rows_per_trigger=70)
        if path == "raw":
            scattered = changes.repartition(4, "_row_kind").writeStream.format("upsert-table")
            writer = scattered.option("path", sink.path)
        else:
            writer = write_changes(changes, sink.path)
        run(started, writer)
        assert content(sink) == content(source)
    assert len(sink.history()) > 3, "the limit cut the changes into several batches"


@pytest.mark.parametrize("schema", [MULTISET, PARTITIONED], ids=["multiset", "partitioned"])
def test_sinks_of_other_kinds(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started, schema: TableSchema
) -> None:
    """A multiset would show a change that was applied twice; a partition moves with its column's value."""
    sink = Table.create(tmp_path / "sink", schema, {"bucket": "2"})
    query = started(write_changes(read_changes(spark, source.path).where("v IS NOT NULL"), sink.path))
    for changes in (("+I 1 a", "+I 2 a", "+I 3 NULL"), ("+U 1 b", "-D 2 a", "+U 3 c", "+I 4 a"), ("-D 4 a",)):
        source.write(lines(*changes))
        query.processAllAvailable()
        assert content(sink) == Counter({row: n for row, n in content(source).items() if row[1] is not None})


def test_replayed_micro_batch_is_committed_once(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started
) -> None:
    """As after a crash between the sink's commit and Spark's own: the batch runs again."""
    sink = Table.create(tmp_path / "sink", MULTISET)
    source.write(lines("+I 1 a", "+I 2 b"))
    run(started, write_changes(read_changes(spark, source.path), sink.path))
    source.write(lines("+U 1 c"))
    run(started, write_changes(read_changes(spark, source.path), sink.path))
    before = content(sink)
    for marker in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        marker.unlink()
    run(started, write_changes(read_changes(spark, source.path), sink.path))
    assert content(sink) == before == Counter({(1, "c"): 1, (2, "b"): 1})


@pytest.mark.parametrize(
    "mode",
    [
        "from-snapshot",
        pytest.param("latest", marks=pytest.mark.long),
        pytest.param("from-timestamp", marks=pytest.mark.long),
    ],
)
def test_stream_from_a_later_state(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started, mode: str
) -> None:
    """Only what changed after the state is read; the first micro-batch settles which state that is."""
    source.write(lines("+I 1 a", "+I 2 b"))
    options = {"scan_mode": mode}
    if mode == "from-snapshot":
        options["scan_snapshot_id"] = "1"
    if mode == "from-timestamp":
        options["log_scan_timestamp_mills"] = str(source.history()[0].time_ms)
    sink = Table.create(tmp_path / "sink", MULTISET)

    def pipeline() -> DataStreamWriter:
        changes = read_changes(spark, source.path, **options).selectExpr("id", "concat(_row_kind, v) AS v")
        return write_changes(changes, sink.path)

    run(started, pipeline())
    assert content(sink) == Counter()
    source.write(lines("+U 1 c", "-D 2 b"))
    run(started, pipeline())
    assert content(sink) == Counter({(1, "-Ua"): 1, (1, "+Uc"): 1, (2, "-Db"): 1})


def failure(started: Started, writer: DataStreamWriter) -> str:
    with pytest.raises(Exception, match=r"Error\b") as caught:
        run(started, writer)
    return str(caught.value)


def console(changes: DataFrame) -> DataStreamWriter:
    return changes.writeStream.format("noop")


def test_checkpoint_of_another_table_is_refused(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started
) -> None:
    source.write(lines("+I 1 a"))
    run(started, console(read_changes(spark, source.path)))
    other = Table.create(tmp_path / "other", KEYED)
    other.write(lines("+I 1 a"))
    message = failure(started, console(read_changes(spark, other.path)))
    assert "the checkpoint belongs to the table with uuid" in message
    assert source.uuid in message
    assert other.uuid in message


def test_commit_without_tracking_stops_the_stream(
    spark: SparkSession, source: Table, started: Started
) -> None:
    source.write(lines("+I 1 a"))
    run(started, console(read_changes(spark, source.path)))
    source.commit([source.stage(lines("+I 2 b"), order="rows")], tracked=False)
    message = failure(started, console(read_changes(spark, source.path)))
    assert "snapshot 2 was committed with change-tracking = false" in message


def test_bad_streams_are_refused(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started
) -> None:
    source.write(lines("+I 1 a"))
    changes = read_changes(spark, source.path)
    with pytest.raises(Exception, match="unknown option 'scanmode'"):
        read_changes(spark, source.path, scanmode="latest")
    with pytest.raises(Exception, match=r"lacks column\(s\) v"):
        write_changes(changes.drop("v"), source.path)
    with pytest.raises(Exception, match="needs a streaming DataFrame"):
        write_changes(spark.range(1), source.path)
    raw = changes.drop("v").writeStream.format("upsert-table").option("path", source.path)
    assert "the query lacks column(s) v" in failure(started, raw)
    without_kind = spark.readStream.format("upsert-table").option("row-kind", "false").load(source.path)
    assert "must have the column '_row_kind'" in failure(started, console(without_kind))
    assert source.snapshot().id == 1


def test_aggregate_in_complete_mode_overwrites(
    spark: SparkSession, source: Table, tmp_path: Path, started: Started
) -> None:
    counts = TableSchema.of({"v": pa.string(), "n": pa.int64()}, primary_key=["v"])
    sink = Table.create(tmp_path / "sink", counts, {"bucket": "2"})
    totals = read_changes(spark, source.path).groupBy("v").agg({"id": "count"}).toDF("v", "n")
    query = started(write_changes(totals, sink.path).outputMode("complete"))
    for change in ("+I 1 a", "+I 2 a", "+I 3 b"):
        source.write(lines(change))
        query.processAllAvailable()
    assert content(sink) == Counter({("a", 2): 1, ("b", 1): 1})
    assert {info.kind for info in sink.history() if info.changes_rows} == {"overwrite"}


def test_a_stream_begins_in_any_thread(spark: SparkSession, tmp_path: Path) -> None:
    """Spark looks for Python formats in the session that is active in the thread, and a new one has none."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    for name in ("one", "two"):
        catalog.sql(f"CREATE TABLE {name} (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("one").write(pa.table({"id": [1, 2]}))
    catalog.read(spark, "one")  # the session knows the formats, but not in the other thread

    def copied() -> int:
        changes = catalog.read_changes(spark, "one")
        writer = catalog.write_changes(changes, "two").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        return catalog.table("two").snapshot().row_count

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(copied).result() == 2
