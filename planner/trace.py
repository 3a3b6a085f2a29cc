"""What the rules did with a plan, step by step (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.nodes import Plan
from planner.refusals import Refused


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
    def is_changed(self) -> bool:
        """Whether a rule rewrote anything."""
        return self.after is not self.before
