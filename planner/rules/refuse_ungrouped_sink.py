"""Stop upserts of groups and lookup joins from going where they replace nothing (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.group_keys import group_keys, sink_is_keyed_by_groups
from planner.nodes import Plan
from planner.settings import Settings
from planner.upserts_above import upserts_replace_nothing


def refuse_ungrouped_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write the upserts of an aggregate, or of a lookup join, into a sink with another key.

    The start or the end of a window stands for the window, and a constant may be part of the key: the one row
    of an aggregate without GROUP BY needs one. A sink that is not known (`sink_key` None) is not refused.
    """
    if settings.sink_key is None or group_keys(node) is None:
        return None
    reason = sink_is_keyed_by_groups(node, settings.sink_key)
    return None if reason is None else upserts_replace_nothing(node, reason, settings)
