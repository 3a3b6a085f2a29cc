"""For which task, micro-batch and query Python code runs, as Spark says, and how its process is prepared."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark import SparkContext, TaskContext
from pyspark.errors import AnalysisException

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the local property of a stream's jobs that holds its id: the same after a restart."""

BATCH_ID: Final = "streaming.sql.batchId"
"""Name of the local property of a stream's jobs that holds the number of the micro-batch."""

ROOT_EXECUTION: Final = "spark.sql.execution.root.id"
"""Name of the local property of jobs that holds the number of the execution that they belong to. Of all jobs
of a micro-batch, those of ``foreachBatch`` too, it is that of the micro-batch; a later one is higher."""


def task_number() -> int:
    """The number of the task that runs this code; 0 outside of tasks.

    >>> task_number()
    0
    """
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def task_property(name: str) -> str | None:
    """A local property of the task that runs this code; None where it has none, and outside of tasks."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def micro_batch_here() -> tuple[str, int] | None:
    """Query and number of the micro-batch for which this task, or this thread of the driver, runs.

    None outside of micro-batches, and over Spark Connect.

    >>> micro_batch_here() is None
    True
    """
    context = TaskContext.get() or SparkContext._active_spark_context
    if context is None:
        return None
    query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    return None if query is None or batch is None else (str(query), int(batch))


def execution_here() -> int | None:
    """The number of Spark's execution for which this task, or this thread of the driver, runs.

    In a micro-batch that is done again it is higher. None where it is not known.

    >>> execution_here() is None
    True
    """
    context = TaskContext.get() or SparkContext._active_spark_context
    number = None if context is None else context.getLocalProperty(ROOT_EXECUTION)
    return None if number is None else int(number)


def end_if_spark_has_left() -> None:
    """End the process that plans a streaming source, where Spark has closed its connection to it.

    Spark does that when it stops a query, and kills the process a moment later. Until then PySpark would tell
    Spark that nothing is left to be read, and print the trace of the broken pipe. It calls ``stop`` of the
    source before, while the error of its own read is under way; this is for there.
    """
    error = sys.exception()
    if isinstance(error, EOFError):
        *_, (where, _) = traceback.walk_tb(error.__traceback__)
        if where.f_globals.get("__name__") == "pyspark.serializers":
            os._exit(0)


class _Stderr:
    """Standard error of a process of tasks, without the trace of a connection that Spark has closed.

    When a ``LIMIT`` has its rows, as for each ``show()``, Spark closes the connections to the processes that
    could give more. They end then, and PySpark's loop over tasks prints why for each of them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text) if _is_of_closed_connection(sys.exception()) else self._stream.write(text)


def _is_of_closed_connection(error: BaseException | None) -> bool:
    if not isinstance(error, ConnectionError) or error.__traceback__ is None:
        return False
    return error.__traceback__.tb_frame.f_code.co_name == "manager"  # of pyspark.daemon, which has caught it


_has_begun = False


def begin_task() -> None:
    """Prepare this process for tasks of numbers in columns, when its first one begins.

    What it has loaded is left out of garbage collections. Spark collects garbage after each task. With Arrow,
    pandas and these packages that looks through 60 000 objects, all of them needed: 30 to 45 ms of processor
    time, more than many a task. And memory of freed arrays is kept, see `keep_freed_memory`. Where Spark
    wants no more of the rows, the process will end without a trace.

    >>> before = gc.get_freeze_count()
    >>> begin_task()  # in no task
    >>> gc.get_freeze_count() <= before
    True
    """
    global _has_begun
    if not _has_begun and TaskContext.get() is not None:
        _has_begun = True
        gc.freeze()
        sys.stderr = _Stderr(sys.stderr)
        keep_freed_memory()


_MMAP_THRESHOLD: Final = (-3, 32 << 20)
_TRIM_THRESHOLD: Final = (-1, 64 << 20)
"""Numbers of settings of glibc's ``mallopt``, and what they get."""

