"""Micro-batches computed by the driver or by tasks: the same rows and offsets, each committed once."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import changelog, multiset
from tests.object_store import ObjectStore, counted
from upsert.errors import ConfigurationError
from upsert.managed import micro_batch
from upsert.managed.frames import read_changes, write_changes
from upsert.managed.micro_batch import WriteStep
from upsert.managed.process_memory import worker_peak
from upsert.schema import Column, Length, TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.int64()})
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"

Way = Callable[[str], None]


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Which way the next micro-batches must take, and whether they did."""
    taken: list[str] = []
    wanted: list[str] = []
    own, tasks = WriteStep._read, WriteStep._staged_by_tasks

    def read(step: WriteStep, *given: Any) -> pa.Table | None:
        found = own(step, *given)
        taken.append("tasks" if found is None else "driver")
        return found

    def staged(step: WriteStep, *given: Any) -> Any:
        taken.append("in tasks")
        found, query = tasks(step, *given), given[-1]
        assert worker_peak(query) > 50 << 20, "as each Python with these libraries takes"
        return found

    def choose(name: str) -> None:
        wanted.append(name)
        monkeypatch.setattr(micro_batch, "FEW_ROWS", 20_000 if name == "driver" else -1)

    monkeypatch.setattr(WriteStep, "_read", read)
    monkeypatch.setattr(WriteStep, "_staged_by_tasks", staged)
    yield choose
    by_driver = "driver" in wanted
    assert ("driver" in taken) == by_driver
    assert taken.count("tasks") == taken.count("in tasks")
    assert ("tasks" in taken) == ("tasks" in wanted)


def source_of(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "source", KEYED, {"bucket": "2"})


def lines(*changes: str) -> pa.Table:
    return changelog(KEYED.arrow, *changes)


def run(df: DataFrame, sink: Table, tmp_path: Path) -> StreamingQuery:
    writer = write_changes(df, sink.path).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def content(table: Table) -> Counter[tuple[Any, ...]]:
    return multiset(table.snapshot().scan())


