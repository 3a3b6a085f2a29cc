"""Which query and which task Python code runs for, as Spark says it; needs PySpark, not a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import TaskContext

from upsert.connect import is_connect, needs_classic
from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def needs_identity(df: DataFrame, what: str) -> None:
    """Refuse a sink that must know of which query its micro-batches are, where Spark does not tell.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
    """
    needs_classic(
        df,
        what,
        "over Connect a micro-batch does not tell of which query it is, so a repeated one would count twice; "
        "write changes whose rows the sink's key tells apart, or aggregate in a materialized view",
    )


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


def active_queries(spark: SparkSession) -> set[str]:
    """The ids of the queries that a session runs; none if it has been stopped."""
    try:
        return {str(query.id) for query in spark.streams.active}
    except (Py4JError, OSError):
        return set()


def checkpoint_of(spark: SparkSession, id: str) -> str | None:
    """Folder of the checkpoint of a query that runs in a session; None if there is none, and over Connect."""
    if is_connect(spark):
        return None  # it tells no checkpoint
    try:
        query: Any = spark.streams.get(id)
        if query is None:
            return None
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
    except (Py4JError, OSError):  # the query, or the session, has ended meanwhile
        return None
