"""A Spark plan as plan.py sees it. What is unknown becomes Opaque or a Call, never an error.

Managed tables are opened here for their keys and indexes; nothing else of them is read. What is known of
a topic of Kafka is what the query declares; no broker is asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame

from deltajoin.aggregate.source import FORMAT as AGGREGATE_FORMAT
from deltajoin.latest.marks import LOOKUP_SIDE_MARK, side_of_mark
from deltajoin.latest.operator import WHOLE_MARK
from deltajoin.lookup.checks import name_of
from deltajoin.netting import NET_MARK
from planner.aggregate_nodes import Aggregate, GroupBy, WindowKind
from planner.conditions import OBSERVATION, SUBQUERY, is_clock_word
from planner.enriched import TableRows
from planner.expressions import Aggregation, Call, Cast, Column, Expr, Literal, walk_expression
from planner.jvm import Catalyst, JavaObject
from planner.plan import (
    Changelog,
    Distinct,
    Filter,
    Generate,
    Join,
    LookupStream,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    SlidingWindows,
    Union,
    Upserts,
    Watermark,
    Wrapper,
)
from planner.sources import KafkaTopic, ManagedTable, Mode, RecordRange
from planner.trees import children, row_kind_of, walk
from planner.upserts_above import LOOKUP_JOIN
from upsert.changelog.operator import NORMALIZE_MARK
from upsert.errors import TableNotFoundError
from upsert.kafka.declaration import declared
from upsert.kafka.options import UPSERT
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.managed.options import FORMAT, ReadOptions
from upsert.store.table import Table
from upsert.update_mode import UPSERTS_MARK, UpsertKey

JOIN_FORMAT: Final = "delta-join"
NORMALIZE: Final = "normalize"
REGULAR_JOIN: Final = "regular-join"
_WINDOW_MARKS: Final = {"spark.timeWindow": WindowKind.TIME, "spark.sessionWindow": WindowKind.SESSION}
"""What Catalyst attaches to a column that it made of a window."""
_PARAMETERS: Final = {
    "Average": ("evalMode",),
    "CollectList": ("ignoreNulls",),
    "CollectSet": ("ignoreNulls",),
    "First": ("ignoreNulls",),
    "Last": ("ignoreNulls",),
    "Sum": ("evalContext",),
}
"""What aggregate functions are told beyond their values."""
_DEFAULTS: Final = {
    **dict.fromkeys(("Add", "Subtract", "Multiply"), ("evalMode", "ANSI")),
    **dict.fromkeys(("UnaryMinus", "Abs"), ("failOnError", "True")),
    "Like": ("escapeChar", "\\"),
}
"""What makes expressions mean something else: a parameter, and its value by default."""
_MIRROR: Final = "mirror.path"
_CONNECTORS: Final = {name: connector for connector, name in SPARK_FORMATS.items()}
_WRAPPERS: Final = {
    OBSERVATION,
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "View",
}


def read_plan(catalyst: Catalyst, df: DataFrame) -> Plan:
    """The analysed plan of a DataFrame.

    Raises:
        TableNotFoundError: a managed table that the plan reads is gone.
    """
    return _Reader(catalyst).node(catalyst.analyzed(df))


def _upserts_of(table: ManagedTable) -> Upserts:
    """What a stream gives of a table's log that has no UPDATE_BEFORE, and that adds none."""
    names = tuple((name,) for name in table.schema.primary_key)
    return Upserts(UpsertKey(names, of=f"table {table.name!r} with 'changelog' = 'upsert'", is_append=True))


