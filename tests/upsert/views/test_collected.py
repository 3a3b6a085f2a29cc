"""Rows are collected up to a number of bytes, however wide they turn out to be."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from upsert.spark.batches import arrow_of
from upsert.views.difference import collected_up_to

pytestmark = pytest.mark.spark

TEXT = "CASE WHEN id > 5 THEN repeat('x', 50000) END"


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        f"map('key', array(NULL, named_struct('text', CAST({TEXT} AS BINARY))))",
        pytest.param("CASE WHEN id > 5 THEN array_repeat(id, 6250) END", marks=pytest.mark.long),
    ],
)
def test_rows_that_are_wide_are_not_all_collected(
    spark: SparkSession, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measured(df: DataFrame) -> pa.Table:
        found = arrow_of(df)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr("upsert.views.difference.arrow_of", measured)
    rows = spark.range(300, numPartitions=2).selectExpr("id", f"{value} AS `a value`")
    assert collected_up_to(rows.limit(301), 1_000_000) is None
    assert sizes[0] < 3_000_000  # of 15 MB; Spark takes twice what values need
    few = rows.where("id < 20")
    found = collected_up_to(few.limit(301), 1_000_000)
    assert found is not None
    assert found.sort_by("id").to_pylist() == few.toArrow().sort_by("id").to_pylist()


def test_rows_of_a_fixed_width_are_collected_as_they_are(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr("id", "id > 4 AS is_late", "DATE '2024-01-01' AS day")
    found = collected_up_to(rows.limit(11), 1)
    assert found is not None
    assert found.num_rows == 10
    assert found.column_names == ["id", "is_late", "day"]
