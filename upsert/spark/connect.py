"""Sessions of Spark Connect: whether one is, and what it cannot do. Nothing else asks.

Such a session is a client. Its Spark runs elsewhere, so there are no objects of the JVM to ask: no analysed
plan, no copy of the session, no thread of a query that calls Python here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkValueError

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_connect(of: SparkSession | DataFrame) -> bool:
    """Whether a session, or that of a DataFrame, is one of Spark Connect."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


def needs_classic(of: SparkSession | DataFrame, what: str, instead: str) -> None:
    """Refuse what a session of Spark Connect cannot do.

    Args:
        of: the session, or a DataFrame of it.
        what: what was asked for, the first words of the refusal.
        instead: what to do.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
    """
    if is_connect(of):
        raise ConfigurationError(
            f"{what}: needs a classic Spark session, got one of Spark Connect; {instead} (docs/connect.md)"
        )


def end_runs_of_pipelines(spark: SparkSession) -> None:
    """Let ``spark-pipelines`` end well when a source in Python was read in its run.

    The server adds what Python's profilers have counted, nothing as a rule, to the last answer of a run, and
    PySpark's client fails there with UNKNOWN_RESPONSE, when the run is complete. Errors of a run come before.
    """
    client: Any = spark.client
    given = client.execute_command_as_iterator

    def answers(*args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        try:
            yield from given(*args, **kwargs)
        except PySparkValueError as error:
            response = (error.getMessageParameters() or {}).get("response", "")
            if error.getCondition() != "UNKNOWN_RESPONSE" or "__python_accumulator__" not in response:
                raise

    client.execute_command_as_iterator = answers


def parallelism(spark: SparkSession) -> int:
    """How many tasks run beside each other; over Connect, which does not tell, how many a shuffle has."""
    if is_connect(spark):
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return spark.sparkContext.defaultParallelism