class _Reader:
    def __init__(self, catalyst: Catalyst) -> None:
        self.catalyst = catalyst
        self.tables: dict[str, Table] = {}

    # --- nodes -----------------------------------------------------------------------------------------

    def node(self, node: JavaObject) -> Plan:
        name, ref = self.catalyst.class_name(node), self.catalyst.keep(node)
        if name == "Project" and (upserts := self.upserts(node)) is not None:
            return Changelog(upserts.key.of, self.output(node), upserts, ref=ref)
        if name == "Project" and WHOLE_MARK in self.kind_marks(node):
            return Changelog(LOOKUP_JOIN, self.output(node), None, ref=ref)
        inputs = tuple(self.node(child) for child in self.catalyst.children(node))
        match name, inputs:
            case "StreamingRelationV2", ():
                return self.stream(node, ref)
            case "DataSourceV2Relation", ():
                return Relation(name, self.output(node), rows=self.rows(node), ref=ref)
            case _, ():
                return Relation(name, self.output(node), self.catalyst.is_streaming(node), ref=ref)
            case "Project", (child,):
                outputs = tuple(self.named(expr) for expr in self.catalyst.projected(node))
                return Project(child, outputs, ref=ref)
            case "Aggregate", (child,):
                groups = tuple(self.group(expr) for expr in self.catalyst.grouping(node))
                outputs = tuple(self.named(expr) for expr in self.catalyst.aggregated(node))
                return Aggregate(child, groups, outputs, ref=ref)
            case "Filter", (child,):
                return Filter(child, self.expr(self.catalyst.condition(node)), ref=ref)
            case "EventTimeWatermark", (child,):
                return Watermark(child, self.column(self.catalyst.event_time(node)), ref=ref)
            case "Join", (left, right):
                condition = self.catalyst.condition(node)
                return Join(
                    left,
                    right,
                    self.catalyst.join_type(node),
                    None if condition is None else self.expr(condition),
                    self.output(node),
                    ref=ref,
                )
            case "Union", (_, *_):
                return Union(inputs, ref=ref)
            case "Generate", (child,):
                made = tuple(self.column(attribute) for attribute in self.catalyst.generated(node))
                return Generate(child, self.expr(self.catalyst.generator(node)), made, ref=ref)
            case "Expand", (child,) if (windows := self.sliding_windows(node, child, ref)) is not None:
                return windows
            case "Distinct", (child,):
                return Distinct(child, self.output(node), ref=ref)
            case "Deduplicate", (child,):
                keys = tuple(self.column(attribute) for attribute in self.catalyst.keys(node))
                return Distinct(child, keys, ref=ref)
            case _, (child,) if name in _WRAPPERS:
                return Wrapper(child, name, ref=ref)
        return self.unknown(Opaque(name, inputs, self.output(node), ref=ref), node)

    def sliding_windows(self, node: JavaObject, child: Plan, ref: int) -> SlidingWindows | None:
        """The node, if it is what Spark makes of `window(…)` with windows that overlap."""
        first, *rest = self.catalyst.output(node)
        is_window = any(kind is WindowKind.TIME for kind in self.window_kinds(first))
        if not is_window or tuple(map(self.column, rest)) != child.columns:
            return None
        made = [self.expr(row[0]) for row in self.catalyst.expanded(node)]
        return SlidingWindows(child, self.column(first), tuple(made), ref=ref)

    def window_kinds(self, attribute: JavaObject) -> list[WindowKind]:
        """What Catalyst has made an attribute of, if that is a window."""
        marks = self.catalyst.metadata(attribute)
        return [kind for mark, kind in _WINDOW_MARKS.items() if mark in marks]

    def unknown(self, node: Opaque, java: JavaObject) -> Plan:
        """The node; a leaf if it ends an operator of this project, which is where kinds come from.

        That of a delta join is the first above its source with kinds. That of a regular join has our mark on
        its input. That of `upsert.normalize` follows on Spark's stateful one with our mark.
        """
        if row_kind_of(node) is None or any(row_kind_of(child) is not None for child in node.inputs):
            return node
        if any(NET_MARK in self.catalyst.metadata(attribute) for attribute in self.given(java)):
            return Changelog(REGULAR_JOIN, node.columns, None, ref=node.ref)
        sources = [leaf for leaf in walk(node) if isinstance(leaf, Relation)]
        if sources and all(leaf.name == JOIN_FORMAT for leaf in sources):
            return Changelog(JOIN_FORMAT, node.columns, None, ref=node.ref)
        marks = [self.catalyst.metadata(attribute).get(NORMALIZE_MARK) for attribute in self.given(java)]
        if len(marks) == 1 and marks[0] is not None:
            return Changelog(NORMALIZE, node.columns, _normalized(node, marks[0]), ref=node.ref)
        return node

    def given(self, node: JavaObject) -> list[JavaObject]:
        """The attributes of a node's inputs."""
        return [one for child in self.catalyst.children(node) for one in self.catalyst.output(child)]

    def upserts(self, node: JavaObject) -> Upserts | None:
        """What is known of upserts that `optimize` or a join by lookups made, if this is their last step.

        A stream that `deltajoin.with_lookup` has marked counts as one.
        """
        metadata = self.kind_marks(node)
        if (mark := metadata.get(LOOKUP_SIDE_MARK)) is not None:
            side = side_of_mark(mark)
            names = () if side is None else side.upsert_key
            of = "a stream with lookups" if side is None else f"a stream with {name_of(side.source)}"
            key = UpsertKey(tuple((name,) for name in names), of=of, is_append=True)
            return LookupStream(key, mark)
        found = metadata.get(UPSERTS_MARK)
        return None if found is None else Upserts(UpsertKey.from_text(found))

    def kind_marks(self, node: JavaObject) -> Mapping[str, Any]:
        """What is attached to the last column of a Project, if it is computed there."""
        *_, last = self.catalyst.projected(node) or [None]
        is_alias = last is not None and self.catalyst.class_name(last) == "Alias"
        return self.catalyst.metadata(last) if is_alias else {}

    def stream(self, node: JavaObject, ref: int) -> Plan:
        name, options = self.catalyst.source(node)
        columns = self.output(node)
        if name.lower() == FORMAT:
            asked_of_table = ReadOptions.parse(options)
            table = self.table(asked_of_table.beginning_as(self.opened(asked_of_table.path)))
            origin = _upserts_of(table) if asked_of_table.changelog == "upsert" else table
            return Changelog(table.name, columns, origin, ref=ref)
        if name.lower() == JOIN_FORMAT and any(column.is_row_kind for column in columns):
            return Changelog(JOIN_FORMAT, columns, None, ref=ref)
        if name.lower() == AGGREGATE_FORMAT:
            return Changelog(AGGREGATE_FORMAT, columns, None, ref=ref)
        connector = _CONNECTORS.get(name.lower())
        if connector is None:
            return Relation(name, columns, is_streaming=True, ref=ref)
        asked = self.catalyst.struct(self.catalyst.output(node))
        topic = topic_of(declared(connector, options, asked), options)
        topic = replace(topic, source=name.lower(), label=self.catalyst.label(node))
        if topic.mode is Mode.ROWS:
            return Relation(name, columns, is_streaming=True, topic=topic, ref=ref)
        if (mirror := options.get(_MIRROR)) is not None:
            topic = replace(topic, table=os.path.basename(mirror), mirror=self.mirror(mirror, options))
        return Changelog(topic.name, columns, topic, ref=ref)

    def rows(self, node: JavaObject) -> TableRows | None:
        """What a relation reads of a managed table, or of a topic that has a mirror; None for all others."""
        name, options = self.catalyst.batch_source(node)
        if _CONNECTORS.get(name) == UPSERT and _MIRROR in options:
            mirror = self.mirror(options[_MIRROR], options)
            return None if mirror is None else TableRows(mirror)
        if name != FORMAT:
            return None
        asked = ReadOptions.parse(options)
        if asked.row_kind or asked.timestamp_ms is not None or asked.tag is not None:
            return None
        return TableRows(self.table(asked), asked.snapshot_id)

    def mirror(self, path: str, options: Mapping[str, str]) -> ManagedTable | None:
        """The managed table that mirrors a topic, read in steps of the same size; None if there is none."""
        own = {name: options[name] for name in ("max-rows-per-trigger",) if name in options}
        try:
            return self.table(ReadOptions.parse({"path": path, **own}))
        except TableNotFoundError:
            return None

    def opened(self, path: str) -> Table:
        table = self.tables[path] = self.tables.get(path) or Table.open(path)
        return table

    def table(self, options: ReadOptions) -> ManagedTable:
        path = options.path
        table = self.opened(path)
        snapshot = table.snapshot()
        latest = snapshot.info
        return ManagedTable(
            table.name,
            path,
            table.schema,
            table.options.bucket,
            table.options.bucket_key or table.schema.primary_key,
            options.scan_mode,
            options.max_rows,
            changed_rows=latest.delta_rows if latest.changes_rows else None,
            rows=snapshot.row_count,
            rows_per_key={
                index.label: snapshot.rows_per_key(index.columns) for index in table.layout.indexes
            },
            consumer_id=options.consumer_id,
            lease_ms=options.lease_ms,
        )

    # --- expressions -----------------------------------------------------------------------------------

    def output(self, node: JavaObject) -> tuple[Column, ...]:
        return tuple(self.column(attribute) for attribute in self.catalyst.output(node))

    def column(self, attribute: JavaObject) -> Column:
        number, name, type_name = self.catalyst.attribute(attribute)
        return Column(number, name, type_name, ref=self.catalyst.keep(attribute))

    def named(self, expr: JavaObject) -> Output:
        value = self.expr(expr)
        if isinstance(value, Column):
            return Output(value, value)
        number, name, type_name = self.catalyst.attribute(expr)
        ref = self.catalyst.keep(expr)
        computed = value.args[0] if isinstance(value, Call) and value.name == "Alias" else value
        return Output(Column(number, name, type_name), computed, ref=ref)

    def group(self, expr: JavaObject) -> GroupBy:
        is_column = self.catalyst.class_name(expr) == "AttributeReference"
        kinds = self.window_kinds(expr) if is_column else []
        return GroupBy(self.expr(expr), next(iter(kinds), None))

    def aggregation(self, expr: JavaObject, ref: int) -> Aggregation:
        function, condition, is_distinct = self.catalyst.aggregation(expr)
        name, values = self.catalyst.class_name(function), self.catalyst.children(function)
        return Aggregation(
            name,
            tuple(self.expr(value) for value in values),
            tuple(self.catalyst.type_name(value) for value in values),
            None if condition is None else self.expr(condition),
            is_distinct,
            self.catalyst.parameters(function, _PARAMETERS.get(name, ())),
            ref=ref,
        )

    def expr(self, expr: JavaObject) -> Expr:
        name, ref = self.catalyst.class_name(expr), self.catalyst.keep(expr)
        match name:
            case "AttributeReference":
                return self.column(expr)
            case "Literal":
                return self.constant(expr, ref)
            case "Cast":
                return self.cast(expr, ref)
            case "AggregateExpression":
                return self.aggregation(expr, ref)
            case "Between":
                parts = self.catalyst.between(expr)
            case _:
                parts = self.catalyst.children(expr)
        args = tuple(self.expr(part) for part in parts)
        if self.catalyst.has_plan(expr):
            return Call(SUBQUERY, args, ref=ref)
        is_deterministic = self.catalyst.is_deterministic(expr) or any(map(_is_unstable, args))
        return Call(self.variant(name, expr), args, is_deterministic, ref=ref)

    def variant(self, name: str, expr: JavaObject) -> str:
        """The name of an expression, another one where it does not do what it does by default.

        Arithmetic that gives NULL or wraps on overflow, and LIKE with an escape character of its own.
        """
        parameter, default = _DEFAULTS.get(name, ("", ""))
        if not parameter:
            return name
        ((_, value),) = self.catalyst.parameters(expr, [parameter])
        return name if value == default else f"{value}{name}"

    def constant(self, expr: JavaObject, ref: int) -> Expr:
        try:
            return Literal(self.catalyst.literal(expr), self.catalyst.type_name(expr), ref=ref)
        except ValueError:  # a constant that no rule looks into: binary, interval, array, the year 10000
            return Call(self.catalyst.text(expr), (), ref=ref)

    def cast(self, expr: JavaObject, ref: int) -> Expr:
        (child,) = self.catalyst.children(expr)
        value, type_name = self.expr(child), self.catalyst.type_name(expr)
        if isinstance(value, Literal) and not is_clock_word(value.value):
            try:
                return Literal(self.catalyst.folded(expr), type_name, ref=ref)
            except (
                ValueError
            ):  # Spark may say so when the query runs; for the planner it is just an expression
                pass
        return Cast(value, type_name, ref=ref)


