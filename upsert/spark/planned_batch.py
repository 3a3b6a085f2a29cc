"""Streams that read one source and work row by row: what they read, and each micro-batch as Spark plans it.

Such a stream can be computed without tasks: `RowByRow` says what it reads, and `PlannedBatch` what one of
its micro-batches is. Spark has optimized that plan for this very micro-batch, so a replay has the same clock;
here only its leaf is replaced by rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from upsert.spark.batches import arrow_of, local_rows
from upsert.spark.java import class_name, frame_of, items_of, java_of, seq_of, texts_of, under_ids
from upsert.store.rows.computed import InArrow

_OBSERVES: Final = "CollectMetrics"
"""The node of ``observe``, which adds figures up while rows pass."""

_ROW_BY_ROW: Final = ("Project", "Filter", "SubqueryAlias", "View", _OBSERVES)
"""Nodes of plans of which each row becomes one row or none, whatever the others are."""

_PLANNED_ROW_BY_ROW: Final = (*_ROW_BY_ROW, "ArrowEvalPython", "BatchEvalPython")
"""The same of optimized plans, where functions in Python have nodes of their own."""


_OF_LAST_ATTEMPTS: Final = "LastAttemptAggregatingAccumulator"
"""An accumulator that tells what tasks have last added, unless the driver has said what it is to tell."""


@dataclass(frozen=True)
class RowByRow:
    """What a stream reads that has one source, and nothing above it but projections and filters.

    Attributes:
        format: of the source.
        options: of the source, by names in lower case.
        schema: the columns that the source gives.
        chosen: positions of those that the stream has, if it only chooses and renames them; else None.
        is_observed: whether Spark adds figures of its rows up, for the query's progress.
    """

    format: str
    options: Mapping[str, str]
    schema: StructType
    chosen: tuple[int, ...] | None
    is_observed: bool

    @classmethod
    def of(cls, df: DataFrame) -> Self | None:
        """That of a streaming DataFrame; None for any other stream."""
        plan: Any = df._jdf.queryExecution().analyzed()
        if not plan.subqueriesAll().isEmpty():
            return None
        nodes = []
        while (name := class_name(plan)) in _ROW_BY_ROW:
            nodes.append(plan)
            plan = plan.child()
        if name != "StreamingRelationV2":
            return None
        given = texts_of(df.sparkSession, plan.extraOptions())
        options = {key.lower(): value for key, value in given.items()}
        source = StructType.fromJson(json.loads(plan.schema().json()))
        is_observed = any(class_name(node) == _OBSERVES for node in nodes)
        chosen = None if is_observed else _chosen(plan, nodes)
        return cls(str(plan.sourceName()), options, source, chosen, is_observed)


def _chosen(leaf: Any, nodes: Sequence[Any]) -> tuple[int, ...] | None:
    """Positions of the columns of a leaf that the nodes above it, outermost first, only choose and rename."""
    columns = [int(one.exprId().id()) for one in items_of(leaf.output())]
    where = {number: position for position, number in enumerate(columns)}
    for node in reversed(nodes):
        if class_name(node) == "Filter":
            return None
        if class_name(node) != "Project":
            continue
        columns = []
        for expr in items_of(node.projectList()):
            number = int(expr.exprId().id())
            value = expr.child() if class_name(expr) == "Alias" else expr
            if class_name(value) != "AttributeReference":
                return None
            where[number] = where[int(value.exprId().id())]
            columns.append(number)
    return tuple(where[number] for number in columns)


ReadForArrow = Callable[[DataFrame, Any, StructType], InArrow | None]
"""Reads what a plan that Spark has optimized for a DataFrame makes of the rows of its leaf, of this schema.

