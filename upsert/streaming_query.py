"""What Spark says of the query, the micro-batch and the task that Python code runs for.

A stream that reads one source and works row by row can be computed without tasks: `RowByRow` says what such a
stream reads, and `PlannedBatch` what one of its micro-batches is. Spark has optimized that plan for this very
micro-batch, so a replay has the same clock; here only its leaf is replaced by rows.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from upsert.connect import is_connect
from upsert.errors import ConfigurationError
from upsert.java import java_of, texts_of
from upsert.spark_table import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WATCHED_EVERY_S: Final = 0.5

QUERY_ID: Final = "sql.streaming.queryId"
"""Name of the local property of a stream's jobs that holds its id: the same after a restart."""

BATCH_ID: Final = "streaming.sql.batchId"
"""Name of the local property of a stream's jobs that holds the number of the micro-batch."""

JOB_GROUP: Final = "spark.jobGroup.id"
"""Name of the local property of jobs that holds their group: of a stream's jobs the id of its run, unless a
function of ``foreachBatch`` has given them another one."""


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


def run_here() -> str | None:
    """The id of the query's run for which this task, or this thread of the driver, runs.

    It is another one after a restart. None where it is not known.

    >>> run_here() is None
    True
    """
    context = TaskContext.get() or SparkContext._active_spark_context
    group = None if context is None else context.getLocalProperty(JOB_GROUP)
    try:
        return None if group is None else str(UUID(group))
    except ValueError:
        return None


_has_begun = False


def begin_task() -> None:
    """Prepare this process for tasks of numbers in columns, when its first one begins.

    What it has loaded is left out of garbage collections. Spark collects garbage after each task. With Arrow,
    pandas and these packages that looks through 60 000 objects, all of them needed: 30 to 45 ms of processor
    time, more than many a task. And memory of freed arrays is kept, see `keep_freed_memory`.

    >>> begin_task()  # in no task
    >>> gc.get_freeze_count()
    0
    """
    global _has_begun
    if not _has_begun and TaskContext.get() is not None:
        _has_begun = True
        gc.freeze()
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
            for column in _items(node.output()):
                if column.metadata().contains(key):
                    return str(column.metadata().getString(key))
            nodes += _items(node.children())
    except (Py4JError, OSError):  # the query, or the session, has ended meanwhile
        pass
    return None


def checkpoint_of_query(query: StreamingQuery) -> str | None:
    """Folder of the checkpoint of a query that runs, or has run; None where Spark does not tell it."""
    handle: Any = getattr(query, "_jsq", None)  # over Connect there is none
    try:
        return None if handle is None else str(handle.streamingQuery().resolvedCheckpointRoot())
    except (Py4JError, OSError):  # the session has ended meanwhile
        return None


def query_with_checkpoint(spark: SparkSession, checkpoint: str) -> str | None:
    """The id of the query that runs with a checkpoint, in whatever session of this process.

    None for one that is being stopped, whose successor waits for its end; and over Connect, where the server
    has the queries.
    """
    if is_connect(spark):
        return None
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


_ROW_BY_ROW: Final = ("Project", "Filter", "SubqueryAlias")
"""Nodes of plans of which each row becomes one row or none, whatever the others are."""

_PLANNED_ROW_BY_ROW: Final = (*_ROW_BY_ROW, "ArrowEvalPython", "BatchEvalPython")
"""The same of optimized plans, where functions in Python have nodes of their own."""


@dataclass(frozen=True)
class RowByRow:
    """What a stream reads that has one source, and nothing above it but projections and filters.

    Attributes:
        format: of the source.
        options: of the source, by names in lower case.
        schema: the columns that the source gives.
        chosen: positions of those that the stream has, if it only chooses and renames them; else None.
    """

    format: str
    options: Mapping[str, str]
    schema: StructType
    chosen: tuple[int, ...] | None

    @classmethod
    def of(cls, df: DataFrame) -> Self | None:
        """That of a streaming DataFrame; None for any other stream."""
        plan: Any = df._jdf.queryExecution().analyzed()
        if not plan.subqueriesAll().isEmpty():
            return None
        nodes = []
        while (name := _class_name(plan)) in _ROW_BY_ROW:
            nodes.append(plan)
            plan = plan.child()
        if name != "StreamingRelationV2":
            return None
        given = texts_of(df.sparkSession, plan.extraOptions())
        options = {key.lower(): value for key, value in given.items()}
        source = StructType.fromJson(json.loads(plan.schema().json()))
        return cls(str(plan.sourceName()), options, source, _chosen(plan, nodes))


