"""Few rows computed in the driver, by a physical plan that Spark makes once.

To analyse, optimize, plan and schedule a query over a thousand rows takes Spark some 50 ms, to compute it two
or three. A physical plan is a tree of values, as an analysed one is: here its leaves, of which the optimizer
knows nothing but the columns, are replaced by rows each time, and its one partition is computed by the thread
that asks for it, as a task would. See docs/decisions/0069.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.base import UnknownException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.template import Template
from upsert.spark_table import arrow_of, arrow_schema

_IN_PLACE: Final = frozenset(
    f"{name}Exec"
    for name in (
        "CartesianProduct",
        "Coalesce",
        "CollectLimit",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "HashAggregate",
        "LocalLimit",
        "LocalTableScan",
        "ObjectHashAggregate",
        "OneRowRelation",
        "Project",
        "RDDScan",
        "ShuffledHashJoin",
        "Sort",
        "SortAggregate",
        "SortMergeJoin",
        "TakeOrderedAndProject",
        "Union",
        "Window",
        "WindowGroupLimit",
    )
)
"""Operators that need no job of their own, nor a Python process: rows of one task become rows of it."""

_MEMORY_BYTES: Final = 256 << 20
"""What all that is computed at one time may take for groups and orders; it spills to the disk beyond."""

_PAGE_BYTES: Final = 1 << 20
"""Groups and orders take memory by pages, the least that Spark allows; its default fits millions of rows."""

_attempts: Final = count()
"""Numbers of tasks, by which memory is counted."""


class OneTask:
    """Computes physical plans of one partition as a task would, in the thread that asks for it."""

    def __init__(self, session: SparkSession) -> None:
        """In a session whose settings stay as they are."""
        self.session = session
        jvm: Any = session._jvm
        spark, scala = jvm.org.apache.spark, jvm.scala
        # each look at a class is a call into the JVM
        self._tasks = _object_of(spark, "TaskContext")
        self._to_arrow = _object_of(spark.sql.execution.arrow, "ArrowConverters")
        self._iterators = _object_of(scala.collection, "Iterator")
        self._arrays = jvm.java.lang.reflect.Array
        self._python = jvm.PythonSQLUtils
        self._task_memory = spark.memory.TaskMemoryManager
        self._sessions = spark.sql.classic.SparkSession
        self._none = scala.Option.empty()
        conf = session._sc._jsc.sc().getConf().set("spark.buffer.pageSize", f"{_PAGE_BYTES}b")
        self._memory = spark.memory.UnifiedMemoryManager(conf, _MEMORY_BYTES, 0, 1)
        task = jvm.java.lang.Class.forName("org.apache.spark.TaskContextImpl")
        self._memory_of_task = task.getDeclaredField("taskMemoryManager")
        self._memory_of_task.setAccessible(True)
        self._settings = session._jsparkSession.conf().getAllAsJava()
        self._zone = str(session.conf.get("spark.sql.session.timeZone"))
        self._planner = session._jsparkSession.sessionState().planner()

    @property
    def is_possible(self) -> bool:
        """Whether all calls of a thread of Python are of one thread of Java, which a task is."""
        return isinstance(self.session._sc._gateway, ClientServer)

    @property
    def memory_used(self) -> int:
        """Bytes that are in use for groups and orders."""
        return int(self._memory.executionMemoryUsed())

    @contextmanager
    def active(self, other: SparkSession) -> Iterator[None]:
        """Let its session be that of this thread for a while; afterwards the other one is."""
        self._sessions.setActiveSession(self.session._jsparkSession)
        try:
            yield
        finally:
            self._sessions.setActiveSession(other._jsparkSession)

    def data(self, rows: pa.Table, schema: StructType, json: str) -> JavaObject:
        """Rows as a leaf of a plan has them, with these columns."""
        (batch,) = rows.cast(arrow_schema(schema)).combine_chunks().to_batches()
        batches = self._iterators.single(batch.serialize().to_pybytes())
        made = self._python.toDataFrame(batches, json, self.session._jsparkSession)
        return made.queryExecution().analyzed().data()

    def scan(self, leaf: JavaObject) -> JavaObject:
        """The physical plan of a leaf."""
        return self._planner.plan(leaf).next()

    def rows(self, plan: JavaObject, schema: JavaObject, read_as: pa.Schema) -> pa.Table:
        """What a physical plan of one partition gives."""
        task, memory = self._task()
        self._tasks.setTaskContext(task)
        try:
            rdd = plan.execute()
            rows = rdd.iterator(self._arrays.get(rdd.partitions(), 0), task)
            batches = self._to_arrow.toBatchIterator(rows, schema, 0, self._zone, True, False, task)
            found = [batches.next()] if batches.hasNext() else []
        finally:
            task.markTaskCompleted(self._none)
            memory.cleanUpAllAllocatedMemory()
            self._tasks.unset()
        read = (pa.ipc.read_record_batch(pa.py_buffer(one), read_as) for one in found)
        return pa.Table.from_batches(read, read_as)

    def _task(self) -> tuple[JavaObject, JavaObject]:
        """A task of one partition, and its memory.

        Spark's own empty one, which has no memory: its constructor takes what differs between versions.
        """
        task = self._tasks.empty()
        memory = self._task_memory(self._memory, next(_attempts))
        self._memory_of_task.set(task, memory)
        task.getLocalProperties().putAll(self._settings)
        return task, memory


def _object_of(package: Any, name: str) -> JavaObject:
    """The one instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


