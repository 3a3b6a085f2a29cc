"""Errors of the planner: subclasses of `upsert.errors.UpsertError`.

- PlanError: Spark would answer the query wrongly and no rewrite is right; correct the query or the tables.
- PlanBuildError: a rewritten plan does not fit together; report it as a bug.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.conditions import Refused
from upsert.errors import UpsertError


class PlanError(UpsertError):
    """The query reads changelogs in a way that has no right answer here; nothing was run.

    `refusals` holds each reason with its remedy.
    """

    def __init__(self, refusals: Sequence[Refused]) -> None:
        super().__init__("\n".join(dict.fromkeys(str(refused) for refused in refusals)))
        self.refusals = tuple(refusals)


class PlanBuildError(UpsertError):
    """The plan that the rules made cannot be built in Spark; the query was left alone."""
