"""What happens to a staged table when the query that fills it makes progress or ends."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.catalog.job_hooks import Job, JobStatusHook
from upsert.catalog.stages import Stage, Stages

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.create_as import StreamSettings


class QueryWatcher(StreamingQueryListener):
    """Follows one query of ``CREATE TABLE … AS SELECT`` through Spark's own events.

    If the driver dies, nobody is told; then the table's own files say whether it is there.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Stages,
        stage: Stage,
        name: str,
        settings: StreamSettings,
        hook: JobStatusHook,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._stage = stage
        self._name = name
        self._settings = settings
        self._hook = hook
        self._run: str | None = None
        self._query_id: str | None = None
        self._ended: dict[str, str | None] = {}
        self._lock = Lock()

    def watch(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query and follow it."""
        self._spark.streams.addListener(self)
        try:
            query = writer.start()
        except BaseException:
            self._spark.streams.removeListener(self)
            raise
        with self._lock:
            self._run, self._query_id = str(query.runId), str(query.id)
            has_ended = self._run in self._ended  # Spark tells of an end while start() still returns
        self._hook.on_created(self._job())
        if has_ended:
            self._end(self._ended[self._run])
        return query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing: its id is known when ``start`` returns."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing: no rows have come."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is committed, so a table without commits of its own may be seen."""
        if str(event.progress.runId) == self._run:
            self._stage.show_after_commit()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query has ended, by itself, by a user, or by a failure."""
        with self._lock:
            self._ended[str(event.runId)] = event.exception
            is_own = str(event.runId) == self._run
        if is_own:
            self._end(event.exception)

    def _end(self, failure: str | None) -> None:
        self._spark.streams.removeListener(self)
        if failure is not None:
            self._stage.discard()
            self._hook.on_failed(self._job(), failure)
        elif self._settings.ends_by_itself:
            self._stage.done(forget=False)
            self._hook.on_finished(self._job())
        else:
            self._stage.discard()
            if self._settings.drop_on_cancel:
                self._tables.drop(self._name)
            self._hook.on_canceled(self._job())

    def _job(self) -> Job:
        return Job(self._name, "streaming", self._query_id)
