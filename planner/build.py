"""A plan of plan.py as a DataFrame: what was read is used again, what the rules made is constructed.

The columns of a delta join get the expression ids of the raw columns that they stand for, so every
expression of the user's query above them stays as Spark resolved it. See docs/decisions/0005. The same
is done for a topic that is read with other options than the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

import deltajoin
from deltajoin import DeltaJoinSpec, Side
from deltajoin.netting import net_changes
from planner.errors import PlanBuildError
from planner.expressions import Call, Column, Expr
from planner.jvm import Catalyst, JavaObject
from planner.plan import Changelog, DeltaJoin, Filter, JoinSide, Net, Output, Plan, Project, Relation
from planner.settings import Settings
from planner.sources import KafkaTopic
from planner.trees import children


def build_plan(catalyst: Catalyst, plan: Plan, settings: Settings) -> DataFrame:
    """The DataFrame of a plan in the session that `catalyst` belongs to. Runs nothing.

    Raises:
        PlanBuildError: the parts do not fit together.
    """
    return catalyst.dataframe(_Builder(catalyst, settings).node(plan))


def spec_of(join: DeltaJoin, shards: int) -> DeltaJoinSpec:
    """What the source of a delta join is told."""
    limit = min(join.left.table.max_rows, join.right.table.max_rows)
    return DeltaJoinSpec.of(
        "inner", _side(join.left), _side(join.right), shards=shards, max_rows_per_trigger=limit
    )


def _side(side: JoinSide) -> Side:
    names = tuple(column.name for column in side.columns)
    return Side(side.table.path, names, side.keys, (side.where,) if side.where else None)


class _Builder:
    def __init__(self, catalyst: Catalyst, settings: Settings) -> None:
        self.catalyst = catalyst
        self.settings = settings

    def node(self, plan: Plan) -> JavaObject:
        if isinstance(plan, DeltaJoin):
            return self.delta_join(plan)
        if isinstance(plan, Net):
            return self.net(plan)
        inputs = [self.node(child) for child in children(plan)]
        if plan.ref is not None:
            node = self.catalyst.kept(plan.ref)
            return self.catalyst.with_children(node, inputs) if inputs else node
        match plan:
            case Changelog(origin=KafkaTopic() as topic) | Relation(topic=KafkaTopic() as topic):
                return self.topic(topic, plan.columns)
        return self.over(plan, inputs[0])

    def over(self, plan: Plan, child: JavaObject) -> JavaObject:
        """A node that a rule made, over its input."""
        attributes = self.catalyst.attributes(child)
        match plan:
            case Project():
                named = [self.named(output, attributes) for output in plan.outputs]
                return self.catalyst.project(named, child)
            case Filter():
                return self.catalyst.filter(self.expr(plan.condition, attributes), child)
        raise PlanBuildError(f"no Spark node can be made of {plan}; this is a bug, please report it")

    def named(self, output: Output, attributes: dict[int, JavaObject]) -> JavaObject:
        if output.ref is not None:
            return self.catalyst.kept(output.ref)
        value = self.expr(output.value, attributes)
        if output.is_passed_on:
            return value
        return self.catalyst.alias(value, output.column.name, output.column.id)

    def expr(self, expr: Expr, attributes: dict[int, JavaObject]) -> JavaObject:
        if expr.ref is not None:
            return self.catalyst.kept(expr.ref)
        match expr:
            case Column(number) if number in attributes:
                return attributes[number]
            case Call("And", (left, right)):
                return self.catalyst.conjunction(self.expr(left, attributes), self.expr(right, attributes))
        raise PlanBuildError(f"{expr} does not come from below; this is a bug, please report it")

    def delta_join(self, join: DeltaJoin) -> JavaObject:
        session = self.catalyst.session
        spec = spec_of(join, self.shards)
        source = self.catalyst.analyzed(deltajoin.read_join(session, spec, self.settings.physical))
        names = (*spec.columns, join.row_kind.name)
        return self.renamed(source, dict(zip(names, join.columns, strict=True)), f"the delta join {spec}")

    def net(self, net: Net) -> JavaObject:
        """The net changes of a join over signed rows, under the ids of the join's columns."""
        kinds = [number for number, column in enumerate(net.child.columns) if column.is_row_kind]
        joined = self.catalyst.dataframe(self.node(net.child))
        source = self.catalyst.analyzed(net_changes(joined, kinds, self.shards))
        names = [self.catalyst.attribute(found)[1] for found in self.catalyst.output(source)]
        return self.renamed(source, dict(zip(names, net.columns, strict=True)), str(net))

    @property
    def shards(self) -> int:
        """Tasks that share what the planner adds to a micro-batch."""
        return self.settings.shards or self.catalyst.session.sparkContext.defaultParallelism

    def topic(self, topic: KafkaTopic, columns: Sequence[Column]) -> JavaObject:
        """The topic read anew with its options, under the ids of the columns that it had before."""
        attributes = [self.catalyst.kept(column.ref) for column in columns if column.ref is not None]
        schema = self.catalyst.struct(attributes)
        reader = self.catalyst.session.readStream.format(topic.source).options(**topic.options)
        reader = reader if topic.label is None else reader.name(topic.label)
        source = self.catalyst.analyzed(reader.schema(schema).load())
        return self.renamed(source, {column.name: column for column in columns}, str(topic))

    def renamed(self, source: JavaObject, columns: Mapping[str, Column], what: str) -> JavaObject:
        """A Project that gives each column of the source the name and id of a column of the user's plan."""
        by_name = {self.catalyst.attribute(found)[1]: found for found in self.catalyst.output(source)}
        renamed = []
        for name, column in columns.items():
            found = by_name.get(name)
            if found is None or self.catalyst.type_name(found) != column.type:
                raise PlanBuildError(
                    f"{what} must give column {name!r} of type {column.type!r}, "
                    f"it gives {source}; this is a bug, please report it"
                )
            renamed.append(self.catalyst.alias(found, column.name, column.id))
        return self.catalyst.project(renamed, source)
