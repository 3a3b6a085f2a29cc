"""From a change to its row in a query, by a table's files and by its log: `python -m bench.log_latency`.

A process of its own commits changes to a table, so many times a second, and puts the time at which it began
into every row. A query reads them, and the driver looks at its clock when it has the rows. This is done for
each way, one after the other on the same machine; then again with the reader alone, without Spark, which
shows what of the latency is the way's own. Figures go to `bench/results/log_latency.json`, a plot beside it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table as Grid

from bench import RESULTS
from bench.log_latency.timed_rows import KEYS, ROWS_A_COMMIT, SCHEMA, Seen, Writing, changed, followed
from bench.session import STREAMING, started
from upsert.managed.frames import read_changes
from upsert.managed.log_reader import stream_reader
from upsert.managed.options import ReadOptions
from upsert.rowkind import signs
from upsert.spark.columns import spark_schema
from upsert.store.table import Table
from upsert.testing import LocalKafka

POLL_S: Final = 0.002
console: Final = Console()


@dataclass(frozen=True)
class Way:
    """One way from a table to a query: how the table is made, and how it is read."""

    title: str
    options: dict[str, str] = field(default_factory=dict)
    source: str = "log"

    @property
    def has_log(self) -> bool:
        """Whether the table has a log; then a commit sends its changes there too."""
        return "log.changelog-mode" in self.options


WAYS: Final = {
    "files": Way("files of a table without a log", source="files"),
    "files_of_logged": Way("files of a table with a log", {"log.changelog-mode": "upsert"}, source="files"),
    "log": Way("log, UPDATE_BEFORE looked up", {"log.changelog-mode": "upsert"}),
    "log_all": Way("log with UPDATE_BEFORE", {"log.changelog-mode": "all"}),
}


def main(
    seconds: Annotated[int, typer.Option(help="how long each way is measured, with Spark and without")] = 20,
    commits_a_second: Annotated[int, typer.Option(help="commits of 500 rows that are made a second")] = 4,
    results: Annotated[Path, typer.Option(help="folder for JSON and plot")] = RESULTS,
) -> None:
    """Measure the latency of each way, with Spark and by the reader alone."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = started("log latency", {**STREAMING, "spark.driver.memory": "2g"})
    measured: dict[str, dict[str, Any]] = {}
    with LocalKafka() as kafka, tempfile.TemporaryDirectory(prefix="bench-log-latency-") as folder:
        ways = {"warm_up": replace(WAYS["log"], title="warm-up"), **WAYS}
        for name, way in ways.items():
            console.print(f"{way.title} …")
            table = filled_table(way, f"{folder}/{name}", kafka.bootstrap_servers)
            writing = Writing(table, seconds, commits_a_second)
            in_query = followed(writing, lambda seen: query(spark, table, way, f"{folder}/{name}-c", seen))  # noqa: B023
            alone = followed(writing, lambda seen: reader(table, way, seen))  # noqa: B023
            measured[name] = {"title": way.title, "query": in_query, "reader": alone}
    spark.stop()
    del measured["warm_up"]
    report = {"about": about(seconds, commits_a_second), "ways": measured}
    results.mkdir(parents=True, exist_ok=True)
    (results / "log_latency.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(measured, results / "log_latency.png")
    console.print(grid(measured))


def filled_table(way: Way, path: str, servers: str) -> Table:
    """A table whose keys are all there, so that every later row replaces one."""
    log = {"log.system": "kafka", "log.kafka.bootstrap.servers": servers} if way.has_log else {}
    table = Table.create(path, SCHEMA, {"bucket": "2", **log, **way.options})
    table.write(changed(np.arange(KEYS), 0))
    return table


def query(spark: SparkSession, table: Table, way: Way, checkpoint: str, seen: Seen) -> Callable[[], None]:
    """A streaming query that hands its rows to the driver, one micro-batch after the other."""

    def take(rows: DataFrame, _batch: int) -> None:
        seen(rows.where("_row_kind IN ('+I', '+U')").toArrow())

    changes = read_changes(spark, table.path, scan_mode="latest", scan_source=way.source)
    running = changes.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
    running.processAllAvailable()
    return running.stop


def reader(table: Table, way: Way, seen: Seen) -> Callable[[], None]:
    """The same reader in a thread, asked for news again and again."""
    asked: StructType = spark_schema(SCHEMA, row_kind=True)
    options = ReadOptions.parse({"path": table.path, "scan.mode": "latest", "scan.source": way.source})
    source: Any = stream_reader(options, asked)
    limit = source.getDefaultReadLimit()
    begun = source.latestOffset(source.initialOffset(), limit)
    is_over = threading.Event()

    def run() -> None:
        offset = begun
        while not is_over.wait(POLL_S):
            if (end := source.latestOffset(offset, limit)) == offset:
                continue
            batches = [batch for part in source.partitions(offset, end) for batch in source.read(part)]
            source.commit(offset)
            offset = end
            if batches:
                rows = pa.Table.from_batches(batches)
                seen(rows.filter(pa.array(signs(rows.column("_row_kind")) > 0)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def stop() -> None:
        is_over.set()
        thread.join()

    return stop


def about(seconds: int, commits_a_second: int) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "seconds": seconds,
        "commits_a_second": commits_a_second,
        "rows_a_commit": ROWS_A_COMMIT,
        "rows_of_the_table": KEYS,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def grid(measured: dict[str, dict[str, Any]]) -> Grid:
    """The figures as a table."""
    table = Grid("ms", "query p50", "query p99", "reader p50", "reader p99", "commit p50")
    for way in measured.values():
        waits = [way[by]["latency_ms"] for by in ("query", "reader")]
        figures = [
            *(wait[key] for wait in waits for key in ("p50", "p99")),
            way["reader"]["commit_ms"]["p50"],
        ]
        table.add_row(way["title"], *(f"{figure:,.0f}" for figure in figures))
    return table


def plot(measured: dict[str, dict[str, Any]], path: Path) -> None:
    """Of each way the share of commits whose rows had arrived after so many milliseconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    for panel, (by, title) in zip(panels, (("query", "in a query"), ("reader", "reader alone")), strict=True):
        for way in measured.values():
            found = sorted(way[by]["all_ms"])
            panel.plot(found, np.arange(1, len(found) + 1) / len(found) * 100, label=way["title"])
        panel.set(xlabel="ms from the beginning of a commit to its rows", title=title, xlim=(0, None))
    panels[0].set(ylabel="% of commits")
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
