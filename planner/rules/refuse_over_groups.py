"""Stop at operators that take upserts of groups for changes (pure)."""

from __future__ import annotations

from planner.aggregate_conditions import upserts_go_to_a_sink
from planner.conditions import Refused
from planner.group_keys import group_keys
from planner.plan import Filter, Plan, Project, Watermark, Wrapper
from planner.settings import Settings
from planner.trees import children


def refuse_over_groups(node: Plan, settings: Settings) -> Refused | None:  # noqa: ARG001
    """Refuse every operator but projections and filters above the upserts of an aggregate.

    They hold no `-U`, so what counts or joins changes would keep the rows that they replace.
    """
    if isinstance(node, Project | Filter | Watermark | Wrapper):
        return None
    if any(group_keys(child) is not None for child in children(node)):
        return upserts_go_to_a_sink(node)
    return None
