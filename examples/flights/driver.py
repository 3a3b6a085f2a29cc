"""The Spark driver process: one streaming query from four tables into one; it may be killed at any moment.

It runs until stdin ends. Whatever it needs to go on after a crash is in the checkpoint folder.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count_if, expr, lit
from pyspark.sql.functions import count as count_of
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import planner
from examples.flights import tables
from examples.flights.messages import Batch, Sender, Started
from examples.flights.session import start_spark
from upsert import ROW_KIND_COLUMN, Catalog

_POLL_S = 0.1
_COUNTS = "changes"


def main(reports: Path, warehouse: Path, checkpoint: Path) -> None:
    """Run the query until stdin ends; raises what the query raised."""
    catalog, sender, spark = Catalog(warehouse), Sender(reports), start_spark("examples.flights")
    try:
        joined = flights_with_all(catalog, spark)
        changes = count(planner.optimize(joined, strategy="force"))
        writer = catalog.write_changes(changes, tables.JOINED)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        sender.send(Started(describe(joined)))
        report(query, sender)
    finally:
        spark.stop()


def flights_with_all(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """The query, as one writes it in Spark: stream-stream joins. The planner makes them one delta join."""
    flights, weather, planes, airports = (catalog.read_changes(spark, name) for name in tables.SOURCES)
    joined = (
        flights.join(weather, list(tables.JOIN_KEY))
        .join(airports.withColumnRenamed("name", "dest_name"), col("dest") == col("faa"))
        .join(planes, "tailnum", "left")
    )
    *columns, celsius = tables.JOINED_SCHEMA.names
    return joined.select(*columns, expr(tables.CELSIUS).alias(celsius))


def describe(joined: DataFrame) -> str:
    """What the planner makes of the query, in one line."""
    (join,) = planner.explain(joined).joins
    found = zip(join.tables, join.indexes, strict=True)
    return f"one delta join: {', '.join(f'{table.name} by {index}' for table, index in found)}"


def count(changes: DataFrame) -> DataFrame:
    """The same rows, counted while they pass."""
    is_negative = col(ROW_KIND_COLUMN).startswith("-")
    return changes.observe(_COUNTS, count_of(lit(1)).alias("rows"), count_if(is_negative).alias("deletes"))


def report(query: StreamingQuery, sender: Sender) -> None:
    """Tell of each micro-batch until stdin ends, then finish what is there; raises what the query raises."""
    last = -1
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        last = _send_newer(query, sender, last)
        if not query.isActive:
            query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    _send_newer(query, sender, last)


def _send_newer(query: StreamingQuery, sender: Sender, last: int) -> int:
    for progress in query.recentProgress:
        # without new data there is progress, too, but no batch
        if progress.batchId > last and "addBatch" in progress.durationMs:
            sender.send(_batch(progress))
            last = progress.batchId
    return last


def _batch(progress: StreamingQueryProgress) -> Batch:
    counts = progress.observedMetrics[_COUNTS]
    return Batch(
        progress.batchId,
        progress.durationMs["triggerExecution"] / 1000,
        counts["rows"],
        counts["deletes"],
        sum(operator.numRowsTotal for operator in progress.stateOperators),
        sum(operator.memoryUsedBytes for operator in progress.stateOperators),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
