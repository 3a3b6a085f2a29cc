"""Run as a script: one topic into another, until all that is there has been read.

    python sink_script.py FORM BROKERS SOURCE SINK FOLDER [POINT BATCH]

FORM: `changes` with write_changes, `counts` with write_upsert of an update-mode aggregate. At the given
point of the given micro-batch the driver, its JVM and the Python worker get a SIGKILL. Points: `task-1` when
task 1 has committed its transaction, `committed` when all tasks have.
"""

import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from upsert.kafka import sink
from upsert.kafka.frames import read_changes, write_changes, write_upsert
from upsert.kafka.options import UPSERT
from upsert.kafka.source import UpsertKafkaSource
from upsert.kafka.table import KafkaTable
from upsert.registration import register
from upsert.schema import TableSchema

POINT, BATCH, GROUP = "TEST_KILL_POINT", "TEST_KILL_BATCH", "TEST_DRIVER_GROUP"
TASKS = 3


def kill_all() -> None:
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def write(own: sink._Writer, iterator: Iterator[pa.RecordBatch]) -> sink.TaskResult:
    """As the sink does it, with points to die at."""
    context = TaskContext.get()
    assert context is not None
    is_now = int(context.getLocalProperty("streaming.sql.batchId") or -1) == int(os.environ[BATCH])
    point = os.environ[POINT] if is_now else ""
    result = own_write(own, iterator)
    if point == "task-1" and context.partitionId() == 1:
        kill_all()
    return result


own_write = sink._Writer.write


class KilledStreamWriter(sink.StreamWriter):
    """The stream's writer, with points to die at."""

    write = write

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if os.environ[POINT] == "committed" and batchId == int(os.environ[BATCH]):
            kill_all()


class KilledBatchWriter(sink.BatchWriter):
    """The writer of write_upsert, with points to die at."""

    write = write


class KilledSource(UpsertKafkaSource):
    """The format, with those writers."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        table = sink.declared_for_write(self.connector, self.options, schema)
        return KilledBatchWriter(table, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        table = sink.declared_for_write(self.connector, self.options, schema)
        return KilledStreamWriter(table, schema, overwrite)


def table(brokers: str, topic: str, **options: str) -> KafkaTable:
    columns = {"word": pa.string(), "n": pa.int64()}
    given = {
        "properties.bootstrap.servers": brokers,
        "topic": topic,
        "key.format": "json",
        "value.format": "json",
    }
    return KafkaTable.of(UPSERT, TableSchema.of(columns, primary_key=["word"]), given | options)


def main(
    form: str, brokers: str, source: str, target: str, folder: str, point: str = "", batch: str = "-1"
) -> None:
    os.environ |= {POINT: point, BATCH: batch, GROUP: str(os.getpgid(0))}
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    once = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": "test",
        "sink.parallelism": str(TASKS),
    }
    to = table(brokers, target, **once)
    if form == "changes":
        given = {"state.path": f"{folder}/state", "max-rows-per-trigger": "60"}
        writer = write_changes(read_changes(spark, table(brokers, source, **given)), to)
    else:
        given = {"changelog": "upsert", "max-rows-per-trigger": "60"}
        rows = read_changes(spark, table(brokers, source, **given)).selectExpr("substr(word, 1, 1) AS word")
        writer = write_upsert(rows.groupBy("word").count().withColumnRenamed("count", "n"), to)
    if point:
        spark.dataSource.register(KilledSource)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 6:
        os.setsid()  # the driver and its JVM become a process group of their own: one signal ends both
    main(*sys.argv[1:])
