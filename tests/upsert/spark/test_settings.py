"""The settings that a session is given where it has none."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltajoin
from upsert.errors import ConfigurationError

pytestmark = pytest.mark.spark

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that has none of these settings."""
    own = spark.newSession()
    for key in (RECORDS, BYTES, CHECKPOINTS):
        own.conf.unset(key)
    return own


def test_settings_are_made_where_there_are_none(session: SparkSession) -> None:
    assert deltajoin.configure(session) is session
    assert session.conf.get(RECORDS) == "100000"
    assert session.conf.get(BYTES) == "2147483647"
    assert session.conf.get(CHECKPOINTS).endswith("FileSystemBasedCheckpointFileManager")


def test_settings_of_the_user_stay(session: SparkSession) -> None:
    session.conf.set(RECORDS, "7")
    session.conf.set(CHECKPOINTS, "their.own")
    deltajoin.configure(session)
    assert (session.conf.get(RECORDS), session.conf.get(CHECKPOINTS)) == ("7", "their.own")


def test_other_file_systems_keep_the_checkpoints_of_spark(session: SparkSession) -> None:
    session.conf.set("fs.defaultFS", "hdfs://name-node:8020/")
    deltajoin.configure(session)
    assert session.conf.get(CHECKPOINTS, None) is None
    assert session.conf.get(RECORDS) == "100000"


def test_a_builder_is_told_to_make_its_session_first() -> None:
    builder: Any = SparkSession.builder
    with pytest.raises(ConfigurationError, match=r"must be a Spark session, got Builder; .*getOrCreate"):
        deltajoin.configure(builder)
