"""The settings of a session that suit this package's queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from upsert.spark.connect import check_is_session, needs_classic

_SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # without it Spark computes the size of the whole batch for every row
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}
CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
OF_A_LOCAL_DISK: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The value of `CHECKPOINT_FILES` that starts no processes."""


def configure(spark: SparkSession) -> SparkSession:
    """Give a session the settings that make micro-batches short, except those that it has set itself.

    They are 100 000 rows in an Arrow batch (``spark.sql.execution.arrow.maxRecordsPerBatch``; as many bytes
    as Java allows, ``…maxBytesPerBatch``), and for sessions whose default file system is the local disk
    checkpoints by ``FileSystemBasedCheckpointFileManager``: Spark's default starts ten processes in each
    micro-batch there. They hold for queries that are started afterwards. The command ``deltajoin`` does this
    by itself.

    Args:
        spark: a session; settings of its builder and of Spark's configuration files are not changed.

    Returns:
        The session.

    Raises:
        ConfigurationError: it is no session, or one of Spark Connect.

    Example:
        >>> spark = configure(spark)
        >>> spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        '100000'
    """
    check_is_session(spark, "configure: its argument", "write configure(builder.getOrCreate())")
    needs_classic(spark, "configure", "give these settings to the server when it starts")
    settings = dict(_SETTINGS)
    if is_local(spark, ""):
        settings[CHECKPOINT_FILES] = OF_A_LOCAL_DISK
    for key, value in settings.items():
        if not has_setting(spark, key):
            spark.conf.set(key, value)
    return spark


def copy_of(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of a classic session, with other settings.

    >>> copy_of(spark, {"spark.sql.ansi.enabled": "false"}).conf.get("spark.sql.ansi.enabled")
    'false'
    """
    own = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        own.conf.set(name, value)
    return own


@contextmanager
def set_for_now(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session have some settings for a while, then what it had before.

    >>> with set_for_now(spark, {"spark.sql.ansi.enabled": "false"}):
    ...     spark.conf.get("spark.sql.ansi.enabled")
    'false'
    """
    before = {name: spark.conf.get(name) if has_setting(spark, name) else None for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, own in before.items():
            spark.conf.unset(name) if own is None else spark.conf.set(name, own)


def has_setting(spark: SparkSession, key: str) -> bool:
    """Whether a session was given a setting."""
    return bool(spark._jsparkSession.sessionState().conf().contains(key))


def is_local(spark: SparkSession, path: str) -> bool:
    """Whether a path is on the local disk, in a session that may call another file system its default."""
    scheme, has_scheme, _ = path.partition(":/")
    if has_scheme:
        return scheme == "file"
    default = spark._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return bool(default.startswith("file:"))
