"""Which Spark formats a session knows, and making one known to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from upsert.spark.connect import is_connect
from upsert.spark.java import java_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

FORMAT: Final = "upsert-table"
"""The name of the format of managed tables."""

_formats: dict[str, type[DataSource]] = {}
"""The formats that any session of this process has been told of, by name."""
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The names of those that servers of Spark Connect have been told of."""


def was_sent(spark: SparkSession, name: str) -> bool:
    """Whether this process has told the server of a session of Spark Connect of a format."""
    return name in _sent.get(spark, ())


def knows(session: Any, name: str) -> bool:
    """Whether a session of the JVM has a format."""
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def make_known(spark: SparkSession, format_: type[DataSource]) -> None:
    """Register one format; nothing in a session that knows it, or is a copy of one that does."""
    _formats[format_.name()] = format_
    if is_connect(spark):  # which does not tell what it knows; its server takes the newest of a name
        if format_.name() not in (known := _sent.setdefault(spark, set())):
            _tell(spark, format_)
            known.add(format_.name())
        return
    if not knows(spark._jsparkSession, format_.name()):
        with active(spark):  # Spark asks the active session whether it has such a format, not this one
            _tell(spark, format_)


def _tell(spark: SparkSession, format_: type[DataSource]) -> None:
    """Register a format, unless Spark found it by itself, or another session of the server has it."""
    try:
        spark.dataSource.register(format_)
    except AnalysisException as cause:
        if cause.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def known_format(name: str) -> type[DataSource] | None:
    """A format that a session of this process was told of; None for one of Spark's own, or of others."""
    return _formats.get(name)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Let a classic session be this thread's active one, which some of Spark's calls ask, for a while."""
    sessions = java_of(spark).org.apache.spark.sql.classic.SparkSession
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
