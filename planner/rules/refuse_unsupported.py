"""Stop at what a changelog must not meet (pure)."""

from __future__ import annotations

from planner.conditions import Refused, first_refusal
from planner.plan import Plan
from planner.settings import Settings


def refuse_unsupported(node: Plan, settings: Settings) -> Refused | None:  # noqa: ARG001
    """Refuse a node over a changelog that fails a condition of `planner.conditions.CHANGE_CONDITIONS`.

    Spark runs such a query without complaint and gives a wrong answer: it takes each change for a row.
    Joins have conditions of their own, see `replace_join`.
    """
    return first_refusal(node)
