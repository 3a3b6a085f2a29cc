"""Stop at what a changelog must not meet (pure)."""

from __future__ import annotations

from typing import Final

from planner.changelogs import Changelog, Normalized
from planner.conditions import CHANGE_CONDITIONS, Refused
from planner.nodes import Plan
from planner.normalized_conditions import NORMALIZED_CONDITIONS
from planner.operator_conditions import OPERATOR_CONDITIONS
from planner.settings import Settings
from planner.trees import reads_changes, walk
from planner.unmet_upserts import upserts_are_replaced_above
from planner.upsert_conditions import UPSERT_CONDITIONS

_CONDITIONS: Final = (
    *OPERATOR_CONDITIONS,
    *CHANGE_CONDITIONS,
    *UPSERT_CONDITIONS,
    upserts_are_replaced_above,
    *NORMALIZED_CONDITIONS,
)


def refuse_unsupported(node: Plan, settings: Settings) -> Refused | None:
    """Refuse a node over a changelog that fails a condition; those below `upsert.normalize` as well.

    The conditions are `OPERATOR_CONDITIONS`, `CHANGE_CONDITIONS`, `UPSERT_CONDITIONS` and
    `NORMALIZED_CONDITIONS`. Spark runs such a query without complaint and gives
    a wrong answer: it takes each change for a row. Joins have conditions of their own, see `replace_join`.
    """
    if not reads_changes(node):
        return None
    for condition in _CONDITIONS:
        if refused := condition(node):
            return refused
    if isinstance(node, Changelog) and isinstance(node.origin, Normalized):
        below = (refuse_unsupported(part, settings) for part in walk(node.origin.input))
        return next((refused for refused in below if refused), None)
    return None
