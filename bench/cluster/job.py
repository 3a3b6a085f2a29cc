"""One workload of the cluster benchmark in a driver of its own: `python -m bench.cluster.job JSON`.

`join`: *orders* and *events* of orders grow by as many rows a side in each step, written between two
triggers, and their join goes into a third table. `upserts`: Spark's `rate-micro-batch` changes rows of a
table of which all keys are there. All tables have 8 buckets and lie in the warehouse, the checkpoint in a
local folder.

It prints a line of JSON for each timed micro-batch. Then it says `kill` in the middle of one, times that, and
compares the rows of the table with those that it must have.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import deltajoin
import planner
from bench.cluster.standalone import CountedStore
from bench.orders_and_events import step_rows
from bench.processes import report
from bench.session import started
from upsert import Catalog
from upsert.store.table import Table

BUCKETS: Final = 8
WARM_UP: Final = 2
"""Steps that are not counted."""
_POLL_S: Final = 0.02


def session(given: Workload) -> SparkSession:
    """A session whose executors have a core each; it begins when all are there."""
    settings = {
        "spark.cores.max": str(given.executors),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executor.cores": "1",
        "spark.executor.memory": given.memory,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executorEnv.UPSERT_CACHE_FOLDER": given.cache,
        # executors die on purpose, more than once
        "spark.task.maxFailures": "10",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.sql.shuffle.partitions": str(given.executors),
        **{f"spark.executorEnv.{name}": os.environ[name] for name in _CREDENTIALS},
    }
    spark = started("cluster", settings, given.master)
    deltajoin.configure(spark)
    return spark


_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED")


@dataclass(frozen=True)
class Workload:
    """What a driver is to do, and where.

    Attributes:
        executors: how many there are, of one core each.
        cache: the folder of the local cache, for executors; a relative one is each executor's own.
        memory: of the JVM of an executor.
        rows: of a step; of each table, in a join.
        steps: how many are timed.
        pace_s: seconds between two triggers of a join, in which both sides of a step are written.
    """

    name: str
    master: str
    executors: int
    cache: str
    memory: str
    endpoint: str
    warehouse: str
    folder: str
    rows: int
    steps: int
    pace_s: int

    def run(self) -> None:
        """Do it; report what was measured."""
        spark = session(self)
        WORKLOADS[self.name](Run(spark, CountedStore(self.endpoint), self.executors), spark, self)


class Run:
    """A query on a cluster whose micro-batches are timed and whose requests are counted."""

    def __init__(self, spark: SparkSession, store: CountedStore, executors: int) -> None:
        self._spark = spark
        self._store = store
        self._executors = executors
        self._seen = -1
        self.seconds: list[float] = []

    def await_batches(self, query: StreamingQuery, count: int) -> list[dict[str, Any]]:
        """The next micro-batches with rows, when there are so many."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            if not query.isActive:
                raise RuntimeError("the query has ended") from query.exception()
            time.sleep(_POLL_S)
            progress = [json.loads(each.json) for each in query.recentProgress]
            found = [each for each in progress if each["batchId"] > self._seen and each["numInputRows"]]
        self._seen = found[-1]["batchId"]
        return found

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """What is asked of the store meanwhile."""
        asked: Counter[str] = Counter()
        before = self._store.counts()
        yield asked
        asked.update(self._store.counts() - before)

    def timed(self, query: StreamingQuery, batches: int, rows: int) -> None:
        """Report the next micro-batches, with what they ask of the store on average."""
        with self.counted() as asked:
            found = self.await_batches(query, batches)
        for each in found:
            phases = each["durationMs"]
            self.seconds.append(phases["triggerExecution"] / 1000)
            of_each = {name: round(count / len(found)) for name, count in sorted(asked.items())}
            report({"seconds": self.seconds[-1], "rows": rows, "phases_ms": phases, "asked": of_each})

    def await_running(self, query: StreamingQuery) -> None:
        """Return some time after a micro-batch has begun to run tasks; one of few rows runs none."""
        tracker, deadline = self._spark.sparkContext.statusTracker(), time.monotonic() + 60
        while not tracker.getActiveJobsIds():
            assert time.monotonic() < deadline, query.lastProgress
            time.sleep(_POLL_S)
        time.sleep(0.25)

    def killed(self, query: StreamingQuery, rows: int) -> None:
        """Let an executor be killed, and report how long the micro-batch then takes, and the cluster."""
        self.await_running(query)
        report({"kill": True})
        began = time.perf_counter()
        while self._registered() == self._executors:
            time.sleep(_POLL_S)
        with self.counted() as asked:
            (found, *_) = self.await_batches(query, 1)
            while self._registered() < self._executors:
                time.sleep(_POLL_S)
        report(
            {
                "killed_seconds": found["durationMs"]["triggerExecution"] / 1000,
                "median_seconds": statistics.median(self.seconds),
                "executor_back_seconds": round(time.perf_counter() - began, 2),
                "rows": rows,
                "asked_after_kill": dict(sorted(asked.items())),
            }
        )

    def _registered(self) -> int:
        """How many executors there are; the driver counts as one there."""
        return int(self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def join(run: Run, spark: SparkSession, given: Workload) -> None:
    """Time steps of a join of two tables that grow."""
    warehouse, folder, rows, steps = given.warehouse, given.folder, given.rows, given.steps
    catalog = Catalog(warehouse, optimize=planner.optimize)
    for name, columns, more in (
        ("orders", "order_id BIGINT, customer BIGINT, amount DOUBLE", ""),
        ("events", "event_id BIGINT, order_id BIGINT, status STRING", ", INDEX (order_id)"),
        ("pairs", "event_id BIGINT, status STRING, customer BIGINT, amount DOUBLE", ""),
    ):
        key = columns.split()[0]
        catalog.sql(f"""CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}) NOT ENFORCED{more})
                        WITH ('bucket' = '{BUCKETS}')""")
    tables = [catalog.table(name) for name in ("orders", "events")]

    def write(before: int, rows: int) -> None:
        for table, new in zip(tables, step_rows(before, rows), strict=True):
            table.write(new)

    write(0, first := 5 * rows)
    orders, events = (catalog.read_changes(spark, name) for name in ("orders", "events"))
    joined = events.join(orders, "order_id").select("event_id", "status", "customer", "amount")
    writer = catalog.write_changes(joined, "pairs").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime=f"{given.pace_s} seconds").start()
    run.await_batches(query, 1)
    for step in range(WARM_UP + steps):
        write(first + step * rows, rows)
        if step < WARM_UP:
            run.await_batches(query, 1)
        else:
            run.timed(query, 1, rows)
    write(first + (WARM_UP + steps) * rows, rows)
    run.killed(query, rows)
    write(first + (WARM_UP + steps + 1) * rows, rows)
    run.await_batches(query, 1)
    query.stop()
    expected = tables[1].snapshot().scan().join(tables[0].snapshot().scan(), "order_id", join_type="inner")
    check(catalog.table("pairs"), expected, "event_id")


