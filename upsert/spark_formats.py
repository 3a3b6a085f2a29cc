"""The Spark formats of this package, and how a session gets to know them."""

from __future__ import annotations

from weakref import WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

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
    """
    if spark in _sessions:  # Spark warns of every further registration
        return
    from upsert.kafka.source import KafkaChangelogSource, UpsertKafkaSource
    from upsert.managed.datasource import TableStepSource, UpsertTableSource
    from upsert.views.steps import TableStepsSource

    tables = (UpsertTableSource, TableStepSource, TableStepsSource)
    for format_ in (*tables, UpsertKafkaSource, KafkaChangelogSource):
        try:
            spark.dataSource.register(format_)
        except AnalysisException as cause:
            if cause.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
            # the session is a copy of one that knows the format
    _sessions.add(spark)
