"""Leave rows that the query filters out anyway unread (pure)."""

from __future__ import annotations

from dataclasses import replace

from deltajoin.tree import null_supplied, visible
from planner.chain import chain_of
from planner.delta_join import DeltaJoin, JoinTable, Predicate
from planner.expressions import Column, conjuncts
from planner.nodes import Filter, Plan
from planner.predicates import predicates_of
from planner.settings import Settings
from planner.trees import transform_up


def push_filters(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Hand what a filter over a delta join says of one table's columns to that table of the join.

    Only what `predicates_of` translates, and only of tables that every row has a part of: without a
    row of any other table, an outer join would put out a row of NULLs. The filter itself stays: the table may
    keep rows that the filter drops, never the other way round.
    """
    if not isinstance(node, Filter) or not isinstance(join := chain_of(node).leaf, DeltaJoin):
        return None
    found = [one for part in conjuncts(node.condition) for one in predicates_of(part, node.child)]
    always_there = visible(join.tree) - null_supplied(join.tree)
    tables = (
        _narrowed(table, found) if number in always_there else table
        for number, table in enumerate(join.tables)
    )
    narrowed = replace(join, tables=tuple(tables))
    if narrowed == join:
        return None
    return transform_up(node, lambda below: narrowed if below is join else below)


def _narrowed(table: JoinTable, found: list[tuple[Column, Predicate]]) -> JoinTable:
    own = [predicate for column, predicate in found if column in table.columns]
    return replace(table, where=tuple(dict.fromkeys((*table.where, *own))))
