"""Make the kind of each change the last column of the result (pure)."""

from __future__ import annotations

from planner.nodes import Plan
from planner.settings import Settings
from planner.trees import reads_changes, with_row_kind_last


def end_with_row_kind(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Put a Project on top of a query whose last operator has the kind elsewhere.

    A projection has it last by `carry_row_kind`; a generator or a join with static rows adds columns after
    it.

        Generate Explode(split#3) AS [word#9]        Project [id#1, word#9, _row_kind#2]
          Changelog …                           =>     Generate Explode(split#3) AS [word#9]
                                                         Changelog …
    """
    if not reads_changes(node):
        return None
    ended = with_row_kind_last(node)
    return None if ended is node else ended
