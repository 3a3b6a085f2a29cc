"""Leave rows that the query filters out anyway unread (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.chain import chain_of
from planner.expressions import Column, conjuncts
from planner.plan import DeltaJoin, Filter, JoinSide, Plan, Predicate
from planner.predicates import predicates_of
from planner.settings import Settings
from planner.trees import transform_up


def push_filters(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Hand what a filter over a delta join says of one table's columns to that side of the join.

    Only what `planner.predicates` translates. The filter itself stays: the side may keep rows that the
    filter drops, never the other way round.
    """
    if not isinstance(node, Filter) or not isinstance(join := chain_of(node).leaf, DeltaJoin):
        return None
    found = [one for part in conjuncts(node.condition) for one in predicates_of(part, node.child)]
    narrowed = replace(join, left=_narrowed(join.left, found), right=_narrowed(join.right, found))
    if narrowed == join:
        return None
    return transform_up(node, lambda below: narrowed if below is join else below)


def _narrowed(side: JoinSide, found: list[tuple[Column, Predicate]]) -> JoinSide:
    own = [predicate for column, predicate in found if column in side.columns]
    return replace(side, where=tuple(dict.fromkeys((*side.where, *own))))
