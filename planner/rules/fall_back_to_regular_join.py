"""Let Spark join changes where nothing can be looked up (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.nodes import Join, Plan, RegularJoin
from planner.regular_join import regular_join
from planner.rules.replace_join import faults_of
from planner.settings import Settings
from planner.trees import at_join_trees, joins_changes, with_children


def fall_back_to_regular_join(node: Plan, settings: Settings) -> Plan | None:
    """Make a join that can be no delta join Spark's own join over signed rows, if that is right.

    It is right for an INNER join of complete changes: `REGULAR_CONDITIONS`. Its state
    grows with every change, which is why it comes second. Joins below are looked at by themselves. Not
    with the strategy "force"; with "none" it is what every join becomes.

        Join inner ON (a#1 = b#2)             RegularJoin _row_kind#3 ON (a#1 = b#2)
          Changelog without_index       =>      Changelog without_index
          Changelog also_without                Changelog also_without
    """
    if not isinstance(node, Join) or not joins_changes(node) or settings.strategy == "force":
        return None
    why = _why_no_delta_join(node, settings)
    made = None if why is None else regular_join(node, why)
    if not isinstance(made, RegularJoin):
        return None
    inputs = (made.left, made.right)
    return with_children(
        made, [at_join_trees(part, lambda join: _or_same(join, settings)) for part in inputs]
    )


def _why_no_delta_join(join: Join, settings: Settings) -> Refused | None:
    if settings.strategy == "none":
        return Refused("strategy is 'none'", "allow a delta join with strategy='auto'")
    faults = faults_of(join)
    reasons, remedies = ([fault.reason for fault in faults], [fault.remedy for fault in faults])
    return Refused("; ".join(reasons), "; ".join(dict.fromkeys(remedies))) if faults else None


def _or_same(join: Plan, settings: Settings) -> Plan:
    return fall_back_to_regular_join(join, settings) or join
