"""Ordinary queries over changelogs made right and cheap: `optimize` rewrites them, `explain` says why."""

from planner.api import check_sink, explain, optimize
from planner.explain.aggregates import AggregateReport
from planner.explain.explanation import Explanation
from planner.explain.joins import JoinReport, Lookups, TableReport
from planner.explain.sinks import SinkReport
from planner.explain.topics import TopicReport
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
