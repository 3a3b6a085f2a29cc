"""Ordinary queries over changelogs made right and cheap: `optimize` rewrites them, `explain` says why."""

from planner.api import check_sink, explain, optimize
from planner.explain.decisions import AggregateReport, JoinReport, Lookups, TableReport, TopicReport
from planner.explain.explanation import Explanation, SinkReport
from planner.optimizer import RULES
from planner.refusals import PlanBuildError, PlanError

__all__ = [
    "RULES",
    "AggregateReport",
    "Explanation",
    "JoinReport",
    "Lookups",
    "PlanBuildError",
    "PlanError",
    "SinkReport",
    "TableReport",
    "TopicReport",
    "check_sink",
    "explain",
    "optimize",
]
