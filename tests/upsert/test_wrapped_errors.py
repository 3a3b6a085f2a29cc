"""The sentence of this project is found in what Spark makes of it."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from deltajoin.cli.command import reason_of
from upsert import Table, TableSchema, own_error
from upsert.errors import (
    DuplicateKeyError,
    FencedError,
    MissingStateError,
    ProcessLostError,
    SchemaError,
    SnapshotExpiredError,
    UpsertError,
    own_errors_first,
    raised_in_python,
)

TASK = """An error occurred while calling o61.save.
: org.apache.spark.SparkException: [JOB_ABORTED] Job aborted due to stage failure: Task 0 in stage 4.0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/upsert/store/commit/constraints.py", line 99, in check
    raise KeyError(1)
KeyError: 1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 3, in main
    process()
upsert.errors.DuplicateKeyError: table 'u': two rows have k = 1; correct one of them

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.RuntimeException: upsert.errors is not this
"""


@pytest.mark.parametrize(
    ("told", "kind", "sentence"),
    [
        (TASK, DuplicateKeyError, "table 'u': two rows have k = 1; correct one of them"),
        ("upsert.errors.SchemaError: first\nupsert.errors.ConfigurationError: last", UpsertError, "last"),
        ("planner.refusals.PlanError: no way; do this", UpsertError, "no way; do this"),
        (
            "[USER_RAISED_EXCEPTION] UPDATE t: column 'n' must be INT, which cannot hold 3e9 SQLSTATE: P0001",
            SchemaError,
            "UPDATE t: column 'n' must be INT, which cannot hold 3e9",
        ),
        ("deltajoin.lookup.errors.NewError: gone; come back", UpsertError, "gone; come back"),
    ],
)
def test_it_is_an_error_of_its_kind(told: str, kind: type[UpsertError], sentence: str) -> None:
    found = own_error(RuntimeError(told))
    assert isinstance(found, kind)
    assert str(found) == sentence


@pytest.mark.spark
def test_a_second_driver_of_a_checkpoint_is_told(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), TableSchema.of({"id": pa.int64()}, primary_key=["id"]))
    table.write(pa.table({"id": [1]}))
    stream = spark.readStream.format("upsert-table").load(table.path).writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    log = tmp_path / "checkpoint" / "offsets"
    shutil.copy(log / "0", log / "1")  # as another driver writes it
    table.write(pa.table({"id": [2]}))
    with pytest.raises(StreamingQueryException) as failed:
        query.processAllAvailable()
    found = own_error(failed.value)
    assert isinstance(found, FencedError)
    assert "which has begun micro-batch 1: the query runs twice; stop one of the drivers" in str(found)


class Killed(DataSource):
    """A stream whose process is killed when it is asked for the newest offset."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def schema(self) -> str:
        return "n INT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return KilledReader()


class KilledReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override] # noqa: N802
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        raise NotImplementedError


@pytest.mark.spark
def test_a_process_of_the_source_that_was_killed_is_told(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Killed)
    stream = spark.readStream.format("killed").load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination()
    for error in (failed.value, query.exception()):
        assert error is not None
        found = own_error(error)
        assert isinstance(found, ProcessLostError)
        assert "answers for the query's source: expected it to run" in str(found)


@pytest.mark.spark
def test_a_worker_that_was_killed_is_told(spark: SparkSession) -> None:
    def killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    with pytest.raises(Exception, match="exited unexpectedly") as failed:
        spark.range(1).mapInArrow(killed, "id BIGINT").collect()
    found = own_error(failed.value)
    assert isinstance(found, ProcessLostError)
    assert "a Python process of the query's tasks: expected it to run" in str(found)


