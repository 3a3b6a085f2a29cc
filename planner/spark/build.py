"""The planner's nodes as a DataFrame: what was read is used again, what the rules made is constructed.

The columns of a delta join get the expression ids of the raw columns that they stand for, so every expression
of the user's query above them stays as Spark resolved it. See docs/decisions/0005. The same is done for a
topic that is read with other options than the user's, and for aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, assert_never

from pyspark.sql import DataFrame

import deltajoin
from deltajoin.aggregate.source import read_aggregate
from deltajoin.aggregate.spec import DeltaAggregateSpec
from deltajoin.enrichment import Enrichment, InSource, enriched
from deltajoin.latest.operator import join_streams
from deltajoin.spark.consolidate import consolidate_join
from deltajoin.temporal import temporal_join
from planner.join_spec import spec_of
from planner.plan.expressions import Aggregation, Call, Column, Expr, walk_expression
from planner.plan.keys import KIND_IF, UNLESS_GONE, is_marked, upsert_key
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Enriched,
    EnrichedUpserts,
    Filter,
    LookupAggregate,
    LookupChanges,
    LookupJoined,
    LookupRows,
    Normalized,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    SignedAggregate,
    SlidingWindows,
    Upserts,
    VersionRows,
)
from planner.plan.sources import KafkaTopic, ManagedTable, consumer_of
from planner.plan.trees import children
from planner.refusals import PlanBuildError
from planner.settings import Settings
from planner.signed_sums import Sums, kind_of, result_of
from planner.spark.catalyst import Catalyst, JavaObject
from upsert import types
from upsert.lookups.options import LookupTable
from upsert.managed.frames import read_changes
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.spark.java import column_of
from upsert.store.predicate import where_to_json
from upsert.stream_keys import UPSERTS_MARK


def build_plan(catalyst: Catalyst, plan: Plan, settings: Settings) -> DataFrame:
    """The DataFrame of a plan in the session that `catalyst` belongs to. Runs nothing."""
    return catalyst.dataframe(_Builder(catalyst, settings).node(plan))


_BUG: Final = "this is a bug, please report it"
_WHOLE_INTERVAL: Final = f"interval {types.WHOLE_INTERVAL}"


class _Builder:
    def __init__(self, catalyst: Catalyst, settings: Settings) -> None:
        self.catalyst = catalyst
        self.settings = settings
        # tasks that share what the planner adds to a micro-batch
        self.shards = settings.shards or catalyst.session.sparkContext.defaultParallelism

    def node(self, plan: Plan) -> JavaObject:
        """A node that a rule made is constructed; one that was read is used again, over its inputs."""
        match plan:
            case DeltaJoin():
                return self.delta_join(plan)
            case RegularJoin():
                return self.regular_join(plan)
            case LookupAggregate():
                return _lookup_aggregate(self.catalyst, plan, self.shards)
            case SignedAggregate(child):
                sums = SumsOf(plan)
                rows = self.catalyst.dataframe(self.catalyst.unmarked(self.node(child)))
                return sums.results(self.catalyst, sums.by_group(rows))
            case Enriched(child):
                return self.enriched(plan, self.node(child))
            case EnrichedUpserts(child):
                return self.enriched_upserts(plan, self.node(child))
            case SlidingWindows(child, ref=int(ref)):
                return self.catalyst.sliding_windows(self.catalyst.kept(ref), self.node(child))
        if plan.ref is not None:
            node, inputs = self.catalyst.kept(plan.ref), [self.node(child) for child in children(plan)]
            return self.catalyst.with_children(node, inputs) if inputs else node
        match plan:
            case Changelog():
                return self.changelog(plan)
            case Relation(topic=KafkaTopic() as topic):
                return self.topic(topic, plan.columns)
            case Project(child):
                below = self.node(child)
                return self.catalyst.project(self.outputs(plan, below), below)
            case Aggregate(child, groups):
                below = self.node(child)
                attributes = self.catalyst.attributes(below)
                by = [self.expr(group.value, attributes) for group in groups]
                return self.catalyst.aggregate(by, self.outputs(plan, below), below)
            case Filter(child, condition):
                below = self.node(child)
                return self.catalyst.filter(self.expr(condition, self.catalyst.attributes(below)), below)
        raise PlanBuildError(f"no Spark node can be made of {plan}; {_BUG}")

    def changelog(self, leaf: Changelog) -> JavaObject:
        """Changes that are read in another way than the query's own."""
        match leaf.origin:
            case ManagedTable() as table:
                return self.changes(table, leaf.columns)
            case KafkaTopic() as topic:
                return self.topic(topic, leaf.columns)
            case Normalized() as normalized:
                return self.normalized(normalized)
            case (LookupJoined() as joined) | LookupChanges(joined):
                return self.lookup_join(joined, leaf.columns)
            case Upserts() | None:
                raise PlanBuildError(f"{leaf} must come from the user's query; {_BUG}")
            case never:
                assert_never(never)

    def outputs(self, plan: Project | Aggregate, child: JavaObject) -> list[JavaObject]:
        attributes = self.catalyst.attributes(child)
        return [self.named(output, attributes, plan) for output in plan.outputs]

    def named(self, output: Output, attributes: dict[int, JavaObject], plan: Plan) -> JavaObject:
        if output.ref is not None:
            return self.catalyst.kept(output.ref)
        value = self.expr(output.value, attributes)
        if is_marked(output):
            return _marked_kind(self.catalyst, plan, output.column.id, value)
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
            case Call("Or", (left, right)):
                return self.catalyst.disjunction(self.expr(left, attributes), self.expr(right, attributes))
            case Call("CaseWhen", (condition, value)):
                return self.catalyst.where(self.expr(condition, attributes), self.expr(value, attributes))
            case Call(name, args) if name in (UNLESS_GONE, KIND_IF):
                kind, *others = (self.expr(arg, attributes) for arg in args)
                make = _unless_gone if name == UNLESS_GONE else _kind_if
                return make(self.catalyst, kind, others[0]) if others else kind
        raise PlanBuildError(f"{expr} does not come from below; {_BUG}")

    def delta_join(self, join: DeltaJoin) -> JavaObject:
        session = self.catalyst.session
        spec = spec_of(join, self.shards)
        consumer, lease_ms = consumer_of(one.table for one in join.tables)
        before = self.settings.start_from
        start = None if before is None else deltajoin.reached(session, before, spec, changed=True)
        changes = deltajoin.read_join(
            session,
            spec,
            self.settings.physical,
            first_load=self.settings.first_load,
            start=start,
            consumer_id=consumer,
            lease_s=lease_ms / 1000,
            task_memory=min(one.table.task_memory for one in join.tables),
        )
        source = self.catalyst.analyzed(changes)
        names = (*spec.columns, join.row_kind.name)
        return self.renamed(source, dict(zip(names, join.columns, strict=True)), f"the delta join {spec}")

    def lookup_join(self, joined: LookupJoined, columns: Sequence[Column]) -> JavaObject:
        """The stateful join of two streams with lookups."""
        left, right = (self.catalyst.dataframe(self.node(leaf)) for leaf in (joined.left, joined.right))
        source = self.catalyst.analyzed(join_streams(left, right, joined.join, self.shards))
        return self.renamed(source, {column.name: column for column in columns}, str(joined.join.kind))

    def regular_join(self, join: RegularJoin) -> JavaObject:
        """Spark's own join of both inputs, consolidated, under the ids of their columns."""
        left, right = self.node(join.left), self.node(join.right)
        attributes = self.catalyst.attributes(left) | self.catalyst.attributes(right)
        condition = self.expr(join.condition, attributes)
        joined = self.catalyst.dataframe(self.catalyst.inner_join(left, right, condition))
        given = (*join.left.columns, *join.right.columns)
        kinds = [number for number, column in enumerate(given) if column.is_row_kind]
        source = self.catalyst.analyzed(consolidate_join(joined, kinds, self.shards))
        columns = dict(zip(_by_name(self.catalyst, source), join.columns, strict=True))
        return self.renamed(source, columns, str(join))

    def normalized(self, normalized: Normalized) -> JavaObject:
        """The operator with all its steps over another input, which has the same columns."""
        node = self.node(normalized.input)
        for ref in reversed(normalized.refs):
            node = self.catalyst.with_children(self.catalyst.kept(ref), [node])
        return node

    def topic(self, topic: KafkaTopic, columns: Sequence[Column]) -> JavaObject:
        """The topic read with its own options, under the ids of the columns that it had before."""
        attributes = [self.catalyst.kept(column.ref) for column in columns if column.ref is not None]
        schema = self.catalyst.struct(attributes)
        reader = self.catalyst.session.readStream.format(topic.source).options(**topic.options)
        reader = reader if topic.label is None else reader.name(topic.label)
        source = self.catalyst.analyzed(reader.schema(schema).load())
        return self.renamed(source, {column.name: column for column in columns}, str(topic))

    def enriched(self, plan: Enriched, child: JavaObject) -> JavaObject:
        """The lookups of a stream, under the ids of its own columns and of the table's."""
        ids = [column.id for column in plan.child.columns]
        names = [f"_stream_{number}" for number in range(len(ids))]
        stream = self.catalyst.dataframe(child).toDF(*names)
        on = [(names[ids.index(column.id)], name) for column, name in plan.keys]
        added = [column.name for column in plan.added]
        if isinstance(plan.rows, VersionRows):
            joined = self.versions(plan.rows, stream, on, added, plan.how, names, ids)
        elif isinstance(plan.rows, LookupRows):
            joined = self.looked_up(plan.rows.table, stream, on, added, plan.how)
        else:
            joined = deltajoin.lookup_join(
                stream,
                plan.rows.table.path,
                on=on,
                how=plan.how,
                select=added,
                where=plan.rows.table.where,
                snapshot=plan.rows.snapshot,
            )
        columns = dict(zip(joined.columns, plan.columns, strict=True))
        return self.renamed(self.catalyst.analyzed(joined), columns, str(plan))

    def enriched_upserts(self, plan: EnrichedUpserts, child: JavaObject) -> JavaObject:
        """The lookups of changes, under the ids of their own columns, of the table's and of the new kind."""
        given = plan.child.columns
        names = {column.id: f"_stream_{number}" for number, column in enumerate(given)}
        names |= {column.id: ROW_KIND_COLUMN for column in given if column.is_row_kind}
        stream = self.catalyst.dataframe(child).toDF(*(names[column.id] for column in given))
        on = [(names[column.id], name) for column, name in plan.keys]
        added = [column.name for column in plan.added]
        key = tuple(names[column.id] for column in plan.key)
        joined = self.looked_up(plan.rows.table, stream, on, added, plan.how, key)
        columns = dict(zip(joined.columns, plan.columns, strict=True))
        return self.renamed(self.catalyst.analyzed(joined), columns, str(plan))

    def versions(
        self,
        rows: VersionRows,
        stream: DataFrame,
        on: list[tuple[str, str]],
        added: list[str],
        how: str,
        names: list[str],
        ids: list[int],
    ) -> DataFrame:
        """A stream with the versions of rows that were valid at the times of its own."""
        if rows.at is None or rows.changes is None:
            raise PlanBuildError(f"{rows} must have been found in the query; {_BUG}")
        changes = self.catalyst.dataframe(self.catalyst.kept(rows.changes))
        time = names[ids.index(rows.at.id)]
        return temporal_join(
            stream, changes, on=on, time=time, valid_from=rows.valid_from, how=how, select=added,
            has_deletes=rows.has_deletes,
        )  # fmt: skip

    def looked_up(
        self,
        table: LookupTable,
        stream: DataFrame,
        on: list[tuple[str, str]],
        added: list[str],
        how: str,
        upsert_key: tuple[str, ...] = (),
    ) -> DataFrame:
        """A stream, of changes by `upsert_key`, with the rows of a table that is only looked up."""
        rows = InSource.declared(table, on, added, self.settings)
        lookups = Enrichment(rows, tuple(on), tuple(added), how, table.name)
        return enriched(stream, lookups, table.schema, upsert_key, table.shown, self.shards)

    def changes(self, table: ManagedTable, columns: Sequence[Column]) -> JavaObject:
        """The changes of a mirror or of a view's table, under the ids of columns that are known already."""
        asked = {} if table.where is None else {"scan_where": where_to_json(table.where)}
        changes = read_changes(
            self.catalyst.session,
            table.path,
            max_rows_per_trigger=table.max_rows,
            max_memory_per_task=table.task_memory,
            **asked,
        )
        source = self.catalyst.analyzed(changes)
        return self.renamed(source, {column.name: column for column in columns}, f"the table {table.name!r}")

    def renamed(self, source: JavaObject, columns: Mapping[str, Column], what: str) -> JavaObject:
        """A Project that gives each column of the source the name and id of a column of the user's plan."""
        by_name = _by_name(self.catalyst, source)
        renamed = []
        for name, column in columns.items():
            found = by_name.get(name)
            if found is not None and self.catalyst.type_name(found) == _WHOLE_INTERVAL:
                found = self.catalyst.as_interval(found, column.type)
            if found is None or self.catalyst.type_name(found) != column.type:
                expected = f"{what} must give column {name!r} of type {column.type!r}"
                raise PlanBuildError(f"{expected}, it gives {source}; {_BUG}")
            renamed.append(self.catalyst.alias(found, column.name, column.id))
        return self.catalyst.project(renamed, source)


