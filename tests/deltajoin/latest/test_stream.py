"""The operator through Spark: batches, restarts, rows that wait, metrics."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import deltajoin
from deltajoin.latest import operator
from tests.deltajoin.latest.driver import Row, as_rows
from tests.deltajoin.latest.files import FileLookup
from tests.helpers import changelog
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema

pytestmark = pytest.mark.spark

ORDERS = pa.schema({"id": pa.int64(), "user": pa.int64(), "amount": pa.int64()})
USERS = pa.schema({"user": pa.int64(), "name": pa.string()})


def lookups(query: StreamingQuery) -> deltajoin.LookupMetrics:
    found = deltajoin.metrics(query).lookups
    assert found is not None
    return found


class Pipeline:
    """Two folders of changes, one file a batch; two files with what is newest; a sink by key."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.sink: dict[Row, Row] = {}
        self.batches: dict[int, list[Row]] = {}
        self.rows: Counter[Row] = Counter()
        for name in ("orders", "users"):
            (folder / name).mkdir(exist_ok=True)

    def write(self, name: str, *lines: str, newest: Sequence[str] | None = None) -> None:
        """Changes into the stream, and what is newest into the file that is looked up."""
        columns = ORDERS if name == "orders" else USERS
        if lines:
            number = len(list((self.folder / name).iterdir()))
            pq.write_table(changelog(columns, *lines), self.folder / name / f"{number:05}.parquet")
        if newest is not None:
            rows = changelog(columns, *(f"+I {line}" for line in newest)).drop_columns(["_row_kind"])
            pq.write_table(rows, self.folder / f"{name}.parquet")

    def switch(self, name: str, *, on: bool) -> None:
        off = Path(f"{self.folder / name}.parquet.off")
        off.unlink(missing_ok=True) if on else off.touch()

    def side(self, name: str, columns: pa.Schema, upsert_key: str, **more: Any) -> DataFrame:
        schema = spark_schema(TableSchema.of(columns), row_kind=True)
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        source = FileLookup(str(self.folder / f"{name}.parquet"), columns, ("user",))
        stream = reader.parquet(str(self.folder / name))
        return deltajoin.with_lookup(stream, source, keys="user", upsert_key=upsert_key, **more)

    def join(self, how: str = "left", **options: Any) -> DataFrame:
        orders = self.side("orders", ORDERS, "id", immutable=["user"])
        users = self.side("users", USERS, "user", kinds=["+I", "+U"])
        self.key = deltajoin.upsert_key_of(orders, users, on="user", how=how)
        return deltajoin.lookup_delta_join(orders, users, on="user", how=how, **options)

    def run(self, df: DataFrame) -> StreamingQuery:
        def collect(batch: DataFrame, number: int) -> None:
            rows = batch.toArrow()
            at = [rows.column_names.index(name) for name in self.key]
            self.batches[number] = as_rows(rows)
            for row in self.batches[number]:
                self.rows[row[:-1]] += -1 if row[-1] in ("-U", "-D") else 1
                key = tuple(row[n] for n in at)
                if row[-1] == "-D":
                    self.sink.pop(key, None)
                else:
                    self.sink[key] = row[:-1]

        writer = df.writeStream.foreachBatch(collect).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        query.awaitTermination()
        return query


def test_a_left_join_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Values that pandas would damage arrive as they were; the caches of the first run are not needed."""
    pipeline = Pipeline(spark, tmp_path)
    big = 2**53 + 1
    pipeline.write("orders", f"+I 1 7 {big}", "+I 2 8 NULL", newest=[f"1 7 {big}", "2 8 NULL"])
    pipeline.write("users", "+I 7 ann", newest=["7 ann"])
    pipeline.run(pipeline.join())
    assert sorted(pipeline.sink.values()) == [(1, 7, big, 7, "ann"), (2, 8, None, None, None)]
    pipeline.write("users", "+U 7 eve", "+I 8 bob", newest=["7 eve", "8 bob"])
    pipeline.write("orders", "-D 1 7 NULL", "+I 3 NULL 5", newest=["2 8 NULL", "3 NULL 5"])
    pipeline.run(pipeline.join())
    assert sorted(pipeline.sink.values()) == [(2, 8, None, 8, "bob"), (3, None, 5, None, None)]


def test_a_failing_lookup_stops_the_query_and_the_batch_is_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write("orders", "+I 1 7 1", newest=["1 7 1"])
    pipeline.write("users", newest=["7 ann"])
    pipeline.switch("users", on=False)
    with pytest.raises(
        StreamingQueryException, match=r"could not be looked up; the first: .* is switched off"
    ):
        pipeline.run(pipeline.join())
    pipeline.switch("users", on=True)
    pipeline.run(pipeline.join())
    assert pipeline.batches == {0: [(1, 7, 1, 7, "ann", "+U")]}


@pytest.mark.long
def test_rows_whose_lookup_fails_wait_through_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Later rows of the key wait behind them; nothing is kept when they are through."""
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write("orders", "+I 1 7 1", newest=["1 7 1"])
    pipeline.write("users", newest=["7 ann"])
    pipeline.switch("users", on=False)
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        first = pipeline.run(pipeline.join(on_error="queue"))
        assert pipeline.sink == {}
        assert lookups(first).last.left.waiting == 1
        pipeline.switch("users", on=True)
        pipeline.write("orders", "+U 1 7 2", newest=["1 7 2"])
        second = pipeline.run(pipeline.join(on_error="queue"))
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert pipeline.batches[1] == [(1, 7, 2, 7, "ann", "+U")]
    assert lookups(second).last.left.waiting == 0