def _normalized(node: Opaque, mark: Mapping[str, Sequence[str]]) -> Normalized:
    """The operator that ends with this node; its first step is one like it, and packs the input's rows."""
    (below,) = node.inputs
    refs = [node.ref]
    while not (isinstance(below, Opaque) and below.name == node.name):
        refs.append(getattr(below, "ref", None))
        (below,) = children(below)
    refs.append(below.ref)
    known = tuple(ref for ref in refs if ref is not None)
    return Normalized(tuple(mark["key"]), below.inputs[0], tuple(mark["order"]), known)


def topic_of(table: KafkaTable, options: Mapping[str, str]) -> KafkaTopic:
    """What the planner needs of a topic that a query reads with these options."""
    name = ";".join(table.topics) if table.topics is not None else table.values["topic-pattern"]
    return KafkaTopic(name, table.schema, _mode(table), RecordRange.of(table.values), options=options)


def _mode(table: KafkaTable) -> Mode:
    if table.is_upsert:
        return Mode(table.values["changelog"])
    if table.values["cdc-events-duplicate"]:
        return Mode.CDC_NORMALIZED
    return Mode.CDC if table.is_changelog else Mode.ROWS


def _is_unstable(expr: Expr) -> bool:
    """Whether a part of the expression explains why the whole is not deterministic."""
    return any(
        isinstance(part, Aggregation) or (isinstance(part, Call) and not part.is_deterministic)
        for part in walk_expression(expr)
    )
