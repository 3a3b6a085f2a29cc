"""What the rules did with a plan, step by step (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.plan.expressions import Call, walk_expression
from planner.plan.nodes import Changelog, Opaque, Plan
from planner.plan.sources import ManagedTable
from planner.plan.trees import expressions, walk
from planner.refusals import Refused

_OF_ONE_QUERY: Final = frozenset(
    {"fall_back_to_regular_join", "group_distinct", "refuse_over_groups", "replace_aggregate", "replace_join"}
)
"""Rules that refuse what one streaming query cannot hold, and several tables can."""


@dataclass(frozen=True)
class Step:
    """One node on which a rule fired, and what came of it."""

    rule: str
    node: Plan
    result: Plan | Refused


@dataclass(frozen=True)
class Trace:
    """A plan before and after all rules, and every step between."""

    before: Plan
    after: Plan
    steps: tuple[Step, ...]

    @property
    def refusals(self) -> tuple[Refused, ...]:
        """Why the plan has no right answer; empty when `after` has."""
        return tuple(dict.fromkeys(step.result for step in self.steps if isinstance(step.result, Refused)))

    @property
    def is_for_a_view(self) -> bool:
        """Whether a materialized view can hold what is refused: any function of managed tables' rows."""
        refused = [step for step in self.steps if isinstance(step.result, Refused)]
        return (
            bool(refused)
            and all(step.rule in _OF_ONE_QUERY or isinstance(step.node, Opaque) for step in refused)
            and all(_is_of_whole_tables(node) for node in walk(self.before))
        )

    @property
    def is_changed(self) -> bool:
        """Whether a rule rewrote anything."""
        return self.after is not self.before


def _is_of_whole_tables(node: Plan) -> bool:
    if isinstance(node, Changelog):
        return isinstance(node.origin, ManagedTable) and node.origin.scan_mode == "full"
    calls = (part for whole in expressions(node) for part in walk_expression(whole) if isinstance(part, Call))
    return all(call.is_deterministic for call in calls)
