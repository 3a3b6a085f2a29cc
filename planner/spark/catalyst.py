"""The adapter to Spark's own plans: reads Catalyst's objects, and makes them.

Only this file, `state.py` and `few_rows.py` use py4j. Each object that is read gets a number, the `ref` of
the planner's nodes and expressions. It is for classic mode (no Connect); `versions.py` has what
differs between Sparks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from planner.spark.versions import constructors
from upsert.spark.batches import local_rows
from upsert.spark.connect import needs_classic
from upsert.spark.java import (
    class_name,
    frame_of,
    is_a,
    items_of,
    java_of,
    object_of,
    remembered,
    seq_of,
    texts_of,
)
from upsert.spark.literals import python_value
from upsert.spark.reads import read_of

GROUPING: Final = "spark_grouping_id"
"""The column by which Spark tells the grouping sets of ROLLUP, CUBE and GROUPING SETS apart."""

JavaObject = Any
"""A Catalyst plan node, expression or attribute. Only this file, `state.py` and `few_rows.py` look inside."""

_LIST_OF: Final = 10
"""So many items Java's ``List.of`` takes as arguments."""

_ATTRIBUTE: Final = re.compile(r"(.*)#(\d+): ([^#]+)", re.DOTALL)
"""An AttributeReference as Spark shows it in a plan; after the last ``#`` only a struct has names."""

_ID: Final = re.compile(r"#\d+")

_ALL: Final = 2**31 - 1

_PARTS: Final = {
    "LeafLike": (),
    "UnaryLike": ("child",),
    "BinaryLike": ("left", "right"),
    "TernaryLike": ("first", "second", "third"),
}
"""What the children of some kinds of nodes and expressions are called; to take them from a list is dearer."""
_PLAN_EXPRESSION: Final = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_TREES: Final = "org.apache.spark.sql.catalyst.trees"


class FirstOrder(NamedTuple):
    """By what rows are ordered first: an expression, its direction, and where NULL stands."""

    key: JavaObject
    is_ascending: bool
    are_nulls_first: bool


