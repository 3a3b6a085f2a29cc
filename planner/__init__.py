"""Ordinary queries over changelogs made right and cheap: `optimize` rewrites them, `explain` says why."""

from deltajoin.aliases import require_beside as _require_beside

_require_beside(__name__)  # the joins that this package plans are executed by another one

import upsert.spark.version  # noqa: F401  (raises where PySpark is of a version that has too little)
from planner.api import check_sink, explain, optimize
from planner.explanation import AggregateReport, Explanation, SinkReport, TopicReport
from planner.join_reports import JoinReport, Lookups, TableReport
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
