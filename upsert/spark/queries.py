"""The streaming queries that run: what Spark says of them, who is told, and stopping them."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from upsert.spark.checkpoint_files import local_folder, query_of
from upsert.spark.connect import is_connect
from upsert.spark.java import class_name, items_of, java_of
from upsert.spark.task import QUERY_ID

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent
    from pyspark.sql.streaming.query import StreamingQuery

_WATCHED_EVERY_S: Final = 0.5

_SESSION_ENDED: Final = (Py4JError, OSError, PySparkException)
"""What is raised when a session that has ended is asked; the last one is that of Spark Connect."""


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
        with suppress(*_SESSION_ENDED):
            watch()

    threading.Thread(target=watch_while_spark_runs, name="statement-set", daemon=True).start()


def running_queries(spark: SparkSession) -> list[StreamingQuery]:
    """The queries that a session runs; none if it has been stopped."""
    try:
        return list(spark.streams.active)
    except _SESSION_ENDED:
        return []


def active_queries(spark: SparkSession) -> set[str]:
    """The ids of the queries that a session runs; none if it has been stopped."""
    return {str(query.id) for query in running_queries(spark)}


def is_running(query: StreamingQuery) -> bool:
    """Whether a query runs; not if its session has ended."""
    try:
        return query.isActive
    except _SESSION_ENDED:
        return False


def forget_ended(queries: MutableMapping[str, StreamingQuery]) -> None:
    """Take the queries that have ended out of some that a session has: each holds its plans in the JVM.

    >>> from types import SimpleNamespace as Query
    >>> queries = {"ended": Query(isActive=False), "runs": Query(isActive=True)}
    >>> forget_ended(queries)
    >>> [*queries]
    ['runs']
    """
    for key, query in [*queries.items()]:
        if not is_running(query):
            queries.pop(key, None)


def stop_query(spark: SparkSession, id: str) -> bool:
    """Stop a query; False if the session does not run it."""
    with suppress(*_SESSION_ENDED):
        for query in spark.streams.active:
            if str(query.id) == id:
                query.stop()
                return True
    return False


def checkpoint_of(spark: SparkSession, id: str) -> str | None:
    """Folder of the checkpoint of a query that runs in a session; None if there is none, and over Connect."""
    if is_connect(spark):
        return None  # it tells no checkpoint
    try:
        query = spark.streams.get(id)
    except (Py4JError, OSError):  # the session has ended meanwhile
        return None
    return None if query is None else checkpoint_of_query(query)


def attached(spark: SparkSession, id: str, key: str) -> str | None:
    """What is attached under a key to a column of a running query: to the outermost that has it.

    None if no column has it, or the query has ended; and over Connect, where the server has the plan.
    """
    if is_connect(spark):
        return None
    try:
        query: Any = spark.streams.get(id)
        nodes = [] if query is None else [query._jsq.streamingQuery().analyzedPlan()]
        while nodes:
            node = nodes.pop(0)
            for column in items_of(node.output()):
                if column.metadata().contains(key):
                    return str(column.metadata().getString(key))
            nodes += items_of(node.children())
    except (Py4JError, OSError):  # the query, or the session, has ended meanwhile
        pass
    return None


def python_functions(df: DataFrame) -> set[str]:
    """Names of the functions of Python that rows of a DataFrame pass, by ``mapInArrow`` and the like.

    None over Connect, where the server has the plan.

    >>> def doubled(batches):
    ...     yield from batches
    >>> python_functions(spark.range(3).mapInArrow(doubled, "id BIGINT").where("id > 1"))
    {'doubled'}
    """
    if is_connect(df.sparkSession):
        return set()
    found, nodes = set(), [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        found |= {str(one.name()) for one in items_of(node.expressions()) if class_name(one) == "PythonUDF"}
        nodes += items_of(node.children())
    return found


def checkpoint_of_query(query: StreamingQuery) -> str | None:
    """Folder of the checkpoint of a query that runs, or has run; None where Spark does not tell it."""
    handle: Any = getattr(query, "_jsq", None)  # over Connect there is none
    try:
        return None if handle is None else str(handle.streamingQuery().resolvedCheckpointRoot())
    except (Py4JError, OSError):  # the session has ended meanwhile
        return None


def query_with_checkpoint(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the query that runs with a checkpoint, in whatever session of this process.

    None for one that is being stopped, whose successor waits for its end. Over Connect, whose server tells
    of a session's own queries alone, it is one of these, by the id that a checkpoint on this machine has.
    """
    if is_connect(spark):
        folder = local_folder(checkpoint)
        id = None if folder is None else query_of(folder)
        return id if id in active_queries(spark) else None
    jvm = java_of(spark)
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    root = str(files.makeQualified(path).toString())
    for run in jvm.java.util.ArrayList(_runs(spark).values()):
        if run.isActive() and str(run.resolvedCheckpointRoot()) == root:
            return str(run.id())
    return None


def is_being_stopped(rows: DataFrame) -> bool:
    """Whether the query of a micro-batch is being stopped; False where the thread does not know the query."""
    id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if id is None:
        return False
    run = _runs(rows.sparkSession).get(java_of(rows.sparkSession).java.util.UUID.fromString(id))
    return run is None or not run.isActive()


def _runs(spark: SparkSession) -> Any:
    """The executions of queries that have not ended, by id, of all sessions of this process."""
    return spark._jsparkSession.sharedState().activeStreamingQueries()


class ProgressListener(StreamingQueryListener):
    """Is told the progress of a micro-batch as one text.

    PySpark asks for each figure of it, in 456 calls for a copy of a table. A driver of many queries may have
    dozens of micro-batches a second: then events wait, up to 10,000 of them.
    """

    @abstractmethod
    def progressed(self, text: str) -> None:
        """A micro-batch has ended, with a progress as Spark's JSON."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """The same, as a session of Spark Connect tells it."""
        self.progressed(event.progress.json)

    @property
    def _jlistener(self) -> JavaObject:
        """What the JVM calls; PySpark's own has an attribute of this name."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(ToldAsText(self))
        return self._jlistenerobj


class ToldAsText(JStreamingQueryListener):
    """Hands on to a `ProgressListener` what the JVM tells."""

    pylistener: ProgressListener

    def onQueryProgress(self, jevent: JavaObject) -> None:  # noqa: N802
        """A micro-batch has ended."""
        self.pylistener.progressed(jevent.progress().json())

    def onQueryIdle(self, jevent: JavaObject) -> None:  # noqa: N802
        """Nothing, before PySpark asks for its figures."""


def stop_listening(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Let a listener hear no more, and be collected.

    PySpark lets it hold an object of the JVM that holds the listener: neither side would ever be collected.
    """
    spark.streams.removeListener(listener)
    vars(listener).pop("_jlistenerobj", None)