def test_both_ways_in_turn_give_what_a_dict_says(spark: SparkSession, tmp_path: Path, way: Way) -> None:
    """Small steps with an expression and a filter; the sink counts, so nothing may be lost or come twice."""
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", MULTISET, {"bucket": "3"})
    rng, rows = random.Random(8), dict[int, int]()
    for name in ("driver", "tasks", "driver"):
        way(name)
        for _ in range(2):
            keys = rng.sample(range(40), 15)
            gone = {key for key in keys if rng.random() < 0.3}
            rows.update({key: rng.randrange(6) for key in keys})
            kinds = ["-D" if key in gone else "+U" for key in keys]
            source.write(pa.table({"id": keys, "v": [rows[key] for key in keys], "_row_kind": kinds}))
            rows = {key: value for key, value in rows.items() if key not in gone}
        changes = read_changes(spark, source.path, max_rows_per_trigger=20).where("v > 1")
        query = run(changes.selectExpr("id % 7 AS id", "v * 10 AS v", "_row_kind"), sink, tmp_path)
        assert content(sink) == Counter((key % 7, 10 * v) for key, v in rows.items() if v > 1)
        progress = [json.loads(each.json) for each in query.recentProgress]
        assert sum(each["numInputRows"] for each in progress) > 0
    batches = sorted(int(one.name) for one in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert sink.snapshot().info.writers == {str(query.id): batches[-1]}


@pytest.mark.parametrize("name", ["driver", "tasks"])
def test_what_is_only_chosen_and_renamed_needs_no_plan(
    spark: SparkSession, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def planned(*given: object) -> None:
        raise AssertionError("Spark has computed what is chosen and renamed")

    monkeypatch.setattr("upsert.spark.planned_batch.PlannedBatch.computed", planned)
    monkeypatch.setattr(micro_batch, "by_bucket", planned)
    way(name)
    source = source_of(tmp_path)
    renamed = TableSchema.of({"w": pa.int64(), "k": pa.int64()}, primary_key=["k"])
    sink = Table.create(tmp_path / "sink", renamed)
    source.write(lines("+I 1 10", "+I 2 20"))
    changes = read_changes(spark, source.path).selectExpr("v AS x", "_row_kind", "id", "id AS again")
    query = run(changes.selectExpr("x AS w", "again AS k", "_row_kind"), sink, tmp_path)
    assert content(sink) == Counter({(10, 1): 1, (20, 2): 1})
    assert [each["numInputRows"] for each in query.recentProgress] == [2]


def test_what_tasks_only_choose_goes_to_the_task_of_its_bucket(
    spark: SparkSession, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stored form of the key, which is padded; no row goes through the JVM."""

    def by_spark(*given: object) -> None:
        raise AssertionError("the rows went through the JVM")

    monkeypatch.setattr(micro_batch, "by_bucket", by_spark)
    way("tasks")
    rng = random.Random(5)
    texts = TableSchema.of({"k": pa.string(), "v": pa.int64()}, primary_key=["k"])
    source = Table.create(tmp_path / "source", texts, {"bucket": "3"})
    key = Column("k", pa.string(), nullable=False, length=Length(4, is_padded=True))
    padded = TableSchema((key, Column("w", pa.int64())), primary_key=("k",))
    sink = Table.create(tmp_path / "sink", padded, {"bucket": "19"})  # of which tasks have several
    rows = dict[str, int]()
    for _ in range(2):
        changed = rng.sample([str(number) for number in range(40)], 20)
        gone = {k for k in changed if k in rows and rng.random() < 0.3}
        before = len(rows.keys() & changed)
        rows.update({k: rng.randrange(1 << 40) for k in changed})
        kinds = ["-D" if k in gone else "+U" for k in changed]
        source.write(pa.table({"k": changed, "v": [rows[k] for k in changed], "_row_kind": kinds}))
        rows = {k: v for k, v in rows.items() if k not in gone}
        query = run(read_changes(spark, source.path).withColumnRenamed("v", "w"), sink, tmp_path)
        assert content(sink) == Counter((k.ljust(4), v) for k, v in rows.items())
        assert [each["numInputRows"] for each in query.recentProgress] == [20 - len(gone) + before]
    assert [found for found in sink.check(deep=True) if not found.is_information] == []


def test_functions_in_python_are_called_in_both_ways(spark: SparkSession, tmp_path: Path, way: Way) -> None:
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", KEYED)
    tenfold = F.udf(lambda value: 10 * value, "BIGINT")
    source.write(lines("+I 1 1", "+I 2 2", "+I 3 3"))
    for name in ("driver", "tasks"):
        way(name)
        changes = read_changes(spark, source.path).select("id", tenfold("v").alias("v"), "_row_kind")
        run(changes.where(tenfold("id") > 10), sink, tmp_path)
        source.write(lines("+U 2 4"))
    assert content(sink) == Counter({(2, 40): 1, (3, 30): 1})


def test_what_is_observed_is_told_in_both_ways(spark: SparkSession, tmp_path: Path, way: Way) -> None:
    """Also of a micro-batch in which nothing has changed after all."""
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", MULTISET)
    told = []
    for name in ("driver", "tasks"):
        way(name)
        source.overwrite(lines("+I 1 1", "+I 2 2", "+I 3 3"))
        read = read_changes(spark, source.path).observe("read", F.count("id").alias("rows"))
        kept = read.where("v > 1").observe(
            "kept", F.sum("v").alias("sum"), F.max("id").alias("last"), F.collect_set("id").alias("ids")
        )
        changes = kept.selectExpr("id", "10 * v AS v", "_row_kind")
        writer = write_changes(changes, sink.path).option("checkpointLocation", str(tmp_path / name))
        query = writer.start()
        try:
            query.processAllAvailable()
            for change in ("+U 3 5", "+U 3 5"):
                source.write(lines(change))
                query.processAllAvailable()
        finally:
            query.stop()
        batches = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
        told.append(
            [{name: row.asDict() for name, row in each["observedMetrics"].items()} for each in batches]
        )
    of_driver, of_tasks = told
    assert of_driver == of_tasks
    assert of_driver[0] == {"read": {"rows": 3}, "kept": {"sum": 5, "last": 3, "ids": [2, 3]}}
    assert of_driver[-1] == {"read": {"rows": 0}, "kept": {"sum": None, "last": None, "ids": []}}


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.adaptive.enabled": "true", "spark.sql.adaptive.forceApply": "true"},
        {"spark.sql.execution.arrow.localRelationThreshold": "0b"},
    ],
    ids=["plans that Spark changes while they run", "no rows in plans"],
)
def test_settings_of_plans_change_nothing(
    spark: SparkSession, tmp_path: Path, way: Way, settings: Mapping[str, str]
) -> None:
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", MULTISET)
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        way("driver")
        source.write(lines("+I 1 1", "+I 2 2"))
        read = read_changes(spark, source.path).observe("read", F.count("id").alias("rows"))
        query = run(read.where("v > 1"), sink, tmp_path)
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    (progress,) = query.recentProgress
    assert progress["observedMetrics"]["read"].asDict() == {"rows": 2}
    assert progress["numInputRows"] == 2


@pytest.mark.parametrize("point", micro_batch.POINTS)
def test_a_replay_may_take_the_other_way(
    spark: SparkSession, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The micro-batch is the one that Spark has logged, though its table has gone on."""
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", MULTISET)
    way("driver")
    source.write(lines("+I 1 1", "+I 2 2"))
    run(read_changes(spark, source.path), sink, tmp_path)
    source.write(lines("+U 1 3"))

    def fail(reached: str) -> None:
        if reached == point:
            raise RuntimeError(f"failed at {point}")

    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "reach", fail)
        with pytest.raises(StreamingQueryException, match=f"failed at {point}"):
            run(read_changes(spark, source.path), sink, tmp_path)
    source.write(lines("-D 2 2", "+U 1 4"))
    way("tasks")
    run(read_changes(spark, source.path), sink, tmp_path)
    commits = [info for info in sink.history() if info.changes_rows]
    states = [multiset(sink.snapshot(info.id).scan()) for info in commits]
    assert states == [
        Counter({(1, 1): 1, (2, 2): 1}),
        Counter({(1, 3): 1, (2, 2): 1}),
        Counter({(1, 4): 1}),
    ]


def test_options_of_the_writer_are_those_of_the_sink(spark: SparkSession, tmp_path: Path, way: Way) -> None:
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", KEYED)
    source.write(lines("+I 1 1"))
    changes = read_changes(spark, source.path)
    for name in ("driver", "tasks"):
        way(name)
        writer = write_changes(changes, sink.path).option("change-tracking", False)
        checkpoint = str(tmp_path / name)
        writer.trigger(availableNow=True).start(checkpointLocation=checkpoint).awaitTermination()
    assert [info.tracked for info in sink.history() if info.changes_rows] == [False] * 2
    with pytest.raises(ConfigurationError, match=r"unknown option 'change-trackin'"):
        write_changes(changes, sink.path).options(**{"change-trackin": "x"}).start()


def test_many_rows_of_few_changes_are_left_to_tasks(
    spark: SparkSession, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step gives is not known before it is read."""
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", MULTISET)
    source.write(lines("+I 1 1", "+I 2 2"))
    way("driver")
    way("tasks")
    monkeypatch.setattr(micro_batch, "FEW_ROWS", 20_000)
    run(read_changes(spark, source.path), sink, tmp_path)
    source.write(pa.table({"id": range(9), "v": range(9)}))
    monkeypatch.setattr(micro_batch, "FEW_BYTES", 50)
    run(read_changes(spark, source.path), sink, tmp_path)
    assert content(sink) == Counter({(n, n): 1 for n in range(9)})


def test_the_checkpoint_of_a_local_query_needs_no_processes(spark: SparkSession, tmp_path: Path) -> None:
    """The session is as it was."""
    source, sink = source_of(tmp_path), Table.create(tmp_path / "sink", KEYED)
    before = spark.conf.get(CHECKPOINT_FILES, None)
    try:
        spark.conf.unset(CHECKPOINT_FILES)
        writer = write_changes(read_changes(spark, source.path), sink.path)
        query = writer.options(checkpointLocation=str(tmp_path / "checkpoint")).start()
        own = query._jsq.streamingQuery().sparkSessionForStream().conf()
        assert own.get(CHECKPOINT_FILES).endswith("FileSystemBasedCheckpointFileManager")
        assert spark.conf.get(CHECKPOINT_FILES, None) is None
        query.stop()
        spark.conf.set(CHECKPOINT_FILES, "a.class.of.the.user")
        with pytest.raises(Exception, match=r"a\.class\.of\.the\.user"):
            run(read_changes(spark, source.path), sink, tmp_path)
    finally:
        spark.conf.unset(CHECKPOINT_FILES)
        if before is not None:
            spark.conf.set(CHECKPOINT_FILES, before)


def test_the_driver_looks_once_at_each_table_in_an_object_store(
    spark: SparkSession, way: Way, s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is three requests, one after the other: a micro-batch of one row took 28 of them."""
    way("driver")
    source, sink = (Table.create(s3.folder(), KEYED) for _ in range(2))
    asked, own, requests = counted(monkeypatch), WriteStep.__call__, list[Mapping[str, int]]()

    def call(step: WriteStep, rows: DataFrame, batch: int) -> None:
        asked.clear()
        own(step, rows, batch)
        requests.append(dict(asked))

    monkeypatch.setattr(WriteStep, "__call__", call)
    for number in range(3):
        source.write(lines(f"+I {number} 1"))
        run(read_changes(spark, source.path), sink, tmp_path)
    looks, put_and_checked = {"read": 2 * 3}, {"read": 1, "put": 3}
    assert requests[-1] == Counter(looks) + Counter(put_and_checked)
    assert multiset(sink.snapshot().scan()) == multiset(source.snapshot().scan())
