"""Rows per second of a stream through the sink of ``upsert-table``: `python -m bench.sink`.

200 000 upserts a micro-batch go into a table of 2 million rows in 2 buckets, with a BIGINT key and five other
columns, while it is compacted. Spark's own ``rate-micro-batch`` makes the rows; a second query sends the same
rows to ``noop``, which shows what Spark takes for itself. The figures are printed and kept in
`bench/results/sink.json`, the load of the machine beside them.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench import RESULTS
from bench.session import batch_seconds, for_sinks
from upsert.managed.frames import write_changes
from upsert.schema import TableSchema
from upsert.store.table import Table

ROWS = 2_000_000
BATCH = 200_000
BATCHES = {"rows": BATCH, "warm_up": 3, "batches": 12}
RESULT = RESULTS / "sink.json"

SCHEMA = TableSchema.of(
    {
        "id": pa.int64(),
        "customer": pa.int64(),
        "status": pa.string(),
        "amount": pa.float64(),
        "items": pa.int32(),
        "changed_at": pa.timestamp("us", "UTC"),
    },
    primary_key=["id"],
)


def filled_table(folder: str) -> Table:
    """The table before the stream."""
    table = Table.create(f"{folder}/orders", SCHEMA, {"bucket": "2"})
    ids = np.arange(ROWS)
    table.write(
        pa.table(
            {
                "id": ids,
                "customer": ids % 50_000,
                "status": pa.array(["open", "paid", "sent", "done"]).take(pa.array(ids % 4)),
                "amount": ids * 0.25,
                "items": pa.array(ids % 9, pa.int32()),
                "changed_at": pa.array(ids, pa.timestamp("us", "UTC")),
            }
        )
    )
    return table


def upserts(spark: SparkSession) -> DataFrame:
    """An endless stream of 200 000 rows a micro-batch, each key once in it, spread over the whole table."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH)
    return (
        source.option("numPartitions", 2)
        .load()
        .selectExpr(
            f"pmod(value * 7919, {ROWS}) AS id",
            "pmod(xxhash64(value), 50000) AS customer",
            "concat('status ', pmod(value, 7)) AS status",
            "CAST(value AS DOUBLE) AS amount",
            "CAST(pmod(value, 9) AS INT) AS items",
            "timestamp AS changed_at",
        )
    )


def main() -> None:
    """Measure, print and keep the figures."""
    spark = for_sinks("sink")
    with tempfile.TemporaryDirectory() as folder:
        table = filled_table(folder)
        rows = upserts(spark)
        sink = batch_seconds(write_changes(rows, table.path), f"{folder}/checkpoint", **BATCHES)
        noop = batch_seconds(
            rows.repartition(2, "id").writeStream.format("noop"), f"{folder}/noop", **BATCHES
        )
        snapshots = len(table.history())
    figures = {
        "rows_per_batch": BATCH,
        "batches": len(sink),
        "sink_seconds_median": statistics.median(sink),
        "sink_seconds": sink,
        "sink_rows_per_s": round(BATCH / statistics.median(sink)),
        "noop_seconds_median": statistics.median(noop),
        "noop_rows_per_s": round(BATCH / statistics.median(noop)),
        "snapshots": snapshots,
        "load_average": os.getloadavg()[0],
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()