class SumsOf:
    """The sums that an aggregate over changes keeps of each group, and its results made of them."""

    def __init__(self, plan: SignedAggregate) -> None:
        self.plan = plan
        self._sums = Sums()
        self._results = [result_of(measure, self._sums) for measure in plan.measures]
        self._kind = kind_of(self._sums, has_groups=bool(plan.groups))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the columns of a group."""
        return tuple(group.column.name for group in self.plan.groups)

    @property
    def kept(self) -> Mapping[str, str]:
        """Names of the sums, by their Spark SQL over a row."""
        return self._sums.names

    @property
    def count(self) -> str:
        """Name of the sum that tells how many rows a group has."""
        return self._sums.counted()

    def by_group(self, rows: DataFrame) -> DataFrame:
        """The sums over some rows with their kinds, by group."""
        rows = _with_columns(rows, self._sums.parts)
        sums = (f"{sql} AS {types.quoted(name)}" for sql, name in self.kept.items())
        return rows.groupBy(*self.groups).agg(*map(partial(column_of, rows.sparkSession), sums))

    def results(self, catalyst: Catalyst, groups: DataFrame) -> JavaObject:
        """The columns of the user's aggregate, and the kind, of the sums of some groups."""
        plan, source = self.plan, catalyst.analyzed(self._made(groups))
        found = _by_name(catalyst, source)
        known = _groups(catalyst, plan, found)
        for number, (measure, result) in enumerate(zip(plan.measures, self._results, strict=True)):
            original, value = _original(catalyst, measure.function), found[f"result_{number}"]
            if result.count is not None:
                value = catalyst.average(catalyst.aggregation(original)[0], value, found[f"count_{number}"])
            known.append(_checked(catalyst, measure.function, original, value))
        row_kind = found[ROW_KIND_COLUMN]
        named = [_named(catalyst, output, known, row_kind) for output in plan.outputs]
        return catalyst.project([*named, _marked_kind(catalyst, plan, plan.row_kind.id, row_kind)], source)

    def _made(self, groups: DataFrame) -> DataFrame:
        made = [
            f"{text} AS {name}_{number}"
            for number, result in enumerate(self._results)
            for name, text in (("result", result.value), ("count", result.count))
            if text is not None
        ]
        groups = _with_columns(groups, self._sums.derived)
        by = map(types.quoted, self.groups)
        return groups.selectExpr(*by, *made, f"{self._kind} AS {ROW_KIND_COLUMN}")


