"""Count equal rows, so that DISTINCT can give one back or take it away (pure)."""

from __future__ import annotations

from planner.aggregate_nodes import Aggregate, GroupBy
from planner.nodes import Distinct, Output, Plan
from planner.settings import Settings
from planner.trees import reads_changes


def group_distinct(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Make DISTINCT of whole rows over changes a GROUP BY of all columns, which `replace_aggregate` signs.

    So the rows of a group are counted, and its one row goes with the last of them. Comes after
    `drop_needless_distinct`: what is left can have equal rows.

        Distinct [name#1]                     Aggregate by (name#1) [name#1]
          Project [name#1]            =>        Project [name#1]
            Changelog …                           Changelog …
    """
    if not isinstance(node, Distinct) or not reads_changes(node) or not node.is_of_whole_rows:
        return None
    keys = tuple(key for key in node.keys if not key.is_row_kind)
    return Aggregate(node.child, tuple(map(GroupBy, keys)), tuple(Output(key, key) for key in keys))
