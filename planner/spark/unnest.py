"""Subqueries and DISTINCT in aggregates as the joins and the aggregates that the planner knows.

Most of it is done by rules of Spark's own optimizer, which a view's batch plan is given to one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from planner.refusals import PlanError, Refused
from planner.spark.catalyst import GROUPING, Catalyst, JavaObject
from upsert.spark.java import class_name

_LIMITS: Final = ("GlobalLimit", "LocalLimit")

_SIMPLER: Final = ("optimizer.NullPropagation", "optimizer.BooleanSimplification")

_RULES: Final = (
    "optimizer.PullupCorrelatedPredicates",
    "optimizer.RewritePredicateSubquery",
    "optimizer.RewriteCorrelatedScalarSubquery",
    "optimizer.RewriteLateralSubquery",
    *_SIMPLER,
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

_ORDERS_AWAY: Final = "optimizer.EliminateSorts"
"""A rule that takes out the ORDER BY of what is joined, or is added up."""

_EMPTY_AWAY: Final = (
    "optimizer.ConstantFolding",
    "optimizer.BooleanSimplification",
    "optimizer.PruneFilters",
    "optimizer.PropagateEmptyRelation",
)
"""Rules that take out what a condition of constants leaves no row of."""

_WITHOUT_ORDER: Final = ("array", "geography", "geometry", "interval", "map", "struct", "variant")
"""What begins the names of types of which MAX does not give the only value, or may not."""

_TOO_MANY_ROWS: Final = (
    "a subquery that stands for a value must give one row, got more; add LIMIT 1, or compare with IN"
)

_EXACT: Final = {"sum": ("tinyint", "smallint", "int", "bigint", "decimal"), "avg": ("decimal",)}
"""The types of which a function adds numbers without rounding, which would depend on their order."""


def unnested(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """A plan with EXISTS, IN and subqueries for a value as joins.

    Conditions are simplified where that needs nothing but themselves: NOT IN over columns that are never NULL
    is a join by equality, and what all branches of an OR have in common is an AND. A plan in which something
    refers to what is outside of a subquery at the end is left to Spark as it was.
    """
    named = catalyst.rewritten(plan, *_NAMES_AWAY)
    flat = _joined(catalyst, named, _with_existence_joined)
    if flat is None:
        return named
    return _with_functions_below(catalyst, _with_distinct_below(catalyst, _without_empty(catalyst, flat)))


def unnested_over(
    catalyst: Catalyst, df: DataFrame, streams: Mapping[str, Callable[[], DataFrame]]
) -> DataFrame:
    """A query with subqueries over streams, which Spark reads in no subquery, as joins of these streams.

    Args:
        catalyst: of the session.
        df: the query over batches in place of the streams, which have their columns: temporary views.
        streams: for each view what makes the stream, with columns of its own each time.

    Raises:
        PlanError: a subquery cannot be a join.
    """
    plan = catalyst.analyzed(df)
    names = {id: name for leaf, name in _stand_ins(catalyst, plan) if (id := catalyst.first_id(leaf)) >= 0}
    flat = _joined(catalyst, catalyst.rewritten(plan, *_NAMES_AWAY), _with_existence_apart)
    if flat is None or catalyst.has_subqueries(flat):
        raise PlanError(
            [
                Refused(
                    "a subquery of the query cannot become a join, and Spark reads no stream in a subquery",
                    "compare columns by = in it, or make the query a view: CREATE MATERIALIZED VIEW … AS …",
                )
            ]
        )

    def with_streams(node: JavaObject) -> JavaObject:
        if catalyst.children(node):
            return catalyst.with_changed_children(node, with_streams)
        name = names.get(catalyst.first_id(node))
        if name is None or name not in streams:
            return node
        stream = catalyst.analyzed(streams[name]())
        columns = zip(catalyst.output(node), catalyst.output(stream), strict=True)
        return catalyst.project([_as(catalyst, given, column) for column, given in columns], stream)

    return catalyst.dataframe(with_streams(flat))


def _as(catalyst: Catalyst, given: JavaObject, column: JavaObject) -> JavaObject:
    id, name, _ = catalyst.attribute(column)
    return catalyst.alias(given, name, id)


def _stand_ins(catalyst: Catalyst, node: JavaObject) -> Iterator[tuple[JavaObject, str]]:
    """The leaves of a plan, also of its subqueries, that temporary views stand for, with the views' names."""
    if class_name(node) == "SubqueryAlias":
        leaf = node
        while inputs := catalyst.children(leaf):
            leaf = inputs[0]
        yield leaf, catalyst.name_of_alias(node)
    for one in catalyst.nested(node):
        yield from _stand_ins(catalyst, one.plan())
    for child in catalyst.children(node):
        yield from _stand_ins(catalyst, child)