def _lookup_aggregate(catalyst: Catalyst, plan: LookupAggregate, shards: int) -> JavaObject:
    """The source of an aggregate by lookups, under the columns of the user's aggregate."""
    spec = DeltaAggregateSpec(
        plan.table.path,
        plan.keys,
        tuple(measure.by for measure in plan.measures),
        plan.where,
        shards,
        plan.table.max_rows,
        rows=plan.table.where,
    )
    changes = read_aggregate(
        catalyst.session,
        spec,
        consumer_id=plan.table.consumer_id,
        lease_ms=plan.table.lease_ms,
        task_memory=plan.table.task_memory,
    )
    source = catalyst.analyzed(changes)
    found = _by_name(catalyst, source)
    known = _groups(catalyst, plan, found)
    for measure in plan.measures:
        original = _original(catalyst, measure.function)
        known.append(_checked(catalyst, measure.function, original, found[measure.column.name]))
    named = []
    for output in plan.outputs:
        value = catalyst.substituted(_original(catalyst, output.value), known)
        named.append(catalyst.alias(value, output.column.name, output.column.id))
    kind = catalyst.alias(found[ROW_KIND_COLUMN], ROW_KIND_COLUMN, plan.row_kind.id)
    return catalyst.project([*named, kind], source)


def _marked_kind(catalyst: Catalyst, plan: Plan, number: int, kind: JavaObject) -> JavaObject:
    """A kind that says whose upserts it marks, for `write_changes` and for the planner itself."""
    return catalyst.alias(kind, ROW_KIND_COLUMN, number, {UPSERTS_MARK: upsert_key(plan).to_text()})


