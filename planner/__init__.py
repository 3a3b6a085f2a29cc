"""Ordinary queries over changelogs made right and cheap: `optimize` rewrites them, `explain` says why."""

from planner.aggregate_reports import AggregateReport
from planner.api import check_sink, explain, optimize
from planner.errors import PlanBuildError, PlanError
from planner.explanation import Explanation
from planner.join_reports import JoinReport, Lookups, TableReport
from planner.optimizer import RULES
from planner.sink_reports import SinkReport
from planner.topic_reports import TopicReport

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
