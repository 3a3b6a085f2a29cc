"""One system of ``bench.delta`` in a process of its own: prints what it measured as one line of JSON.

Runs by its file's name, also under a Python that has nothing but pyspark and delta-spark, so it imports the
project only for the project's own part.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

WARM_UP: Final = 3
CALLS: Final = 3
"""So often an action is timed, after a first one that is not."""
READS: Final = 3
"""The changes are read back so often: a first time, and then with what that has compiled and started."""
KEYS: Final = 10_000
CHANGED_ROW_BYTES: Final = 8 + 8 + 4 + 8 + 8 + 4 + 8
"""A changed row in memory: the columns, of which the text has 8 bytes and an offset of 4."""
COLUMNS: Final = (
    "pmod({0}, 50000) AS customer",
    "concat('status ', pmod({0}, 7)) AS status",
    "CAST({0} AS DOUBLE) AS amount",
    "CAST(pmod({0}, 9) AS INT) AS items",
    "timestamp_micros({0}) AS changed_at",
)


def session(settings: dict[str, str]) -> SparkSession:
    """Two threads, as the figures are meant for two cores."""
    common = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.authenticate.socketTimeout": "2m",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    builder = SparkSession.builder.master("local[2]").appName("bench-delta")
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Delta:
    """Delta Lake: MERGE of each micro-batch, with deletion vectors and change feed."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/delta"
        self.spark = session(
            {
                "spark.jars.packages": os.environ["DELTA_PACKAGE"],
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
                "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
            }
        )

    def fill(self, rows: DataFrame) -> None:
        """The table before the stream."""
        rows.repartition(2, "id").write.format("delta").save(self.path)

    def start(self, rows: DataFrame, checkpoint: str) -> Any:
        """Begin to upsert a stream."""

        def merge(batch: DataFrame, _: int) -> None:
            batch.createOrReplaceTempView("changes")
            batch.sparkSession.sql(
                f"MERGE INTO delta.`{self.path}` t USING changes c ON t.id = c.id "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        return rows.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).start()

    def version(self) -> int:
        """The table's latest version."""
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}` LIMIT 1")
        return int(history.collect()[0]["version"])

    def changes(self, since: int) -> DataFrame:
        """The changes after a version, as a stream."""
        reader = self.spark.readStream.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", since + 1).load(self.path)

    def read(self) -> DataFrame:
        """All rows."""
        return self.spark.read.format("delta").load(self.path)

    def scans(self, folder: str) -> dict[str, Any]:  # noqa: ARG002
        """Seconds of scans of the table."""
        return scans(self.read)[0]

    def lookup(self, keys: list[int]) -> int:
        """How many rows have one of these keys."""
        wanted = self.spark.createDataFrame([(key,) for key in keys], "id BIGINT")
        return len(self.read().join(wanted.hint("broadcast"), "id").collect())


class Ours:
    """A managed table: an exactly-once sink, compaction and look-up index included."""

    def __init__(self, folder: str) -> None:
        import pyarrow as pa

        import deltajoin
        from upsert.schema import TableSchema
        from upsert.store.table import Table

        self.spark = deltajoin.configure(session({}))
        columns = {
            "id": pa.int64(),
            "customer": pa.int64(),
            "status": pa.string(),
            "amount": pa.float64(),
            "items": pa.int32(),
            "changed_at": pa.timestamp("us", "UTC"),
        }
        schema = TableSchema.of(columns, primary_key=["id"])
        self.path = f"{folder}/ours"
        self.table = Table.create(self.path, schema, {"bucket": "2"})

    def fill(self, rows: DataFrame) -> None:
        """The table before the stream."""
        from upsert import register

        register(self.spark)
        rows.write.format("upsert-table").option("path", self.path).mode("append").save()

    def start(self, rows: DataFrame, checkpoint: str) -> Any:
        """Begin to upsert a stream."""
        from upsert.managed.frames import write_changes

        return write_changes(rows, self.path).option("checkpointLocation", checkpoint).start()

    def version(self) -> int:
        """The table's latest version."""
        return self.table.snapshot().info.data_version

    def changes(self, since: int) -> DataFrame:
        """The changes after a version, as a stream."""
        from upsert.managed.frames import read_changes

        return read_changes(self.spark, self.path, scan_mode="from-snapshot", scan_snapshot_id=since)

    def read(self) -> DataFrame:
        """All rows."""
        from upsert.managed.frames import read

        return read(self.spark, self.path)

    def scans(self, folder: str) -> dict[str, Any]:
        """Seconds of scans of the table, also by a named filter, and of Parquet files with the same rows."""
        from upsert.managed.frames import read

        files = f"{folder}/parquet"
        self.read().write.parquet(files)
        ours, parquet = scans(self.read, partial(self.spark.read.parquet, files))
        where = {"scan.where": json.dumps([["customer", "=", 77], ["id", ">", 1000]])}
        [named] = timed(lambda: read(self.spark, self.path, options=where).count())
        return {**ours, "named_filter_scan_s": named, "parquet_scans": parquet}

    def lookup(self, keys: list[int]) -> int:
        """How many rows have one of these keys."""
        import pyarrow as pa

        return int(self.table.snapshot().lookup(["id"], pa.table({"id": keys})).num_rows)


SYSTEMS: Final[dict[str, type[Delta] | type[Ours]]] = {"delta": Delta, "ours": Ours}


def main(name: str, folder: str, rows: int, batch: int, batches: int) -> dict[str, Any]:
    """Fill a table, stream upserts into it, and read it in every way."""
    system = SYSTEMS[name](folder)
    spark = system.spark
    system.fill(spark.range(rows).selectExpr("id", *(text.format("id") for text in COLUMNS)))
    before, since = size_of(system.path), system.version()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch)
    source = source.option("numPartitions", 2)
    # a prime number of keys apart, so that a micro-batch is spread over the whole table
    upserts = source.load().selectExpr(
        f"pmod(value * 7919, {rows}) AS id", *(text.format("value") for text in COLUMNS)
    )
    query = system.start(upserts, f"{folder}/{name}-checkpoint")
    seconds = batch_seconds(query, batch, batches)
    written = size_of(system.path) - before
    done = spark.read.json(f"{folder}/{name}-checkpoint/commits/[0-9]*").count()
    reads = [read_back(system.changes(since), f"{folder}/{name}-read-{n}") for n in range(READS)]
    keys = [(number * 7_368_787) % rows for number in range(KEYS)]
    if system.lookup(keys) != KEYS:
        raise AssertionError(f"{name}: the lookup must find {KEYS} rows")
    return {
        "spark": spark.version,
        "batch_seconds": seconds,
        "upserts_a_s": round(batch / statistics.median(seconds)),
        **changes_read(reads),
        "bytes_written_a_byte_changed": round(written / (done * batch * CHANGED_ROW_BYTES), 1),
        "folder_mb": size_of(system.path) >> 20,
        **system.scans(folder),
        "lookup_s": timed(lambda: system.lookup(keys))[0],
    }


def batch_seconds(query: Any, batch: int, batches: int) -> list[float]:
    """Seconds of each micro-batch, without those of the warm-up."""
    found: dict[int, float] = {}
    while query.isActive and len(found) < WARM_UP + batches:
        for progress in query.recentProgress:
            if progress["numInputRows"] == batch:
                found[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
        time.sleep(0.2)
    query.stop()
    if failure := query.exception():
        raise failure
    return [found[number] for number in sorted(found)][WARM_UP : WARM_UP + batches]


def read_back(changes: DataFrame, checkpoint: str) -> tuple[int, float]:
    """Rows of the change stream, and the seconds of one query that reads them until there are no more."""
    writer = changes.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    steps = [step for step in query.recentProgress if step["numInputRows"]]
    rows = sum(step["numInputRows"] for step in steps)
    seconds = sum(step["durationMs"]["triggerExecution"] for step in steps) / 1000
    return rows, seconds


def changes_read(reads: list[tuple[int, float]]) -> dict[str, Any]:
    """Rows a second of the first read of the changes, and the median of the later ones."""
    first, *later = (round(rows / seconds) for rows, seconds in reads)
    return {
        "changes": reads[0][0],
        "changes_a_s": first,
        "changes_again_a_s": round(statistics.median(later)),
    }


def scans(*reads: Callable[[], DataFrame]) -> list[dict[str, float]]:
    """Seconds of a scan of all columns and rows, and of a filter above it, by Spark, of each read."""
    full = timed(*(partial(_hashed, read) for read in reads))
    filtered = timed(*(partial(_filtered, read) for read in reads))
    return [
        {"scan_s": all_rows, "filtered_scan_s": some} for all_rows, some in zip(full, filtered, strict=True)
    ]


def _hashed(read: Callable[[], DataFrame]) -> object:
    return read().selectExpr("max(xxhash64(*))").collect()


def _filtered(read: Callable[[], DataFrame]) -> object:
    return read().where("customer = 77 AND id > 1000").count()


def timed(*actions: Callable[[], object]) -> list[float]:
    """Median seconds of a few calls of each after a first one: in turn, for later calls find a warmer JVM."""
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(1 + CALLS):
        for seconds, action in zip(found, actions, strict=True):
            start = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - start)
    return [round(statistics.median(each[1:]), 3) for each in found]


def size_of(path: str) -> int:
    """Bytes of all files below a folder; neither system has deleted any yet."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
