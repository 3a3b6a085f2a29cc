"""The writer that starts streaming queries: their checkpoints, and what a stop interrupts."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.errors import ConfigurationError, StorageError, bad_checkpoint
from upsert.spark.checkpoint_files import damage_in, left_of_first_plan, local_folder
from upsert.spark.connect import is_connect
from upsert.spark.java import java_of
from upsert.spark.jvm import can_name
from upsert.spark.leftovers import note_caller, remove_leftovers
from upsert.spark.queries import is_being_stopped, query_with_checkpoint
from upsert.spark.settings import CHECKPOINT_FILES, OF_A_LOCAL_DISK, has_setting, is_local, set_for_now
from upsert.spark.task import micro_batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql._typing import OptionalPrimitiveType
    from pyspark.sql.streaming.query import StreamingQuery

_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"

_starting = Lock()


class QueryWriter(DataStreamWriter):
    """A writer whose query writes its checkpoint to a local disk without processes, as `configure` says.

    It does so where the checkpoint is on the local disk and the session has no setting of its own. The
    session has the setting while the query starts, which copies it, and then no longer. What a stop
    interrupts in the middle of a micro-batch ends as Spark expects it.
    """

    def __init__(self, df: DataFrame) -> None:
        """Of a streaming DataFrame."""
        super().__init__(df)
        self.given: dict[str, str] = {}
        """The options that it was given, by their names in lower case."""

    def option(self, key: str, value: OptionalPrimitiveType) -> Self:
        """An option of the query."""
        self.given[key.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
        super().option(key, value)
        return self

    def options(self, **options: OptionalPrimitiveType) -> Self:
        """Some options of the query."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:  # noqa: N802
        """Let a function write each micro-batch.

        Python keeps the function while the JVM has the query, and the JVM has what objects of Python stand
        for. So a function that holds its writer or its query keeps both for ever.
        """
        given = self.given

        def written(rows: DataFrame, batch: int) -> None:
            note_caller(rows.sparkSession)
            try:
                with micro_batch_of(given.get("checkpointlocation")):
                    func(rows, batch)
            except Exception as error:  # the store wraps what the JVM raises
                interruption = _interruption(error)
                if interruption is None or not is_being_stopped(rows):
                    raise
                raise RuntimeError(_STOPPED.format(interruption)) from None

        super().foreachBatch(written)
        return self

    def begin(self) -> None:
        """What a writer does when it has all options, just before the query starts."""

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: OptionalPrimitiveType,
    ) -> StreamingQuery:
        """Start the query."""
        self.options(**options)
        self.begin()
        spark = self._spark
        with _starting:
            remove_leftovers(spark)
            location = self.given.get("checkpointlocation") or spark.conf.get(_CHECKPOINTS, None)
            if location is None:
                return super().start(path, format, outputMode, partitionBy, queryName)
            with _errors_of_checkpoint(location):
                is_on_disk = is_local(spark, location)
                folder = local_folder(location) if is_on_disk else None
                if folder is not None:
                    _check_name(spark, folder)
                if folder is not None and (found := damage_in(folder)) is not None:
                    raise bad_checkpoint(found)
                if folder is not None:
                    _clear(spark, location, folder)
                if not is_on_disk or has_setting(spark, CHECKPOINT_FILES):
                    return super().start(path, format, outputMode, partitionBy, queryName)
                with set_for_now(spark, {CHECKPOINT_FILES: OF_A_LOCAL_DISK}):
                    return super().start(path, format, outputMode, partitionBy, queryName)


def _check_name(spark: SparkSession, folder: str) -> None:
    """Refuse a folder that the JVM of a session cannot name: it would be another one."""
    if folder.isascii():
        return
    encoding = str(java_of(spark).java.lang.System.getProperty("sun.jnu.encoding"))
    if not can_name(folder, encoding):
        raise ConfigurationError(
            f"checkpoint {folder!r}: must have a name that Java can have in the locale of Spark's JVM, whose "
            f"letters are {encoding!r}; start Python and Spark with LC_ALL=C.UTF-8, or take another folder"
        )


def _clear(spark: SparkSession, location: str, folder: str) -> None:
    """Take away what keeps Spark from starting a query again whose first micro-batch was never planned."""
    left = left_of_first_plan(folder)
    if left and query_with_checkpoint(spark, location) is None:  # else one is just being planned
        for path in left:
            with suppress(FileNotFoundError):
                os.unlink(path)


_DAMAGED: Final = ("com.fasterxml.jackson.", "org.json4s.", "org.apache.hadoop.fs.ChecksumException")
_NO_ID: Final = ("Invalid UUID string", "Error at index ")
_REFUSED: Final = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
"""How errors begin that a start passes on as they are: a file is no JSON or has no id, or a disk refused."""


@contextmanager
def _errors_of_checkpoint(location: str) -> Iterator[None]:
    """Tell what Java says of a checkpoint when a query starts, which Spark leaves without a name."""
    try:
        yield
    except IllegalArgumentException as cause:
        if not (told := str(cause)).startswith(_NO_ID):
            raise
        raise bad_checkpoint(f"{location}: {told}") from cause
    except Py4JJavaError as cause:
        told = str(cause.java_exception.toString()).partition("\n")[0]
        if told.startswith(_DAMAGED):
            raise bad_checkpoint(f"{location}: {told}") from cause
        if told.startswith(_REFUSED):
            raise StorageError(
                f"checkpoint {location!r}: Spark must be able to write and read it, got {told}; see that it "
                "can be reached, may be used and has room, and start the query again"
            ) from cause
        raise


_STOPPED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling a micro-batch: {}"
"""By a regular expression for such a text Spark knows that a stop has interrupted a function in Python.

It goes deeper with each character between its two ends: with a trace of the JVM there the stack overflows.
"""
_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def _interruption(error: Exception) -> str | None:
    """The exception of the JVM in an error that a stop leads to, as some timeouts do too; None for none."""
    text = "".join(traceback.format_exception(error))
    return next((name for name in _INTERRUPTIONS if name in text), None)


def query_writer(df: DataFrame) -> DataStreamWriter:
    """A `QueryWriter`; over Spark Connect, whose server decides how checkpoints are written, Spark's."""
    return df.writeStream if is_connect(df) else QueryWriter(df)


_TRIGGERS: Final = frozenset({"processingTime", "availableNow", "once", "continuous", "realTime"})


def triggered(writer: DataStreamWriter, trigger: Mapping[str, Any] | None) -> DataStreamWriter:
    """A writer with the trigger that a user has given, by the names of ``DataStreamWriter.trigger``.

    None or nothing is Spark's own, which lets a micro-batch follow the one before.

    Raises:
        ConfigurationError: it is something else.
    """
    if not trigger:
        return writer
    if not isinstance(trigger, Mapping) or not _TRIGGERS.issuperset(trigger):
        raise ConfigurationError(
            f"trigger: must be a dict of what DataStreamWriter.trigger takes, got {trigger!r}; write "
            "{'processingTime': '5 seconds'}, or {'availableNow': True}"
        )
    return writer.trigger(**trigger)
