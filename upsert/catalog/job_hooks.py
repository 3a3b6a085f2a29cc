"""Notifications of a job that fills a table: FLIP-218's ``JobStatusHook``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Job:
    """A job that fills a table.

    Attributes:
        table: the table's name.
        mode: a batch job, or a streaming query.
        query_id: the id of the streaming query, the same after a restart; None for a batch.
    """

    table: str
    mode: Literal["batch", "streaming"]
    query_id: str | None = None


class JobStatusHook:
    """What to do when a job begins and ends; each method does nothing by default.

    The methods run in the driver, those about a streaming query's end in a thread of Spark's. What they raise
    fails a batch statement, and is reported by Spark's log for a query. After a crash of the driver none is
    called: look whether the table exists.

    >>> class Tell(JobStatusHook):
    ...     def on_finished(self, job):
    ...         print("filled", job.table)
    >>> Tell().on_finished(Job("totals", "batch"))
    filled totals
    """

    def on_created(self, job: Job) -> None:
        """The table is staged and the job begins, or continues after a restart."""

    def on_finished(self, job: Job) -> None:
        """The job has come to its end, and the table is whole."""

    def on_failed(self, job: Job, error: BaseException | str) -> None:
        """The job has failed: with an exception, or with what Spark says of a query that failed."""

    def on_canceled(self, job: Job) -> None:
        """A user has stopped the job."""
