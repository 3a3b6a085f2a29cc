"""Read only the columns that the query uses (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from deltajoin.expressions import refs_of
from deltajoin.tree import columns_of as columns_of_tree
from planner.chain import chain_of
from planner.delta_join import DeltaJoin
from planner.expressions import columns_of
from planner.nodes import (
    Filter,
    Generate,
    Join,
    Output,
    Plan,
    Project,
    RegularJoin,
    SlidingWindows,
    Watermark,
    Wrapper,
)
from planner.settings import Settings
from planner.trees import expressions, static_input, with_children

_PRUNED: Final = DeltaJoin | RegularJoin | Join | Generate | SlidingWindows


def prune_columns(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Drop what a Project does not use from the Project, the join or the generator below it.

    Spark prunes columns too, but neither into the rows that come from Python, nor from what a regular join
    keeps in its state. Works downwards: a Project that was pruned asks for less. What a delta join compares
    is always read; what nothing above uses does not come out of it, so its rows are net without that.
    """
    if not isinstance(node, Project) or not isinstance(chain_of(node).leaf, _PRUNED):
        return None
    pruned = _pruned(node.child, columns_of(*expressions(node)))
    return None if pruned is node.child else with_children(node, [pruned])


def _pruned(plan: Plan, needed: frozenset[int]) -> Plan:
    match plan:
        case Project():
            kept = tuple(output for output in plan.outputs if output.column.id in needed)
            return plan if len(kept) == len(plan.outputs) else replace(plan, outputs=kept, ref=None)
        case Filter() | Watermark() | Wrapper():
            return with_children(plan, [_pruned(plan.child, needed | columns_of(*expressions(plan)))])
        case DeltaJoin():
            slim = _slim(plan, needed)
            return plan if slim == plan else slim
        case RegularJoin(left, right, condition):
            used = needed | columns_of(condition)
            return with_children(plan, [_chosen(left, used), _chosen(right, used)])
        case Join(condition=condition) if static_input(plan) is not None:
            used = needed if condition is None else needed | columns_of(condition)
            return with_children(plan, [_chosen(plan.left, used), _chosen(plan.right, used)])
        case SlidingWindows(child, values=values):
            return with_children(plan, [_chosen(child, needed | columns_of(*values))])
        case Generate(child, generator):
            return with_children(plan, [_chosen(child, needed | columns_of(generator))])
        case _:
            return plan


def _chosen(plan: Plan, needed: frozenset[int]) -> Plan:
    kept = [column for column in plan.columns if column.id in needed or column.is_row_kind]
    return plan if len(kept) == len(plan.columns) else Project(plan, tuple(map(Output.of, kept)))


def _slim(join: DeltaJoin, needed: frozenset[int]) -> DeltaJoin:
    compared = {(ref.table, ref.column) for ref in columns_of_tree(join.tree)}
    compared |= {(ref.table, ref.column) for ref in refs_of(join.keep)}
    tables = []
    for number, table in enumerate(join.tables):
        out = tuple(column for column in table.emitted if column.id in needed)
        rest = tuple(c for c in table.columns if c not in out and (number, c.name) in compared)
        tables.append(replace(table, columns=(*out, *rest), compared=frozenset(rest)))
    flags = tuple((number, flag) for number, flag in join.present if flag.id in needed)
    return replace(join, tables=tuple(tables), present=flags)
