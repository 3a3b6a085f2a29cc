"""Delta joins found in ordinary queries: `optimize` rewrites a DataFrame, `explain` says why it did."""

from planner.api import check_sink, explain, optimize
from planner.errors import PlanBuildError, PlanError
from planner.explain import Explanation, JoinReport, Lookups
from planner.optimizer import RULES

__all__ = [
    "RULES",
    "Explanation",
    "JoinReport",
    "Lookups",
    "PlanBuildError",
    "PlanError",
    "check_sink",
    "explain",
    "optimize",
]
