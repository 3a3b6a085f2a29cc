"""The Spark formats of this package, and how a session gets to know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from upsert.spark_version import version_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

_sessions: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make the formats known to a session; doing it again changes nothing.

    They are ``upsert-table`` (managed tables), ``upsert-kafka`` (topics with the newest value of each key)
    and ``kafka-changelog`` (all other topics). The client library of Kafka is loaded by the first query
    that reads or writes a topic.

    Example:
        >>> register(spark)
        >>> columns = "word STRING, n BIGINT, PRIMARY KEY (word) NOT ENFORCED"
        >>> words = (
        ...     spark.readStream.format("upsert-kafka")
        ...     .option("columns", columns)
        ...     .option("topic", "words")
        ...     .option("properties.bootstrap.servers", "localhost:9092")
        ...     .option("key.format", "raw")
        ...     .option("value.format", "json")
        ...     .option("state.path", "/data/state")
        ...     .load()
        ... )
        >>> words.columns
        ['word', 'n', '_row_kind']

    Raises:
        ConfigurationError: Spark is of a version that is not supported, or not of PySpark's.
    """
    version_of(spark)
    # Spark looks for the Python format of a stream in the session that is active in the thread, whichever
    # session the stream is of: in a thread of the user's own there is none
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    current = sessions.getActiveSession()
    if current.isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    elif not (current.get().equals(spark._jsparkSession) or _knows(current.get(), "upsert-table")):
        _register(type(spark)(spark.sparkContext, current.get()))
    if spark not in _sessions:  # Spark warns of every further registration
        _register(spark)
        _sessions.add(spark)


def _knows(session: Any, name: str) -> bool:
    """Whether a session of the JVM has a format."""
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def _register(spark: SparkSession) -> None:
    from upsert.kafka.source import KafkaChangelogSource, UpsertKafkaSource
    from upsert.managed.datasource import TableStepSource, UpsertTableSource
    from upsert.views.steps import TableStepsSource

    tables = (UpsertTableSource, TableStepSource, TableStepsSource)
    for format_ in (*tables, UpsertKafkaSource, KafkaChangelogSource):
        make_known(spark, format_)


def make_known(spark: SparkSession, format_: type[DataSource]) -> None:
    """Register one format; nothing in a session that knows it, or is a copy of one that does."""
    if _knows(spark._jsparkSession, format_.name()):
        return
    try:
        with active(spark):  # Spark asks the active session whether it has such a format, not this one
            spark.dataSource.register(format_)
    except AnalysisException as cause:
        if cause.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Let a session be this thread's active one, which some of Spark's calls ask; then it is as before."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before, known = sessions.getActiveSession(), SparkSession._activeSession
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        SparkSession._activeSession = known
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
