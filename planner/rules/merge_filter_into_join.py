"""Bring the conditions of `FROM a, b WHERE …` into the join (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.expressions import conjunction, conjuncts
from planner.nodes import Filter, Join, Plan
from planner.settings import Settings
from planner.trees import reads_changes


def merge_filter_into_join(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Make a filter right above an inner join of changelogs a part of the join's condition.

    Equal for an INNER or CROSS join only: above an outer join a filter also drops padded rows.

        Filter (k#2 = id#3)             Join inner ON (k#2 = id#3)
          Join cross              =>      …
            …
    """
    match node:
        case Filter(Join(kind="inner" | "cross") as join, condition) if reads_changes(join):
            merged = conjunction((*conjuncts(join.condition), *conjuncts(condition)))
            return replace(join, kind="inner", condition=merged, ref=None)
    return None
