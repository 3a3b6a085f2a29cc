"""Which plans can go on from where another checkpoint has got to (pure)."""

from __future__ import annotations

from typing import Final

from planner.delta_join import DeltaJoin
from planner.nodes import Filter, Generate, Plan, Project, Union, Wrapper
from planner.trees import children
from upsert.errors import ConfigurationError

_GO_ON: Final = (DeltaJoin, Project, Filter, Union, Generate, Wrapper)
"""Delta joins, which remember nothing but the versions of their tables, and what works row by row."""


def check_can_go_on(plan: Plan) -> None:
    """Make sure that a plan needs nothing of what was before but versions of joined tables.

    Raises:
        ConfigurationError: a node has state, or reads something else.
    """
    if not isinstance(plan, _GO_ON):
        raise ConfigurationError(
            f"start_from: the query must consist of delta joins and of what works row by row, got {plan}; "
            "leave start_from out, and load all rows again"
        )
    for child in children(plan):
        check_can_go_on(child)
