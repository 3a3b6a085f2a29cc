"""A stream through Spark out of a table's log; what it reads, and when, is in ``tests/upsert/log``."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from planner import optimize
from planner.refusals import PlanError
from tests.helpers import changelog, multiset
from upsert.errors import ConfigurationError
from upsert.managed.frames import read_changes, write_changes
from upsert.schema import TableSchema
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

KEYED = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])
MULTISET = TableSchema.of({"id": pa.int64(), "v": pa.string()})


@pytest.fixture
def source(tmp_path: Path, kafka: LocalKafka) -> Table:
    log = {"log.system": "kafka", "log.kafka.bootstrap.servers": kafka.bootstrap_servers}
    return Table.create(tmp_path / "source", KEYED, {"bucket": "2", **log})


def test_sink_is_the_table_through_snapshot_log_and_restart(
    spark: SparkSession, source: Table, tmp_path: Path
) -> None:
    """The sink counts rows, so it would show a change that is missing, or that came twice."""
    sink = Table.create(tmp_path / "sink", MULTISET)
    source.write(changelog(KEYED.arrow, "+I 1 a", "+I 2 a"))
    for later in (("+U 1 b", "-D 2 a", "+I 3 c"), ("+U 3 d", "+I 4 a")):
        writer = write_changes(read_changes(spark, source.path), sink.path)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            source.write(changelog(KEYED.arrow, *later))
            query.processAllAvailable()
        finally:
            query.stop()
        assert multiset(sink.snapshot().scan()) == multiset(source.snapshot().scan())
    last = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    assert '"log"' in last.read_text()


def test_upserts_of_a_log_go_into_a_sink_with_their_key_and_nowhere_else(
    spark: SparkSession, source: Table, tmp_path: Path
) -> None:
    upserts = read_changes(spark, source.path, changelog="upsert")
    sink = Table.create(tmp_path / "sink", MULTISET)
    with pytest.raises(ConfigurationError, match=r"'changelog' = 'upsert' replace each other by \(id\)"):
        write_changes(upserts, sink.path)
    with pytest.raises(PlanError, match=r"table 'source' with 'changelog' = 'upsert'"):
        optimize(upserts.groupBy("v").count())
    optimize(upserts.where("id > 1"), sink_key=["id"])
