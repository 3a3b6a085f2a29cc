"""Run as a script: one table's changes into another, until all that is there has been read.

    python pipeline.py SOURCE SINK CHECKPOINT [POINT BATCH]

It is written through Spark's interface for sinks, or, if the environment says so, by `write_changes` in the
driver or in tasks, perhaps after expressions that are computed in Arrow. At the given point of the given
micro-batch the driver, its JVM and the Python worker get a SIGKILL.
"""

import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from planner.spark.small_plan import rows_in_arrow
from upsert.managed import micro_batch
from upsert.managed.datasource import UpsertTableSource
from upsert.managed.frames import read_changes, write_changes
from upsert.managed.options import WriteOptions
from upsert.managed.writer import StreamWriter, TaskResult

WAY = "TEST_WAY"
"""``driver`` or ``tasks``, or ``computed driver`` or ``computed tasks``; the sink if it is not there."""

POINT, BATCH, GROUP = "TEST_KILL_POINT", "TEST_KILL_BATCH", "TEST_DRIVER_GROUP"


def kill_all_at(point: str, batch: int) -> None:
    if os.environ.get(POINT) == point and int(os.environ[BATCH]) == batch:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class KilledWriter(StreamWriter):
    """The sink's writer, with named points to die at."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        from pyspark import TaskContext

        result = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        kill_all_at("staged", int(context.getLocalProperty("streaming.sql.batchId") or -1))
        return result

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        kill_all_at("before-publish", batchId)
        super().commit(messages, batchId)
        kill_all_at("after-publish", batchId)


class KilledSource(UpsertTableSource):
    """The format, with that writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return KilledWriter(WriteOptions.parse(self.options), schema, overwrite)


def main(source: str, sink: str, checkpoint: str, point: str = "", batch: str = "-1") -> None:
    os.environ |= {POINT: point, BATCH: batch, GROUP: str(os.getpgid(0))}
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    changes = read_changes(spark, source, max_rows_per_trigger=40)
    if way := os.environ.get(WAY):
        micro_batch.FEW_ROWS = 20_000 if "driver" in way else -1  # type: ignore[misc]
        if way.startswith("computed"):
            changes = changes.selectExpr("id", "(v + 1) * 2 - v - 2 AS v", "_row_kind").where("v >= 0")
        writer = write_changes(changes, sink, {}, rows_in_arrow)
    else:
        writer = changes.writeStream.format("upsert-table").option("path", sink)
    if point:
        spark.dataSource.register(KilledSource)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    main(*sys.argv[1:])
