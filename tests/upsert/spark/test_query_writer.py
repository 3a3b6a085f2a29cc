"""What a query that a `QueryWriter` started tells of a failure or a stop."""

import re
import shutil
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

from tests.helpers import wait_until
from upsert.errors import ConfigurationError, MissingStateError, StorageError
from upsert.spark.checkpoint_files import local_folder
from upsert.spark.java import java_of
from upsert.spark.query_writer import QueryWriter, triggered

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


def test_a_checkpoint_that_java_cannot_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """In a locale of ASCII it began in a folder with `?` for each other letter, and ended there."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = QueryWriter(rows).foreachBatch(lambda *_: None)
    system, encoding = java_of(spark).java.lang.System, "sun.jnu.encoding"
    before = system.setProperty(encoding, "ANSI_X3.4-1968")
    try:
        with pytest.raises(ConfigurationError, match="thé': must have a name that Java can have in the loc"):
            writer.option("checkpointLocation", str(tmp_path / "thé")).start()
        writer.option("checkpointLocation", str(tmp_path / "tea")).start().stop()
    finally:
        system.setProperty(encoding, before)
    assert [path.name for path in tmp_path.iterdir()] == ["tea"]


def test_a_damaged_log_of_a_checkpoint_is_told_with_its_file(spark: SparkSession, tmp_path: Path) -> None:
    """Spark tells of an assertion, of a parser of JSON, or of a micro-batch that does not exist."""
    checkpoint = tmp_path / "c"

    def run() -> None:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = QueryWriter(rows).option("checkpointLocation", str(checkpoint)).foreachBatch(lambda *_: None)
        query = writer.start()
        wait_until(lambda: query.exception() or (checkpoint / "commits" / "2").exists())
        query.stop()

    run()
    for damage, file, found in (
        (Path.unlink, "offsets/{before}", "it is missing"),
        (Path.unlink, "offsets/{newest}", "it is missing"),
        (lambda path: path.write_text(""), "offsets/{newest}", "it is empty"),
        (lambda path: path.write_text(path.read_text()[:-3]), "offsets/{newest}", "line 3 is no whole JSON"),
        (lambda path: path.write_text("v1\n{}"), "offsets/{newest}", "it must have 3 lines, it has 2"),
        (lambda path: path.write_bytes(b"\0" * 9), "offsets/{before}", "line 1 must be a version"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "commits/{newest}", "it is no text"),
        (lambda path: path.write_text("v1\n{"), "commits/{newest}", "line 2 is no whole JSON"),
    ):
        whole = tmp_path / "whole"
        shutil.copytree(checkpoint, whole)
        newest = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdecimal())
        for planned in (checkpoint / "offsets").iterdir():  # one that was not done is not needed here
            if planned.name.isdecimal() and int(planned.name) > newest:
                planned.unlink()
        path = checkpoint / file.format(newest=newest, before=newest - 1)
        damage(path)
        with pytest.raises(MissingStateError, match=re.escape(f"damaged: {path}: {found}")):
            run()
        shutil.rmtree(checkpoint)
        shutil.move(whole, checkpoint)
    run()


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b", "a b"])
def test_the_folder_of_a_checkpoint_is_the_one_that_spark_takes(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Read as a URL, ``file:///c/run#2`` was the folder of another query, and its damage told of this one."""
    location = f"file://{tmp_path}/{name}"
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    QueryWriter(rows).option("checkpointLocation", location).foreachBatch(lambda *_: None).start().stop()
    folder = local_folder(location)
    assert folder is not None
    assert (Path(folder) / "metadata").is_file()


@pytest.mark.parametrize("names", [[".0.{}.tmp", "..0.{}.tmp.crc"], ["..0.{}.tmp.crc"]])
def test_a_query_that_ended_while_its_first_micro_batch_was_planned_starts_again(
    spark: SparkSession, tmp_path: Path, names: list[str]
) -> None:
    """Spark refuses its checkpoint for the file that is left there, which it does for no later one."""
    offsets = tmp_path / "c" / "offsets"
    offsets.mkdir(parents=True)
    for name in names:
        (offsets / name.format("0b6a3ea5-6a7c-4a68-9d1c-2d0f3c7b9f10")).write_bytes(b"v1")
    writer = QueryWriter(spark.readStream.format("rate").load()).foreachBatch(lambda *_: None)
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert writer.start().awaitTermination(300)  # an error if Spark refuses it
    assert not [*offsets.glob("*.tmp*")]


@pytest.mark.parametrize("trigger", ["5 seconds", {"processing_time": "5 seconds"}, 5])
def test_a_trigger_of_another_form_is_refused_with_the_right_one(spark: SparkSession, trigger: Any) -> None:
    writer = QueryWriter(spark.readStream.format("rate").load())
    assert triggered(writer, None) is writer
    assert triggered(writer, {"processingTime": "5 seconds"}) is writer
    with pytest.raises(ConfigurationError, match="must be a dict of what DataStreamWriter"):
        triggered(writer, trigger)