_TUNABLES: Final = "GLIBC_TUNABLES"


def keep_freed_memory() -> None:
    """Let this process use memory of freed arrays again, about 64 MB of it; without glibc nothing changes.

    That is a quarter of the least memory that a task can be given. Else the memory goes back to the system
    and comes again, page by page, for each step of a computation on columns of a hundred thousand rows:
    10 000 pages for a task of 200 000 changed rows, each of them cleared first. Arrays of up to 32 MB are
    used again, the most that glibc allows. What the user's environment says of this stays.

    >>> keep_freed_memory()
    """
    is_said = any(name.startswith("MALLOC_") for name in os.environ)
    if is_said or "glibc.malloc" in os.environ.get(_TUNABLES, ""):
        return
    with suppress(OSError, AttributeError):  # another library of C
        libc = ctypes.CDLL(None)
        for number, value in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(number, value)


def query_of_task(subject: str) -> str:
    """The id of the streaming query whose task runs this code.

    Raises:
        ConfigurationError: it is no task of a streaming query.
    """
    found = task_property(QUERY_ID)
    if not found:
        raise ConfigurationError(f"{subject} must run in a streaming query, got a task without a query's id")
    return found


_OF_THIS_CALL: Final[ContextVar[str | None]] = ContextVar("query of a micro-batch", default=None)


class OfCheckpoint:
    """What a server of Spark Connect calls with each micro-batch: a function that asks of which query it is.

    There Spark tells Python no query. Its id is in the checkpoint, where Spark writes it before the first
    micro-batch, and reads it after a restart. It is read once in a process, which serves one run of a query.
    """

    def __init__(self, write: Callable[[DataFrame, int], None], checkpoint: str) -> None:
        """Of a function, and the checkpoint that the query is started with."""
        self._write = write
        self._checkpoint = checkpoint
        self._query: str | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch."""
        if self._query is None:
            self._query = query_of_checkpoint(rows.sparkSession, self._checkpoint)
        token = _OF_THIS_CALL.set(self._query)
        try:
            self._write(rows, batch)
        finally:
            _OF_THIS_CALL.reset(token)


def query_of_checkpoint(spark: SparkSession, checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to, as Spark itself reads files.

    Raises:
        ConfigurationError: there is no such checkpoint.
    """
    plain = "".join(f"\\{sign}" if sign in "{}[]*?\\" else sign for sign in checkpoint)
    try:
        found = spark.read.text(f"{plain.rstrip('/')}/metadata").collect()
        return str(json.loads("".join(row[0] for row in found))["id"])
    except (AnalysisException, ValueError, KeyError) as cause:
        raise ConfigurationError(
            f"checkpoint {checkpoint!r}: a file 'metadata' must say of which query it is, got {cause}; start "
            "the query with a folder that it can write"
        ) from cause


_CHECKPOINT: Final[ContextVar[str | None]] = ContextVar("checkpoint of a micro-batch", default=None)


@contextmanager
def micro_batch_of(checkpoint: str | None) -> Iterator[None]:
    """Let this thread know for a while which checkpoint the query of a micro-batch was started with."""
    token = _CHECKPOINT.set(checkpoint)
    try:
        yield
    finally:
        _CHECKPOINT.reset(token)


def checkpoint_of_micro_batch() -> str | None:
    """The ``checkpointLocation`` of the query whose micro-batch this thread writes; None if it is not known.

    >>> checkpoint_of_micro_batch() is None
    True
    """
    return _CHECKPOINT.get()


def query_of_micro_batch(rows: DataFrame, subject: str) -> str:
    """The id of the query whose ``foreachBatch`` has been called with ``rows``.

    Raises:
        ConfigurationError: the call comes from no query, or its thread does not know which.
    """
    if (known := _OF_THIS_CALL.get()) is not None:
        return known
    query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise ConfigurationError(
            f"{subject} must be run by their query, in whose thread Spark calls Python; leave "
            "PYSPARK_PIN_THREAD at its default, true"
        )
    return str(query)
