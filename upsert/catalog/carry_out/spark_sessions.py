"""The Spark session of a statement."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from upsert.errors import ConfigurationError


def active(spark: SparkSession | None) -> SparkSession | None:
    """The session that was given, else the active one of this thread; None if there is none."""
    return SparkSession.getActiveSession() if spark is None else spark


def needed(spark: SparkSession | None, what: str, options: Mapping[str, str] = {}) -> SparkSession:
    """The session that runs a statement, with the options that were set for it.

    Raises:
        ConfigurationError: there is none.
    """
    found = active(spark)
    if found is None:
        raise ConfigurationError(
            f"{what}: needs a Spark session, found none; give it as catalog.sql(text, spark)"
        )
    for key, value in options.items():
        found.conf.set(key, value)
    return found


def zone(spark: SparkSession) -> str:
    """The time zone in which the session writes times."""
    return str(spark.conf.get("spark.sql.session.timeZone"))
