"""Stop a changelog from being joined with static rows where that takes a state (pure)."""

from __future__ import annotations

from planner.conditions import Refused
from planner.nodes import Join, Plan
from planner.settings import Settings
from planner.static_joins import STATIC_JOIN_CONDITIONS
from planner.trees import static_input


def refuse_static_join(node: Plan, settings: Settings) -> Refused | None:
    """Refuse a join of a changelog with static rows that fails one of `STATIC_JOIN_CONDITIONS`.

    One that fulfils them all stays as it is: Spark joins each change with the static rows. With the strategy
    "force" it is refused as well, for it is no delta join.
    """
    if not isinstance(node, Join) or static_input(node) is None:
        return None
    for condition in STATIC_JOIN_CONDITIONS:
        if refused := condition(node):
            return refused
    if settings.strategy == "force":
        return Refused(
            "strategy is 'force', and this join is one with static rows",
            "keep them in a managed table and join its changes, or leave the strategy at 'auto'",
        )
    return None
