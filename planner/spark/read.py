"""A Spark plan as the planner's nodes. What is unknown becomes Opaque or a Call, never an error.

Managed tables are opened here for their keys and indexes; nothing else of them is read. What is known of a
topic of Kafka is what the query declares; no broker is asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame

from deltajoin.aggregate.source import FORMAT as AGGREGATE_FORMAT
from deltajoin.latest.api import LOOKUP_SIDE_MARK, side_of_mark
from deltajoin.latest.operator import WHOLE_MARK
from deltajoin.lookup.protocol import name_of
from deltajoin.spark.consolidate import CONSOLIDATED_MARK
from deltajoin.spark.source import FORMAT as JOIN_FORMAT
from planner.managed_tables import managed_table
from planner.plan.expressions import (
    SUBQUERY,
    TIMES,
    Aggregation,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    columns_of,
    is_clock_word,
    walk_expression,
)
from planner.plan.in_arrow import Order
from planner.plan.nodes import (
    LOOKUP_JOIN,
    OBSERVATION,
    Aggregate,
    Apart,
    Changelog,
    Distinct,
    Filter,
    Generate,
    GroupBy,
    Join,
    LookupRows,
    LookupStream,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    SlidingWindows,
    TableRows,
    Union,
    Upserts,
    VersionRows,
    Watermark,
    WindowKind,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode, RecordRange
from planner.plan.translate import OF_DECIMALS
from planner.plan.trees import children, row_kind_of, walk
from planner.refusals import Rewrite, not_held
from planner.spark.catalyst import GROUPING, Catalyst, JavaObject
from upsert.catalog.connectors.lookups import FORMAT as LOOKUP_FORMAT
from upsert.catalog.connectors.lookups import looked_up
from upsert.changelog.operator import NORMALIZE_MARK
from upsert.errors import TableNotFoundError
from upsert.kafka.declaration import columns_option, declared
from upsert.kafka.options import UPSERT
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.managed.options import ReadOptions
from upsert.spark.formats import FORMAT
from upsert.spark.java import class_name
from upsert.spark.reads import is_read
from upsert.store.predicate import parse_where
from upsert.store.table import Table
from upsert.stream_keys import KEYS_MARK, UPSERTS_MARK, VERSIONS_MARK, UniqueKeys, UpsertKey

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
"""Parameters of aggregate functions beyond their values."""

_JAVA_CALLS: Final = frozenset({"Invoke", "StaticInvoke"})
"""Calls of a Java method, which the class of the expression that they replace tells better."""

_DEFAULTS: Final = {
    **dict.fromkeys(("Add", "Subtract", "Multiply"), ("evalMode", "ANSI")),
    **dict.fromkeys(("Divide", "IntegralDivide", "Remainder"), ("evalMode", "ANSI")),
    **dict.fromkeys(("UnaryMinus", "Abs"), ("failOnError", "True")),
    "Like": ("escapeChar", "\\"),
}
"""What makes expressions mean something else: a parameter, and its value by default."""

_ROUNDED: Final = frozenset({"DecimalDivideWithOverflowCheck", *OF_DECIMALS})
"""Expressions of decimals that are rounded to their type; an `OperatorReader` adds it to their arguments."""

_OF_BOTH: Final = frozenset({"inner", "cross"})
_OF_LEFT: Final = frozenset({"left semi", "left anti"})
"""Joins that have columns as their inputs have them, by whose columns these are."""

_MIRROR: Final = "mirror.path"
_APART: Final = "mirror.not-given"
_CONNECTORS: Final = {name: connector for connector, name in SPARK_FORMATS.items()}

_WRAPPERS: Final = {
    OBSERVATION,
    "PipeOperator",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "View",
}


def read_plan(catalyst: Catalyst, df: DataFrame) -> Plan:
    """The analysed plan of a DataFrame."""
    return _Reader(catalyst).plan(catalyst.analyzed(df))


class _Reader:
    """Reads one plan; a table is opened once."""

    def __init__(self, catalyst: Catalyst, *, asks_marks: bool = True) -> None:
        self.catalyst = catalyst
        self.asks_marks = asks_marks
        self.tables: dict[str, Table] = {}
        # of the functions with arrows around what is read: the number of each, by its id
        self.variables: Mapping[int, str] = {}
        # whether that is known of all expressions that are read, without asking for each
        self.are_deterministic = False

    def plan(self, node: JavaObject) -> Plan:
        """A whole plan."""
        self.are_deterministic = self.catalyst.is_deterministic(node)
        return self.node(node)

    def node(self, node: JavaObject) -> Plan:
        name, ref = class_name(node), self.catalyst.keep(node)
        marks = self.kind_marks(node) if name == "Project" else {}
        if marks and self.asks_marks and (marked := self.marked(node, marks, ref)) is not None:
            return marked
        if is_read(node):
            return self.relation(node, ref)
        inputs = tuple(self.node(child) for child in self.catalyst.children(node))
        match name, inputs:
            case "StreamingRelationV2", ():
                return self.stream(node, ref)
            case _, ():
                return Relation(name, self.output(node), self.catalyst.is_streaming(node), ref=ref)
            case "Project", (child,):
                outputs = tuple(map(self.named, self.catalyst.projected(node)))
                return Project(child, outputs, _known_keys(marks), ref=ref)
            case "Aggregate", (child,):
                groups = tuple(map(self.group, self.catalyst.grouping(node)))
                outputs = tuple(map(self.named, self.catalyst.aggregated(node)))
                return Aggregate(child, groups, outputs, ref=ref)
            case "Filter", (child,):
                return Filter(child, self.expr(self.catalyst.condition(node)), ref=ref)
            case "EventTimeWatermark", (child,):
                return Watermark(child, self.column(self.catalyst.event_time(node)), ref=ref)
            case "Join", (left, right) if (kind := self.catalyst.join_type(node)) is not None:
                found = self.catalyst.condition(node)
                condition = None if found is None else self.expr(found)
                return Join(left, right, kind, condition, self.joined(node, kind, left, right), ref=ref)
            case "Union", (_, *_):
                return Union(inputs, ref=ref)
            case "Generate", (child,):
                made = tuple(map(self.column, self.catalyst.generated(node)))
                is_outer = self.catalyst.is_outer(node)
                return Generate(child, self.expr(self.catalyst.generator(node)), made, is_outer, ref=ref)
            case "Expand", (child,) if (windows := self.sliding_windows(node, child, ref)) is not None:
                return windows
            case "Distinct", (child,):
                return Distinct(child, self.output(node), ref=ref)
            case "Deduplicate", (child,):
                return Distinct(child, tuple(map(self.column, self.catalyst.keys(node))), ref=ref)
            case _, (child,) if name in _WRAPPERS:
                return Wrapper(child, name, tuple(map(self.column, self.catalyst.references(node))), ref=ref)
            case "Window", (_,):
                return Opaque(name, inputs, self.output(node), ref=ref, apart=self.apart(node))
        columns = self.output(node)
        if name == "Expand" and all(column.name != GROUPING for column in columns):
            name = "Unpivot"  # by its name in SQL; of groupings Spark numbers the rows
        found = Opaque(name, inputs, columns, ref=ref)
        return self.unknown(found, node) if self.asks_marks else found

    def joined(self, node: JavaObject, kind: str, left: Plan, right: Plan) -> tuple[Column, ...]:
        """The columns of a join: those of its inputs, of which those of an outer join may be NULL now."""
        inputs = (left, right) if kind in _OF_BOTH else (left,) if kind in _OF_LEFT else ()
        columns = tuple(column for one in inputs for column in one.columns)
        are_known = all(map(_says_columns, inputs)) and all(column.ref is not None for column in columns)
        return columns if inputs and are_known else self.output(node)

    def marked(self, node: JavaObject, marks: Mapping[str, Any], ref: int) -> Plan | None:
        """What a Project stands for that has a mark of ours; None for another one."""
        if (upserts := _upserts(marks)) is not None:
            return Changelog(upserts.key.of, self.output(node), upserts, ref=ref)
        if (versions := self.versions(node, marks)) is not None:
            return Relation("Project", self.output(node), is_streaming=True, lookups=versions, ref=ref)
        if WHOLE_MARK in marks:
            return Changelog(LOOKUP_JOIN, self.output(node), None, ref=ref)
        return None

    def sliding_windows(self, node: JavaObject, child: Plan, ref: int) -> SlidingWindows | None:
        """The node, if it is what Spark makes of `window(…)` with windows that overlap."""
        first, *rest = self.catalyst.output(node)
        is_window = any(kind is WindowKind.TIME for kind in self.window_kinds(first))
        if not is_window or tuple(map(self.column, rest)) != child.columns:
            return None
        made = [self.expr(row[0]) for row in self.catalyst.expanded(node)]
        return SlidingWindows(child, self.column(first), tuple(made), ref=ref)

    def apart(self, node: JavaObject) -> Apart | None:
        """What window functions compute apart, if each part of their PARTITION BY is a column."""
        by = self.catalyst.partition(node)
        if not by or any(class_name(one) != "AttributeReference" for one in by):
            return None
        if self.catalyst.nested(node):
            return None  # the rows of a subquery are of no partition
        used = (self.column(attribute).id for attribute in self.catalyst.references(node))
        return Apart(tuple(map(self.column, by)), frozenset(used))

    def unknown(self, node: Opaque, java: JavaObject) -> Plan:
        """The node; a leaf if it ends an operator of this project, which is where kinds come from.

        That of a delta join is the first above its source with kinds. That of a regular join has our mark on
        its input. That of `upsert.normalize` follows on Spark's stateful one with our mark.
        """
        if row_kind_of(node) is None or any(row_kind_of(child) is not None for child in node.inputs):
            return node
        if any(CONSOLIDATED_MARK in self.catalyst.metadata(attribute) for attribute in self.given(java)):
            return Changelog("regular-join", node.columns, None, ref=node.ref)
        if {leaf.name for leaf in walk(node) if isinstance(leaf, Relation)} == {JOIN_FORMAT}:
            return Changelog(JOIN_FORMAT, node.columns, None, ref=node.ref)
        marks = [self.catalyst.metadata(attribute).get(NORMALIZE_MARK) for attribute in self.given(java)]
        if len(marks) == 1 and marks[0] is not None:
            return Changelog("normalize", node.columns, _normalized(node, marks[0]), ref=node.ref)
        return node

    def given(self, node: JavaObject) -> list[JavaObject]:
        return [one for child in self.catalyst.children(node) for one in self.catalyst.output(child)]

    def versions(self, node: JavaObject, marks: Mapping[str, Any]) -> VersionRows | None:
        """The versions that a Project stands for which leaves out the kinds of the changes below it.

        A column that is made of a marked one has its mark too, but no kinds below.
        """
        mark = marks.get(VERSIONS_MARK)
        if mark is None or not any(self.column(one).is_row_kind for one in self.given(node)):
            return None
        said, (changes,) = json.loads(mark), self.catalyst.children(node)
        names = said["name"], tuple(said["key"]), said["time"], said["valid-from"]
        return VersionRows(*names, said["has-deletes"], self.catalyst.keep(changes))

    def kind_marks(self, node: JavaObject) -> Mapping[str, Any]:
        """What is attached to the last column of a Project, if it is computed there."""
        *_, last = self.catalyst.projected(node) or [None]
        is_alias = last is not None and class_name(last) == "Alias"
        return self.catalyst.metadata(last) if is_alias else {}

    def stream(self, node: JavaObject, ref: int) -> Plan:
        name, options = self.catalyst.source(node)
        columns = self.output(node)
        if name.lower() == FORMAT:
            asked = ReadOptions.parse(options)
            table = self.table(asked.beginning_as(self.opened(asked.path)))
            origin = _upserts_of(table) if asked.changelog == "upsert" else table
            return Changelog(table.name, columns, origin, ref=ref)
        if name.lower() == JOIN_FORMAT and any(column.is_row_kind for column in columns):
            return Changelog(JOIN_FORMAT, columns, None, ref=ref)
        if name.lower() == AGGREGATE_FORMAT:
            return Changelog(AGGREGATE_FORMAT, columns, None, ref=ref)
        connector = _CONNECTORS.get(name.lower())
        if connector is None:
            return Relation(name, columns, is_streaming=True, ref=ref)
        known = declared(connector, options, self.catalyst.struct(self.catalyst.output(node)))
        names = ";".join(known.topics) if known.topics is not None else known.values["topic-pattern"]
        topic = KafkaTopic(
            names,
            known.schema,
            _mode(known),
            RecordRange.of(known.values),
            source=name.lower(),
            label=self.catalyst.label(node),
            # who reads some of the columns must still say which there are
            options=columns_option(known) | options,
            apart=options.get(_APART),
            splits_key_changes=known.value.format.splits_key_changes,
        )
        if topic.mode is Mode.ROWS:
            return Relation(name, columns, is_streaming=True, topic=topic, ref=ref)
        if (mirror := options.get(_MIRROR)) is not None:
            topic = replace(topic, table=os.path.basename(mirror), mirror=self.mirror(mirror, options))
        return Changelog(topic.name, columns, topic, ref=ref)

    def relation(self, node: JavaObject, ref: int) -> Relation:
        name, options = self.catalyst.batch_source(node)
        lookups = LookupRows(looked_up(options)) if name == LOOKUP_FORMAT else None
        rows = self.rows(name, options)
        return Relation("DataSourceV2Relation", self.output(node), rows=rows, lookups=lookups, ref=ref)

    def rows(self, name: str, options: dict[str, str]) -> TableRows | None:
        """What a relation reads of a managed table, or of a topic that has a mirror; None for all others."""
        if _CONNECTORS.get(name) == UPSERT and _MIRROR in options:
            mirror = self.mirror(options[_MIRROR], options)
            return None if mirror is None else TableRows(mirror)
        if name != FORMAT:
            return None
        asked = ReadOptions.parse(options)
        table = self.table(asked)
        if asked.row_kind or not_held(table, Rewrite.ENRICHMENT) is not None:
            return None
        return TableRows(table, asked.snapshot_id)

    def mirror(self, path: str, options: Mapping[str, str]) -> ManagedTable | None:
        """The managed table that mirrors a topic, read in steps of the same size; None without one."""
        own = {
            name: options[name] for name in ("max-rows-per-trigger", "max-memory-per-task") if name in options
        }
        try:
            return self.table(ReadOptions.parse({"path": path, **own}))
        except TableNotFoundError:
            return None

    def opened(self, path: str) -> Table:
        if path not in self.tables:
            self.tables[path] = Table.open(path)
        return self.tables[path]

    def table(self, options: ReadOptions) -> ManagedTable:
        table = self.opened(options.path)
        parse_where(options.where_of(table.schema), table.schema)
        return managed_table(table, options)

    def output(self, node: JavaObject) -> tuple[Column, ...]:
        return tuple(map(self.column, self.catalyst.output(node)))

    def column(self, attribute: JavaObject) -> Column:
        return Column(*self.catalyst.attribute(attribute), ref=self.catalyst.keep(attribute))

    def named(self, expr: JavaObject) -> Output:
        """A column of a Project or an Aggregate, and what computes it."""
        value = self.expr(expr)
        if isinstance(value, Column):
            return Output(value, value)
        column, ref = Column(*self.catalyst.attribute(self.catalyst.put_out(expr))), self.catalyst.keep(expr)
        computed = value.args[0] if isinstance(value, Call) and value.name == "Alias" else value
        return Output(column, computed, ref=ref)

    def group(self, expr: JavaObject) -> GroupBy:
        is_column = class_name(expr) == "AttributeReference"
        kinds = self.window_kinds(expr) if is_column else []
        return GroupBy(self.expr(expr), next(iter(kinds), None))

    def aggregation(self, expr: JavaObject, ref: int) -> Aggregation:
        function, condition, is_distinct = self.catalyst.aggregation(expr)
        name, values = class_name(function), self.catalyst.children(function)
        return Aggregation(
            name,
            tuple(map(self.expr, values)),
            tuple(map(self.catalyst.type_name, values)),
            None if condition is None else self.expr(condition),
            is_distinct,
            self.parameters(name, function),
            ref=ref,
        )

    def parameters(self, name: str, function: JavaObject) -> tuple[tuple[str, str], ...]:
        """What an aggregate function is given beside its values; by name where a rule asks for it."""
        if (names := _PARAMETERS.get(name)) is not None:
            return self.catalyst.parameters(function, names)
        return (("", detail),) if (detail := self.catalyst.detail(function)) else ()

    def expr(self, expr: JavaObject) -> Expr:
        name, ref = class_name(expr), self.catalyst.keep(expr)
        match name:
            case "AttributeReference":
                return self.column(expr)
            case "Literal":
                return self.constant(expr, ref)
            case "Cast":
                return self.cast(expr, ref)
            case "AggregateExpression":
                return self.aggregation(expr, ref)
            case "With":
                return self.expr(self.catalyst.inlined(expr))
            case "LambdaFunction":
                return self.function(expr, ref)
            case "NamedLambdaVariable":
                return Call(name, (), detail=self.variables[self.catalyst.id_of(expr)], ref=ref)
        parts = self.catalyst.children(expr)
        if (replacement := self.catalyst.replacement(expr)) is not None:
            if class_name(replacement) not in _JAVA_CALLS:
                return self.replaced(replacement, ref)
            if parts and parts[0].equals(replacement):
                parts = self.catalyst.children(replacement)
        args = tuple(map(self.expr, parts))
        if name in _ROUNDED and not self.asks_marks:
            type_name = self.catalyst.type_name(expr)
            args = (*args, Literal(None, type_name)) if type_name.startswith("decimal") else args
        if self.catalyst.has_plan(expr):
            return Call(SUBQUERY, args, ref=ref)
        if self.catalyst.is_filled_in(expr):
            return Call(name, args, is_filled_in=True, ref=ref)
        is_known = self.are_deterministic or self.catalyst.is_deterministic(expr)
        is_deterministic = is_known or any(map(_is_unstable, args))
        detail = "" if name in _DEFAULTS else self.catalyst.detail(expr)
        return Call(self.variant(name, expr), args, is_deterministic, detail=detail, ref=ref)

    def function(self, expr: JavaObject, ref: int) -> Call:
        """A function with arrow, whose variables are known by their number, from the outermost on."""
        body, *variables = self.catalyst.children(expr)
        known = self.variables
        ids = enumerate(map(self.catalyst.id_of, variables), len(known))
        self.variables = {**known, **{id: str(number) for number, id in ids}}
        args = tuple(map(self.expr, (body, *variables)))
        self.variables = known
        return Call("LambdaFunction", args, ref=ref)

    def replaced(self, replacement: JavaObject, ref: int) -> Expr:
        """What Spark computes in place of an expression; the plan that is built keeps what the user wrote."""
        known = self.are_deterministic
        self.are_deterministic = known and self.catalyst.is_deterministic(replacement)
        value = self.expr(replacement)
        self.are_deterministic = known
        return value if isinstance(value, Column) else replace(value, ref=ref)

    def variant(self, name: str, expr: JavaObject) -> str:
        """The name of an expression, another one where it does not do what it does by default.

        Arithmetic that gives NULL or wraps on overflow, and LIKE with an escape character of its own.
        """
        if name not in _DEFAULTS:
            return name
        parameter, default = _DEFAULTS[name]
        ((_, value),) = self.catalyst.parameters(expr, [parameter])
        return name if value == default else f"{value}{name}"

    def constant(self, expr: JavaObject, ref: int) -> Expr:
        try:
            return Literal(self.catalyst.literal(expr), self.catalyst.type_name(expr), ref=ref)
        except ValueError:  # a constant that no rule looks into: binary, interval, array, the year 10000
            return Call(self.catalyst.text(expr), (), ref=ref)

    def cast(self, expr: JavaObject, ref: int) -> Expr:
        """A Cast; that of a constant is the constant that it gives, unless it is one of the clock.

        Spark reads texts like 'now' as a time when it optimizes a micro-batch, also those that it has to
        compute first, and completes a time of day by the day that it is.
        """
        (child,) = self.catalyst.children(expr)
        value, type_name = self.expr(child), self.catalyst.type_name(expr)
        if type_name in TIMES and self.catalyst.type_name(child).startswith("time("):
            return Call("Cast", (value,), is_filled_in=True, ref=ref)
        if type_name in TIMES and (text := self.text_of(child, value)) is not None:
            value = text
        if isinstance(value, Literal) and not is_clock_word(value.value):
            # where it cannot, Spark may say so when the query runs; for the planner it is just an expression
            with suppress(ValueError):
                return Literal(self.catalyst.folded(expr), type_name, ref=ref)
        ((_, mode),) = self.catalyst.parameters(expr, ["evalMode"])
        return Cast(value, type_name, is_try=mode == "TRY", ref=ref)

    def text_of(self, child: JavaObject, value: Expr) -> Literal | None:
        """The text that an expression without columns gives, if it is one."""
        if isinstance(value, Literal) or columns_of(value) or not self.catalyst.is_text_type(child):
            return None
        try:
            return Literal(self.catalyst.folded(self.catalyst.computed(child)), "string")
        except ValueError:
            return None

    def window_kinds(self, attribute: JavaObject) -> list[WindowKind]:
        """What Catalyst has made an attribute of, if that is a window."""
        marks = self.catalyst.metadata(attribute)
        return [kind for mark, kind in _WINDOW_MARKS.items() if mark in marks]


class OperatorReader:
    """Reads a plan as the operators that it consists of, whatever they were made for, and by whom."""

    def __init__(self, catalyst: Catalyst) -> None:
        """Of the plans of a session."""
        self.catalyst = catalyst
        self._reader = _Reader(catalyst, asks_marks=False)

    def node(self, plan: JavaObject) -> Plan:
        """A plan."""
        return self._reader.plan(plan)

    def orders(self, node: Opaque) -> list[Order]:
        """By what a Sort orders rows."""
        assert node.ref is not None
        orders = self.catalyst.orders(self.catalyst.kept(node.ref))
        return [Order(self._reader.expr(one.key), one.is_ascending, one.are_nulls_first) for one in orders]

    def observed(self, node: Wrapper) -> list[Output]:
        """What is told of observed rows."""
        assert node.ref is not None
        return [self._reader.named(one) for one in self.catalyst.observed(self.catalyst.kept(node.ref))]

    def limit(self, node: Opaque) -> int | None:
        """How many rows a limit lets through; None if that is computed."""
        assert node.ref is not None
        return self.catalyst.row_number(self.catalyst.kept(node.ref))


def _says_columns(plan: Plan) -> bool:
    """Whether the columns that were read of a node are just those that it puts out.

    Others pass on columns with another name before theirs, a watermark, or NULL where there was none.
    """
    while isinstance(plan, Filter | Distinct):
        plan = plan.child
    return isinstance(plan, Aggregate | Join | Opaque | Project | Relation)


def _upserts(marks: Mapping[str, Any]) -> Upserts | None:
    """What is known of upserts that `optimize` or a join by lookups made, by the marks of their last step.

    A stream that `deltajoin.with_lookup` has marked counts as one.
    """
    if (mark := marks.get(LOOKUP_SIDE_MARK)) is not None:
        side = side_of_mark(mark)
        names = () if side is None else side.upsert_key
        of = "a stream with lookups" if side is None else f"a stream with {name_of(side.source)}"
        key = UpsertKey(tuple((name,) for name in names), of=of, is_append=True)
        return LookupStream(key, mark)
    found = marks.get(UPSERTS_MARK)
    return None if found is None else Upserts(UpsertKey.from_text(found))


def _known_keys(marks: Mapping[str, Any]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The unique keys that an earlier `optimize` has found for what a Project gives, by its marks."""
    mark = marks.get(KEYS_MARK)
    return () if mark is None else UniqueKeys.from_text(mark).keys


def _upserts_of(table: ManagedTable) -> Upserts:
    """What a stream gives of a table's log that has no UPDATE_BEFORE, and that adds none."""
    names = tuple((name,) for name in table.schema.primary_key)
    return Upserts(UpsertKey(names, of=f"table {table.name!r} with 'changelog' = 'upsert'", is_append=True))


def _mode(table: KafkaTable) -> Mode:
    if table.is_upsert:
        return Mode(table.values["changelog"])
    if table.values["cdc-events-duplicate"]:
        return Mode.CDC_NORMALIZED
    if not table.is_changelog:
        return Mode.ROWS
    return Mode.CDC_NET if table.values["scan.net-changes"] else Mode.CDC


def _is_unstable(expr: Expr) -> bool:
    """Whether a part of the expression explains why the whole is not deterministic."""
    return any(
        isinstance(part, Aggregation) or (isinstance(part, Call) and not part.is_deterministic)
        for part in walk_expression(expr)
    )


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
