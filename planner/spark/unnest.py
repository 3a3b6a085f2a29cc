"""Subqueries and DISTINCT in aggregates as the joins and the aggregates that the planner knows.

Most of it is done by rules of Spark's own optimizer, which a view's batch plan is given to one by one.
"""

from __future__ import annotations

from typing import Final

from planner.spark.catalyst import Catalyst, JavaObject

_RULES: Final = (
    "optimizer.PullupCorrelatedPredicates",
    "optimizer.RewritePredicateSubquery",
    "optimizer.PullupCorrelatedPredicates",  # of what the rule before has brought to light
    "optimizer.RewriteCorrelatedScalarSubquery",
    "optimizer.NullPropagation",
    "optimizer.BooleanSimplification",
)
"""Rules of Spark's optimizer; those that rewrite do it to what the first one has prepared."""

_NAMES_AWAY: Final = ("analysis.EliminateSubqueryAliases", "analysis.EliminateView")
"""Rules that take out what only gives names."""

_CONDITIONS_DOWN: Final = (
    "optimizer.PushDownPredicates",
    "optimizer.EliminateOuterJoin",
    "optimizer.PushDownPredicates",
)
"""Rules by which the condition of an inner join reaches it through a join that was a subquery."""


def unnested(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """A plan with EXISTS, IN and subqueries for a value as joins.

    A subquery of a subquery is seen once the outer one is a join, so the rules are applied until they find
    nothing. Conditions are simplified where that needs nothing but themselves: NOT IN over columns that are
    never NULL is a join by equality, and what all branches of an OR have in common is an AND.
    """
    plan, before = catalyst.rewritten(plan, *_NAMES_AWAY), None
    while before is None or not plan.fastEquals(before):
        before = plan
        plan = _with_rows_joined(catalyst, catalyst.rewritten(plan, *_RULES))
    return _with_distinct_below(catalyst, catalyst.rewritten(plan, *_CONDITIONS_DOWN))


def _with_rows_joined(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with each subquery that is one row in any case as a join with that row.

    One that may have no row, or more, stays where it is: a join does not raise Spark's error for it.
    """
    if not catalyst.has_subqueries(node):
        return node
    inputs = catalyst.children(node)
    node = catalyst.with_children(node, [_with_rows_joined(catalyst, child) for child in inputs])
    kind = catalyst.class_name(node)
    found = [(one, plan) for one, plan in catalyst.subqueries(node) if _is_one_row(catalyst, plan)]
    if kind not in ("Filter", "Project") or not found:
        return node
    (child,) = catalyst.children(node)
    below, known = child, []
    for subquery, plan in found:
        below, value = catalyst.with_row(below, plan)
        known.append((subquery, value))
    if kind == "Project":
        return catalyst.project([catalyst.substituted(one, known) for one in catalyst.projected(node)], below)
    condition = catalyst.substituted(catalyst.condition(node), known)
    return catalyst.project(catalyst.output(child), catalyst.filter(condition, below))


def _is_one_row(catalyst: Catalyst, plan: JavaObject) -> bool:
    """Whether a plan gives one row, whatever it reads."""
    while catalyst.class_name(plan) in ("Project", "SubqueryAlias"):
        (plan,) = catalyst.children(plan)
    return catalyst.class_name(plan) == "Aggregate" and not catalyst.grouping(plan)


def _with_distinct_below(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with aggregates of the DISTINCT values of one column as those over an aggregate without any.

    So what is kept of COUNT(DISTINCT x) is a count of the rows of each x, which follows their changes.
    """
    inputs = catalyst.children(node)
    if inputs:
        node = catalyst.with_children(node, [_with_distinct_below(catalyst, child) for child in inputs])
    if catalyst.class_name(node) != "Aggregate":
        return node
    functions, groups = catalyst.functions(node), catalyst.grouping(node)
    values = [child for one in functions for child in catalyst.children(catalyst.aggregation(one)[0])]
    if not all(_is_distinct(catalyst, one) for one in functions) or len(values) != len(functions):
        return node
    is_grouped = any(one.semanticEquals(value) for one in groups for value in values[:1])
    columns = groups if is_grouped else [*groups, *values[:1]]
    if not values or any(catalyst.class_name(one) != "AttributeReference" for one in columns):
        return node
    if not all(one.semanticEquals(values[0]) for one in values):
        return node
    apart = catalyst.aggregate(columns, columns, catalyst.children(node)[0])
    known = [(one, catalyst.of_all_values(one)) for one in functions]
    outputs = [catalyst.substituted(one, known) for one in catalyst.aggregated(node)]
    return catalyst.aggregate(groups, outputs, apart)


def _is_distinct(catalyst: Catalyst, function: JavaObject) -> bool:
    _, condition, is_distinct = catalyst.aggregation(function)
    return is_distinct and condition is None
