"""The two steps of a micro-batch into a sink that keeps all rows of each key."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from upsert.materializer.hidden_table import HiddenTable, KeptRows
from upsert.materializer.micro_batch import Materialize
from upsert.schema import TableSchema
from upsert.spark.task import QUERY_ID

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("tasks", [1, 8])
def test_a_sink_that_has_another_number_of_tasks_by_now_gets_every_row(
    tmp_path: Path, spark: SparkSession, tasks: int
) -> None:
    """As where a topic's 'sink.parallelism' has changed, or the number of its partitions."""
    form = KeptRows(TableSchema.of({"k": pa.int64(), "v": pa.int64()}, ["k"]), ("k",))
    written: list[int] = []
    spark.sparkContext.setLocalProperty(QUERY_ID, "query")
    try:
        for batch, buckets in enumerate((4, tasks)):
            hidden = HiddenTable("table 's'", str(tmp_path), form, buckets, ("k",))
            rows = spark.range(16).selectExpr("id AS k", f"{batch}L AS v", "'+I' AS _row_kind")
            Materialize(hidden, lambda found, _: written.append(found.count()))(rows, batch)
    finally:
        spark.sparkContext.setLocalProperty(QUERY_ID, None)
    assert written == [16, 16]
