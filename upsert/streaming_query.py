"""Which query and which task Python code runs for, as Spark says it; needs PySpark, not a session."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import TaskContext

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WATCHED_EVERY_S: Final = 0.5

QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the local property of a stream's jobs that holds its id: the same after a restart."""


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


def query_of_task(subject: str) -> str:
    """The id of the streaming query whose task runs this code.

    Raises:
        ConfigurationError: it is no task of a streaming query.
    """
    found = task_property(QUERY_ID)
    if not found:
        raise ConfigurationError(f"{subject} must run in a streaming query, got a task without a query's id")
    return found


def query_of_micro_batch(rows: DataFrame, subject: str) -> str:
    """The id of the query whose ``foreachBatch`` has been called with ``rows``.

    Raises:
        ConfigurationError: the call comes from no query, or its thread does not know which.
    """
    query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise ConfigurationError(
            f"{subject} must be run by their query, in whose thread Spark calls Python; leave "
            "PYSPARK_PIN_THREAD at its default, true"
        )
    return str(query)


def end_together(queries: Sequence[StreamingQuery], *, end_by_themselves: bool) -> None:
    """From now on stop all of some queries when one fails; or ends, unless they end by themselves."""

    def watch() -> None:
        while True:
            active = [query for query in queries if query.isActive]
            ended = [query for query in queries if not query.isActive]
            if not active:
                return
            if ended and (not end_by_themselves or any(query.exception() is not None for query in ended)):
                for query in active:
                    query.stop()
                return
            time.sleep(_WATCHED_EVERY_S)

    def watch_while_spark_runs() -> None:
        with suppress(Py4JError, OSError):
            watch()

    threading.Thread(target=watch_while_spark_runs, name="statement-set", daemon=True).start()


def active_queries(spark: SparkSession) -> set[str]:
    """The ids of the queries that a session runs; none if it has been stopped."""
    try:
        return {str(query.id) for query in spark.streams.active}
    except (Py4JError, OSError):
        return set()


def stop_query(spark: SparkSession, id: str) -> bool:
    """Stop a query; False if the session does not run it."""
    with suppress(Py4JError, OSError):
        for query in spark.streams.active:
            if str(query.id) == id:
                query.stop()
                return True
    return False


def checkpoint_of(spark: SparkSession, id: str) -> str | None:
    """Folder of the checkpoint of a query that runs in a session; None if it does not run or has none."""
    try:
        query: Any = spark.streams.get(id)
        if query is None:
            return None
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
    except (Py4JError, OSError):  # the query, or the session, has ended meanwhile
        return None