_Rewrite = Callable[[Catalyst, JavaObject], JavaObject]
"""What makes other joins of those that say whether EXISTS finds a row."""


def _joined(catalyst: Catalyst, named: JavaObject, existence: _Rewrite) -> JavaObject | None:
    """A plan with its subqueries as joins; None if something refers to what is outside of one at the end."""
    flat = catalyst.rewritten(_flattened(catalyst, named, existence), *_CONDITIONS_DOWN, _ORDERS_AWAY)
    return None if catalyst.refers_outside(flat) else flat


def _without_empty(catalyst: Catalyst, plan: JavaObject) -> JavaObject:
    """The plan without branches of a UNION in which a constant is another one than a condition wants.

    A WITH that unites rows of several kinds, of which each use wants one, is else kept as all kinds for each.
    What has no row and cannot be left out stays as it was: rows of constants are of no table.
    """
    pruned = catalyst.rewritten(plan, *_EMPTY_AWAY)
    return plan if _has_constant_rows(catalyst, pruned) else pruned


def _has_constant_rows(catalyst: Catalyst, node: JavaObject) -> bool:
    inputs = catalyst.children(node)
    return class_name(node) == "LocalRelation" or any(_has_constant_rows(catalyst, child) for child in inputs)


def _flattened(catalyst: Catalyst, plan: JavaObject, existence: _Rewrite) -> JavaObject:
    """The plan with subqueries as joins, the innermost ones first: what comes out of one is seen at once.

    A rule that makes a join of a subquery goes on to those inside of it, which are not prepared then.
    """
    plan = _grouped(catalyst, plan)
    if not catalyst.has_subqueries(plan):
        return catalyst.rewritten(plan, *_SIMPLER)
    plan, before = _with_values_above(catalyst, _with_flat_subqueries(catalyst, plan, existence)), None
    while before is None or not plan.fastEquals(before):
        before = plan
        plan = _with_rows_joined(catalyst, catalyst.rewritten(plan, *_RULES))
    # two names of one column, as UNION in a LATERAL has them, are one to Spark's optimizer, which fails then
    return existence(catalyst, catalyst.rewritten(plan, "optimizer.CollapseProject"))


