"""The Spark session of a statement, and its streams: their checkpoints, which ones run, STOP JOB."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from upsert import types
from upsert.catalog import query_records
from upsert.catalog.create_as.create_as import StreamSettings
from upsert.catalog.results import Done, Rows
from upsert.catalog.session import CHECKPOINT, PIPELINE, TRIGGER, SessionOptions
from upsert.catalog.system_tables import time_of
from upsert.errors import ConfigurationError, SchemaError
from upsert.spark.connect import check_runs
from upsert.spark.queries import query_with_checkpoint, running_queries, stop_query
from upsert.spark.variables import has_variables, with_variables
from upsert.sql import statements as s
from upsert.store.storage import storage_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.catalog.context import Context


def active(spark: SparkSession | None) -> SparkSession | None:
    """The session that was given, else the active one of this thread; None if there is none."""
    return SparkSession.getActiveSession() if spark is None else spark


class SparkNeededError(ConfigurationError):
    """A statement needs a Spark session, and there is none; it may be executed again with one."""


def needed(spark: SparkSession | None, what: str, options: Mapping[str, str] = {}) -> SparkSession:
    """The session that runs a statement, with the options that were set for it."""
    found = active(spark)
    if found is None:
        raise SparkNeededError(
            f"{what}: needs a Spark session, found none; give it as catalog.sql(text, spark). docs/sql.md, "
            "'Without Spark', says which statements need none, up to which size"
        )
    check_runs(found)
    for key, value in options.items():
        found.conf.set(key, value)
    return found


def configured(spark: SparkSession | None, options: Mapping[str, str]) -> SparkSession | None:
    """The session, with the options that were set for it; None if there is none."""
    found = active(spark)
    return None if found is None else needed(found, "SET", options)


def read_by(spark: SparkSession | None, text: str) -> str:
    """A text of SQL as the session reads it: with the values of Spark's variables, ``${name}``."""
    return with_variables(text, needed(spark, "SQL with '${…}'")) if has_variables(text) else text


def missing_in_catalog(spark: SparkSession | None, name: str, missing: str) -> str:
    """Why a view cannot read what the catalog lacks, and what to do: Spark may have it."""
    session, is_known = active(spark), False
    if session is not None:
        with suppress(AnalysisException):  # no name for Spark
            is_known = session.catalog.tableExists(".".join(map(types.quoted, name.split("."))))
    if not is_known:
        return f"{missing}; create it first"
    return (
        f"{name!r} is of the Spark session alone; CREATE TABLE … AS SELECT * FROM {name} takes its rows, "
        "and a query outside of views reads it as it is"
    )


_JOBS: Final = ".jobs"
"""Folder in the warehouse for checkpoints of named jobs; no table can have such a name."""

_BEFORE_TABLE: Final = ": "
"""Between the ``pipeline.name`` and the table in the name of a query."""

_LOCAL_URI: Final = re.compile("file:(?://(?=/))?(/.*)", re.DOTALL)


def _on_disk(location: str) -> str:
    """The folder of a checkpoint as Python opens it; Hadoop decodes no ``%`` in a URI.

    >>> _on_disk("file:///data/a%20b"), _on_disk("file:/data"), _on_disk("data")
    ('/data/a%20b', '/data', 'data')
    """
    uri = _LOCAL_URI.fullmatch(location)
    return location if uri is None else uri[1]


