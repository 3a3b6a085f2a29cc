"""Remember nothing of rows that cannot be equal (pure)."""

from __future__ import annotations

from planner.conditions import Refused, sources
from planner.nodes import Distinct, Plan
from planner.settings import Settings
from planner.trees import reads_changes
from planner.uniqueness import is_unique_by


def drop_needless_distinct(node: Plan, settings: Settings) -> Plan | Refused | None:  # noqa: ARG001
    """Leave out DISTINCT and dropDuplicates over changes whose columns hold the key of every table below.

    No two rows are equal in them at any time, so nothing is to be dropped. Where whole rows can be equal,
    `group_distinct` counts them. A dropDuplicates by some columns is refused: it does not say which row
    stays, and so not which one comes back when that goes.

        Distinct [order_id#1]
          Changelog orders […]        =>      Changelog orders […]
    """
    if not isinstance(node, Distinct) or not reads_changes(node):
        return None
    keys = tuple(key for key in node.keys if not key.is_row_kind)
    if is_unique_by(node.child, keys):
        return node.child
    if node.is_of_whole_rows:
        return None
    named = ", ".join(key.name for key in keys)
    return Refused(
        f"dropDuplicates by ({named}) over the changes of {sources(node)} would count rows taken away as "
        "rows, and does not say which of several rows stays",
        f"write the changes into a managed table with PRIMARY KEY ({named}), or take max_by(…) with "
        f"GROUP BY {named}",
    )
