"""Sessions of Spark Connect: whether one is, and what it cannot do. Nothing else asks.

Such a session is a client. Its Spark runs elsewhere, so there are no objects of the JVM to ask: no analysed
plan, no copy of the session, no thread of a query that calls Python here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from upsert.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COUNTS: Final = "__python_accumulator__"
"""Under this name an answer of the server has what was counted in Python."""


def is_connect(of: SparkSession | DataFrame) -> bool:
    """Whether a session, or that of a DataFrame, is one of Spark Connect."""
    return type(of).__module__.startswith("pyspark.sql.connect.")


def check_is_session(given: object, what: str, instead: str) -> None:
    """Refuse what is no Spark session, of whichever kind, before it fails somewhere inside.

    >>> check_is_session(7, "expose: it", "write expose(spark)")
    Traceback (most recent call last):
    upsert.errors.ConfigurationError: expose: it must be a Spark session, got int; write expose(spark)
    """
    if not hasattr(given, "createDataFrame"):
        raise ConfigurationError(f"{what} must be a Spark session, got {type(given).__name__}; {instead}")


def check_runs(spark: SparkSession) -> None:
    """Refuse a session that was stopped: what Spark says then is of its inside, or of a format that it lacks.

    Raises:
        ConfigurationError: it was stopped.
    """
    session: Any = spark
    if session.is_stopped if is_connect(spark) else session.sparkContext._jsc is None:
        raise ConfigurationError(
            "the Spark session must run, got one that was stopped; SparkSession.builder.getOrCreate() gives "
            "another one"
        )


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


def leave_out_counts(spark: SparkSession) -> None:
    """Let a client of PySpark's pass over what its server has counted in Python, when it has taken that in.

    After a source or a function in Python has run, the server adds such counts, nothing as a rule, to its
    answers. Where these come one by one, PySpark takes them for an UNKNOWN_RESPONSE: a run of
    ``spark-pipelines`` ends so when it is complete, and listeners of queries hear no more.
    """
    client: Any = spark.client
    given = client._execute_and_fetch_as_iterator

    def answers(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for answer in given(*args, **kwargs):
            if getattr(answer, "name", None) != _COUNTS:
                yield answer

    client._execute_and_fetch_as_iterator = answers


def parallelism(spark: SparkSession) -> int:
    """How many tasks run beside each other; over Connect, which does not tell, how many a shuffle has."""
    if is_connect(spark):
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return spark.sparkContext.defaultParallelism