@dataclass(frozen=True)
class Job:
    """A streaming statement.

    Attributes:
        name: the table that it writes, as messages show it.
        checkpoint: its folder: below ``checkpoint.location``, or that of the warehouse for a named job; one
            for each job and table, so several statements of a script do not meet.
        query_name: of the query in Spark; None for none.
    """

    name: str
    checkpoint: str
    query_name: str | None = None

    @classmethod
    def of(cls, context: Context, name: str, what: str, uuid: str = "", *, had_no_uuid: bool = False) -> Self:
        """The job of a statement that writes the table ``name``; the options say where its checkpoint lies.

        With the table's uuid: one that is dropped and created again starts from the beginning. A job that
        began when folders of such tables ``had_no_uuid`` continues.
        """
        options = context.options
        location, pipeline = options.value(CHECKPOINT), options.value(PIPELINE)
        if location is None and pipeline is None:
            raise ConfigurationError(
                f"{what}: a streaming statement needs a checkpoint, by which it continues after a stop; "
                f"SET '{CHECKPOINT}' = 'folder', or SET '{PIPELINE}' = 'name' for one in the warehouse"
            )
        if location is None and not storage_of(context.warehouse).is_local:
            raise unreachable_checkpoint(what)
        table_ref = context.databases.resolve(name)
        _, database, own = table_ref.qualified.split(".")
        folder = f"{database}.{own}" + (f"-{uuid[:8]}" if uuid else "")
        base = os.path.join(location or os.path.join(table_ref.warehouse, _JOBS), pipeline or "")
        if uuid and os.path.isdir(entries := _on_disk(base)):  # by the name of the table when the job began
            begun = (entry for entry in sorted(os.listdir(entries)) if entry.endswith(f"-{uuid[:8]}"))
            before = f"{database}.{own}"
            is_older = had_no_uuid and os.path.isdir(os.path.join(entries, before))
            folder = next(begun, before if is_older else folder)
        checkpoint = os.path.join(base, folder)
        query_name = f"{pipeline}{_BEFORE_TABLE}{table_ref.shown}" if pipeline else None
        return cls(table_ref.shown, checkpoint, query_name)

    @property
    def has_begun(self) -> bool:
        """Whether a micro-batch of the job is done, so that its checkpoint says where it continues."""
        commits = os.path.join(_on_disk(self.checkpoint), "commits")
        return os.path.isdir(commits) and any(name.isdecimal() for name in os.listdir(commits))

    def settings(self, options: SessionOptions) -> StreamSettings:
        """How the query of the job runs."""
        return StreamSettings(self.checkpoint, options.value(TRIGGER), self.query_name)

    def started(
        self, spark: SparkSession, writer: DataStreamWriter, settings: StreamSettings
    ) -> StreamingQuery:
        """The query, running; refuses what Spark cannot run as a stream, and a second one of the job."""
        self._refuse_second(spark)
        try:
            return settings.applied(writer).start()
        except AnalysisException as cause:
            reason = str(cause.getMessage() or cause).splitlines()[0]
            raise SchemaError(
                f"table {self.name!r}: Spark cannot write this query as a stream: {reason}; an aggregate of "
                "rows that are only added needs a WATERMARK among its groups, which window_start and "
                "window_end are not: GROUP BY TUMBLE(column, size); or a table of the connector "
                "'upsert-kafka' keyed by them"
            ) from cause

    def _refuse_second(self, spark: SparkSession) -> None:
        """Refuse a stream whose checkpoint one of this process has: Spark would stop that one."""
        if (running := query_with_checkpoint(spark, self.checkpoint)) is not None:
            raise ConfigurationError(
                f"table {self.name!r}: a job must have one stream into it, got another one while query "
                f"{running!r} runs with the same checkpoint {self.checkpoint!r}; STOP JOB that one, or write "
                f"one INSERT with UNION ALL, or SET another '{PIPELINE}' or '{CHECKPOINT}'"
            )

    def refuse_left_checkpoint(self, context: Context) -> None:
        """Refuse to create a table whose rows an earlier table of its name has received."""
        is_used = os.path.isdir(os.path.join(_on_disk(self.checkpoint), "offsets"))
        table_ref = context.databases.resolve(self.name)
        if is_used and not table_ref.tables.is_taken(table_ref.name):
            raise ConfigurationError(
                f"table {self.name!r}: the checkpoint {self.checkpoint!r} is that of a dropped table, so "
                f"the new one would lack its rows; delete the folder, or SET another '{PIPELINE}' or "
                f"'{CHECKPOINT}'"
            )


def unreachable_checkpoint(what: str) -> ConfigurationError:
    """The refusal of a statement whose checkpoint would lie in an object store."""
    return ConfigurationError(
        f"{what}: the warehouse is in an object store, which Spark's checkpoints may not reach; SET "
        f"'{CHECKPOINT}' = 'folder'"
    )


_JOB: Final = {
    **dict.fromkeys(("job_id", "job_name", "status"), pa.string()),
    **dict.fromkeys(("start_time", "heard_time"), types.TIMESTAMP),
    **dict.fromkeys(("driver", "error"), pa.string()),
}
_JOB_IN_FULL: Final = {
    **_JOB,
    **dict.fromkeys(("checkpoint", "sink"), pa.string()),
    "batch_id": pa.int64(),
    "batch_time": types.TIMESTAMP,
    **dict.fromkeys(("rows_in", "rows_out", "duration_ms"), pa.int64()),
}

_ASKED_EVERY_S: Final = 0.5
_STOP_PATIENCE_S: Final = 60.0
"""How long STOP JOB waits for the driver of another process, which looks every ten seconds."""


def show_jobs(context: Context, spark: SparkSession | None) -> Rows:
    """``SHOW JOBS``: the queries that this session runs, and those that have left a record."""
    return Rows.listed("SHOW JOBS", _JOB, _jobs(context, spark))


