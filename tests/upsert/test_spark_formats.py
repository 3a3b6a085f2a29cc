"""The settings that a session is given: where it has none, and a local checkpoint where the disk is local."""

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import deltajoin
from upsert.java import java_of
from upsert.spark_formats import QueryWriter

pytestmark = pytest.mark.spark

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that has none of these settings."""
    own = spark.newSession()
    for key in (RECORDS, BYTES, CHECKPOINTS):
        own.conf.unset(key)
    yield own
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def test_settings_are_made_where_there_are_none(session: SparkSession) -> None:
    assert deltajoin.configure(session) is session
    assert session.conf.get(RECORDS) == "100000"
    assert session.conf.get(BYTES) == "2147483647"
    assert session.conf.get(CHECKPOINTS).endswith("FileSystemBasedCheckpointFileManager")


def test_settings_of_the_user_stay(session: SparkSession) -> None:
    session.conf.set(RECORDS, "7")
    session.conf.set(CHECKPOINTS, "their.own")
    deltajoin.configure(session)
    assert (session.conf.get(RECORDS), session.conf.get(CHECKPOINTS)) == ("7", "their.own")


def test_other_file_systems_keep_the_checkpoints_of_spark(session: SparkSession) -> None:
    session.conf.set("fs.defaultFS", "hdfs://name-node:8020/")
    deltajoin.configure(session)
    assert session.conf.get(CHECKPOINTS, None) is None
    assert session.conf.get(RECORDS) == "100000"


@pytest.mark.parametrize(
    ("raised", "is_stop"), [("java.lang.InterruptedException: sleep interrupted", True), ("no room", False)]
)
def test_what_a_stop_interrupts_is_told_so_that_spark_can_read_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, raised: str, is_stop: bool
) -> None:
    """Spark's regular expression for it overflows its stack on a long trace of the JVM."""
    given: list[Any] = []
    monkeypatch.setattr(DataStreamWriter, "foreachBatch", lambda _, function: given.append(function))

    def write(*_: object) -> None:
        try:
            raise RuntimeError(f"py4j.protocol.Py4JJavaError: An error occurred while calling o7.x: {raised}")
        except RuntimeError as error:
            error.add_note("\tat java.base/java.lang.Thread.run\n" * 5_000)
            raise

    QueryWriter(spark.readStream.format("rate").load()).foreachBatch(write)
    with pytest.raises(RuntimeError) as error:
        given[0](None, 0)
    text = "".join(traceback.format_exception(error.value))
    assert (len(text) < 5_000) == is_stop
    if is_stop:
        jvm: Any = java_of(spark)
        of_stream = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "StreamExecution$")
        told = jvm.py4j.Py4JException(text)
        assert getattr(of_stream, "MODULE$").isInterruptionException(told, spark.sparkContext._jsc.sc())
