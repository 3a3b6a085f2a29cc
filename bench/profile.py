"""Where the milliseconds of a micro-batch go: `python -m bench.profile`.

Two tables of 200 000 rows are joined into a managed one, as `bench.join` has them. Steps of which the join
sees no row, one, 1 000 and 400 000 go through three ways in turn, each with a query, a session and a table of
its own: the sink of Spark's Python interface with Spark's settings, the same after `deltajoin.configure`, and
`write_changes` with Spark's settings. The phases are those of Spark's progress; CPU time is that of the
driver, its JVM and all their processes. Then the same steps are taken without Spark, in one process, with a
clock at each part of the work. Tables are printed and kept in `bench/results/profile.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table as Grid

import deltajoin
from bench import RESULTS
from bench.orders_and_events import pairs_table, scattered, spec_of, step_rows, write_tables
from bench.processes import counted_processes, cpu_seconds
from bench.session import untuned
from deltajoin.spark.source import DeltaJoinSource
from upsert.managed.frames import write_changes
from upsert.managed.options import WriteOptions
from upsert.managed.writer import StreamWriter
from upsert.registration import register
from upsert.spark.formats import FORMAT
from upsert.store.table import Table
from upsert.store.upkeep import background

FIRST_ROWS: Final = 200_000
STEPS: Final = {"no row": 0, "1 row": 1, "1 000 rows": 1_000, "400 000 rows": 400_000}
PHASES: Final = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")

console: Final = Console(width=120)
Figures = dict[str, float]


def main(
    repeats: Annotated[int, typer.Option(help="timed steps of each size and way")] = 9,
    rounds: Annotated[int, typer.Option(help="in how many parts; each starts the query again")] = 3,
    results: Annotated[Path, typer.Option(help="folder for the JSON")] = RESULTS,
) -> None:
    """Time micro-batches of several sizes in three ways, and the parts of the work without Spark."""
    with tempfile.TemporaryDirectory(prefix="bench-profile-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_tables(folder, *step_rows(0, FIRST_ROWS))
        spark = untuned("profile")
        change = Changes(folder)
        ways = (
            Way("sink, Spark's settings", folder, spark.newSession(), sink, change),
            Way("sink, configured", folder, deltajoin.configure(spark.newSession()), sink, change),
            Way("write_changes", folder, spark.newSession(), write_changes, change),
        )
        for _ in range(rounds):
            for way in ways:
                way.run(-(-repeats // rounds))
        spark.stop()
        report: dict[str, Any] = {
            "about": {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0], "rows": FIRST_ROWS},
            "micro_batches_ms": {way.name: medians(way.measured) for way in ways},
            "processes_a_micro_batch": {way.name: dict(way.processes) for way in ways},
            "restart_ms": {way.name: round(statistics.median(way.restarts)) for way in ways},
            "parts_ms": medians(parts(folder, change, repeats)),
        }
    results.mkdir(parents=True, exist_ok=True)
    (results / "profile.json").write_text(json.dumps(report, indent=1) + "\n")
    for way_name, figures in report["micro_batches_ms"].items():
        console.print(grid(f"{way_name}, ms", figures))
    console.print(grid("the same without Spark, ms", report["parts_ms"]))
    console.print({key: report[key] for key in ("about", "processes_a_micro_batch", "restart_ms")})


def sink(df: DataFrame, path: str) -> DataStreamWriter:
    """A writer through Spark's interface for sinks in Python."""
    register(df.sparkSession)
    return df.writeStream.format(FORMAT).option("path", path)


class Changes:
    """Commits new events of known orders; or one of an unknown order, for which the join has no row."""

    def __init__(self, folder: Path) -> None:
        self._events = folder / "events"
        self._before = FIRST_ROWS

    def __call__(self, rows: int) -> None:
        """Commit so many events that the join sees."""
        _, made = step_rows(self._before, rows or 1)
        random = np.random.default_rng(self._before)
        known = scattered(random.integers(0, FIRST_ROWS, rows)) if rows else np.array([-1])
        Table.open(self._events).write(made.set_column(1, "order_id", pa.array(known, pa.int64())))
        self._before += rows or 1