None if Spark has to compute it. The planner has such a function.
"""


class QueryInArrow:
    """What Arrow computes for a query.

    It is read again where Spark has planned a micro-batch with other expressions: literals of its time.
    """

    def __init__(self, read: ReadForArrow, source: StructType) -> None:
        """Of a query over one source with these columns."""
        self._read = read
        self._source = source
        self._outline: Any = None
        self._known: InArrow | None = None

    def computes(self, planned: PlannedBatch, rows: DataFrame) -> InArrow | None:
        """What computes a micro-batch, which Spark gives as this DataFrame; None if Spark has to."""
        outline = planned.outline(rows.sparkSession)
        if self._outline is None or not outline.sameResult(self._outline):
            self._known = self._read(rows, planned.plan, self._source)
            self._outline = outline
        found = self._known
        if found is None or (found.observations and not planned.can_be_told(rows.sparkSession)):
            return None
        return found


class PlannedBatch:
    """A micro-batch of a `RowByRow` query, as Spark has planned it; for as long as it is under way.

    Attributes:
        start: offset of its source from which it reads.
        end: offset to which it reads.
    """

    def __init__(self, execution: Any, nodes: Sequence[Any], leaf: Any) -> None:
        """Of Spark's execution of it, and the nodes of the optimized plan from the top to its leaf."""
        self._execution = execution
        self._nodes, self._leaf = nodes, leaf
        self.start: dict[str, Any] = json.loads(leaf.startOffset().get().json())
        self.end: dict[str, Any] = json.loads(leaf.endOffset().get().json())

    @classmethod
    def of(cls, spark: SparkSession, query: str, batch: int) -> Self | None:
        """The micro-batch of this number; None if Spark has planned it in another form than the query's."""
        running: Any = spark.streams.get(query)
        execution = None if running is None else running._jsq.streamingQuery().lastExecution()
        if execution is None or execution.currentBatchId() != batch:
            return None
        leaf, nodes = execution.optimizedPlan(), []
        while (name := class_name(leaf)) in _PLANNED_ROW_BY_ROW:
            nodes.append(leaf)
            leaf = leaf.child()
        return cls(execution, nodes, leaf) if name == "StreamingDataSourceV2ScanRelation" else None

    @property
    def plan(self) -> Any:
        """The plan, as Spark has optimized it."""
        return self._execution.optimizedPlan()

    def outline(self, spark: SparkSession) -> Any:
        """The plan over a leaf without rows, for comparisons: the offsets of each micro-batch are others."""
        return self._over_rows(spark, seq_of(spark, []))

    def _over_rows(self, spark: SparkSession, rows: Any) -> Any:
        """The plan over rows of its source, as Spark has them inside."""
        jvm = java_of(spark)
        local = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
        return self._over_leaf(spark, local(self._leaf.output(), rows, False, jvm.scala.Option.empty()))

    def _over_leaf(self, spark: SparkSession, leaf: Any) -> Any:
        plan = leaf
        for node in reversed(self._nodes):
            plan = node.withNewChildren(seq_of(spark, [plan]))
        return plan

    def computed(
        self, rows: pa.Table, schema: StructType, spark: SparkSession, *, is_observed: bool
    ) -> pa.Table:
        """What the query makes of rows of its source, at least one, which have this schema.

        If it is observed, the figures of these rows are told in its progress.
        """
        plan = self._over_rows(spark, local_rows(spark, rows, schema))
        made = frame_of(spark, plan)
        found = arrow_of(made)
        if not is_observed:
            return found
        plans = [each.executedPlan() for each in (self._execution, made._jdf.queryExecution())]
        for own, other in zip(*(_figures(spark, plan) for plan in plans), strict=True):
            own.reset()
            own.setState(other)  # to merge it, it would have to come from a task
            if class_name(own) == _OF_LAST_ATTEMPTS:
                own.setValueIfOnDriverSide(own.value())
        return found

    def can_be_told(self, spark: SparkSession) -> bool:
        """Whether the driver can say what was observed, where Spark has not computed it."""
        names = (class_name(one) for one in _figures(spark, self._execution.executedPlan()))
        return all(name == _OF_LAST_ATTEMPTS for name in names)

    def tell(self, spark: SparkSession, observed: Sequence[pa.Table]) -> None:
        """Say in the query's progress what was observed: a row for each observation, the outermost first."""
        if observed:
            figures = _figures(spark, self._execution.executedPlan())
            for own, row in zip(figures, observed, strict=True):
                # a time without a zone is none of the session's zone
                schema = from_arrow_schema(row.schema, prefer_timestamp_ntz=True)
                own.setValueIfOnDriverSide(local_rows(spark, row, schema).head())

    def over(self, frame: DataFrame) -> DataFrame:
        """What the query makes of a batch that has the columns of its source."""
        spark, given = frame.sparkSession, cast("Any", frame)._jdf.queryExecution().analyzed()
        return frame_of(spark, self._over_leaf(spark, under_ids(spark, given, self._leaf.output())))

    def note_rows(self, rows: int) -> None:
        """Tell how many rows its source gave, for the query's progress."""
        for leaf in _leaves(self._execution.executedPlan()):
            metric = leaf.metrics().get("numOutputRows")
            if metric.isDefined():
                metric.get().set(rows)


def _figures(spark: SparkSession, plan: Any) -> list[Any]:
    """The accumulators in which a physical plan adds up what is observed, outermost first."""
    below = items_of(plan.children()) or _inside(plan)
    found = [each for child in below for each in _figures(spark, child)]
    if class_name(plan) != f"{_OBSERVES}Exec":
        return found
    return [java_of(spark).org.apache.spark.util.AccumulatorContext.get(plan.accumulatorId()).get(), *found]


def _leaves(plan: Any) -> list[Any]:
    """Where the rows of a physical plan come from."""
    found = []
    for leaf in items_of(plan.collectLeaves()):
        within = _inside(leaf)
        found += [each for one in within for each in _leaves(one)] if within else [leaf]
    return found


def _inside(leaf: Any) -> list[Any]:
    """The plan that a leaf stands for, where Spark may change it while it runs."""
    name = class_name(leaf)
    if name == "AdaptiveSparkPlanExec":
        return [leaf.executedPlan()]
    return [leaf.plan()] if name.endswith("QueryStageExec") else []