class Catalyst:
    """The analysed plan of one DataFrame, and the means to build another from its parts.

    Raises:
        ConfigurationError: the DataFrame is of Spark Connect, which has no plan in this process.
    """

    def __init__(self, df: DataFrame) -> None:
        needs_classic(
            df,
            "to read the plan of a query",
            "a statement of catalog.sql is planned by its text there, or refused before it runs",
        )
        self.session: SparkSession = df.sparkSession
        self._jvm: Any = java_of(self.session)
        self._takes = constructors(self.session)
        self._kept: list[JavaObject] = []
        self._expr_ids: dict[int, JavaObject] = {}
        self._numbers: dict[int, int] = {}
        self._attributes: dict[int, JavaObject] = {}

    def keep(self, thing: JavaObject) -> int:
        """A number for the object, by which `kept` gives it back."""
        self._kept.append(thing)
        return len(self._kept) - 1

    def kept(self, ref: int) -> JavaObject:
        """The object of a number."""
        return self._kept[ref]

    def analyzed(self, df: DataFrame) -> JavaObject:
        """The analysed plan of a DataFrame, with its common table expressions put in.

        Spark's own rule does that, and renews the ids of one that is used twice. A plan without any comes
        back as it is.
        """
        plan = df._jdf.queryExecution().analyzed()
        inline = self._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        return inline(True, *defaults_of(inline, 2, self._takes.inline_cte)).apply(plan)

    def rewritten(self, plan: JavaObject, *rules: str) -> JavaObject:
        """What rules of Spark's make of a plan, each by its name below ``catalyst``: ``optimizer.…``."""
        for name in rules:
            *packages, rule = name.split(".")
            package = reduce(getattr, packages, self._jvm.org.apache.spark.sql.catalyst)
            plan = object_of(package, rule).apply(plan)
        return plan

    def local(self, rows: pa.Table, leaf: JavaObject, schema: StructType) -> JavaObject:
        """Some rows as a leaf of a plan, with the columns of another one of this schema."""
        return self.local_relation(leaf, local_rows(self.session, rows, schema) if rows.num_rows else None)

    def local_relation(self, leaf: JavaObject, data: JavaObject | None) -> JavaObject:
        """Rows as Spark has them, or none, as a leaf of a plan with the columns of another one."""
        found = self._seq([]) if data is None else data
        return self._logical.LocalRelation(leaf.output(), found, False, self._none)

    def in_one_task(self, node: JavaObject) -> JavaObject:
        """A plan whose rows are known to be in one partition: joins and groups over it move none of them."""
        return self._logical.Repartition(1, False, node)

    def has_subqueries(self, plan: JavaObject) -> bool:
        """Whether an expression of the plan has a plan of its own."""
        return not plan.subqueriesAll().isEmpty()

    def refers_outside(self, plan: JavaObject) -> bool:
        """Whether an expression of the plan, or of a subquery, refers to what is outside of a subquery."""
        patterns = object_of(self._jvm.org.apache.spark.sql.catalyst.trees, "TreePattern")
        return bool(plan.containsPattern(patterns.OUTER_REFERENCE()))

    def nested(self, node: JavaObject) -> list[JavaObject]:
        """The subqueries of any kind in the expressions of a node, without those inside of them."""
        return [one for expr in self.evaluated(node) for one in self.subqueries_in(expr)]

    def subqueries_in(self, expr: JavaObject) -> list[JavaObject]:
        """The subqueries of any kind in an expression, without those inside of them."""
        return self._topmost(expr, self.has_plan)

    def _topmost(self, expr: JavaObject, is_wanted: Callable[[JavaObject], bool]) -> list[JavaObject]:
        """Parts of an expression, without what is inside of them."""
        if is_wanted(expr):
            return [expr]
        return [one for child in self.children(expr) for one in self._topmost(child, is_wanted)]

    def subqueries(self, node: JavaObject) -> list[JavaObject]:
        """The subqueries for a value in the expressions of a node."""
        return [one for expr in self.evaluated(node) for one in self.values_in(expr)]

    def values_in(self, expr: JavaObject) -> list[JavaObject]:
        """The subqueries for a value in an expression."""
        return self._topmost(expr, lambda part: class_name(part) == "ScalarSubquery")

    def functions(self, node: JavaObject) -> list[JavaObject]:
        """The AggregateExpressions of an Aggregate."""

        def is_function(expr: JavaObject) -> bool:
            return class_name(expr) == "AggregateExpression"

        return [one for expr in self.aggregated(node) for one in self._topmost(expr, is_function)]

    def children(self, thing: JavaObject) -> list[JavaObject]:
        """The inputs of a node, or the arguments of an expression."""
        return remembered(thing, "children", self._children)

    def _children(self, thing: JavaObject) -> list[JavaObject]:
        name = class_name(thing)
        if name not in _NAMES_OF_PARTS:
            kinds = (kind for kind in _PARTS if is_a(self.session, thing, f"{_TREES}.{kind}"))
            _NAMES_OF_PARTS[name] = next((_PARTS[kind] for kind in kinds), None)
        if (names := _NAMES_OF_PARTS[name]) is None:
            return items_of(thing.children())
        return [getattr(thing, part)() for part in names]

    def output(self, node: JavaObject) -> list[JavaObject]:
        """The attributes that a node puts out."""
        return remembered(node, "output", lambda one: items_of(one.output()))

    def first_id(self, node: JavaObject) -> int:
        """Id of the first attribute that a node puts out; -1 if it has none."""
        output = node.output()
        return int(output.head().exprId().id()) if output.nonEmpty() else -1

    def is_streaming(self, node: JavaObject) -> bool:
        """Whether the node reads a stream."""
        return bool(node.isStreaming())

    def source(self, node: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of a streaming relation."""
        return str(node.sourceName()), texts_of(self.session, node.extraOptions())

    def batch_source(self, node: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of what is read at once."""
        return read_of(self.session, node)

    def label(self, node: JavaObject) -> str | None:
        """The name that the user gave a streaming relation with `readStream.name(…)`."""
        found = node.sourceIdentifyingName()
        return str(found.name()) if class_name(found) == "UserProvided" else None

    def name_of_alias(self, node: JavaObject) -> str:
        """The name that a SubqueryAlias gives what is below it."""
        return str(node.alias())

    def struct(self, attributes: Iterable[JavaObject]) -> StructType:
        """Attributes as a schema, with the comments in which METADATA columns may have been declared."""
        fields = [
            {
                "name": str(attribute.name()),
                "type": json.loads(str(attribute.dataType().json())),
                "nullable": bool(attribute.nullable()),
                "metadata": self.metadata(attribute),
            }
            for attribute in attributes
        ]
        return StructType.fromJson({"type": "struct", "fields": fields})

    def schema(self, node: JavaObject) -> StructType:
        """What a node puts out, as a schema."""
        return StructType.fromJson(json.loads(str(node.schema().json())))

    def projected(self, node: JavaObject) -> list[JavaObject]:
        """The named expressions of a Project."""
        return remembered(node, "projected", lambda one: items_of(one.projectList()))

    def row_number(self, node: JavaObject) -> int | None:
        """How many rows a limit or an offset says; None if that is no number."""
        expr = node.offsetExpr() if class_name(node) == "Offset" else node.limitExpr()
        return int(self.literal(expr)) if class_name(expr) == "Literal" else None

    def first_order(self, node: JavaObject) -> FirstOrder | None:
        """By what a Sort orders rows first; None if it orders those of each task alone (SORT BY)."""
        if not getattr(node, "global")():
            return None
        return self.orders(node)[0]

    def orders(self, node: JavaObject) -> list[FirstOrder]:
        """By what a Sort orders rows, each expression."""
        return [
            FirstOrder(
                one.child(),
                class_name(one.direction()) == "Ascending$",
                class_name(one.nullOrdering()) == "NullsFirst$",
            )
            for one in items_of(node.order())
        ]

    def order_of_extreme(self, function: JavaObject) -> FirstOrder:
        """The order of which MIN or MAX is the first value; NULL, which it never is, stands last."""
        called = function.aggregateFunction()
        return FirstOrder(called.child(), class_name(called) == "Min", are_nulls_first=False)

    def condition(self, node: JavaObject) -> JavaObject | None:
        """The condition of a Filter or a Join; None for a join without one."""
        found = node.condition()
        return found if class_name(node) == "Filter" else _given(found)

    def join_type(self, node: JavaObject) -> str | None:
        """The type of a join in lower case, as in "left outer"; None where it marks what EXISTS finds."""
        if class_name(node.joinType()) == "ExistenceJoin":
            return None
        return str(node.joinType().sql()).lower()

    def generator(self, node: JavaObject) -> JavaObject:
        """The expression of a Generate that makes rows of one row."""
        return node.generator()

    def is_outer(self, node: JavaObject) -> bool:
        """Whether a Generate gives a row also where its generator makes none."""
        return bool(node.outer())

    def generated(self, node: JavaObject) -> list[JavaObject]:
        """The attributes that a Generate adds to its input's."""
        return items_of(node.generatorOutput())

    def expanded(self, node: JavaObject) -> list[list[JavaObject]]:
        """What an Expand makes of a row: for each row that comes out its expressions."""
        return [items_of(projection) for projection in items_of(node.projections())]

    def is_all(self, node: JavaObject) -> bool:
        """Whether an Intersect or Except counts equal rows."""
        return bool(node.isAll())

    def generated_by(self, node: JavaObject) -> JavaObject:
        """An Expand as a Generate: each row is an array of the rows that it makes of it, written out."""
        (child,) = self.children(node)
        known = {self.attribute(one)[0] for one in self.output(child)}
        outputs = self.output(node)
        made = [number for number, one in enumerate(outputs) if self.attribute(one)[0] not in known]
        structs = [
            self._made.CreateNamedStruct(
                self._seq([part for number in made for part in (self._text(f"_{number}"), row[number])])
            )
            for row in self.expanded(node)
        ]
        inline = self._made.Inline(self._made.CreateArray(self._seq(structs), False))
        new = self._seq([outputs[number] for number in made])
        generate = self._logical.Generate(inline, self._seq([]), False, self._none, new, child)
        return self.project(outputs, generate)

    def keys(self, node: JavaObject) -> list[JavaObject]:
        """The attributes in which a Deduplicate looks for equal values."""
        return items_of(node.keys())

    def event_time(self, node: JavaObject) -> JavaObject:
        """The column that a watermark node declares as event time."""
        return node.eventTime()

    def grouping(self, node: JavaObject) -> list[JavaObject]:
        """The expressions by which an Aggregate groups; none for one of all rows."""
        return items_of(node.groupingExpressions())

    def aggregated(self, node: JavaObject) -> list[JavaObject]:
        """The named expressions that an Aggregate puts out."""
        return items_of(node.aggregateExpressions())

    def observed(self, node: JavaObject) -> list[JavaObject]:
        """The named expressions that are told of observed rows."""
        return items_of(node.metrics())

    def aggregation(self, expr: JavaObject) -> tuple[JavaObject, JavaObject | None, bool]:
        """Function of an AggregateExpression, the condition of its FILTER, and whether it is DISTINCT."""
        return expr.aggregateFunction(), _given(expr.filter()), bool(expr.isDistinct())

    def partition(self, node: JavaObject) -> list[JavaObject]:
        """The expressions of the PARTITION BY of a Window."""
        return items_of(node.partitionSpec())

    def put_out(self, alias: JavaObject) -> JavaObject:
        """The attribute that an alias is above the node that has it."""
        return remembered(alias, "put out", lambda one: one.toAttribute())

    def evaluated(self, node: JavaObject) -> list[JavaObject]:
        """The expressions of a node."""
        return items_of(node.expressions())

    def references(self, node: JavaObject) -> list[JavaObject]:
        """The attributes that a node evaluates."""
        return items_of(node.references().toSeq())

    def parameters(self, expr: JavaObject, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Parameters of an expression beyond its arguments, as text, by the names of Catalyst's fields."""
        return tuple((name, str(getattr(expr, name)())) for name in names)

    def detail(self, expr: JavaObject) -> str:
        """What an expression is given beside its children, as text: which field of a struct it takes, say."""
        name = class_name(expr)
        if name not in _DETAILS:
            _DETAILS[name] = tuple(_places_of_details(expr))
        found = ", ".join(str(expr.productElement(place)) for place in _DETAILS[name])
        if name.startswith("Python"):  # functions may have one name, as those without one have
            found += f", {expr.func().command().hashCode()}"
        return _ID.sub("", found)  # an Option may have a child

    def id_of(self, attribute: JavaObject) -> int:
        """Id of an attribute, or of the variable of a function with an arrow."""
        return remembered(attribute, "attribute", self._attribute)[0]

    def attribute(self, attribute: JavaObject) -> tuple[int, str, str]:
        """Id, name and type of an attribute or an alias."""
        found = remembered(attribute, "attribute", self._attribute)
        self._attributes.setdefault(found[0], attribute)
        return found

    def _attribute(self, attribute: JavaObject) -> tuple[int, str, str]:
        """Id, name and type in one crossing, not in seven; the type of a struct has names in it."""
        text = str(attribute.simpleString(_ALL))
        found = None if "struct<" in text else _ATTRIBUTE.fullmatch(text)
        if found is None:
            return int(attribute.exprId().id()), str(attribute.name()), self.type_name(attribute)
        return int(found[2]), found[1], found[3]

    def type_name(self, expr: JavaObject) -> str:
        """Type of an expression, as Spark SQL spells it."""
        return remembered(expr, "type", lambda one: str(one.dataType().simpleString()))

    def metadata(self, attribute: JavaObject) -> dict[str, Any]:
        """What is attached to an attribute, as JSON has it."""
        return dict(json.loads(str(attribute.metadata().json())))

    def is_text_type(self, expr: JavaObject) -> bool:
        """Whether an expression gives a text, of any collation."""
        return self.type_name(expr).startswith("string")

    def text(self, expr: JavaObject) -> str:
        """The expression in SQL."""
        return remembered(expr, "sql", lambda one: str(one.sql()))

    def shown(self, expr: JavaObject) -> str:
        """The expression as Spark shows it in a plan, without ids."""
        return _ID.sub("", str(expr.toString()))

    def literal(self, expr: JavaObject) -> Any:
        """Value of a Literal as Python has it; a ValueError where it has none."""
        return python_value(expr.value(), self.type_name(expr))

    def folded(self, expr: JavaObject) -> Any:
        """Value of a constant expression.

        Raises:
            ValueError: it cannot be computed, or Python has no such value.
        """
        try:
            return python_value(expr.eval(None), self.type_name(expr))
        except (Py4JJavaError, PySparkException) as cause:
            raise ValueError(f"the constant {self.text(expr)} cannot be computed") from cause

    def is_deterministic(self, thing: JavaObject) -> bool:
        """Whether Catalyst calls an expression, with all its arguments, or a whole plan deterministic."""
        return remembered(thing, "deterministic", lambda one: bool(one.deterministic()))

    def has_plan(self, expr: JavaObject) -> bool:
        """Whether the expression is a subquery."""
        name = class_name(expr)
        if name not in _PLANS:
            _PLANS[name] = is_a(self.session, expr, _PLAN_EXPRESSION)
        return _PLANS[name]

    def replacement(self, expr: JavaObject) -> JavaObject | None:
        """What Spark computes in place of a RuntimeReplaceable; None for any other expression.

        Of those that inherit the rules of analysis (Between, NVL, NULLIF, …) it is the only child: the fields
        for what the user wrote keep old ids where Spark renews those of the side of a self join.
        """
        return expr.replacement() if "RUNTIME_REPLACEABLE" in self._patterns(expr) else None

    def is_filled_in(self, expr: JavaObject) -> bool:
        """Whether Spark puts a value in the expression's place when it optimizes a micro-batch.

        One of the clock, the session or the user, which no row says.
        """
        return "CURRENT_LIKE" in self._patterns(expr) or class_name(expr) == "SparkVersion"

    def _patterns(self, expr: JavaObject) -> frozenset[str]:
        name = class_name(expr)
        if name not in _MARKS:
            _MARKS[name] = frozenset(str(expr.nodePatterns().mkString(",")).split(","))
        return _MARKS[name]

    @cached_property
    def _made(self) -> Any:
        """Where Catalyst's classes of expressions are."""
        return self._jvm.org.apache.spark.sql.catalyst.expressions

    @cached_property
    def _logical(self) -> Any:
        """Where Catalyst's classes of nodes are."""
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical

    @cached_property
    def _nil(self) -> Any:
        return object_of(self._jvm.scala.collection.immutable, "Nil")

    @cached_property
    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def attributes(self, node: JavaObject) -> dict[int, JavaObject]:
        """Output attributes of a node by the planner's column ids."""
        found = {}
        for attribute in self.output(node):
            number = self.id_of(attribute)
            found[self._numbers.get(number, number)] = attribute
        return found

    def alias(
        self, expr: JavaObject, name: str, number: int, metadata: Mapping[str, str] | None = None
    ) -> JavaObject:
        """The expression under the id of a column that was read, or under a new id for a negative number.

        It inherits what is attached to a column, unless `metadata` replaces that.
        """
        read = self._attributes.get(number)
        if number not in self._expr_ids:
            self._expr_ids[number] = self._new_id() if read is None else read.exprId()
            if read is None:
                self._numbers[int(self._expr_ids[number].id())] = number
        explicit = self._none
        if metadata is not None:
            explicit = self._attached(metadata) if metadata else self._nothing
        qualifier = self._seq([]) if read is None else read.qualifier()
        return self._made.Alias(expr, name, self._expr_ids[number], qualifier, explicit, self._seq([]))

    def unmarked(self, node: JavaObject) -> JavaObject:
        """The node under a Project that takes away what is attached to its columns.

        A watermark would let Spark drop changes that come late, and forget groups that may yet change.
        """
        columns = [(one, self.attribute(one)[1]) for one in self.output(node)]
        bare = (self._renamed(one, name, self._new_id(), self._nothing) for one, name in columns)
        return self.project(bare, node)

    @cached_property
    def _nothing(self) -> JavaObject:
        """Nothing attached to a column, where it would else inherit what is."""
        return self._attached({})

    def _attached(self, metadata: Mapping[str, str]) -> JavaObject:
        attached = self._jvm.org.apache.spark.sql.types.Metadata.fromJson(json.dumps(dict(metadata)))
        return self._jvm.scala.Option.apply(attached)

    def named(self, expr: JavaObject, name: str) -> JavaObject:
        """The expression under a name and a new id."""
        return self._renamed(expr, name, self._new_id())

    def substituted(self, expr: JavaObject, known: Sequence[tuple[JavaObject, JavaObject]]) -> JavaObject:
        """The expression with each part that means the same as the first of a pair replaced by the second."""
        meaning = _meaning(expr)
        for old, new in known:
            if _meaning(old) == meaning and expr.semanticEquals(old):
                return new
        return self.with_changed_children(expr, lambda part: self.substituted(part, known))

    def inlined(self, expr: JavaObject) -> JavaObject:
        """A With as the expression that it is, with each common part where it is referred to."""
        whole, *parts = self.children(expr)
        return self._with_parts(whole, [(part.id(), self.children(part)[0]) for part in parts])

    def _with_parts(self, expr: JavaObject, parts: Sequence[tuple[JavaObject, JavaObject]]) -> JavaObject:
        if class_name(expr) == "CommonExpressionRef":
            return next((part for number, part in parts if number.equals(expr.id())), expr)
        return self.with_changed_children(expr, lambda child: self._with_parts(child, parts))

    def computed(self, expr: JavaObject) -> JavaObject:
        """The expression with all that Spark replaces before it runs already replaced."""
        if (replacement := self.replacement(expr)) is not None:
            return self.computed(replacement)
        if class_name(expr) == "With":
            return self.computed(self.inlined(expr))
        return self.with_changed_children(expr, self.computed)

    def with_changed_children(
        self, expr: JavaObject, change: Callable[[JavaObject], JavaObject]
    ) -> JavaObject:
        """A node or an expression over its children, each changed; itself where none has changed."""
        parts = self.children(expr)
        changed = [change(part) for part in parts]
        is_same = all(new is old for new, old in zip(changed, parts, strict=True))
        return expr if is_same else self.with_children(expr, changed)

    def average(self, function: JavaObject, total: JavaObject, count: JavaObject) -> JavaObject:
        """What an Average makes of the sum and the number of its values, in its own type and rounding."""
        slots = items_of(function.aggBufferAttributes())
        return self.substituted(function.evaluateExpression(), list(zip(slots, (total, count), strict=True)))

    def as_interval(self, expr: JavaObject, type_name: str) -> JavaObject:
        """An interval of all fields as one of this type, which has what its values have."""
        if not type_name.startswith("interval ") or self.type_name(expr) == type_name:
            return expr
        wanted = self._jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(type_name))
        return self._made.Cast(expr, wanted, self._none, self._made.EvalMode.ANSI())

    def unless(self, condition: JavaObject, expr: JavaObject) -> JavaObject:
        """The expression, or NULL where the condition is true; then it is not computed."""
        return self._made.If(condition, self._null_as(expr), expr)

    def where(self, condition: JavaObject, expr: JavaObject) -> JavaObject:
        """The expression where the condition is true, else NULL; then it is not computed."""
        return self._made.If(condition, expr, self._null_as(expr))

    def is_text(self, expr: JavaObject, text: str) -> JavaObject:
        """Whether an expression has this text as its value."""
        return self._made.EqualTo(expr, self._text(text))

    def choice(self, condition: JavaObject, one: JavaObject, text: str) -> JavaObject:
        """One expression where the condition is true, else a text."""
        return self._made.If(condition, one, self._text(text))

    def _text(self, text: str) -> JavaObject:
        string = self._jvm.org.apache.spark.sql.types.DataTypes.StringType
        return self._made.Literal.create(str(text), string)

    def _null_as(self, expr: JavaObject) -> JavaObject:
        return self._made.Literal.create(None, expr.dataType())

    def collation_key(self, expr: JavaObject) -> JavaObject:
        """Bytes that are equal where a text's collation calls two texts equal."""
        return self._made.CollationKey(expr)

    def conjunction(self, left: JavaObject, right: JavaObject) -> JavaObject:
        """Both conditions."""
        return self._made.And(left, right)

    def disjunction(self, left: JavaObject, right: JavaObject) -> JavaObject:
        """One of the conditions, or both."""
        return self._made.Or(left, right)

    def project(self, named: Iterable[JavaObject], child: JavaObject) -> JavaObject:
        """A Project over a node."""
        return self._logical.Project(self._seq(named), child)

    def filter(self, condition: JavaObject, child: JavaObject) -> JavaObject:
        """A Filter over a node."""
        return self._logical.Filter(condition, child)

    def with_lateral(self, node: JavaObject, plan: JavaObject) -> JavaObject:
        """A LateralJoin with another plan of its subquery."""
        right = node.right().withNewPlan(plan)
        return self._logical.LateralJoin(node.left(), right, node.joinType(), node.condition())

    def aggregate(
        self, groups: Sequence[JavaObject], outputs: Sequence[JavaObject], child: JavaObject
    ) -> JavaObject:
        """An Aggregate over a node."""
        return self._logical.Aggregate(self._seq(groups), self._seq(outputs), child, self._none)

    def of_all_values(self, function: JavaObject) -> JavaObject:
        """An AggregateExpression without its DISTINCT."""
        condition, number = function.filter(), function.resultId()
        return function.copy(function.aggregateFunction(), function.mode(), False, condition, number)

    def with_row(self, node: JavaObject, row: JavaObject) -> tuple[JavaObject, JavaObject]:
        """An inner Join without a condition with a plan of one row; and the first column of that."""
        apart = self._apart(row, node)
        return self._join(node, apart, "inner", None), self.output(apart)[0]

    def _join(
        self, left: JavaObject, right: JavaObject, kind: str, condition: JavaObject | None
    ) -> JavaObject:
        type_ = self._jvm.org.apache.spark.sql.catalyst.plans.JoinType.apply(kind)
        some = self._jvm.scala.Option.apply(condition)
        return self._logical.Join(left, right, type_, some, self._logical.JoinHint.NONE())

    def existence(self, node: JavaObject) -> JavaObject | None:
        """The column of a Join that says whether a row of the left side has met one; None for other nodes."""
        if class_name(node) != "Join" or class_name(node.joinType()) != "ExistenceJoin":
            return None
        return node.joinType().exists()

    def parts_of(self, condition: JavaObject) -> list[JavaObject]:
        """The parts of a condition that must all hold."""
        if class_name(condition) != "And":
            return [condition]
        return [part for side in self.children(condition) for part in self.parts_of(side)]

    def existence_as_left_join(
        self,
        left: JavaObject,
        right: JavaObject,
        keys: Sequence[JavaObject],
        condition: JavaObject,
        exists: JavaObject,
    ) -> JavaObject:
        """The left side with such a column, by an outer join with the groups of the right side's keys."""
        joined = self._join(left, self.aggregate(keys, keys, right), "leftouter", condition)
        met = self._made.IsNotNull(self.output(joined)[len(self.output(left))])
        id, name, _ = self.attribute(exists)
        return self.project([*self.output(left), self.alias(met, name, id)], joined)

    def existence_as_union(
        self, left: JavaObject, right: JavaObject, condition: JavaObject | None, exists: JavaObject
    ) -> JavaObject:
        """The left side with such a column, as its rows that have met one, and those that have not."""
        id, name, _ = self.attribute(exists)
        boolean = self._jvm.org.apache.spark.sql.types.DataTypes.BooleanType
        met, unmet = (
            self.project(
                [*self.output(left), self.alias(self._made.Literal.create(is_met, boolean), name, id)],
                self._below_existence(left, right, kind, condition),
            )
            for is_met, kind in ((True, "leftsemi"), (False, "leftanti"))
        )
        return self._logical.Union(self._seq([met, self._apart(unmet, met)]), False, False)

    def _below_existence(
        self, left: JavaObject, right: JavaObject, kind: str, condition: JavaObject | None
    ) -> JavaObject:
        """A semi or anti join, below those of its left side that only say whether a row has met one."""
        if self.existence(left) is None:
            return self._join(left, right, kind, condition)
        rows, met = self.children(left)
        return self.with_children(left, [self._below_existence(rows, right, kind, condition), met])

    def inner_join(self, left: JavaObject, right: JavaObject, condition: JavaObject) -> JavaObject:
        """An inner Join of two nodes; an id that both put out is the left's, also in the condition.

        Such a column of the right gets a new id here. Spark's analyser would do it by new ids for all columns
        of the relation that it comes from, and leave the condition as it is.
        """
        return self._join(left, self._apart(right, left), "inner", condition)

    def _apart(self, node: JavaObject, other: JavaObject) -> JavaObject:
        """The node with new ids for the columns that another one puts out under the same ids."""
        taken = set(map(self.id_of, self.output(other)))
        columns = self.output(node)
        clashing = [self.id_of(column) in taken for column in columns]
        if not any(clashing):
            return node
        renamed = (
            self._renamed(column, column.name(), self._new_id()) if is_taken else column
            for column, is_taken in zip(columns, clashing, strict=True)
        )
        return self.project(renamed, node)

    def _new_id(self) -> JavaObject:
        return self._made.NamedExpression.newExprId()

    def _renamed(
        self, expr: JavaObject, name: str, number: JavaObject, attached: JavaObject | None = None
    ) -> JavaObject:
        """An expression under a name and an id, with what is attached to it, or what replaces that."""
        explicit = self._none if attached is None else attached
        return self._made.Alias(expr, name, number, self._seq([]), explicit, self._seq([]))

    def sliding_windows(self, node: JavaObject, child: JavaObject) -> JavaObject:
        """An Expand with one column of its own, the first, over another input, whose columns it passes on."""
        passed_on = self.output(child)
        rows = [self._seq([made, *passed_on]) for made, *_ in self.expanded(node)]
        own, *_ = self.output(node)
        return self._logical.Expand(self._seq(rows), self._seq([own, *passed_on]), child)

    def with_children(self, node: JavaObject, children: Iterable[JavaObject]) -> JavaObject:
        """The node over other inputs."""
        return node.withNewChildren(self._seq(children))

    def dataframe(self, plan: JavaObject, session: SparkSession | None = None) -> DataFrame:
        """A DataFrame that has this plan; of the plan's own session, or of another one."""
        return frame_of(session or self.session, plan)

    def optimized(self, df: DataFrame) -> JavaObject:
        """What the optimizer of its session makes of a DataFrame's plan."""
        return df._jdf.queryExecution().optimizedPlan()

    def physical(self, plan: JavaObject, session: SparkSession) -> JavaObject:
        """The plan by which a session computes this one."""
        return self.dataframe(plan, session)._jdf.queryExecution().executedPlan()

    def in_one_partition(self, plan: JavaObject) -> JavaObject:
        """A physical plan with the rows of all partitions in one."""
        return self._jvm.org.apache.spark.sql.execution.CoalesceExec(1, plan)

    def unknown_rows(
        self,
        columns: JavaObject,
        rdd: JavaObject | None = None,
        *,
        is_streaming: bool = False,
        in_one_partition: bool = False,
    ) -> JavaObject:
        """A leaf of which the optimizer knows nothing but the columns; without an RDD it has no row."""
        relation = self._jvm.org.apache.spark.sql.execution.LogicalRDD
        physical = self._jvm.org.apache.spark.sql.catalyst.plans.physical
        return relation(
            columns,
            self.session._sc._jsc.emptyRDD().rdd() if rdd is None else rdd,
            object_of(physical, "SinglePartition") if in_one_partition else defaults_of(relation, 3, 3)[0],
            self._seq([]),
            is_streaming,
            self._none,
            self.session._jsparkSession,
            self._none,
            self._none,
            *self._takes.logical_rdd,
        )

    def _seq(self, items: Iterable[JavaObject]) -> JavaObject:
        found = list(items)
        if len(found) < 2:
            return self._nil.prepended(found[0]) if found else self._nil
        # a list that is converted is made by a call, and one for each item
        made = self._jvm.java.util.List.of(*found) if len(found) <= _LIST_OF else found
        return seq_of(self.session, made)


_NAMES_OF_PARTS: Final[dict[str, tuple[str, ...] | None]] = {}
"""What the children of a class of nodes or expressions are called; None of those that have a list of them."""

_MARKS: Final[dict[str, frozenset[str]]] = {}
"""Catalyst's own marks of a class of expressions, by which its rules find what they are about."""

_PLANS: Final[dict[str, bool]] = {}
"""Whether a class of expressions is one of subqueries."""

_DETAILS: Final[dict[str, tuple[int, ...]]] = {}
"""Where the constructor of a class of expressions takes what is no child and says what it computes."""

_TYPES_OF_DETAILS: Final = re.compile(
    r"int|long|double|boolean|java\.lang\.String|scala\.Option|scala\.Enumeration.*|scala\..*Map"
    r"|org\.apache\.spark\.sql\.types\..*"
)
"""Names of the types of that; what else there is are expressions, plans, ids, and functions as such."""


def _places_of_details(expr: JavaObject) -> Iterator[int]:
    arity = expr.productArity()
    for constructor in expr.getClass().getConstructors():
        types = [one.getName() for one in constructor.getParameterTypes()]
        if len(types) == arity:
            yield from (place for place, name in enumerate(types) if _TYPES_OF_DETAILS.fullmatch(name))
            return


def defaults_of(scala_class: JavaObject, first: int, last: int) -> list[JavaObject]:
    """The values that arguments of a constructor have where they are not given."""
    return [getattr(scala_class, f"$lessinit$greater$default${n}")() for n in range(first, last + 1)]


def _meaning(expr: JavaObject) -> int:
    """A number that expressions have in common which mean the same."""
    return remembered(expr, "meaning", lambda one: int(one.semanticHash()))


def _given(option: JavaObject) -> JavaObject | None:
    """What an Option of Scala holds."""
    return option.get() if option.isDefined() else None
