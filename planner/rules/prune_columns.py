"""Read only the columns that the query uses (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.chain import chain_of
from planner.expressions import columns_of
from planner.plan import DeltaJoin, Filter, JoinSide, Plan, Project, Watermark, Wrapper
from planner.settings import Settings
from planner.trees import expressions, with_children


def prune_columns(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Drop what a Project does not use from the Project or the delta join below it.

    Spark prunes columns too, but not into the rows that come from Python. Works downwards: a Project that
    was pruned asks for less. The keys of a delta join are always read: rows that differ in them are
    different rows, though the query may not show it.
    """
    if not isinstance(node, Project) or not isinstance(chain_of(node).leaf, DeltaJoin):
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
        case DeltaJoin(left, right):
            slim = replace(plan, left=_slim(left, needed), right=_slim(right, needed))
            return plan if slim == plan else slim
        case _:
            return plan


def _slim(side: JoinSide, needed: frozenset[int]) -> JoinSide:
    kept = tuple(column for column in side.columns if column.id in needed or column.name in side.keys)
    return replace(side, columns=kept)
