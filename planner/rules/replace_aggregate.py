"""Replace an aggregate over changes by signed sums (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.aggregate_conditions import (
    AGGREGATE_CONDITIONS,
    aggregations,
    functions_are_sums,
    sums_can_be_undone,
)
from planner.aggregate_lookup import lookup_aggregate
from planner.aggregate_nodes import Aggregate, Group, Measure, SignedAggregate
from planner.conditions import Refused, sources
from planner.delta_join import DeltaJoin
from planner.expressions import Column, Expr
from planner.group_keys import group_keys
from planner.nodes import Join, Output, Plan, Project, Watermark
from planner.rules.carry_row_kind import carry_row_kind
from planner.settings import Settings
from planner.trees import fresh_ids, reads_changes, row_kind_of, transform_up, walk
from upsert.rowkind import ROW_KIND_COLUMN


def replace_aggregate(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Replace a GROUP BY of changes by sums of signs, which Spark's own aggregation keeps by group.

    Only when all `AGGREGATE_CONDITIONS` hold. Its input is cut down to what groups
    and functions need; watermarks below are left out, since a change that comes late must still count:

        Aggregate by (a#1) [a#1, Sum(b#2) AS s#3]
          Changelog …

    becomes

        SignedAggregate by (a#1 in group_0#-1) of (Sum(value_0_0#-2)) [a#1, Sum(b#2) AS s#3, _row_kind#-3]
          Project [a#1 AS group_0#-1, b#2 AS value_0_0#-2, _row_kind#4]
            Changelog …
    """
    if not isinstance(node, Aggregate) or not reads_changes(node):
        return None
    if group_keys(node.child) is not None:
        return None  # the business of refuse_over_groups
    for condition in AGGREGATE_CONDITIONS:
        if refused := condition(node):
            return refused
    if reason := functions_are_sums(node):
        return lookup_aggregate(node, reason)
    if refused := sums_can_be_undone(node):
        return refused
    node = replace(node, child=_with_kinds(node.child, settings))
    row_kind = row_kind_of(node.child)
    if row_kind is None:
        return _without_kind(node)
    return _signed(node, row_kind)


def _with_kinds(plan: Plan, settings: Settings) -> Plan:
    """The plan with the kinds of an aggregate below that has got its own by this rule, a moment ago."""
    return transform_up(plan, lambda node: carry_row_kind(node, settings) or node)


def _signed(node: Aggregate, row_kind: Column) -> SignedAggregate:
    ids = fresh_ids(node)
    groups = tuple(
        Group(group, Column(next(ids), f"group_{number}", _type_of(group.value)))
        for number, group in enumerate(node.groups)
    )
    measures = tuple(_measures(node, ids))
    inputs = (
        *(Output(group.column, group.by.value) for group in groups),
        *(output for measure in measures for output in _inputs(measure)),
        Output.of(row_kind),
    )
    child = transform_up(node.child, _for_sums)
    new_kind = Column(next(ids), ROW_KIND_COLUMN, "string")
    return SignedAggregate(Project(child, inputs), groups, measures, node.outputs, new_kind)


def _for_sums(node: Plan) -> Plan:
    """A node below sums of signs: nothing may be dropped for being late, and what cancels may do so there."""
    match node:
        case Watermark(child):
            return child
        case DeltaJoin():
            return replace(node, is_net=False)
        case _:
            return node


def _measures(node: Aggregate, ids: Iterator[int]) -> Iterator[Measure]:
    for number, function in enumerate(aggregations(node)):
        values = tuple(
            Column(next(ids), f"value_{number}_{place}", type_) for place, type_ in enumerate(function.types)
        )
        condition = None
        if function.condition is not None:
            condition = Column(next(ids), f"condition_{number}", "boolean")
        yield Measure(function, values, condition)


def _inputs(measure: Measure) -> Iterator[Output]:
    yield from (
        Output(column, value) for column, value in zip(measure.values, measure.function.values, strict=True)
    )
    if measure.condition is not None and measure.function.condition is not None:
        yield Output(measure.condition, measure.function.condition)


def _type_of(value: Expr) -> str:
    return value.type if isinstance(value, Column) else "computed"


def _without_kind(node: Aggregate) -> Refused | None:
    """A join or an aggregate below that could not be replaced has said why; nothing else loses the kind."""
    if any(isinstance(below, Join | Aggregate) and reads_changes(below) for below in walk(node.child)):
        return None
    return Refused(
        f"the changes of {sources(node)} have lost their {ROW_KIND_COLUMN!r} below an aggregate",
        "write planner.optimize(df) of the whole query; if this is it, report it as a bug",
    )