@pytest.mark.spark
def test_why_a_write_failed_is_told_if_what_it_has_staged_cannot_be_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark says "Writing job failed." of a write that it could not abort, and no more.

    For a stream it makes a writer to abort with, which looks for the table.
    """
    path = str(tmp_path / "t")
    Table.create(path, TableSchema.of({"value": pa.int64()}, primary_key=["value"]))

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches).slice(0, 0)
        with suppress(FileNotFoundError):  # another task was first
            os.rename(path, path + "-gone")
        raise ValueError("the disk is full")

    rows = spark.readStream.format("rate").option("rowsPerSecond", 9).load().select("value")
    stream = rows.mapInArrow(failing, "value BIGINT").writeStream.format("upsert-table")
    stream = stream.option("path", path).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination()
    os.rename(path + "-gone", path)
    with pytest.raises(PythonException) as of_batch:
        spark.range(3).selectExpr("id AS value").mapInArrow(failing, "value BIGINT").write.format(
            "upsert-table"
        ).mode("append").save(path)
    for error in (failed.value, query.exception(), of_batch.value):
        assert error is not None
        assert reason_of(error) == "ValueError: the disk is full"


STOPPED_WORKER = """java.io.IOException: Stream closed
\tat java.base/java.io.OutputStream.write(OutputStream.java:162)
\tat java.base/java.io.BufferedOutputStream.flushBuffer(BufferedOutputStream.java:81)
\tat org.apache.spark.api.python.PythonWorkerFactory.$anonfun$stopWorker$2(PythonWorkerFactory.scala:527)
"""
NEW_WORKER = """org.apache.spark.SparkException: Writing job failed.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.writingJobFailedError(QueryExecutionErrors.scala:963)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.security.SocketAuthHelper.readUtf8(SocketAuthHelper.scala:116)
"""


@pytest.mark.parametrize(
    "told",
    [
        STOPPED_WORKER,
        NEW_WORKER,
        "EOFException … the port number from pyspark.daemon's stdout.",
        "EOFException … the port number from deltajoin_daemon's stdout and terminated with code: 137.",
    ],
)
def test_a_process_that_starts_others_and_was_killed_is_told(told: str) -> None:
    found = own_error(RuntimeError(told.replace("…", "occurred while reading")))
    assert isinstance(found, ProcessLostError)
    assert "a Python process of the query's tasks: expected it to run" in str(found)


LATE_WORKER = """Caused by: java.net.SocketTimeoutException: Read timed out
\tat java.base/sun.nio.ch.SocketChannelImpl.timedRead(SocketChannelImpl.java:1231)
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:381)
\tat org.apache.spark.security.SocketAuthHelper.readUtf8(SocketAuthHelper.scala:116)
"""
LATE_DAEMON = """java.net.SocketTimeoutException: Timed out waiting for the Python worker … after 60000 ms
\tat org.apache.spark.api.python.PythonWorkerFactory.createWorker$1(PythonWorkerFactory.scala:170)
"""


@pytest.mark.parametrize(
    "told",
    [
        LATE_DAEMON,
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        f"org.apache.spark.SparkException: Python worker failed to connect back.\n{LATE_WORKER}",
        f"org.apache.spark.SparkException: Writing job failed.\n{LATE_WORKER}",
    ],
)
def test_a_process_that_did_not_connect_in_time_is_told(told: str) -> None:
    found = own_error(RuntimeError(told))
    assert isinstance(found, ProcessLostError)
    assert "expected it to connect to Spark soon after its start" in str(found)


def test_what_has_failed_after_the_failure_is_not_the_reason() -> None:
    """A clean-up fails as well where the disk of the table has failed."""
    trace = (
        "org.apache.spark.SparkException: Writing job failed.\n\tat a.B.c(B.scala:1)\n"
        "\tSuppressed: d.E: Traceback (most recent call last):\n  File …\nupsert.errors.StorageError: late\n"
        "\n\t\tat d.E.f(E.scala:1)\nCaused by: d.E: Traceback (most recent call last):\n  File …\n"
        "upsert.errors.StorageError: full\n\n\tat d.E.f(E.scala:1)"
    )
    assert str(own_error(RuntimeError(trace))) == "full"


STREAM = "[STREAM_FAILED] Query terminated with exception: {}\nLogical Plan:\n+- DeltaSource[file:/orders]"


@pytest.mark.parametrize(
    "said",
    [
        "[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [2 , 6]",
        "[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it",
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file /orders/_change_data/cdc-0",
    ],
)
def test_lost_versions_of_a_delta_table_are_told_with_what_to_do(said: str) -> None:
    found = own_error(RuntimeError(STREAM.format(said)))
    assert isinstance(found, SnapshotExpiredError)
    assert "create it again" in str(found)


def test_a_lost_file_of_another_source_stays_it() -> None:
    assert own_error(RuntimeError("[FAILED_READ_FILE.FILE_NOT_EXIST] reading file /orders/part-0")) is None


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("Failed to read log file file:/c/offsets/0. Incomplete log file", "file:/c/offsets/0. Incomplete"),
        ("Checksum error: file:/c/commits/3 at 0 exp: -21 got: -20", "file:/c/commits/3 at 0"),
        ("batch 7 doesn't exist SQLSTATE: XXKST", "damaged: batch 7 doesn't exist"),
        ("assertion failed: There are [0] sources in the checkpoint offsets and", "There are [0] sources"),
        (
            "  a = json.loads(utf8_deserializer.loads(infile))\njson.decoder.JSONDecodeError: Cut off",
            "'offsets' is no JSON: Cut off",
        ),
        ("Unexpected end-of-input\n at [Source: REDACTED (`Stream…` disabled); line: 1]", "end-of-input; "),
    ],
)
def test_a_damaged_file_of_a_checkpoint_is_told_with_what_to_do(told: str, found: str) -> None:
    error = own_error(RuntimeError(f"[STREAM_FAILED] Query q terminated with exception: {told}\n=== Stream"))
    assert isinstance(error, MissingStateError)
    assert found in str(error)
    assert str(error).endswith("with a new checkpointLocation and an empty sink")


MICRO_BATCH = """[STREAM_FAILED] Query q terminated: Message: Traceback (most recent call last):
  File "/venv/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
{} SQLSTATE: 22012
== SQL (line 1, position 8) ==
note: of the text
=== Streaming Query ===
Identifier: [id = 4b36bb7c]
"""
TASKS = """pyspark.errors.exceptions.captured.PythonException: thrown from the worker, see below.
Traceback (most recent call last):
  File "/job.py", line 3, in half
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            "pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division",
            "[DIVIDE_BY_ZER",
        ),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1.x.\n: java.io.IOException: full",
            "ja",
        ),
        ("json.decoder.JSONDecodeError: Expecting value", "json.decoder.JSONDecodeError: Expecting value"),
        (TASKS, "ZeroDivisionError: division by zero"),
    ],
)
def test_of_a_failed_micro_batch_what_its_trace_ends_with_is_told(end: str, said: str) -> None:
    found = raised_in_python(MICRO_BATCH.format(end)) or ""
    assert found.startswith(said)
    assert "\n" not in found


def test_what_is_another_matter_stays_it() -> None:
    assert own_error(RuntimeError("ValueError: in upsert.errors")) is None
    with pytest.raises(ZeroDivisionError), own_errors_first():
        raise ZeroDivisionError


def test_it_is_raised_from_what_spark_says() -> None:
    wrapped = RuntimeError(TASK)
    with pytest.raises(DuplicateKeyError, match=r"^table 'u': two rows") as raised, own_errors_first():
        raise wrapped
    assert raised.value.__cause__ is wrapped


def test_an_error_of_this_project_in_the_chain_is_the_one() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = SchemaError("column 'a' is gone")
    assert own_error(wrapped) is wrapped.__cause__


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (
            "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources",
            "with as many sources as this one, 2, found that of one with 1: the query was another one; ",
        ),
        (
            "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query",
            "expected state, which this query keeps, found none: the query was another one",
        ),
    ],
)
def test_a_checkpoint_of_another_query_is_told_with_what_to_do(told: str, found: str) -> None:
    error = own_error(RuntimeError(f"[STREAM_FAILED] Query q terminated with exception: {told}\n=== Stream"))
    assert isinstance(error, MissingStateError)
    assert found in str(error)
    assert "a new checkpointLocation and an empty sink" in str(error)
