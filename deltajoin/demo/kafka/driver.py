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
from deltajoin.demo.kafka.messages import QueryBatch, QueryStarted
from deltajoin.demo.kafka.queries import QUERIES, Query
from deltajoin.demo.messages import Sender
from deltajoin.demo.session import start_spark
from upsert import Catalog

_POLL_S: Final = 0.1
_COUNTS: Final = "changes"


def main(reports: Path, warehouse: Path, checkpoints: Path) -> None:
    """Run the queries until stdin ends; raises what one of them raised."""
    sender, spark = Sender(reports), start_spark("deltajoin.demo.kafka")
    try:
        catalog = Catalog(warehouse)
        running = {query.name: start(query, catalog, spark, checkpoints, sender) for query in QUERIES}
        report(running, sender)
    finally:
        spark.stop()


def start(
    query: Query, catalog: Catalog, spark: SparkSession, checkpoints: Path, sender: Sender
) -> StreamingQuery:
    """Start one query, and return when it has done what it found.

    Each starts a Python process that must answer within ten seconds, which two processors busy with all
    queries at once may not manage.
    """
    changes = query.changes(catalog, spark)
    # a catalog made with optimize=planner.optimize would do this itself, but what is observed before it must
    # not change, and leaving UPDATE_BEFORE out would change the count
    optimized = planner.optimize(changes, sink_key=query.key)
    counted = optimized.observe(_COUNTS, count(lit(1)).alias("rows"))
    writer = catalog.write_changes(counted, query.sink).queryName(query.name)
    running = writer.option("checkpointLocation", str(checkpoints / query.name)).start()
    while running.isActive and not (running.recentProgress or "Waiting" in running.status["message"]):
        time.sleep(_POLL_S)
    if not running.isActive:
        running.awaitTermination()
    sender.send(QueryStarted(query.name, describe(changes, query.key)))
    return running


def describe(changes: DataFrame, sink_key: tuple[str, ...]) -> str:
    """What the planner makes of a query, in one line."""
    explained = planner.explain(changes, sink_key=sink_key)
    joins = [f"delta join by {join.left_index} and {join.right_index}" for join in explained.joins]
    topics = [", ".join(map(str.strip, str(topic).splitlines())) for topic in explained.topics]
    return "; ".join(joins + topics)


def report(running: dict[str, StreamingQuery], sender: Sender) -> None:
    """Tell of each micro-batch until stdin ends, then finish what is there; raises what a query raises."""
    last = dict.fromkeys(running, -1)
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        for name, query in running.items():
            last[name] = _send_newer(name, query, sender, last[name])
            if not query.isActive:
                query.awaitTermination()
    for name, query in running.items():
        query.processAllAvailable()
        _send_newer(name, query, sender, last[name])
    for query in running.values():
        query.stop()


def _send_newer(name: str, query: StreamingQuery, sender: Sender, last: int) -> int:
    for progress in query.recentProgress:
        # without new data there is progress, too, but no batch
        if progress.batchId > last and "addBatch" in progress.durationMs:
            sender.send(_batch(name, progress))
            last = progress.batchId
    return last


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
