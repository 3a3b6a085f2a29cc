"""Few rows computed in the driver, by a physical plan that Spark makes once.

To analyse, optimize, plan and schedule a query over a thousand rows takes Spark some 50 ms, to compute it two
or three. So the plan is made over leaves of which the optimizer knows nothing but the columns. What they read
is put into them each time, and the one partition of the RDD that Spark has made of the plan is computed by
the thread that asks for it, as a task would. See docs/decisions/0069 and 0075.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from py4j import protocol
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.base import UnknownException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.template import Template
from upsert.spark.batches import arrow_of, arrow_schema
from upsert.spark.formats import active
from upsert.spark.java import class_name, java_of, object_of

_IN_PLACE: Final = frozenset(("InputAdapter",)) | frozenset(
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
        "WholeStageCodegen",
        "Window",
        "WindowGroupLimit",
    )
)
"""Operators that need no job of their own, nor a Python process: rows of one task become rows of it."""

_NESTED: Final = (ArrayType, MapType, StructType)

_PAGE_BYTES: Final = 1 << 20
"""Groups take memory by pages, the least that Spark allows; its default fits millions of rows."""

_BYTES: Final = protocol.SUCCESS + protocol.BYTES_TYPE
"""What py4j's answer to a call begins with that has given bytes."""

_KEY: Final = 0
"""Of the rows in a holder."""

_attempts: Final = count()
"""Numbers of tasks, by which memory is counted."""


