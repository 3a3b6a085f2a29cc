"""The Spark driver process: the streaming queries of a run, which may be killed at any moment.

It runs until stdin ends. What it needs to go on after a crash is in the checkpoints, the tables and Kafka.
"""

from __future__ import annotations

import select
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, count_if, lit
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import planner
from examples.flights.kafka.queries import QUERIES as KAFKA_QUERIES
from examples.flights.messages import QueryBatch, QueryStarted, Sender
from examples.flights.queries import JOIN, Query
from upsert import ROW_KIND_COLUMN, Catalog

RUNS: Final[dict[str, Sequence[Query]]] = {"tables": (JOIN,), "kafka": KAFKA_QUERIES}
_POLL_S: Final = 0.1
_COUNTS: Final = "changes"

# A JVM of the demo lives for a minute, in which the optimizing compiler costs more than it gains: the demo
# took 76 s of processor time with it, 52 s without. Its metaspace begins at what Spark loads at once, for
# whatever grows it collects the whole heap first.
_SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"

# Spark's classes from a file, which `make demo` makes: the two drivers of a run load 15 000 each without it.
# The file of another Java or of other jars is not used, which would be told on standard output.
_CLASSES: Final = Path(sys.prefix) / "spark-classes.jsa"
_KEPT_CLASSES: Final = f'-XX:SharedArchiveFile="{_CLASSES}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def main(reports: Path, warehouse: Path, run: str, checkpoints: Path) -> None:
    """Run the queries until stdin ends; raises what one of them raised."""
    sender, spark = Sender(reports), start_spark("examples.flights")
    worker = threading.Thread(target=start_worker, args=(spark,))
    worker.start()
    try:
        catalog, reporter = Catalog(warehouse, optimize=planner.optimize), Reporter(sender)
        for query in RUNS[run]:
            reporter.add(query.name, start(query, catalog, spark, checkpoints / query.name))
            plan = describe(query.changes(catalog, spark), query.options.get("sink_key"))
            sender.send(QueryStarted(query.name, plan))
            reporter.wait(query.name)
        while not select.select([sys.stdin], [], [], _POLL_S)[0]:
            reporter.report()
        reporter.finish()
    finally:
        worker.join()
        spark.stop()


def start_worker(spark: SparkSession) -> None:
    """Let Spark start the process that its workers are forked from, while the queries are planned.

    Else the first tasks wait for it, those of the backlog that a new driver finds.
    """
    spark.range(1).mapInArrow(lambda batches: batches, "id LONG").collect()


def start_spark(name: str) -> SparkSession:
    """A local session of two threads, whose JVM has its temporary files where this process has them."""
    scratch = tempfile.gettempdir()
    jvm = f'-Djava.io.tmpdir="{scratch}" {_SHORT_LIVED_JVM} {_KEPT_CLASSES if _CLASSES.exists() else ""}'
    builder = SparkSession.builder.master("local[2]").appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jvm,
        "spark.local.dir": scratch,
        "spark.python.daemon.module": "deltajoin_daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(query: Query, catalog: Catalog, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Start one query, whose changes out are counted."""
    # write_changes does this itself, but what is observed before it must not change: it would keep the rows
    # of which the count is told as they are, also UPDATE_BEFORE
    optimized = planner.optimize(query.changes(catalog, spark), **query.options)
    is_negative = col(ROW_KIND_COLUMN).startswith("-")
    counted = optimized.observe(_COUNTS, count(lit(1)).alias("rows"), count_if(is_negative).alias("deletes"))
    writer = catalog.write_changes(counted, query.sink).queryName(query.name)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def describe(changes: DataFrame, sink_key: tuple[str, ...] | None) -> str:
    """What the planner makes of a query, in one line."""
    explained = planner.explain(changes, sink_key=sink_key)
    joins = [f"delta join by {' and '.join(join.indexes)}" for join in explained.joins]
    topics = [", ".join(map(str.strip, str(topic).splitlines())) for topic in explained.topics]
    return "; ".join(joins + topics)


class Reporter:
    """Tells of each micro-batch of the queries it knows; raises what one of them raised."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._queries: dict[str, StreamingQuery] = {}
        self._last: dict[str, int] = {}

    def add(self, name: str, query: StreamingQuery) -> None:
        """Take a query in, after those that it follows."""
        self._queries[name] = query
        self._last[name] = -1

    def wait(self, name: str) -> None:
        """Return when a query has had a micro-batch, or has nothing to do.

        Each query starts a Python process that must answer within ten seconds, which two processors busy with
        all queries at once may not manage.
        """
        query = self._queries[name]
        while not (query.recentProgress or "Waiting" in query.status["message"]):
            time.sleep(_POLL_S)
            self.report()

    def report(self) -> None:
        """Tell what is new."""
        for name, query in self._queries.items():
            self._report(name, query)
            if not query.isActive:
                query.awaitTermination()

    def finish(self) -> None:
        """Let each query do what is there, the first one first, and stop them."""
        for name, query in self._queries.items():
            query.processAllAvailable()
            self._report(name, query)
        for query in self._queries.values():
            query.stop()

    def _report(self, name: str, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            # without new data there is progress, too, but no batch
            if progress.batchId > self._last[name] and "addBatch" in progress.durationMs:
                self._sender.send(_batch(name, progress))
                self._last[name] = progress.batchId


def _batch(name: str, progress: StreamingQueryProgress) -> QueryBatch:
    counts = progress.observedMetrics[_COUNTS]
    return QueryBatch(
        name,
        progress.batchId,
        progress.durationMs["triggerExecution"] / 1000,
        counts["rows"],
        sum(operator.numRowsTotal for operator in progress.stateOperators),
        sum(operator.memoryUsedBytes for operator in progress.stateOperators),
        counts["deletes"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
