"""The Spark formats of this package, made known to a session; above `upsert.spark`: it knows their files."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession

from upsert.spark.connect import check_runs, is_connect, leave_out_counts
from upsert.spark.formats import FORMAT, knows, make_known, was_sent
from upsert.spark.java import java_of
from upsert.spark.version import version_of

_LAST: Final = "kafka-changelog"
"""The format that is registered last: "upsert-table" any session finds by itself, and no other one."""

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
        ConfigurationError: Spark is of a version that is not supported, or not of PySpark's, or was stopped.
    """
    if is_connect(spark):
        check_runs(spark)
        # the flow of a pipeline may ask its server nothing, not even for its version
        if not was_sent(spark, FORMAT):
            version_of(spark)
            _register(spark)
            leave_out_counts(spark)
        return
    current = accepted(spark)
    # Spark looks for the Python format of a stream in the session that is active in the thread, whichever
    # session the stream is of
    if not (current.equals(spark._jsparkSession) or knows(current, _LAST)):
        _register(type(spark)(spark.sparkContext, current))
    if spark not in _sessions:  # Spark warns of every further registration
        _register(spark)
        _sessions.add(spark)


def accepted(spark: SparkSession) -> Any:
    """The JVM's session that is active in this thread; where there is none, this classic one from now on.

    That is all that a batch needs which is read or written by functions in its plan. To register a format
    takes processes of Python, in which Spark looks for others.

    Raises:
        ConfigurationError: Spark is of a version that is not supported, or not of PySpark's, or was stopped.
    """
    check_runs(spark)
    version_of(spark)
    sessions = java_of(spark).org.apache.spark.sql.classic.SparkSession
    current = sessions.getActiveSession()
    if current.isDefined():
        return current.get()
    sessions.setActiveSession(spark._jsparkSession)  # in a thread of the user's own there is none
    return spark._jsparkSession


def _register(spark: SparkSession) -> None:
    from upsert.kafka.source import KafkaChangelogSource, UpsertKafkaSource
    from upsert.managed.datasource import TableStepSource, UpsertTableSource
    from upsert.views.steps import TableStepsSource

    tables = (UpsertTableSource, TableStepSource, TableStepsSource)
    for format_ in (*tables, UpsertKafkaSource, KafkaChangelogSource):
        make_known(spark, format_)
