"""Replace the joins of changelogs by one delta join (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from planner.conditions import Refused
from planner.delta_join import DeltaJoin, JoinTable
from planner.join_conditions import JOIN_CONDITIONS, joins_of
from planner.join_scope import table_of
from planner.join_tree import JoinTree, join_tree
from planner.nodes import Join, Output, Plan, Project
from planner.regular_join import regular_join
from planner.settings import Settings
from planner.stack import stacked, with_hidden_ids
from planner.trees import joins_changes, reads_changes, row_kind_of


def replace_join(node: Plan, settings: Settings) -> Plan | tuple[Refused, ...] | None:
    """Replace a join, and all joins that lie right below it, by lookups in the tables of all of them.

    Only when every condition of `JOIN_CONDITIONS` holds for each join, and
    `join_tree` finds a tree. The delta join emits raw columns of its tables; the projections and
    filters of its inputs are stacked on it, then what the joins' conditions ask beyond the tree, then the
    columns of the topmost join in their order:

        Join inner ON ((k#2 = id#5) AND (x#3 > y#6))      Project [columns of the join, _row_kind]
          Filter …                                          Filter (x#3 > y#6)
            Changelog a                             =>        Filter …
          Changelog b                                           DeltaJoin

    A join that reads no changelog is Spark's business, unless the strategy is "force".
    """
    if not isinstance(node, Join):
        return None
    if not reads_changes(node):
        return _not_about_changes() if settings.strategy == "force" else None
    if not joins_changes(node):
        return None
    if settings.strategy == "none":
        return _no_delta_join(node)
    if faults := faults_of(node):
        return faults
    return _delta_join(node, join_tree(node))


def faults_of(join: Join) -> tuple[Refused, ...]:
    """Why a join, with all joins that lie right below it, can be no delta join; empty if it can."""
    failed = tuple(dict.fromkeys(one for part in joins_of(join) for one in _first_failed(part)))
    return failed or join_tree(join).faults


def _first_failed(join: Join) -> Iterator[Refused]:
    found = (condition(join) for condition in JOIN_CONDITIONS)
    yield from islice((refused for refused in found if refused is not None), 1)


def _no_delta_join(join: Join) -> tuple[Refused, ...]:
    why = Refused("strategy is 'none'", "allow a delta join with strategy='auto'")
    found = regular_join(join, why)
    reason = (
        found.reason if isinstance(found, Refused) else "Spark's own join would take each change for a row"
    )
    return (Refused(f"{why.reason}, and {reason}", why.remedy),)


def _not_about_changes() -> tuple[Refused, ...]:
    reason = "strategy is 'force', and this join reads no changes of managed tables"
    remedy = "join catalog.read_changes of two tables, or leave the strategy at 'auto'"
    return (Refused(reason, remedy),)


def _delta_join(join: Join, tree: JoinTree) -> Plan:
    row_kind = row_kind_of(tree.tables[0])
    if row_kind is None:
        raise AssertionError("the conditions of a delta join promise kinds")
    row_kind = replace(row_kind, ref=None)
    hidden = with_hidden_ids(tree.staged)
    tables = (
        JoinTable(
            table_of(leaf),
            raw.hidden if raw.number in hidden else raw.own,
            tree.where.get(raw.number, ()),
        )
        for leaf, raw in zip(tree.tables, tree.raw, strict=True)
    )
    base = DeltaJoin(tuple(tables), tree.node, row_kind, tuple(tree.present.items()))
    carried = (*tree.present.values(), row_kind)
    plan = stacked(tree.staged, base, carried, hidden, tree.fresh)
    own = [column for column in join.columns if not column.is_row_kind]
    return Project(plan, (*(Output(column, column) for column in own), Output.of(row_kind)))
