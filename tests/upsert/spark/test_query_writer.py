"""What a query that a `QueryWriter` started tells of a failure or a stop."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.errors import MissingStateError, StorageError
from upsert.spark.java import java_of
from upsert.spark.query_writer import QueryWriter

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_a_stop_interrupts_is_told_so_that_spark_can_read_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Spark's regular expression for it overflows its stack on a long trace of the JVM.

    What no stop has interrupted is told in full: Hadoop tells also a timeout as an interruption.
    """
    raised: list[Exception] = []
    foreach_batch, entered, is_started = DataStreamWriter.foreachBatch, Event(), Event()

    def kept(self: DataStreamWriter, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def and_kept(rows: DataFrame, batch: int) -> None:
            try:
                write(rows, batch)
            except Exception as error:
                raised.append(error)
                raise

        return foreach_batch(self, and_kept)

    monkeypatch.setattr(DataStreamWriter, "foreachBatch", kept)

    def write(*_: object) -> None:
        entered.set()
        assert is_started.wait(60)
        while is_stopped and query.isActive:
            time.sleep(0.01)
        call = "py4j.protocol.Py4JJavaError: An error occurred while calling o7.x: "
        try:
            raise OSError(f"{call}java.io.InterruptedIOException: bucket b: connect timed out")
        except OSError as error:
            error.add_note("\tat java.base/java.lang.Thread.run\n" * 5_000)
            raise ValueError("table 'x' cannot be read") from error

    writer = QueryWriter(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load())
    query = writer.foreachBatch(write).start()
    is_started.set()
    assert entered.wait(60)
    if is_stopped:
        query.stop()
        assert query.exception() is None
    else:
        with pytest.raises(StreamingQueryException, match="table 'x' cannot be read"):
            query.awaitTermination(60)
    (error,) = raised
    text = "".join(traceback.format_exception(error))
    assert (len(text) < 5_000, "connect timed out" in text) == (is_stopped, not is_stopped)
    if is_stopped:
        jvm: Any = java_of(spark)
        of_stream = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "StreamExecution$")
        told = jvm.py4j.Py4JException(text)
        assert getattr(of_stream, "MODULE$").isInterruptionException(told, spark.sparkContext._jsc.sc())


def test_a_checkpoint_that_cannot_be_read_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """Spark raises what Java says, such as "No content to map due to end-of-input", without a place."""

    def start(folder: Path) -> None:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = QueryWriter(rows).option("checkpointLocation", str(folder)).foreachBatch(lambda *_: None)
        writer.start().stop()

    start(tmp_path / "c")
    metadata = tmp_path / "c" / "metadata"
    id_ = metadata.read_text()
    (tmp_path / "c" / ".metadata.crc").unlink()
    for damaged in ("", id_[:20], "\0" * len(id_), "{}", id_.replace("-", "+"), id_.replace("-4", "-x")):
        metadata.write_text(damaged)
        with pytest.raises(MissingStateError, match=f"damaged: {tmp_path}/c: .*; restore the folder"):
            start(tmp_path / "c")
    with pytest.raises(StorageError, match=f"checkpoint '{metadata}/c': Spark must be able to write"):
        start(metadata / "c")
