"""The Spark driver process: four streaming queries, which may be killed at any moment.

It runs until stdin ends. Whatever it needs to go on after a crash is in the checkpoints and in Kafka.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import planner
from examples.flights.kafka.messages import QueryBatch, QueryStarted
from examples.flights.kafka.queries import QUERIES, Query
from examples.flights.messages import Sender
from examples.flights.session import start_spark
from upsert import Catalog

_POLL_S: Final = 0.1
_COUNTS: Final = "changes"


def main(reports: Path, warehouse: Path, checkpoints: Path) -> None:
    """Run the queries until stdin ends; raises what one of them raised."""
    sender, spark = Sender(reports), start_spark("examples.flights.kafka")
    try:
        catalog, reporter = Catalog(warehouse), Reporter(sender)
        for query in QUERIES:
            reporter.add(query.name, start(query, catalog, spark, checkpoints / query.name))
            sender.send(QueryStarted(query.name, describe(query.changes(catalog, spark), query.key)))
            reporter.wait(query.name)
        while not select.select([sys.stdin], [], [], _POLL_S)[0]:
            reporter.report()
        reporter.finish()
    finally:
        spark.stop()


def start(query: Query, catalog: Catalog, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Start one query, whose changes out are counted."""
    # a catalog made with optimize=planner.optimize would do this itself, but what is observed before it must
    # not change, and leaving UPDATE_BEFORE out would change the count
    optimized = planner.optimize(query.changes(catalog, spark), sink_key=query.key)
    counted = optimized.observe(_COUNTS, count(lit(1)).alias("rows"))
    writer = catalog.write_changes(counted, query.sink).queryName(query.name)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def describe(changes: DataFrame, sink_key: tuple[str, ...]) -> str:
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
    return QueryBatch(
        name,
        progress.batchId,
        progress.durationMs["triggerExecution"] / 1000,
        progress.observedMetrics[_COUNTS]["rows"],
        sum(operator.numRowsTotal for operator in progress.stateOperators),
        sum(operator.memoryUsedBytes for operator in progress.stateOperators),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
