"""The Spark formats of this package, how a session gets to know them, and the settings that suit them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakKeyDictionary, WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from upsert.connect import end_runs_of_pipelines, is_connect, needs_classic
from upsert.java import java_of
from upsert.spark_version import version_of
from upsert.streaming_query import is_being_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql._typing import OptionalPrimitiveType
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.query import StreamingQuery

_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # without it Spark computes the size of the whole batch for every row
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}
_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_OF_A_LOCAL_DISK: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"

_starting = Lock()
_sessions: WeakSet[SparkSession] = WeakSet()
_formats: dict[str, type[DataSource]] = {}
"""The formats that any session of this process has been told of, by name."""
_sent: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def configure(spark: SparkSession) -> SparkSession:
    """Give a session the settings that make micro-batches short, but where it has others already.

    They are 100 000 rows in an Arrow batch (``spark.sql.execution.arrow.maxRecordsPerBatch``; as many bytes
    as Java allows, ``…maxBytesPerBatch``), and for sessions whose default file system is the local disk
    checkpoints by ``FileSystemBasedCheckpointFileManager``: Spark's default starts ten processes in each
    micro-batch there. They hold for queries that are started afterwards. The command ``deltajoin`` does this
    by itself.

    Args:
        spark: a session; what it was built with, or Spark's own configuration files say, stays.

    Returns:
        The session.

    Example:
        >>> spark = configure(spark)
        >>> spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        '100000'
    """
    needs_classic(spark, "configure", "give these settings to the server when it starts")
    settings = dict(_SETTINGS)
    if _is_local(spark, ""):
        settings[_CHECKPOINT_FILES] = _OF_A_LOCAL_DISK
    for key, value in settings.items():
        if not _has(spark, key):
            spark.conf.set(key, value)
    return spark


def _has(spark: SparkSession, key: str) -> bool:
    """Whether a session was given a setting."""
    return bool(spark._jsparkSession.sessionState().conf().contains(key))


def _is_local(spark: SparkSession, path: str) -> bool:
    """Whether a path is on the local disk, in a session that may call another file system its default."""
    scheme, has_scheme, _ = path.partition(":/")
    if has_scheme:
        return scheme == "file"
    default = spark._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return bool(default.startswith("file:"))


class QueryWriter(DataStreamWriter):
    """A writer whose query writes its checkpoint to a local disk without processes, as `configure` says.

    It does so where the checkpoint is on the local disk and the session has no setting of its own. The
    session has the setting while the query starts, which copies it, and then no longer. What a stop
    interrupts in the middle of a micro-batch ends as Spark expects it.
    """

    def __init__(self, df: DataFrame) -> None:
        """Of a streaming DataFrame."""
        super().__init__(df)
        self.given: dict[str, str] = {}
        """The options that it was given, by their names in lower case."""

    def option(self, key: str, value: OptionalPrimitiveType) -> Self:
        """An option of the query."""
        self.given[key.lower()] = str(value).lower() if isinstance(value, bool) else str(value)
        super().option(key, value)
        return self

    def options(self, **options: OptionalPrimitiveType) -> Self:
        """Some options of the query."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:  # noqa: N802
        """Let a function write each micro-batch."""

        def written(rows: DataFrame, batch: int) -> None:
            try:
                func(rows, batch)
            except Exception as error:
                interruption = _interruption(error)
                if interruption is None or not is_being_stopped(rows):
                    raise
                raise RuntimeError(_STOPPED.format(interruption)) from None

        super().foreachBatch(written)
        return self

    def begin(self) -> None:
        """What a writer does when it has all options, just before the query starts."""

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: OptionalPrimitiveType,
    ) -> StreamingQuery:
        """Start the query."""
        self.options(**options)
        self.begin()
        spark = self._spark
        with _starting:
            location = self.given.get("checkpointlocation") or spark.conf.get(_CHECKPOINTS, None)
            if location is None or not _is_local(spark, location) or _has(spark, _CHECKPOINT_FILES):
                return super().start(path, format, outputMode, partitionBy, queryName)
            spark.conf.set(_CHECKPOINT_FILES, _OF_A_LOCAL_DISK)
            try:
                return super().start(path, format, outputMode, partitionBy, queryName)
            finally:
                spark.conf.unset(_CHECKPOINT_FILES)


_STOPPED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling a micro-batch: {}"
"""By a regular expression for such a text Spark knows that a stop has interrupted a function in Python.

It goes deeper with each character between its two ends: with a trace of the JVM there the stack overflows.
"""
_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def _interruption(error: Exception) -> str | None:
    """The exception of the JVM in an error that a stop leads to, as some timeouts do too; None for none."""
    text = "".join(traceback.format_exception(error))
    return next((name for name in _INTERRUPTIONS if name in text), None)


def query_writer(df: DataFrame) -> DataStreamWriter:
    """A `QueryWriter`; over Spark Connect, whose server decides how checkpoints are written, Spark's."""
    return df.writeStream if is_connect(df) else QueryWriter(df)


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
    if is_connect(spark):
        # the flow of a pipeline may ask its server nothing, not even for its version
        if "upsert-table" not in _sent.get(spark, ()):
            version_of(spark)
            _register(spark)
            end_runs_of_pipelines(spark)
        return
    version_of(spark)
    # Spark looks for the Python format of a stream in the session that is active in the thread, whichever
    # session the stream is of: in a thread of the user's own there is none
    sessions = java_of(spark).org.apache.spark.sql.classic.SparkSession
    current = sessions.getActiveSession()
    if current.isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    elif not (current.get().equals(spark._jsparkSession) or _knows(current.get(), _LAST)):
        _register(type(spark)(spark.sparkContext, current.get()))
    if spark not in _sessions:  # Spark warns of every further registration
        _register(spark)
        _sessions.add(spark)


_LAST: Final = "kafka-changelog"
"""The format that is registered last: "upsert-table" any session finds by itself, and no other one."""


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
    _formats[format_.name()] = format_
    if is_connect(spark):  # which does not tell what it knows; its server takes the newest of a name
        if format_.name() not in (known := _sent.setdefault(spark, set())):
            _tell(spark, format_)
            known.add(format_.name())
        return
    if not _knows(spark._jsparkSession, format_.name()):
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