def describe_job(context: Context, statement: s.DescribeJob, spark: SparkSession | None) -> Rows:
    """``DESCRIBE JOB``: a row for each job of this id or name, its checkpoint and last micro-batch too."""
    what, jobs = f"DESCRIBE JOB {statement.id!r}", _jobs(context, spark)
    found = [job for job in jobs if _is_called(job, statement.id)]
    if not found:
        known = ", ".join(dict.fromkeys(str(job["job_name"] or job["job_id"]) for job in jobs)) or "none"
        raise ConfigurationError(f"{what}: there must be a job of this id or name; jobs are {known}")
    return Rows.listed(what, _JOB_IN_FULL, found)


def _is_called(job: Mapping[str, Any], text: str) -> bool:
    """Whether a text is a job's id, its name, or the ``pipeline.name`` that its name begins with."""
    name = str(job["job_name"] or "")
    return text in (job["job_id"], name, name.partition(_BEFORE_TABLE)[0])


def _jobs(context: Context, spark: SparkSession | None) -> list[dict[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    running = {str(query.id): query for query in _running(spark)}
    found: list[dict[str, Any]] = []
    for record in query_records.read_all(context.warehouse).queries:
        is_ours = running.pop(record.id, None) is not None
        found.append(
            {
                "job_id": record.id,
                "job_name": record.name,
                "status": "running" if is_ours else record.shown_state(now_ms),
                "start_time": time_of(record.started_ms),
                "heard_time": time_of(record.heard_ms),
                "driver": record.driver,
                "error": record.error,
                "checkpoint": record.checkpoint,
                "sink": record.sink or None,
                **(_last_batch(record.batches[-1]) if record.batches else {}),
            }
        )
    driver = query_records.this_driver()
    unrecorded = [
        {"job_id": id, "job_name": query.name, "status": "running", "driver": driver}
        for id, query in running.items()
    ]
    return unrecorded + found


def _last_batch(batch: query_records.MicroBatch) -> dict[str, Any]:
    return {
        "batch_id": batch.id,
        "batch_time": time_of(batch.time_ms),
        "rows_in": batch.rows_in,
        "rows_out": batch.rows_out,
        "duration_ms": batch.duration_ms.get("triggerExecution"),
    }


def _running_job(context: Context, text: str, spark: SparkSession | None, what: str) -> str:
    """The id of the job that runs and is called so; the text itself if none is."""
    called = [job for job in _jobs(context, spark) if job["status"] == "running" and _is_called(job, text)]
    if len(called) > 1:
        ids = ", ".join(f"{job['job_id']} ({job['job_name']})" for job in called)
        raise ConfigurationError(f"{what}: one job must be called so, got {ids}; give the id")
    return called[0]["job_id"] if called else text


def stop_job(context: Context, statement: s.StopJob, spark: SparkSession | None) -> Done:
    """``STOP JOB``: at once in this session; the driver of another process is asked to do it."""
    what = f"STOP JOB {statement.id!r}"
    id, session = _running_job(context, statement.id, spark, what), active(spark)
    if session is not None and stop_query(session, id):
        return Done(what, "stopped; the same statement continues it from its checkpoint")
    try:
        record = query_records.read(context.warehouse, id)
    except ConfigurationError:
        record = None  # no query has such an id
    now_ms = time.time_ns() // 1_000_000
    if record is None:
        known = [str(query.id) for query in _running(spark)]
        records = query_records.read_all(context.warehouse).queries
        known += [one.id for one in records if one.shown_state(now_ms) == "running"]
        running = f"those that run are {', '.join(dict.fromkeys(known))}"
        raise ConfigurationError(
            f"{what}: there must be a job of this id or name, there is none; "
            f"{running if known else 'none runs, see SHOW JOBS'}"
        )
    if record.state != "running":
        return Done(what, f"has {record.state} before")
    if record.shown_state(now_ms) == "silent":
        heard = time_of(record.heard_ms)
        raise ConfigurationError(
            f"{what}: its driver {record.driver} was last heard of at {heard:%Y-%m-%d %H:%M:%S} UTC, and "
            "would not see the request; if that process still exists, stop it there"
        )
    query_records.ask_to_stop(context.warehouse, record)
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while time.monotonic() < deadline:
        seen = query_records.read(context.warehouse, id)
        if seen is None or seen.run != record.run or seen.state != "running":
            return Done(what, "stopped; the same statement continues it from its checkpoint")
        time.sleep(_ASKED_EVERY_S)
    return Done(what, f"its driver {record.driver} is asked to stop it, and has not yet; see SHOW JOBS")


def _running(spark: SparkSession | None) -> list[StreamingQuery]:
    session = active(spark)
    return [] if session is None else running_queries(session)
