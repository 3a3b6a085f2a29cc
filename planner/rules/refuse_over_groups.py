"""Stop at operators that take upserts of groups and lookup joins for changes (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.group_keys import group_keys
from planner.nodes import Filter, Plan, Project, Watermark, Wrapper
from planner.settings import Settings
from planner.trees import children
from planner.upserts_above import upserts_go_to_a_sink


def refuse_over_groups(node: Plan, settings: Settings) -> Refused | None:
    """Refuse every operator but projections and filters above the upserts of an aggregate or a lookup join.

    They hold no `-U`, so what counts or joins changes would keep the rows that they replace.
    """
    if isinstance(node, Project | Filter | Watermark | Wrapper):
        return None
    below = next((child for child in children(node) if group_keys(child) is not None), None)
    return None if below is None else upserts_go_to_a_sink(node, below, settings)
