"""One system of the join benchmark in a process of its own: `python -m bench.join.systems NAME FOLDER …`.

All systems get the same rows in the same steps, those of `bench.orders_and_events`.

The delta join reads them from two managed tables. Spark's own join gets them as Parquet files, its fastest
source, two files a step and side, and has as many state partitions as there are cores. Both sides of a step
are written between two triggers, so many seconds apart that each step is one micro-batch for every
system; writing and waiting for the trigger are not timed, nor is the warm-up step. All of them put their rows
into Spark's sink that drops them, and count them by ``observe``.

These are the first micro-batches of a session. Java compiles what they run, beside them and on the same
cores, which is a third of all processor time that they take of the delta join. A query that runs for hours
pays for it once. So each system goes on from its checkpoint in another session, by many small steps and some
large ones that are not timed, and then by some that are.

A third way begins at CSV files, for a system that has no tables: `write_csv` writes the same rows, which the
delta join then reads, commits and joins; see `bench.join.pathway`. Two more measurements use the tables that
the steps of a delta join leave: the first load, and a backlog, each read by one micro-batch and by several.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from bench.orders_and_events import EVENTS, ORDERS, spec_of, step_rows, write_tables
from bench.processes import report
from bench.session import CORES, STREAMING, started
from deltajoin import read_join

WARM_UP_ROWS: Final = 1_000
FILES_A_STEP: Final = CORES
SMALL_STEPS: Final = 30
LARGE_STEPS: Final = 3
WARM_STEPS: Final = 5
"""Steps of a session until it is warm, and those that are timed in it then."""

_POLL_S: Final = 0.05
_RARE_POLL_S: Final = 0.5
"""Where Spark says itself how long a micro-batch took, it is not asked while that needs the cores."""

_STATE: Final = "spark.sql.streaming.stateStore"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state"


@dataclass(frozen=True)
class System:
    """How a system takes its input, how it joins, and which session options it needs.

    ``pace_s`` is the time between two triggers: longer than a step takes, with its writing.
    """

    title: str
    write: Callable[[Path, pa.Table, pa.Table], None]
    join: Callable[[SparkSession, Path], DataFrame]
    pace_s: int
    options: dict[str, str] = field(default_factory=dict)


def delta_join(physical: str) -> Callable[[SparkSession, Path], DataFrame]:
    """Our join in one of its physical forms."""

    def join(spark: SparkSession, folder: Path) -> DataFrame:
        return read_join(spark, spec_of(folder), physical)

    return join


def write_files(folder: Path, orders: pa.Table, events: pa.Table) -> None:
    """As many Parquet files a side as a micro-batch takes."""
    for name, rows in (("orders", orders), ("events", events)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part in range(FILES_A_STEP):
            path = folder / name / f".{time.time_ns()}.parquet"
            pq.write_table(rows.slice(part * len(rows) // FILES_A_STEP, -(-len(rows) // FILES_A_STEP)), path)
            path.rename(path.with_name(path.name[1:]))


def stream_stream_join(spark: SparkSession, folder: Path) -> DataFrame:
    """Spark's own join of the two folders."""

    def read(name: str, columns: str) -> DataFrame:
        files = spark.readStream.schema(columns).option("maxFilesPerTrigger", FILES_A_STEP)
        return files.parquet(str(folder / name))

    orders = read("orders", "order_id BIGINT, customer BIGINT, amount DOUBLE")
    events = read("events", "event_id BIGINT, order_id BIGINT, status STRING")
    return orders.join(events, "order_id")


SYSTEMS: Final = {
    "fused": System("delta join", write_tables, delta_join("fused"), 3),
    "shuffled": System("delta join, shuffled", write_tables, delta_join("shuffled"), 4),
    "rocksdb": System(
        "Spark's join, RocksDB state",
        write_files,
        stream_stream_join,
        10,
        {f"{_STATE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider"},
    ),
    "memory": System(
        "Spark's join, in-memory state",
        write_files,
        stream_stream_join,
        8,
        {f"{_STATE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"},
    ),
}