def upserts(run: Run, spark: SparkSession, given: Workload) -> None:
    """Time micro-batches of a stream of upserts into a table of which all keys are there."""
    folder, rows, steps = given.folder, given.rows, given.steps
    catalog, keys = Catalog(given.warehouse, optimize=planner.optimize), 5 * rows
    catalog.sql(f"""CREATE TABLE users (id BIGINT, at BIGINT, score DOUBLE, PRIMARY KEY (id) NOT ENFORCED)
                    WITH ('bucket' = '{BUCKETS}')""")
    table = catalog.table("users")
    ids = np.arange(keys)
    table.write(pa.table({"id": ids, "at": np.full(keys, -1), "score": np.zeros(keys)}))
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    changed = source.option("numPartitions", spark.sparkContext.defaultParallelism).load()
    changed = changed.selectExpr(
        f"pmod(value * 7919, {keys}) AS id", "value AS at", "CAST(value AS DOUBLE) / 4 AS score"
    )
    writer = catalog.write_changes(changed, "users").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start()
    run.await_batches(query, WARM_UP)
    run.timed(query, steps, rows)
    run.killed(query, rows)
    run.await_batches(query, 1)
    query.stop()
    made = int(pc.max(table.snapshot().scan(["at"])["at"]).as_py()) + 1
    assert made % rows == 0, f"the table must have whole micro-batches, got {made} of {rows} rows each"
    values = np.arange(made)
    at = np.full(keys, -1)
    at[values * 7919 % keys] = values  # numpy keeps the last one
    check(table, pa.table({"id": ids, "at": at, "score": np.where(at < 0, 0, at / 4)}), "id")


def check(table: Table, expected: pa.Table, key: str) -> None:
    """Compare all rows of a table with those that it must have."""
    found = table.snapshot().scan().sort_by(key)
    equal = found.equals(expected.select(found.column_names).sort_by(key).cast(found.schema))
    report({"equal": equal, "table_rows": found.num_rows})
    assert equal, f"table {table.name!r} must have the rows of a batch, got others"


WORKLOADS: Final = {"join": join, "upserts": upserts}


if __name__ == "__main__":
    Workload(**json.loads(sys.argv[1])).run()
    report({"done": True})
    os._exit(0)