def _chosen(leaf: Any, nodes: Sequence[Any]) -> tuple[int, ...] | None:
    """Positions of the columns of a leaf that the nodes above it, outermost first, only choose and rename."""
    columns = [int(one.exprId().id()) for one in _items(leaf.output())]
    where = {number: position for position, number in enumerate(columns)}
    for node in reversed(nodes):
        if _class_name(node) == "Filter":
            return None
        if _class_name(node) != "Project":
            continue
        columns = []
        for expr in _items(node.projectList()):
            number = int(expr.exprId().id())
            value = expr.child() if _class_name(expr) == "Alias" else expr
            if _class_name(value) != "AttributeReference":
                return None
            where[number] = where[int(value.exprId().id())]
            columns.append(number)
    return tuple(where[number] for number in columns)


class PlannedBatch:
    """A micro-batch of a `RowByRow` query, as Spark has planned it; for as long as it is under way.

    Attributes:
        start: offset of its source from which it reads.
        end: offset to which it reads.
    """

    def __init__(self, execution: Any, leaf: Any) -> None:
        """Of Spark's execution of it, and the leaf of the optimized plan."""
        self._execution = execution
        self.start: dict[str, Any] = json.loads(leaf.startOffset().get().json())
        self.end: dict[str, Any] = json.loads(leaf.endOffset().get().json())

    @classmethod
    def of(cls, spark: SparkSession, query: str, batch: int) -> Self | None:
        """The micro-batch of this number; None if Spark has planned it in another form than the query's."""
        running: Any = spark.streams.get(query)
        execution = None if running is None else running._jsq.streamingQuery().lastExecution()
        if execution is None or execution.currentBatchId() != batch:
            return None
        leaf = execution.optimizedPlan()
        while (name := _class_name(leaf)) in _PLANNED_ROW_BY_ROW:
            leaf = leaf.child()
        return cls(execution, leaf) if name == "StreamingDataSourceV2ScanRelation" else None

    def computed(self, rows: pa.Table, schema: StructType, spark: SparkSession) -> pa.Table:
        """What the query makes of rows of its source, at least one, which have this schema."""
        jvm = java_of(spark)
        seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        logical = jvm.org.apache.spark.sql.catalyst.plans.logical

        def over(node: Any) -> Any:
            if _class_name(node) in _PLANNED_ROW_BY_ROW:
                return node.withNewChildren(seq([over(node.child())]))
            # Spark drops all that follows a record batch without rows
            given = spark.createDataFrame(rows.combine_chunks(), schema)
            data = given._jdf.queryExecution().analyzed().data()
            return logical.LocalRelation(node.output(), data, False, jvm.scala.Option.empty())

        plan = over(self._execution.optimizedPlan())
        made = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
        return arrow_of(DataFrame(made, spark))

    def over(self, frame: DataFrame) -> DataFrame:
        """What the query makes of a batch that has the columns of its source."""
        spark = frame.sparkSession
        jvm = java_of(spark)
        seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        alias, none = jvm.org.apache.spark.sql.catalyst.expressions.Alias, jvm.scala.Option.empty()

        def over(node: Any) -> Any:
            if _class_name(node) in _PLANNED_ROW_BY_ROW:
                return node.withNewChildren(seq([over(node.child())]))
            given: Any = frame._jdf.queryExecution().analyzed()
            by_name = {str(one.name()): one for one in _items(given.output())}
            named = [
                alias(by_name[str(one.name())], one.name(), one.exprId(), seq([]), none, seq([]))
                for one in _items(node.output())
            ]
            return logical.Project(seq(named), given)

        plan = over(self._execution.optimizedPlan())
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)

    def note_rows(self, rows: int) -> None:
        """Tell how many rows its source gave, for the query's progress."""
        for leaf in _items(self._execution.executedPlan().collectLeaves()):
            metric = leaf.metrics().get("numOutputRows")
            if metric.isDefined():
                metric.get().set(rows)


def _class_name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(number) for number in range(seq.size())]
