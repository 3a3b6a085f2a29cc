"""Stop upserts of groups from going where they replace nothing (pure)."""

from __future__ import annotations

from planner.conditions import Refused, sources
from planner.group_keys import group_keys, sink_is_keyed_by_groups
from planner.plan import Plan
from planner.settings import Settings


def refuse_ungrouped_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write the upserts of an aggregate into a sink whose key is not that of the groups.

    The start or the end of a window stands for the window, and a constant may be part of the key: the one row
    of an aggregate without GROUP BY needs one. A sink that is not known (`sink_key` None) is not refused.
    """
    if settings.sink_key is None or (keys := group_keys(node)) is None:
        return None
    reason = sink_is_keyed_by_groups(node, settings.sink_key)
    if reason is None:
        return None
    named = ", ".join(key.name for key in keys) or "a constant, as in SELECT 'all' AS name, count(*) …"
    return Refused(
        f"the aggregate of the changes of {sources(node)} would leave replaced rows in the sink: {reason}",
        f"write it into a table with a PRIMARY KEY of the group columns ({named})",
    )
