"""Leaves what the streaming queries of a Spark session do in a warehouse, as `query_records` says.

Spark tells a listener of each start, micro-batch and end. The listener changes a value in memory and returns;
a thread of its own writes the files, one a second at most. So no micro-batch waits for a disk or an object
store, and nothing that fails here fails a query. Between events the thread says every ten seconds that the
driver lives, and looks whether another process wants a query to be stopped.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from upsert.catalog import query_records
from upsert.catalog.query_records import Decision, QueryRecord
from upsert.errors import UpsertError
from upsert.managed.process_memory import peak_bytes, worker_peak
from upsert.spark.jvm import unless_it_ends
from upsert.spark.queries import (
    ProgressListener,
    active_queries,
    attached,
    checkpoint_of,
    stop_listening,
    stop_query,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

HEARTBEAT_S: Final = 10.0
"""How often a record says that the driver of a running query lives; Spark's own idle events come as often."""

_WRITE_EVERY_S: Final = 1.0
_KEPT_QUERIES: Final = 200
"""Queries of one session that are remembered; of more, those that ended first go."""


class QueryRecordWarning(RuntimeWarning):
    """The record of a query could not be written; the query goes on, and so do attempts to write."""


class QueryRecorder(ProgressListener):
    """Records the streaming queries of a session; ``Catalog.record_queries`` makes one.

    Args:
        warehouse: the folder that gets the records.
        now_ms: the clock.

    Attributes:
        is_stopping: whether this program is being stopped. A query that ends then has not failed, whatever it
            ends with: the signal may have reached processes that the query needs before it was stopped.
    """

    def __init__(
        self, warehouse: str, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._warehouse = warehouse
        self._now_ms = now_ms
        self.is_stopping: Callable[[], bool] = lambda: False
        self._session: SparkSession | None = None
        self._driver = query_records.this_driver()
        self._lock = threading.Lock()
        self._woken = threading.Condition(self._lock)
        self._records: dict[str, QueryRecord] = {}
        # a set that keeps its order: the one that waits longest is first
        self._unwritten: dict[str, None] = {}
        self._met: set[str] = set()
        self._asked: set[str] = set()
        self._beat_at = time.monotonic() + HEARTBEAT_S
        self._is_closed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="query-records", daemon=True)

    @property
    def is_closed(self) -> bool:
        """Whether it records no more."""
        return self._is_closed

    def start(self, spark: SparkSession) -> None:
        """Listen to the queries that the session starts from now on."""
        self._session = spark
        spark.streams.addListener(self)
        self.run()

    def run(self) -> None:
        """Write what the events of queries tell, in a thread."""
        self._thread.start()
        atexit.register(self.close)

    def close(self, patience_s: float = 5.0) -> None:
        """Listen no more, and write what is not written; what takes longer than this is left out.

        Spark tells of a query's end a moment after it, so call this before the session is stopped.
        """
        atexit.unregister(self.close)
        end = time.monotonic() + patience_s
        active: set[str] = set()
        with unless_it_ends():
            active = set() if self._session is None else active_queries(self._session)
        with self._woken:
            if self.is_stopping():  # a JVM that was stopped first tells no more
                for id, record in self._records.items():
                    if record.state == "running" and id not in active:
                        self._records[id] = record.terminated(None, self._now_ms())
                        self._unwritten.setdefault(id)
            self._woken.wait_for(
                lambda: all(r.state != "running" or r.id in active for r in self._records.values()),
                patience_s,
            )
            self._is_closed = True
            self._woken.notify_all()
        self._closing.set()
        if self._session is not None:
            with unless_it_ends():
                stop_listening(self._session, self)
            self._session = None
        self._thread.join(max(0.1, end - time.monotonic()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query starts, and waits for this method."""
        now, id = self._now_ms(), str(event.id)
        self._put(QueryRecord(id, str(event.runId), event.name, self._driver, "running", now, now))

    def progressed(self, text: str) -> None:
        """A micro-batch has ended, with a progress as Spark's JSON."""
        progress = json.loads(text)
        peaks = peak_bytes(), worker_peak(progress["id"])
        self._change(progress["id"], lambda record: record.progressed(progress, self._now_ms(), peaks))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query has ended, was stopped or has failed."""
        exception = None if self.is_stopping() else event.exception
        self._change(str(event.id), lambda record: record.terminated(exception, self._now_ms()))

    def _put(self, record: QueryRecord) -> None:
        with self._woken:
            self._asked.discard(record.id)
            known = self._records.pop(record.id, None)
            self._records[record.id] = record if known is None else record.after(known)
            ended = [id for id, one in self._records.items() if one.state != "running"]
            for id in ended[: max(0, len(self._records) - _KEPT_QUERIES)]:
                del self._records[id]
                self._unwritten.pop(id, None)
                self._met.discard(id)  # its file knows what is forgotten here
                self._asked.discard(id)
            self._unwritten[record.id] = None
            self._woken.notify_all()

    def _change(self, id: str, change: Callable[[QueryRecord], QueryRecord]) -> None:
        with self._woken:
            if (record := self._records.get(id)) is not None:
                self._records[id] = change(record)
                self._unwritten.setdefault(id)
                self._woken.notify_all()

    def _write_all(self) -> None:
        """The thread: write what has changed, the longest waiting first, until all is closed."""
        is_failing = False
        while (id := self._next()) is not None:
            try:
                self._beat()
                if not id:
                    continue
                self._write(id)
                is_failing = False
            except (UpsertError, OSError) as error:
                if not is_failing:
                    warnings.warn(
                        f"the progress of query {id} must be written to {self._warehouse!r}, got {error}; "
                        "the query goes on, `deltajoin ui` does not see how it is",
                        QueryRecordWarning,
                        stacklevel=1,
                    )
                is_failing = True
                with self._lock:
                    if not self._is_closed:
                        self._unwritten.setdefault(id)  # the next attempt, in its turn
            _pause(self._closing, _WRITE_EVERY_S)

    def _next(self) -> str | None:
        """The query whose record is to be written next; waits for one, None at the end."""
        with self._woken:
            while not self._unwritten:
                if self._is_closed:
                    return None
                self._woken.wait(max(0.0, self._beat_at - time.monotonic()))
                if time.monotonic() >= self._beat_at:
                    break
            id = next(iter(self._unwritten), "")
            self._unwritten.pop(id, None)
        return id

    def _beat(self) -> None:
        """Let the records of running queries say that their driver lives, if it is time for that."""
        if time.monotonic() < self._beat_at or self._is_closed:
            return
        self._beat_at = time.monotonic() + HEARTBEAT_S
        active = None if self._session is None else active_queries(self._session)
        with self._lock:
            running = {
                one.id: one.run
                for one in self._records.values()
                if one.state == "running" and (active is None or one.id in active)
            }
            for id in running:
                self._unwritten.setdefault(id)
        if running:
            with suppress(UpsertError, OSError):  # the records that are written next tell of it
                self._stop_asked(running)

    def _stop_asked(self, running: Mapping[str, str]) -> None:
        """Stop the queries whose stop another process has asked for."""
        for id, run in query_records.asked_to_stop(self._warehouse).items():
            if id not in running:
                continue  # of another driver
            query_records.stop_is_answered(self._warehouse, id)
            if running[id] == run and self._session is not None:
                # its micro-batch comes to an end first, and meanwhile this thread has records to write
                threading.Thread(target=stop_query, args=(self._session, id), daemon=True).start()

    def _write(self, id: str) -> None:
        with self._lock:
            record = self._records.get(id)
        if record is None:
            return  # forgotten since
        if id not in self._met:
            self._meet(id)
        if id not in self._asked and record.state == "running":
            self._ask(id)
        self._replace(
            id, lambda record: record.heard(self._now_ms()) if record.state == "running" else record
        )
        with self._lock:
            record = self._records.get(id, record)
        query_records.write(self._warehouse, record)

    def _replace(self, id: str, change: Callable[[QueryRecord], QueryRecord]) -> None:
        with self._lock:
            if (record := self._records.get(id)) is not None:
                self._records[id] = change(record)

    def _meet(self, id: str) -> None:
        """Before the first record of a query: take over what earlier runs have left."""
        with suppress(UpsertError, OSError):  # the next start tries again; the record does not depend on it
            query_records.forget_oldest(self._warehouse)
        earlier = query_records.read(self._warehouse, id)
        self._met.add(id)
        if earlier is not None:
            self._replace(id, lambda record: record.after(earlier))

    def _ask(self, id: str) -> None:
        """Ask Spark, once in each run of a query, for what no event tells."""
        if self._session is None:
            return
        if (found := checkpoint_of(self._session, id)) is not None:
            self._replace(id, lambda record: replace(record, checkpoint=found))
            self._asked.add(id)
        if (mark := attached(self._session, id, query_records.DECISIONS_MARK)) is not None:
            decisions = Decision.all_in(mark)
            self._replace(id, lambda record: replace(record, decisions=decisions))


def _pause(closing: threading.Event, seconds: float) -> None:
    closing.wait(seconds)
