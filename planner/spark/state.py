"""State of one shape: what Spark's stateful operators keep must have the same fields in every micro-batch.

Spark optimizes each micro-batch alone, and a source without new rows is an empty relation: a union loses a
side, columns become NOT NULL, constants or are left out, and the rows that earlier batches have put into the
state are read with other fields. So the plan is optimized here as each micro-batch may be, with any of its
sources silent. Where the state would differ, each stateful operator gets an input that the optimizer does not
see through. See docs/decisions/0027.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from planner.refusals import PlanError, Refused
from planner.spark.catalyst import Catalyst, JavaObject, defaults_of
from upsert.spark.java import class_name, is_a

STATE_MARK: Final = (
    "state of one shape: an older release's checkpoint may hold wrong values; start with a new checkpoint"
)
"""Name of the field that marks such state. Spark prints it where it refuses to go on without the field."""

_GROUPED: Final = {
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
}
"""Operators whose state is declared by the user, the key aside; their input comes with its key's columns."""

_UNARY: Final = {"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", *_GROUPED}
_NO_ROWS: Final = "LogicalRDD"
_ASKED_OFTEN: Final = 4
"""Sources up to which each combination of silent ones is looked at."""

_STATEFUL: Final = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"


Shapes = tuple[tuple[str, tuple[tuple[str, bool | None], ...]], ...]
"""All stateful operators of a micro-batch, each with its state's fields: the type, and if it may be NULL.

None: what the plan of a silent input says may be NULL, since that puts nothing into the state.
"""


def with_state_of_one_shape(df: DataFrame) -> DataFrame:
    """The streaming DataFrame with state of one shape, whichever of its sources have rows in a micro-batch.

    A plan whose state cannot differ comes back as the same object, so its older checkpoints hold. Where the
    number or the types of the fields could have differed, the state gets a field of its own, `STATE_MARK`,
    without which Spark refuses the checkpoint.

    Raises:
        PlanError: the state differs all the same, or Spark finds no way to run a micro-batch.
    """
    plans = StatePlans(df)
    plan = plans.analyzed(df)
    if not plans.is_stateful(plan):
        return df
    patterns = plans.silences(plan)
    shapes = plans.shapes(plan, patterns)
    if patterns.is_whole and agree(shapes):
        return df
    is_marked = not patterns.is_whole or len({layout(found) for found in shapes}) > 1
    fenced = plans.fenced(plan, is_marked=is_marked)
    if not agree(plans.shapes(fenced, plans.silences(fenced))):
        reason = (
            "what Spark keeps as state for the query would have other fields where a source has no new rows"
        )
        remedy = (
            "write the rows below the topmost aggregate, DISTINCT or join into a managed table, and read the "
            "changes of that"
        )
        raise PlanError([Refused(reason, remedy)])
    return plans.dataframe(fenced)


def agree(found: set[Shapes]) -> bool:
    """Whether all micro-batches read the same fields: types, and what may be NULL where rows come in."""
    if len({layout(shapes) for shapes in found}) > 1:
        return False
    nullable = ([null for _, fields in shapes for _, null in fields] for shapes in found)
    return all(len(set(some) - {None}) <= 1 for some in zip(*nullable, strict=True))


def layout(shapes: Shapes) -> tuple[tuple[str, ...], ...]:
    """Operators and types alone: what the bytes of a state row depend on."""
    return tuple((operator, *(type_ for type_, _ in fields)) for operator, fields in shapes)


@dataclass(frozen=True)
class _Silences:
    """Sources that may be silent together, and whether that is all that there may be."""

    patterns: tuple[tuple[JavaObject, ...], ...]
    is_whole: bool