def _unless_gone(catalyst: Catalyst, kind: JavaObject, value: JavaObject) -> JavaObject:
    """A value that is not computed for a group that is gone."""
    return catalyst.unless(catalyst.is_text(kind, RowKind.DELETE), value)


def _kind_if(catalyst: Catalyst, kind: JavaObject, condition: JavaObject) -> JavaObject:
    """The kind of a row that a HAVING may take away."""
    chosen = catalyst.choice(condition, kind, RowKind.DELETE)
    return catalyst.choice(catalyst.is_text(kind, RowKind.UPDATE_AFTER), chosen, RowKind.DELETE)


def _with_columns(df: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The frame with columns by their Spark SQL; one may use those before it."""
    return (
        df.selectExpr("*", *(f"{sql} AS {types.quoted(name)}" for sql, name in columns.items()))
        if columns
        else df
    )


def _groups(
    catalyst: Catalyst, plan: SignedAggregate | LookupAggregate, found: dict[str, JavaObject]
) -> list[tuple[JavaObject, JavaObject]]:
    return [(_original(catalyst, group.by.value), found[group.column.name]) for group in plan.groups]


def _named(
    catalyst: Catalyst, output: Output, known: list[tuple[JavaObject, JavaObject]], row_kind: JavaObject
) -> JavaObject:
    value = catalyst.substituted(_original(catalyst, output.value), known)
    _, *parts = walk_expression(output.value)
    if not isinstance(output.value, Aggregation) and any(isinstance(part, Aggregation) for part in parts):
        # where a group is gone only its key has a value: an expression over aggregates of no rows may fail
        value = _unless_gone(catalyst, row_kind, value)
    return catalyst.alias(value, output.column.name, output.column.id, {})


def _original(catalyst: Catalyst, expr: Expr) -> JavaObject:
    if expr.ref is None:
        raise PlanBuildError(f"{expr} must come from the query; {_BUG}")
    return catalyst.kept(expr.ref)


def _checked(
    catalyst: Catalyst, function: Aggregation, original: JavaObject, made: JavaObject
) -> tuple[JavaObject, JavaObject]:
    expected, found = catalyst.type_name(original), catalyst.type_name(made)
    if expected != found:
        raise PlanBuildError(f"{function} must be {expected}, got {found}; {_BUG}")
    return original, made


def _by_name(catalyst: Catalyst, source: JavaObject) -> dict[str, JavaObject]:
    """The columns that a node puts out, by their names."""
    return {catalyst.attribute(one)[1]: one for one in catalyst.output(source)}