def test_every_kind_of_change_goes_on_after_a_restart_and_with_rows_that_wait(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    options = {"changelog": "all", "state_path": str(tmp_path / "given"), "on_error": "queue"}
    pipeline.write("orders", "+I 1 7 1", "+I 2 8 2", newest=["1 7 1", "2 8 2"])
    pipeline.write("users", newest=["7 ann"])
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        pipeline.run(pipeline.join(**options))
        assert sorted(pipeline.batches[0]) == [(1, 7, 1, 7, "ann", "+I"), (2, 8, 2, None, None, "+I")]
        pipeline.write("orders", "+U 1 7 5", "-D 2 8 NULL", newest=["1 7 5"])
        pipeline.switch("users", on=False)
        pipeline.run(pipeline.join(**options))
        assert pipeline.batches[1] == []
        pipeline.switch("users", on=True)
        pipeline.write("users", "+U 7 ann", "+I 8 bob", newest=["7 ann", "8 bob"])
        pipeline.run(pipeline.join(**options))
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert sorted(pipeline.batches[2], key=repr) == [
        (1, 7, 1, 7, "ann", "-U"),
        (1, 7, 5, 7, "ann", "+U"),
        (2, 8, 2, None, None, "-D"),
    ]
    assert +pipeline.rows == Counter([(1, 7, 5, 7, "ann")])


def test_a_micro_batch_that_is_run_again_gives_what_it_gave_though_newer_rows_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first attempt ends after the sink has the rows, and before Spark knows."""
    pipeline = Pipeline(spark, tmp_path)
    options = {"changelog": "all", "state_path": str(tmp_path / "given")}
    pipeline.write("orders", "+I 1 7 1", newest=["1 7 1"])
    pipeline.write("users", newest=["7 ann"])
    pipeline.run(pipeline.join(**options))
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    pipeline.write("users", newest=["7 eve"])
    first = pipeline.batches.pop(0)
    pipeline.rows.clear()
    pipeline.run(pipeline.join(**options))
    assert pipeline.batches == {0: first}
    assert first == [(1, 7, 1, 7, "ann", "+I")]
    pipeline.write("users", "+U 7 eve")
    pipeline.run(pipeline.join(**options))
    assert +pipeline.rows == Counter([(1, 7, 1, 7, "eve")])


def test_metrics_tell_hits_misses_and_requests(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write("users", newest=["7 ann"])
    for amount in range(2):
        pipeline.write("orders", f"+U 1 7 {amount}")
    query = pipeline.run(pipeline.join(cache_enabled=False))
    total = lookups(query).total
    assert (total.right.keys, total.right.rows, total.right.requests) == (2, 2, 2)
    each = [batch.lookups for batch in deltajoin.metrics(query).batches if batch.lookups is not None]
    assert [one["right_keys"] for one in each] == [1, 1]
    assert (total.right.hits, total.right.misses, total.left.requests) == (0, 0, 0)
    assert total.right.slowest_us <= total.right.lookup_us


def test_a_cache_goes_along_with_its_shard_from_one_worker_to_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark hands a shard to whichever Python worker is idle; only the first one looks anything up."""
    pipeline = Pipeline(spark, tmp_path)
    pipeline.write("users", newest=["7 ann"])
    for amount in range(3):
        pipeline.write("orders", f"+U 1 7 {amount}", f"+U 2 8 {amount}")
    query = pipeline.run(pipeline.join(shards=1))
    total = lookups(query).total
    assert (total.right.keys, total.right.misses, total.right.hits, total.right.drops) == (2, 2, 4, 1)


def test_a_run_has_a_name_of_its_own_whatever_group_its_jobs_get(spark: SparkSession, tmp_path: Path) -> None:
    """By it tasks find their caches: the same in all micro-batches of a run, and another one in the next."""
    names: list[set[str]] = []

    def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"name": [operator._run()]})

    def tell(rows: DataFrame, batch: int) -> None:
        spark.sparkContext.setJobGroup("nightly", f"micro-batch {batch}")
        names[-1].add(rows.mapInArrow(named, "name STRING").collect()[0][0])

    for run in range(2):
        names.append(set())
        for batch in range(2):
            pq.write_table(pa.table({"id": [batch]}), tmp_path / f"{run}{batch}.parquet")
        stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(tmp_path))
        writer = stream.writeStream.foreachBatch(tell).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert [len(of_run) for of_run in names] == [1, 1]
    assert names[0] != names[1]