class FewRows:
    """A plan over few rows, which are others each time.

    Attributes:
        leaves: of the template, each of its inputs with its columns.
        task: what computes it.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        template: Template[Any],
        leaves: Sequence[tuple[JavaObject, StructType]],
        task: OneTask,
    ) -> None:
        """Of a template; each of its inputs with its columns."""
        self._catalyst = catalyst
        self._template = template
        self.leaves = leaves
        self.task = task
        blanks = [catalyst.unknown_rows(leaf.output(), in_one_partition=True) for leaf, _ in leaves]
        self._numbers = {int(blank.rdd().id()): number for number, blank in enumerate(blanks)}
        with task.active(catalyst.session):
            plan = self._without_shuffles(catalyst.physical(template.over(blanks), task.session))
            if plan.outputPartitioning().numPartitions() != 1:
                plan = catalyst.in_one_partition(plan)
        self._json = [schema.json() for _, schema in leaves]
        self._plan = Template(catalyst, plan, self._number_of)
        self._is_in_place = task.is_possible and self._needs_no_job(plan)
        self._columns = plan.schema()
        self._read_as = arrow_schema(StructType.fromJson(json.loads(self._columns.json())))

    def computed(self, rows: Sequence[pa.Table]) -> pa.Table:
        """What it gives of some rows, for each input.

        Raises:
            PySparkException: an expression has failed; PySpark gives that of a row as Java's error of the
                thread that collects.
        """
        catalyst, session = self._catalyst, self.task.session
        try:
            if not self._is_in_place:
                leaves = [catalyst.local(each, *leaf) for each, leaf in zip(rows, self.leaves, strict=True)]
                plan = self._template.over([*map(catalyst.in_one_task, leaves)])
                return arrow_of(catalyst.dataframe(plan, session))
            with self.task.active(catalyst.session):
                scans = [self._scan(number, rows[number]) for number in self._plan.inputs]
                return self.task.rows(self._plan.over(scans), self._columns, self._read_as)
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause is not None:
                converted = convert_exception(cause)
                if not isinstance(converted, UnknownException):
                    raise converted from None
                cause = cause.getCause()
            raise

    def _scan(self, number: int, rows: pa.Table) -> JavaObject:
        """Rows of one of its inputs, as a leaf of the physical plan."""
        leaf, schema = self.leaves[number]
        data = self.task.data(rows, schema, self._json[number]) if rows.num_rows else None
        catalyst = self._catalyst
        return self.task.scan(catalyst.in_one_task(catalyst.local_relation(leaf, data)))

    def _number_of(self, node: JavaObject) -> int | None:
        """Which of its inputs a leaf of the physical plan stands for."""
        if self._catalyst.class_name(node) != "RDDScanExec":
            return None
        return self._numbers.get(int(node.rdd().id()))

    def _without_shuffles(self, plan: JavaObject) -> JavaObject:
        """The plan without what brings rows of one partition into one."""
        catalyst = self._catalyst
        children = [*map(self._without_shuffles, catalyst.children(plan))]
        is_shuffle = catalyst.class_name(plan) == "ShuffleExchangeExec"
        if is_shuffle and plan.outputPartitioning().numPartitions() == 1:
            return catalyst.in_one_partition(*children)
        return catalyst.with_children(plan, children) if children else plan

    def _needs_no_job(self, plan: JavaObject) -> bool:
        catalyst = self._catalyst
        if catalyst.class_name(plan) not in _IN_PLACE or plan.subqueries().nonEmpty():
            return False
        return all(map(self._needs_no_job, catalyst.children(plan)))