class StatePlans(Catalyst):
    """Plans of micro-batches, and plans that the optimizer cannot change below a stateful operator."""

    def is_stateful(self, plan: JavaObject) -> bool:
        """Whether Spark keeps state for a node of the plan."""
        return any(self.keeps_state(node) for node in self.nodes(plan))

    def keeps_state(self, node: JavaObject) -> bool:
        """Whether Spark keeps state for this very node."""
        name = class_name(node)
        if name == "Join":
            return all(self.is_streaming(child) for child in self.children(node))
        return name in _UNARY and self.is_streaming(node)

    def nodes(self, plan: JavaObject) -> Iterator[JavaObject]:
        """The node and all below it."""
        yield plan
        for child in self.children(plan):
            yield from self.nodes(child)

    def silences(self, plan: JavaObject) -> _Silences:
        """Which sources of a plan may be silent together: not all, unless time alone makes a micro-batch."""
        nodes, sources = list(self.nodes(plan)), list[JavaObject]()
        for node in nodes:
            is_source = not self.children(node) and self.is_streaming(node)
            if is_source and class_name(node) != _NO_ROWS and not any(map(node.equals, sources)):
                sources.append(node)
        count = len(sources)
        is_whole = count <= _ASKED_OFTEN
        sizes = range(count) if is_whole else (0, 1, count - 1)
        patterns = [silent for size in sizes for silent in combinations(sources, size)]
        if {class_name(node) for node in nodes} & {"EventTimeWatermark", *_GROUPED}:
            patterns.append(tuple(sources))
        return _Silences(tuple(patterns), is_whole)

    def shapes(self, plan: JavaObject, silences: _Silences) -> set[Shapes]:
        """The state in micro-batches with these sources silent."""
        return {self.shape(self.silenced(plan, silent)) for silent in silences.patterns}

    def silenced(self, plan: JavaObject, silent: Sequence[JavaObject]) -> JavaObject:
        """The plan as Spark has it in a micro-batch in which these sources have no rows."""
        if any(plan.equals(source) for source in silent):
            return self._logical.LocalRelation(plan.output(), self._seq([]), True, self._none)
        return self.with_changed_children(plan, lambda child: self.silenced(child, silent))

    def shape(self, plan: JavaObject) -> Shapes:
        """The fields of all state that a micro-batch with this plan keeps, by Spark's own planner.

        The optimizer may have left nothing of a join's equality, as where another condition contradicts it.
        """
        try:
            physical = self._micro_batch(plan).sparkPlan()
        except AnalysisException as cause:
            reason = f"Spark does not run the query as a stream: {str(cause).splitlines()[0].rstrip('.;')}"
            remedy = "join streams on equal columns, and leave out what contradicts that they are equal"
            raise PlanError([Refused(reason, remedy)], is_for_a_view=True) from cause
        return tuple(
            (class_name(node), tuple(self._fields(node)))
            for node in self.nodes(physical)
            if is_a(self.session, node, _STATEFUL)
        )

    def _fields(self, node: JavaObject) -> Iterator[tuple[str, bool | None]]:
        inputs = self.children(node)
        silent = [
            all(
                class_name(one) == "LocalTableScanExec" for one in self.nodes(child) if not self.children(one)
            )
            for child in inputs
        ]
        for one in self.evaluated(node):
            yield self.type_name(one), None if any(silent) else bool(one.nullable())
        for child, is_silent in zip(inputs, silent, strict=True):
            for one in self.output(child):
                yield self.type_name(one), None if is_silent else bool(one.nullable())

    def _micro_batch(self, plan: JavaObject) -> JavaObject:
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        execution = streaming.runtime.IncrementalExecution
        number = self._jvm.java.util.UUID.randomUUID()
        metadata = streaming.checkpointing.OffsetSeqMetadata
        started = metadata(0, 0, *defaults_of(metadata, 3, 3))
        return execution(
            self.session._jsparkSession,
            plan,
            self._jvm.org.apache.spark.sql.streaming.OutputMode.Update(),
            "",
            number,
            number,
            0,
            self._none,
            started,
            streaming.runtime.WatermarkPropagator.noop(),
            False,
            *defaults_of(execution, 12, self._takes.incremental_execution),
        )

    def fenced(self, plan: JavaObject, *, is_marked: bool) -> JavaObject:
        """The plan with a fence below each stateful operator, and a mark in its state if wanted."""
        inputs = [self.fenced(child, is_marked=is_marked) for child in self.children(plan)]
        if not self.keeps_state(plan):
            return self.with_children(plan, inputs) if inputs else plan
        name = class_name(plan)
        if not is_marked or name in _GROUPED:
            return self.with_children(plan, [self.fence(child) for child in inputs])
        marks = [self.mark() for _ in inputs]
        fences = [self.fence(child, mark) for child, mark in zip(inputs, marks, strict=True)]
        return self.project(self.output(plan), self.marked(name, plan, fences, marks))

    def marked(
        self, name: str, node: JavaObject, inputs: Sequence[JavaObject], marks: Sequence[JavaObject]
    ) -> JavaObject:
        """A stateful operator with the mark in the key of its state, or in its value where it has no key."""
        match name:
            case "Join":
                made = self._made.EqualTo(*marks)
                given = self.condition(node)
                condition = made if given is None else self.conjunction(given, made)
                some = self._jvm.scala.Option.apply(condition)
                return node.copy(*inputs, node.joinType(), some, node.hint())
            case "Aggregate" if groups := self.grouping(node):
                keys = self._seq([*groups, *marks])
                return node.copy(keys, node.aggregateExpressions(), *inputs, node.hint())
            case "Aggregate":
                return self._marked_total(node, *inputs, *marks)
            case "Distinct":
                return self.with_children(node, inputs)
        keys = self._seq([*self.keys(node), *marks])
        return node.copy(keys, *inputs, *(getattr(node, field)() for field in self._takes.deduplicate))

    def _marked_total(self, node: JavaObject, child: JavaObject, mark: JavaObject) -> JavaObject:
        """An aggregate of all rows that keeps the greatest mark, which a filter above asks for."""
        made = self._made
        packed = made.CreateNamedStruct(self._seq([self._text(STATE_MARK), mark]))
        greatest = made.aggregate.Max(packed).toAggregateExpression()
        kept = self._renamed(greatest, STATE_MARK, self._new_id())
        results = self._seq([*self.aggregated(node), kept])
        aggregate = node.copy(node.groupingExpressions(), results, child, node.hint())
        found = made.GetStructField(kept.toAttribute(), 0, self._none)
        return self.filter(made.Not(made.EqualNullSafe(found, self._number(1))), aggregate)

    def mark(self) -> JavaObject:
        """A column that marks state."""
        types = self._jvm.org.apache.spark.sql.types
        return self._made.AttributeReference(
            STATE_MARK,
            types.DataTypes.IntegerType,
            False,
            types.Metadata.empty(),
            self._new_id(),
            self._seq([]),
        )

    def fence(self, child: JavaObject, mark: JavaObject | None = None) -> JavaObject:
        """The rows of a node; the optimizer knows nothing of them but the columns.

        They are united with a stream without rows that is none of the query's sources: so no union below is
        ever left out or seen through, and what may be NULL by the analysed plan may always be.
        """
        columns = self.output(child)
        own = list({int(column.exprId().id()): column for column in columns}.values())
        marks = [] if mark is None else [mark]
        if mark is not None:
            given = self.project([*own, self._renamed(self._number(0), STATE_MARK, mark.exprId())], child)
        else:
            given = child if len(own) == len(columns) else self.project(own, child)
        united = self._logical.Union(self._seq([given, self.no_rows([*own, *marks])]), False, False)
        return united if len(own) == len(columns) else self.project([*columns, *marks], united)

    def no_rows(self, columns: Sequence[JavaObject]) -> JavaObject:
        """A stream with these columns and never a row; the optimizer does not know that.

        They are renamed, so that a filter that the optimizer puts below does not say that none is NULL.
        """
        read = [column.newInstance().withName(_NO_ROWS) for column in columns]
        rows = self.unknown_rows(self._seq(read), is_streaming=True)
        return self.project([self._renamed(column, STATE_MARK, self._new_id()) for column in read], rows)

    def _number(self, value: int) -> JavaObject:
        integer = self._jvm.org.apache.spark.sql.types.DataTypes.IntegerType
        return self._made.Literal.create(value, integer)
