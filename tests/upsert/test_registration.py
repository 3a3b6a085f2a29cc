"""Which sessions are told of the formats."""

import pytest
from pyspark.sql import SparkSession

from upsert.registration import register
from upsert.spark.formats import active

pytestmark = pytest.mark.spark


def test_a_session_that_is_active_gets_all_formats_although_it_finds_that_of_tables_by_itself(
    spark: SparkSession,
) -> None:
    """Spark looks for the format of a stream in the active session, whichever session the stream is of."""
    session = spark.newSession()
    formats = session._jsparkSession.sessionState().dataSourceManager()
    with active(session):
        assert formats.dataSourceExists("upsert-table")
        assert not formats.dataSourceExists("upsert-kafka")
        register(spark)
        assert formats.dataSourceExists("upsert-kafka")