def repeated(repeats: int, rows: int) -> int:
    """How often a step is timed: less often if it has many rows."""
    return repeats if rows < FIRST_ROWS else -(-repeats // 3)


class Way:
    """One way of writing the join, with what was measured of it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        spark: SparkSession,
        write: Callable[[DataFrame, str], DataStreamWriter],
        change: Changes,
    ) -> None:
        self.name = name
        self.measured: dict[str, list[Figures]] = defaultdict(list)
        self.restarts: list[float] = []
        self.processes: dict[str, int] = {}
        self._change = change
        self._checkpoint = folder / f"checkpoint {name}"
        pairs = pairs_table(folder, f"pairs {name}")
        self._writer = write(deltajoin.read_join(spark, spec_of(folder)), pairs.path)

    def run(self, repeats: int) -> None:
        """Start the query, let it catch up, start it again, and time steps of each size."""
        self._started()[0].stop()
        self._change(1)
        query, took = self._started()
        self.restarts.append(took)
        for name, rows in STEPS.items():
            self._change(rows)
            query.processAllAvailable()  # the first one of a size warms up
            for _ in range(repeated(repeats, rows)):
                self.measured[name].append(self._step(query, rows))
        self._change(1)
        with counted_processes() as self.processes:
            query.processAllAvailable()
        query.stop()

    def _started(self) -> tuple[StreamingQuery, float]:
        """The query when it has done all that was there, and how many milliseconds that took."""
        began = time.perf_counter()
        query = self._writer.option("checkpointLocation", str(self._checkpoint)).start()
        query.processAllAvailable()
        return query, 1000 * (time.perf_counter() - began)

    def _step(self, query: StreamingQuery, rows: int) -> Figures:
        self._change(rows)
        began, cpu = time.perf_counter(), cpu_seconds()
        query.processAllAvailable()
        wall, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        durations = [json.loads(each.json)["durationMs"] for each in query.recentProgress]
        took = next(each for each in reversed(durations) if "addBatch" in each)
        phases = {phase: float(took.get(phase, 0)) for phase in PHASES}
        rest = took["triggerExecution"] - sum(phases.values())
        return {
            **phases,
            "rest": rest,
            "whole": took["triggerExecution"],
            "wall": 1000 * wall,
            "CPU": 1000 * cpu,
        }


def parts(folder: Path, change: Changes, repeats: int) -> dict[str, list[Figures]]:
    """What a micro-batch does, in this process, with a clock at each part; the join's rows are committed."""
    source = DeltaJoinSource({"spec": spec_of(folder).to_json(), "consumer.lease": "0 s"})
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader: Any = source.streamReader(schema)
    table = pairs_table(folder, "pairs without Spark")
    writer = StreamWriter(WriteOptions.parse({"path": table.path}), schema, overwrite=False)
    measured: dict[str, list[Figures]] = defaultdict(list)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    numbers = iter(range(10_000))
    for name, rows in STEPS.items():
        for number in range(repeated(repeats, rows) + 1):
            change(rows)
            clock = Clock()
            with (
                clock.within(os, "fsync", "of it fsync"),
                clock.within(background, "after_commit", "of it upkeep"),
            ):
                end = clock.timed("latestOffset", reader.latestOffset, start, limit)
                shards = clock.timed("partitions", reader.partitions, start, end)
                batches = clock.timed("read and join", list, each_row(reader, shards))
                staged = clock.timed("stage", writer.stage, iter(batches))
                found = [] if staged is None else [staged]
                clock.timed("publish", writer.publish, found, "profile", next(numbers))
                clock.timed("commit", reader.commit, end)
            start = end
            if number:
                measured[name].append(clock.figures())
    return measured


def each_row(reader: Any, shards: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of all tasks."""
    for shard in shards:
        yield from reader.read(shard)


class Clock:
    """How many milliseconds parts of a step take, and how much CPU time of this process."""

    def __init__(self) -> None:
        self._took: Figures = defaultdict(float)
        self._cpu = time.process_time()

    def timed(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """What some work gives."""
        began = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self._took[name] += 1000 * (time.perf_counter() - began)

    @contextmanager
    def within(self, module: Any, function: str, name: str) -> Iterator[None]:
        """Time a function of a module wherever it is called meanwhile."""
        own = getattr(module, function)
        with patch.object(module, function, lambda *given: self.timed(name, own, *given)):
            yield

    def figures(self) -> Figures:
        """What was timed, the sum of it, and the CPU time."""
        whole = sum(took for name, took in self._took.items() if not name.startswith("of it"))
        return {**self._took, "whole": whole, "CPU": 1000 * (time.process_time() - self._cpu)}


def medians(measured: dict[str, list[Figures]]) -> dict[str, Figures]:
    """The median of each figure, by the size of the step."""
    return {
        step: {name: round(statistics.median(each.get(name, 0) for each in found), 1) for name in found[0]}
        for step, found in measured.items()
    }


def grid(title: str, figures: dict[str, Figures]) -> Grid:
    """A line for each size of the step."""
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    made = Grid("", *names, title=title)
    for step, found in figures.items():
        made.add_row(step, *(f"{found.get(name, 0):,.0f}" for name in names))
    return made


if __name__ == "__main__":
    typer.run(main)