class OneTask:
    """Computes physical plans of one partition as a task would, in the thread that asks for it."""

    def __init__(self, session: SparkSession) -> None:
        """In a session whose settings stay as they are."""
        self.session = session
        make_room(session)
        jvm = java_of(session)
        spark, scala = jvm.org.apache.spark, jvm.scala
        self._tasks = object_of(spark, "TaskContext")
        self._to_arrow = object_of(spark.sql.execution.arrow, "ArrowConverters")
        self._iterators = object_of(scala.collection, "Iterator")
        self._projections = object_of(spark.sql.catalyst.expressions, "UnsafeProjection")
        self._no_rows = self._iterators.empty()
        self._arrays = jvm.java.lang.reflect.Array
        self._map = scala.collection.mutable.HashMap
        tags, class_of = object_of(scala.reflect, "ClassTag"), jvm.java.lang.Class.forName
        self._row = tags.apply(class_of("org.apache.spark.sql.catalyst.InternalRow"))
        # a leaf's RDD asks a map for what key 0 has
        self._key = session._sc._jsc.sc().parallelize(
            object_of(scala.collection.immutable, "Nil").prepended(_KEY),
            1,
            tags.apply(class_of("java.lang.Object")),
        )
        self._task_memory = spark.memory.TaskMemoryManager
        self._none = scala.Option.empty()
        conf = session._sc._jsc.sc().getConf().set("spark.buffer.pageSize", f"{_PAGE_BYTES}b")
        # orders take pages as large as Spark's own, up to 64 MB: a row of joins has one for each table
        heap = jvm.java.lang.Runtime.getRuntime().maxMemory()
        self._memory = spark.memory.UnifiedMemoryManager(conf, heap, 0, 1)
        task = jvm.java.lang.Class.forName("org.apache.spark.TaskContextImpl")
        self._memory_of_task = task.getDeclaredField("taskMemoryManager")
        self._memory_of_task.setAccessible(True)
        self._settings = session._jsparkSession.conf().getAllAsJava()
        self._zone = str(session.conf.get("spark.sql.session.timeZone"))

    @property
    def is_possible(self) -> bool:
        """Whether all calls of a thread of Python are of one thread of Java, which a task is."""
        return isinstance(self.session._sc._gateway, ClientServer)

    @property
    def memory_used(self) -> int:
        """Bytes that are in use for groups and orders."""
        return int(self._memory.executionMemoryUsed())

    def rdd_of(self, holder: JavaObject) -> JavaObject:
        """An RDD of the rows that a holder has by then."""
        return self._key.flatMap(holder, self._row)

    def holder(self) -> JavaObject:
        """What holds no rows yet: a map, which Spark takes for a function as any of Scala's."""
        return self._map()

    def first_partition(self, rdd: JavaObject) -> JavaObject:
        """That of an RDD."""
        return self._arrays.get(rdd.partitions(), 0)

    @contextmanager
    def running(self) -> Iterator[JavaObject]:
        """A task in this thread; when it ends nothing is left of it."""
        task, memory = self._task()
        self._tasks.setTaskContext(task)
        try:
            yield task
        finally:
            try:
                task.markTaskCompleted(self._none)
            finally:
                memory.cleanUpAllAllocatedMemory()
                self._tasks.unset()

    def in_spark_s_form(self, schema: JavaObject, columns: StructType) -> JavaObject | None:
        """What makes rows of Spark's own form of those in Arrow; None where columns need none.

        Functions with lambdas take an element of an array, or a value of a map, that is NULL in Arrow for a
        number, and fail.
        """
        are_flat = not any(isinstance(field.dataType, _NESTED) for field in columns.fields)
        return None if are_flat else self._projections.create(schema)

    def put(
        self,
        holder: JavaObject,
        rows: pa.Table,
        schema: JavaObject,
        form: JavaObject | None,
        task: JavaObject,
    ) -> None:
        """Let a holder have rows, in the columns that the schema says, to be read once."""
        read = self._no_rows
        if rows.num_rows:
            (batch,) = rows.combine_chunks().to_batches()
            batches = self._iterators.single(batch.serialize().to_pybytes())
            read = self._to_arrow.fromBatchIterator(batches, schema, self._zone, False, False, task)
            read = read if form is None else read.map(form)
        holder.update(_KEY, read)

    def rows(
        self, rdd: JavaObject, partition: JavaObject, schema: JavaObject, read_as: pa.Schema, task: JavaObject
    ) -> pa.Table:
        """What a partition of an RDD gives."""
        found = rdd.iterator(partition, task)
        batches = self._to_arrow.toBatchIterator(found, schema, 0, self._zone, True, False, task)
        batch = pa.ipc.read_record_batch(pa.py_buffer(self._bytes_of(batches)), read_as)
        return pa.Table.from_batches([batch], read_as)

    def _bytes_of(self, batches: JavaObject) -> bytes:
        """The next of some arrays of bytes; py4j itself would look at each byte in Python."""
        client: Any = batches._gateway_client
        command = f"{protocol.CALL_COMMAND_NAME}{batches._target_id}\nnext\n{protocol.END_COMMAND_PART}"
        answer: str = client.send_command(command)
        if not answer.startswith(_BYTES):
            # what has failed: this raises it
            protocol.get_return_value(answer, client, batches._target_id, "next")
        return b64decode(answer.removeprefix(_BYTES))

    def _task(self) -> tuple[JavaObject, JavaObject]:
        """A task of one partition, and its memory.

        Spark's own empty one, which has no memory: its constructor takes what differs between versions.
        """
        task = self._tasks.empty()
        memory = self._task_memory(self._memory, next(_attempts))
        self._memory_of_task.set(task, memory)
        task.getLocalProperties().putAll(self._settings)
        return task, memory


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
        self._lock = Lock()
        self._holders = [task.holder() for _ in leaves]
        rdds = [*map(task.rdd_of, self._holders)]
        blanks = [
            catalyst.unknown_rows(leaf.output(), rdd, in_one_partition=True)
            for (leaf, _), rdd in zip(leaves, rdds, strict=True)
        ]
        numbers = {int(rdd.id()): number for number, rdd in enumerate(rdds)}
        whole = template.over(blanks)
        with active(task.session):
            plan = self._without_shuffles(catalyst.physical(whole, task.session))
            if plan.outputPartitioning().numPartitions() != 1:
                plan = catalyst.in_one_partition(plan)
            self._read = [numbers[id] for id in self._rdds_below(plan) if id in numbers]
            # what a holder has is read once
            is_read_once = len({*self._read}) == len(self._read)
            self._is_in_place = task.is_possible and is_read_once and self._needs_no_job(plan)
            if self._is_in_place:
                self._rdd = plan.execute()
                self._partition = task.first_partition(self._rdd)
                self._sorts = self._sorts_in(plan)
        self._schemas = [leaf.schema() for leaf, _ in leaves]
        self._stored = [arrow_schema(schema) for _, schema in leaves]
        self._forms = [
            task.in_spark_s_form(leaf, columns)
            for leaf, (_, columns) in zip(self._schemas, leaves, strict=True)
        ]
        self._columns = plan.schema()
        found = arrow_schema(StructType.fromJson(json.loads(self._columns.json())))
        # the optimizer gives a map by which rows are grouped another name
        names = catalyst.schema(whole).names
        self._read_as = pa.schema([each.with_name(name) for each, name in zip(found, names, strict=True)])

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
            with self._lock, self.task.running() as task:
                try:
                    for number in self._read:
                        each = rows[number].cast(self._stored[number])
                        holder, schema = self._holders[number], self._schemas[number]
                        self.task.put(holder, each, schema, self._forms[number], task)
                    return self.task.rows(self._rdd, self._partition, self._columns, self._read_as, task)
                finally:
                    self._forget()
        except Py4JJavaError as error:
            raise _converted(error.java_exception) from None

    @property
    def is_empty(self) -> bool:
        """Whether no rows of the last run are left in the JVM."""
        is_unsorted = all(sort.rowSorter() is None for sort in self._sorts)
        return is_unsorted and all(holder.isEmpty() for holder in self._holders)

    def _forget(self) -> None:
        """Let go of the rows of a run.

        A holder has the bytes that were read. An order has its last sorter, and that the last page, of 64 MB,
        which counts as free: the next one who takes a page gets it, but no garbage collection.
        """
        for number in self._read:
            self._holders[number].clear()
        for sort in self._sorts:
            getattr(sort, "rowSorter_$eq")(None)

    def _sorts_in(self, plan: JavaObject) -> list[JavaObject]:
        """The orders in a physical plan."""
        below = [one for child in self._catalyst.children(plan) for one in self._sorts_in(child)]
        return [plan, *below] if class_name(plan) == "SortExec" else below

    def _rdds_below(self, plan: JavaObject) -> list[int]:
        """The ids of the RDDs that a physical plan reads."""
        if class_name(plan) == "RDDScanExec":
            return [int(plan.rdd().id())]
        return [id for child in self._catalyst.children(plan) for id in self._rdds_below(child)]

    def _without_shuffles(self, plan: JavaObject) -> JavaObject:
        """The plan without what brings rows of one partition into one."""
        catalyst = self._catalyst
        children = [*map(self._without_shuffles, catalyst.children(plan))]
        is_shuffle = class_name(plan) == "ShuffleExchangeExec"
        if is_shuffle and plan.outputPartitioning().numPartitions() == 1:
            return catalyst.in_one_partition(*children)
        return catalyst.with_children(plan, children) if children else plan

    def _needs_no_job(self, plan: JavaObject) -> bool:
        catalyst = self._catalyst
        if class_name(plan) not in _IN_PLACE or plan.subqueries().nonEmpty():
            return False
        return all(map(self._needs_no_job, catalyst.children(plan)))