def session(system: System) -> SparkSession:
    """A new session with the options of a system."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return started(system.title, {**STREAMING, "spark.driver.memory": "8g", **system.options})


def start(system: System, spark: SparkSession, folder: Path, pace_s: int = 0) -> StreamingQuery:
    """The join as a query into nowhere, which counts its rows; a trigger every `pace_s` seconds."""
    counted = system.join(spark, folder).observe("emitted", sf.count(sf.lit(1)).alias("rows"))
    checkpoint = str(folder / "checkpoint")
    writer = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=f"{pace_s} seconds").start()


class NewBatches:
    """The micro-batches of a query that have not been looked at yet."""

    def __init__(self, query: StreamingQuery, poll_s: float = _POLL_S) -> None:
        self._query = query
        self._poll_s = poll_s
        self._seen = -1

    def finished(self, pairs: int) -> dict[str, Any]:
        """Waits until `pairs` are emitted; seconds, rows and state of the micro-batches that did it."""
        new: list[Any] = []
        while sum(p.observedMetrics["emitted"].rows for p in new) < pairs:
            if not self._query.isActive:
                raise RuntimeError("the query has ended") from self._query.exception()
            time.sleep(self._poll_s)
            # all of them are much to convert while the micro-batch has the cores
            last = self._query.lastProgress
            if last is not None and last.batchId > self._seen:
                new = [p for p in self._query.recentProgress if p.batchId > self._seen and p.numInputRows]
        self._seen = max(p.batchId for p in new)
        state = new[-1].stateOperators
        return {
            "seconds": sum(p.durationMs["triggerExecution"] for p in new) / 1000,
            "emitted": sum(p.observedMetrics["emitted"].rows for p in new),
            "micro_batches": len(new),
            "state_rows": sum(s.numRowsTotal for s in state),
            "state_memory_bytes": sum(s.memoryUsedBytes for s in state),
        }


def measure(system: System, folder: Path, rows: int, steps: int) -> None:
    """Runs the warm-up and every step; prints one line of JSON for each step."""
    spark = session(system)
    system.write(folder, *step_rows(0, WARM_UP_ROWS))
    query = start(system, spark, folder, system.pace_s)
    batches = NewBatches(query, _RARE_POLL_S)
    batches.finished(WARM_UP_ROWS)
    for step in range(steps):
        began = time.perf_counter()
        system.write(folder, *step_rows(WARM_UP_ROWS + step * rows, rows))
        written = time.perf_counter() - began
        finished = batches.finished(rows)
        report({"step": step, "rows": (step + 1) * rows, "write_seconds": written, **finished})
    query.stop()
    report(
        {"checkpoint_bytes": size(folder / "checkpoint"), "checkpoint_files": files(folder / "checkpoint")}
    )
    report({"input_bytes": size(folder / "orders") + size(folder / "events")})


def write_csv(folder: Path, rows: int, steps: int) -> None:
    """The warm-up and every step as CSV files in `ready`, and how many pairs there are after each."""
    (folder / "ready").mkdir(parents=True)
    before = 0
    for step in range(steps + 1):
        count = rows if step else WARM_UP_ROWS
        for name, part in zip(("orders", "events"), step_rows(before, count), strict=True):
            pyarrow.csv.write_csv(part, folder / "ready" / f"{name}-{step}.csv")
        before += count
        (folder / "ready" / f"{step}.json").write_text(json.dumps({"pairs": before}))


def measure_csv(system: System, folder: Path, rows: int, steps: int) -> None:
    """Reads the CSV files of each step, commits them and joins; prints what each of it takes."""
    spark = session(system)

    def read(step: int) -> tuple[pa.Table, pa.Table]:
        orders, events = (
            pyarrow.csv.read_csv(folder / "ready" / f"{name}-{step}.csv").cast(schema)
            for name, schema in (("orders", ORDERS), ("events", EVENTS))
        )
        return orders, events

    system.write(folder, *read(0))
    query = start(system, spark, folder, system.pace_s)
    batches = NewBatches(query)
    batches.finished(WARM_UP_ROWS)
    for step in range(1, steps + 1):
        began = time.perf_counter()
        given = read(step)
        has_read = time.perf_counter()
        system.write(folder, *given)
        written = time.perf_counter()
        taken = {
            "read_seconds": has_read - began,
            "write_seconds": written - has_read,
            "join_seconds": batches.finished(rows)["seconds"],
        }
        report({"step": step, **taken, "seconds": sum(taken.values())})
    query.stop()


def measure_restart(system: System, folder: Path, rows: int, steps: int) -> None:
    """Goes on from the checkpoint in a new, warm session with a small step; prints how long that takes."""
    spark = session(system)
    spark.range(1000).repartition(CORES).mapInArrow(lambda batches: batches, "id LONG").count()
    system.write(folder, *step_rows(WARM_UP_ROWS + steps * rows, WARM_UP_ROWS))
    began = time.perf_counter()
    query = start(system, spark, folder)
    emitted = NewBatches(query).finished(WARM_UP_ROWS)["emitted"]
    report({"restart_seconds": time.perf_counter() - began, "restart_emitted": emitted})
    query.stop()


def measure_warm(system: System, folder: Path, rows: int, steps: int) -> None:
    """Goes on after the restart until the session is warm; then prints one line of JSON for each step."""
    spark = session(system)
    before = WARM_UP_ROWS + steps * rows + WARM_UP_ROWS
    query = start(system, spark, folder)
    batches = NewBatches(query)
    for _ in range(SMALL_STEPS):
        system.write(folder, *step_rows(before, WARM_UP_ROWS))
        batches.finished(WARM_UP_ROWS)
        before += WARM_UP_ROWS
    query.stop()
    query = start(system, spark, folder, system.pace_s)
    batches = NewBatches(query, _RARE_POLL_S)
    for step in range(-LARGE_STEPS, WARM_STEPS):
        system.write(folder, *step_rows(before, rows))
        before += rows
        finished = batches.finished(rows)
        if step >= 0:
            report({"warm_step": step, "rows": before, **finished})
    query.stop()


def measure_loads(system: System, folder: Path, rows: int, steps: int) -> None:
    """The first load of the tables, and all but their first step as a backlog: in one go and in several."""
    spark = session(system)
    everything, limited = spec_of(folder, 1 << 40), spec_of(folder, rows)
    done = json.loads((folder / "checkpoint" / "offsets" / "1").read_text().splitlines()[-1])
    # the first of them only warms the session up
    for name, spec, options in (
        ("warm_up", limited, {"first_load": "batch"}),
        ("first_load_batch", limited, {"first_load": "batch"}),
        ("first_load_micro_batches", limited, {"first_load": "micro-batches"}),
        ("backlog_batch", everything, {"start": done}),
        ("backlog_micro_batches", limited, {"start": done}),
    ):
        began = time.perf_counter()
        counted = read_join(spark, spec, **options).observe("emitted", sf.count(sf.lit(1)).alias("rows"))
        writer = counted.writeStream.format("noop").option("checkpointLocation", str(folder / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [p for p in query.recentProgress if p.numInputRows]
        if name != "warm_up":
            report(
                {
                    "load": name,
                    "seconds": time.perf_counter() - began,
                    "micro_batches": len(batches),
                    "emitted": sum(p.observedMetrics["emitted"].rows for p in batches),
                    "rows": steps * rows,
                }
            )


def size(folder: Path) -> int:
    """Sum of the sizes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def files(folder: Path) -> int:
    """Number of files in a folder."""
    return sum(path.is_file() for path in folder.rglob("*"))


if __name__ == "__main__":
    what, name, folder, rows, steps = sys.argv[1:]
    run = {
        "steps": measure,
        "restart": measure_restart,
        "loads": measure_loads,
        "warm": measure_warm,
        "csv": measure_csv,
    }[what]
    run(SYSTEMS[name], Path(folder), int(rows), int(steps))
    report({"done": True})
