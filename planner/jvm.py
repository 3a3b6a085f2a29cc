"""The door to Spark's own plans: making Catalyst's objects, and reading them, see `planner.jvm_reading`.

Only the three files `planner/jvm*.py` use py4j. What the objects mean is the business of read.py and
build.py. Written for PySpark 4.3 in classic mode (no Connect).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import DataFrame

from planner.jvm_reading import CatalystReader, JavaObject, items_of

__all__ = ["Catalyst", "JavaObject"]


class Catalyst(CatalystReader):
    """The analysed plan of one DataFrame, and the means to build another from its parts.

    Raises:
        ConfigurationError: the DataFrame is of Spark Connect, which hides its plan.
    """

    def attributes(self, node: JavaObject) -> dict[int, JavaObject]:
        """Output attributes of a node by the planner's column ids."""
        found = {}
        for attribute in self.output(node):
            number = int(attribute.exprId().id())
            found[self._numbers.get(number, number)] = attribute
        return found

    def alias(
        self, expr: JavaObject, name: str, number: int, metadata: Mapping[str, str] | None = None
    ) -> JavaObject:
        """The expression under the id of a column that was read, or under a new id for a negative number.

        It inherits what is attached to a column, unless `metadata` replaces that.
        """
        if number not in self._expr_ids:
            drawn = self._jvm.org.apache.spark.sql.catalyst.expressions.NamedExpression.newExprId()
            self._expr_ids[number] = drawn
            self._numbers[int(drawn.id())] = number
        attached = None if metadata is None else self._metadata(metadata)
        explicit = self._jvm.scala.Option.apply(attached)
        qualifier = self._qualifiers.get(number) or self._seq([])
        make = self._jvm.org.apache.spark.sql.catalyst.expressions.Alias
        return make(expr, name, self._expr_ids[number], qualifier, explicit, self._seq([]))

    def _metadata(self, values: Mapping[str, str]) -> JavaObject:
        return self._jvm.org.apache.spark.sql.types.Metadata.fromJson(json.dumps(dict(values)))

    def substituted(self, expr: JavaObject, known: Sequence[tuple[JavaObject, JavaObject]]) -> JavaObject:
        """The expression with each part that means the same as the first of a pair replaced by the second."""
        for old, new in known:
            if expr.semanticEquals(old):
                return new
        return self._with_children_of(expr, lambda part: self.substituted(part, known))

    def inlined(self, expr: JavaObject) -> JavaObject:
        """A With as the expression that it is, with each common part in the places that refer to it."""
        whole, *parts = self.children(expr)
        return self._with_parts(whole, [(part.id(), self.children(part)[0]) for part in parts])

    def _with_parts(self, expr: JavaObject, parts: Sequence[tuple[JavaObject, JavaObject]]) -> JavaObject:
        if self.class_name(expr) == "CommonExpressionRef":
            return next((part for number, part in parts if number.equals(expr.id())), expr)
        return self._with_children_of(expr, lambda child: self._with_parts(child, parts))

    def computed(self, expr: JavaObject) -> JavaObject:
        """The expression with everything in it that Spark replaces before it runs as what stands for it."""
        if (replacement := self.replacement(expr)) is not None:
            return self.computed(replacement)
        if self.class_name(expr) == "With":
            return self.computed(self.inlined(expr))
        return self._with_children_of(expr, self.computed)

    def _with_children_of(self, expr: JavaObject, change: Callable[[JavaObject], JavaObject]) -> JavaObject:
        parts = self.children(expr)
        changed = [change(part) for part in parts]
        is_same = all(new is old for new, old in zip(changed, parts, strict=True))
        return expr if is_same else self.with_children(expr, changed)

    def average(self, function: JavaObject, total: JavaObject, count: JavaObject) -> JavaObject:
        """What an Average makes of the sum and the number of its values, in its own type and rounding."""
        slots = items_of(function.aggBufferAttributes())
        known = list(zip(slots, (total, count), strict=True))
        return self.substituted(function.evaluateExpression(), known)

    def unless(self, condition: JavaObject, expr: JavaObject) -> JavaObject:
        """The expression, or NULL where the condition is true; then it is not computed."""
        made = self._jvm.org.apache.spark.sql.catalyst.expressions
        return made.If(condition, made.Literal.create(None, expr.dataType()), expr)

    def is_text(self, expr: JavaObject, text: str) -> JavaObject:
        """Whether an expression has this text as its value."""
        return self._jvm.org.apache.spark.sql.catalyst.expressions.EqualTo(expr, self._text(text))

    def choice(self, condition: JavaObject, one: JavaObject, text: str) -> JavaObject:
        """One expression where the condition is true, else a text."""
        return self._jvm.org.apache.spark.sql.catalyst.expressions.If(condition, one, self._text(text))

    def _text(self, text: str) -> JavaObject:
        string = self._jvm.org.apache.spark.sql.types.DataTypes.StringType
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Literal.create(str(text), string)

    def conjunction(self, left: JavaObject, right: JavaObject) -> JavaObject:
        """Both conditions."""
        return self._jvm.org.apache.spark.sql.catalyst.expressions.And(left, right)

    def disjunction(self, left: JavaObject, right: JavaObject) -> JavaObject:
        """One of the conditions, or both."""
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Or(left, right)

    def where(self, condition: JavaObject, expr: JavaObject) -> JavaObject:
        """The expression where the condition is true, else NULL; then it is not computed."""
        made = self._jvm.org.apache.spark.sql.catalyst.expressions
        return made.If(condition, expr, made.Literal.create(None, expr.dataType()))

    def project(self, named: Iterable[JavaObject], child: JavaObject) -> JavaObject:
        """A Project over a node."""
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._seq(named), child)

    def filter(self, condition: JavaObject, child: JavaObject) -> JavaObject:
        """A Filter over a node."""
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Filter(condition, child)

    def inner_join(self, left: JavaObject, right: JavaObject, condition: JavaObject) -> JavaObject:
        """An inner Join of two nodes; an id that both put out is the left's, also in the condition.

        Such a column of the right gets a new id here. Spark's analyser would do it by new ids for all columns
        of the relation that it comes from, and leave the condition as it is.
        """
        package = self._jvm.org.apache.spark.sql.catalyst.plans
        kind = package.JoinType.apply("inner")
        hint = package.logical.JoinHint.NONE()
        some = self._jvm.scala.Option.apply(condition)
        return package.logical.Join(left, self._apart(right, left), kind, some, hint)

    def _apart(self, node: JavaObject, other: JavaObject) -> JavaObject:
        """The node with new ids for the columns that another one puts out under the same ids."""
        taken = {int(column.exprId().id()) for column in self.output(other)}
        columns = self.output(node)
        if taken.isdisjoint(int(column.exprId().id()) for column in columns):
            return node
        made = self._jvm.org.apache.spark.sql.catalyst.expressions
        none, no_names = self._jvm.scala.Option.empty(), self._seq([])
        return self.project(
            (
                made.Alias(column, column.name(), made.NamedExpression.newExprId(), no_names, none, no_names)
                if int(column.exprId().id()) in taken
                else column
                for column in columns
            ),
            node,
        )

    def sliding_windows(self, node: JavaObject, child: JavaObject) -> JavaObject:
        """An Expand with one column of its own, the first, over another input, whose columns it passes on."""
        passed_on = self.output(child)
        rows = [self._seq([made, *passed_on]) for made, *_ in self.expanded(node)]
        own, *_ = self.output(node)
        make = self._jvm.org.apache.spark.sql.catalyst.plans.logical.Expand
        return make(self._seq(rows), self._seq([own, *passed_on]), child)

    def with_children(self, node: JavaObject, children: Iterable[JavaObject]) -> JavaObject:
        """The node over other inputs."""
        return node.withNewChildren(self._seq(children))

    def dataframe(self, plan: JavaObject) -> DataFrame:
        """A DataFrame of the session that has this plan.

        Raises:
            pyspark.errors.AnalysisException: Spark's analyser refuses the plan.
        """
        rows = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.session._jsparkSession, plan)
        return DataFrame(rows, self.session)

    def _seq(self, items: Iterable[JavaObject]) -> JavaObject:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(items))