def _converted(error: JavaObject) -> Exception:
    """A failure as PySpark raises it: the first of its causes that has a class there, or the last one."""
    converted: Exception = convert_exception(error)
    cause = error.getCause()
    return converted if not isinstance(converted, UnknownException) or cause is None else _converted(cause)


_ENTRIES: Final = 2_000
"""So many texts are remembered at least; one with its classes takes some 40 kB."""

_GENERATOR: Final = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator$"
_CACHES: Final = "org.sparkproject.guava.cache.LocalCache"


def make_room(spark: SparkSession) -> bool:
    """Let the session's JVM remember so many compiled texts; False if Spark does not have them as expected.

    It has as many as it had then, and a refresh takes longer: Spark writes Java for the expressions of an
    operator each time a task begins, and looks up whether it has compiled that text before. It remembers 100
    texts, in four parts of 25 each; a refresh of a view takes some ten to fifty. With a handful of views each
    refresh compiled all of its own again, and the JVM began again to find out which parts of it are worth
    being optimized: more than half of the CPU time of a refresh of few rows. The option
    ``spark.sql.codegen.cache.maxEntries`` says how many are remembered, and is read before any session can
    set it. So the room is made where Spark has it.
    """
    jvm = java_of(spark)
    class_of, arrays = jvm.java.lang.Class.forName, jvm.java.lang.reflect.Array

    def field(owner: str, name: str) -> JavaObject:
        found = class_of(owner).getDeclaredField(name)
        found.setAccessible(True)
        return found

    try:
        cache = field(_GENERATOR, "cache").get(None).cache()
        of_all = field(f"{_CACHES}$LocalManualCache", "localCache").get(cache)
        parts = field(_CACHES, "segments").get(of_all)
        most = field(f"{_CACHES}$Segment", "maxSegmentWeight")
        count = arrays.getLength(parts)
        for number in range(count):
            part = arrays.get(parts, number)
            most.setLong(part, max(most.getLong(part), -(-_ENTRIES // count)))
    except Py4JError:
        return False
    return True