def _grouped(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with INTERSECT and EXCEPT as counts of both sides' rows, and ROLLUP as rows written out.

    ALL is counted by rules of Spark's. Rows are equal as GROUP BY has it: NULL is equal to NULL.
    """
    node = catalyst.with_changed_children(node, partial(_grouped, catalyst))
    kind = class_name(node)
    if kind in ("Intersect", "Except"):
        if catalyst.is_all(node):
            return catalyst.rewritten(node, f"optimizer.Rewrite{kind}All")
        return node if catalyst.refers_outside(node) else _counted(catalyst, node, kind)
    if kind == "Expand" and GROUPING in (catalyst.attribute(one)[1] for one in catalyst.output(node)):
        return catalyst.generated_by(node)
    return node


def _counted(catalyst: Catalyst, node: JavaObject, kind: str) -> JavaObject:
    columns = [catalyst.attribute(one) for one in catalyst.output(node)]
    names = [f"column_{number}" for number in range(len(columns))]
    left, right = (
        catalyst.dataframe(side)
        .toDF(*names)
        .select("*", F.lit(mine).alias("_left"), F.lit(1 - mine).alias("_right"))
        for side, mine in zip(catalyst.children(node), (1, 0), strict=True)
    )
    counted = (
        left.unionAll(right)
        .groupBy(*names)
        .agg(F.sum("_left").alias("_left"), F.sum("_right").alias("_right"))
    )
    is_right = F.col("_right") > 0 if kind == "Intersect" else F.col("_right") == 0
    made = catalyst.analyzed(counted.where((F.col("_left") > 0) & is_right).select(*names))
    given = zip(catalyst.output(made), columns, strict=True)
    return catalyst.project([catalyst.alias(one, name, id) for one, (id, name, _) in given], made)


def _with_flat_subqueries(catalyst: Catalyst, node: JavaObject, existence: _Rewrite) -> JavaObject:
    flat_below = partial(_with_flat_subqueries, catalyst, existence=existence)
    node = catalyst.with_changed_children(node, flat_below)
    kind, found = class_name(node), catalyst.nested(node)
    if kind == "LateralJoin":
        return catalyst.with_lateral(node, _named_away(catalyst, *found))
    if kind not in ("Filter", "Project"):
        return node
    flat = (_flattened(catalyst, _named_away(catalyst, one), existence) for one in found)
    known = [(one, one.withNewPlan(plan)) for one, plan in zip(found, flat, strict=True)]
    if not known:
        return node
    (child,) = catalyst.children(node)
    if kind == "Filter":
        return catalyst.filter(catalyst.substituted(catalyst.condition(node), known), child)
    return catalyst.project([catalyst.substituted(one, known) for one in catalyst.projected(node)], child)


def _with_values_above(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with conditions on a subquery's value above those with EXISTS and IN.

    These make joins of tables, whose rows follow from the tables' changes; those compare them with one row.
    """
    node = catalyst.with_changed_children(node, partial(_with_values_above, catalyst))
    if class_name(node) != "Filter":
        return node
    above: list[JavaObject] = []
    below: list[JavaObject] = []
    for part in catalyst.parts_of(catalyst.condition(node)):
        (above if catalyst.values_in(part) else below).append(part)
    if not above or not any(map(catalyst.subqueries_in, below)):
        return node
    made: JavaObject = catalyst.children(node)[0]
    for some in (below, above):
        made = catalyst.filter(reduce(catalyst.conjunction, some), made)
    return made


def _named_away(catalyst: Catalyst, subquery: JavaObject) -> JavaObject:
    """The plan of a subquery without what only gives names, and each LIMIT next to its order."""
    return _limited_in_order(catalyst, catalyst.rewritten(subquery.plan(), *_NAMES_AWAY))


def _limited_in_order(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with projections above LIMIT: Spark's rule looks for its order right below, or takes none."""
    node = catalyst.with_changed_children(node, partial(_limited_in_order, catalyst))
    if class_name(node) not in _LIMITS:
        return node
    (child,) = catalyst.children(node)
    if class_name(child) != "Project":
        return node
    (below,) = catalyst.children(child)
    if class_name(below) not in ("Sort", *_LIMITS):
        return node
    return catalyst.project(catalyst.projected(child), catalyst.with_children(node, [below]))


def _with_existence_joined(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with EXISTS as a value, as in an OR, as a left join with the groups of what it compares.

    One that compares other than by equality of columns stays as it is.
    """
    node = catalyst.with_changed_children(node, partial(_with_existence_joined, catalyst))
    exists = catalyst.existence(node)
    condition = None if exists is None else catalyst.condition(node)
    if exists is None or condition is None:
        return node
    left, right = catalyst.children(node)
    of_right = {catalyst.attribute(one)[0] for one in catalyst.output(right)}
    keys: dict[int, JavaObject] = {}
    for part in catalyst.parts_of(condition):
        sides = catalyst.children(part)
        if class_name(part) != "EqualTo":
            return node
        if any(class_name(one) != "AttributeReference" for one in sides):
            return node
        found = {id: one for one in sides if (id := catalyst.attribute(one)[0]) in of_right}
        if len(found) != 1:
            return node
        keys |= found
    return catalyst.existence_as_left_join(left, right, list(keys.values()), condition, exists)


def _with_existence_apart(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with EXISTS as a value, as in an OR, as the rows for which it is true and those for which not.

    Each is a join without state, while the groups of the other way would be another query's work. Of several
    EXISTS the joins lie right below each other, and the unions above all of them.
    """
    exists = catalyst.existence(node)
    if exists is not None:
        left, right = catalyst.children(node)
        node = catalyst.existence_as_union(left, right, catalyst.condition(node), exists)
    return catalyst.with_changed_children(node, partial(_with_existence_apart, catalyst))


def _with_rows_joined(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with subqueries for a value that refer to nothing outside of them as joins with one row."""
    if not catalyst.has_subqueries(node):
        return node
    node = catalyst.with_changed_children(node, partial(_with_rows_joined, catalyst))
    kind = class_name(node)
    if kind not in ("Aggregate", "Filter", "Project"):
        return node
    found = [
        (one, row)
        for one in catalyst.subqueries(node)
        # one of chance means the same as no other, so its value would never stand for it
        if not catalyst.children(one) and catalyst.is_deterministic(one)
        if (row := _one_row(catalyst, _named_away(catalyst, one))) is not None
    ]
    if not found:
        return node
    # what they are compared with, or guard, is of the groups alone: no join is between it and them then
    apart = _in_parts(catalyst, node) if kind == "Aggregate" else _over_parts(catalyst, node)
    if apart is not node:
        return _with_rows_joined(catalyst, apart)
    if kind == "Aggregate":
        return node
    (child,) = catalyst.children(node)
    below, known = child, []
    for subquery, row in found:
        below, value = catalyst.with_row(below, row)
        known.append((subquery, value))
    if kind == "Project":
        return catalyst.project([catalyst.substituted(one, known) for one in catalyst.projected(node)], below)
    condition = catalyst.substituted(catalyst.condition(node), known)
    return catalyst.project(catalyst.output(child), catalyst.filter(condition, below))


def _one_row(catalyst: Catalyst, plan: JavaObject) -> JavaObject | None:
    """A plan of one column as one row, with NULL for none; None of a type for which MAX cannot say it.

    More rows are an error when it is computed, as they are to Spark.
    """
    if _is_one_row(catalyst, plan):
        return plan
    if catalyst.type_name(catalyst.output(plan)[0]).startswith(_WITHOUT_ORDER):
        return None
    given = catalyst.dataframe(plan).toDF("value")
    found = given.agg(F.max("value").alias("value"), F.count("*").alias("rows"))
    fails = f"raise_error('{_TOO_MANY_ROWS}')"
    return catalyst.analyzed(found.selectExpr(f"CASE WHEN rows > 1 THEN {fails} ELSE value END AS value"))


def _is_one_row(catalyst: Catalyst, plan: JavaObject) -> bool:
    """Whether a plan gives one row, whatever it reads."""
    while class_name(plan) in ("Project", "SubqueryAlias"):
        (plan,) = catalyst.children(plan)
    return class_name(plan) == "Aggregate" and not catalyst.grouping(plan)


def _with_distinct_below(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with aggregates of the DISTINCT values of one column as those over an aggregate without any.

    So what is kept of COUNT(DISTINCT x) is a count of the rows of each x, which follows their changes.
    """
    node = catalyst.with_changed_children(node, partial(_with_distinct_below, catalyst))
    if class_name(node) != "Aggregate":
        return node
    functions, groups = catalyst.functions(node), catalyst.grouping(node)
    distinct = [one for one in functions if _is_distinct(catalyst, one)]
    values = [child for one in distinct for child in catalyst.children(catalyst.aggregation(one)[0])]
    if not values or len(values) != len(distinct):
        return node
    is_grouped = any(one.semanticEquals(values[0]) for one in groups)
    columns = groups if is_grouped else [*groups, values[0]]
    if any(class_name(one) != "AttributeReference" for one in columns):
        return node
    if not all(one.semanticEquals(values[0]) for one in values):
        return node
    if len(distinct) < len(functions):  # of groups, those with changed rows are computed again
        return node if groups else _with_sums_of_each(catalyst, node, functions, values[0])
    apart = catalyst.aggregate(columns, columns, catalyst.children(node)[0])
    known = [(one, catalyst.of_all_values(one)) for one in functions]
    outputs = [catalyst.substituted(one, known) for one in catalyst.aggregated(node)]
    return catalyst.aggregate(groups, outputs, apart)


def _with_sums_of_each(
    catalyst: Catalyst, node: JavaObject, functions: Sequence[JavaObject], value: JavaObject
) -> JavaObject:
    """An aggregate of all rows by way of one for each value that COUNT(DISTINCT) tells apart.

    It stays as it is if another of its functions is no sum, or one that rounds what it adds.
    """
    if not all(_can_be_added(catalyst, one) for one in functions):
        return node
    given, parts = [catalyst.named(value, "value")], list[Column]()
    for number, one in enumerate(functions):
        function, condition, is_distinct = catalyst.aggregation(one)
        if is_distinct:
            continue
        (argument,) = catalyst.children(function)
        known = argument if condition is None else catalyst.where(condition, argument)
        given.append(catalyst.named(known, f"given_{number}"))
        parts.append(F.count(f"given_{number}").alias(f"count_{number}"))
        if class_name(function) != "Count":
            parts.append(F.sum(f"given_{number}").alias(f"sum_{number}"))
    rows = catalyst.dataframe(catalyst.project(given, catalyst.children(node)[0]))
    of_each = rows.groupBy("value").agg(*parts)
    totals = [
        F.coalesce(F.sum(part.name), F.lit(0)).alias(part.name)
        if part.name.startswith("count_")
        else F.sum(part.name).cast(part.dataType).alias(part.name)  # the sum of sums has a larger type
        for part in of_each.schema.fields[1:]
    ]
    whole = catalyst.analyzed(of_each.agg(F.count("value").alias("value"), *totals))
    columns = {catalyst.attribute(one)[1]: one for one in catalyst.output(whole)}
    known = []
    for number, one in enumerate(functions):
        function, _, is_distinct = catalyst.aggregation(one)
        found = columns["value" if is_distinct else f"count_{number}"]
        if (total := columns.get(f"sum_{number}")) is not None:
            is_average = class_name(function) == "Average"
            found = catalyst.average(function, total, found) if is_average else total
        known.append((one, found))
    return catalyst.project([catalyst.substituted(one, known) for one in catalyst.aggregated(node)], whole)


def _can_be_added(catalyst: Catalyst, aggregation: JavaObject) -> bool:
    """Whether an aggregate of all rows follows from those of parts of the rows, and is the same exactly."""
    function, condition, is_distinct = catalyst.aggregation(aggregation)
    arguments, name = catalyst.children(function), str(function.prettyName())
    if len(arguments) != 1 or (is_distinct and (name != "count" or condition is not None)):
        return False
    type_name, *_ = catalyst.type_name(arguments[0]).split("(")
    return name == "count" or type_name in _EXACT.get(name, ())


def _is_distinct(catalyst: Catalyst, function: JavaObject) -> bool:
    _, condition, is_distinct = catalyst.aggregation(function)
    return is_distinct and condition is None


def _with_functions_below(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """The plan with aggregate functions alone below conditions on groups, and below values made of these.

    What is kept of an aggregate has then no value that may fail for a group which a condition, or a CASE,
    leaves out, as `sum(a) / sum(b)` does where sum(b) is 0.
    """
    node = catalyst.with_changed_children(node, partial(_with_functions_below, catalyst))
    return _over_parts(catalyst, node)


def _over_parts(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """A condition on groups, or values made of them, over the aggregate functions alone."""
    if not _computes(catalyst, node):
        return node
    (child,) = catalyst.children(node)
    parts = _in_parts(catalyst, child) if class_name(child) == "Aggregate" else child
    if parts is child:
        return node
    return catalyst.rewritten(catalyst.with_children(node, [parts]), "optimizer.PushDownPredicates")


def _in_parts(catalyst: Catalyst, node: JavaObject) -> JavaObject:
    """An aggregate as what it makes of its functions, over these alone; itself if it gives no more."""
    outputs, groups = catalyst.aggregated(node), catalyst.grouping(node)
    if not all(map(catalyst.is_deterministic, outputs)):
        return node  # parts that may give something else each time do not mean the same
    parts = list[JavaObject]()
    for part in (*groups, *catalyst.functions(node)):
        if not any(map(part.semanticEquals, parts)):
            parts.append(part)
    values = [_without_name(catalyst, one) for one in outputs]
    if all(any(map(value.semanticEquals, parts)) for value in values):
        return node
    named = [
        part if class_name(part) == "AttributeReference" else catalyst.named(part, f"part_{number}")
        for number, part in enumerate(parts)
    ]
    below = catalyst.aggregate(groups, named, catalyst.children(node)[0])
    known = [*zip(parts, catalyst.output(below), strict=True)]
    return catalyst.project([catalyst.substituted(one, known) for one in outputs], below)


def _computes(catalyst: Catalyst, node: JavaObject) -> bool:
    """Whether a node is a condition, or makes more of its input's columns than other names."""
    if class_name(node) != "Project":
        return class_name(node) == "Filter"
    values = (_without_name(catalyst, one) for one in catalyst.projected(node))
    return any(class_name(value) != "AttributeReference" for value in values)


def _without_name(catalyst: Catalyst, expr: JavaObject) -> JavaObject:
    return catalyst.children(expr)[0] if class_name(expr) == "Alias" else expr
