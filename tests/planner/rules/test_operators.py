"""Queries with unions, generators, static rows and Spark's own join, against the same over snapshots."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import planner
from tests.planner.rules.operator_shapes import ALIKE, PASSED, REGULAR, prices
from tests.planner.test_queries import Rows, change_everything, check, new_warehouse, results_of
from upsert.rowkind import RowKind

pytestmark = pytest.mark.spark

SHAPES = PASSED | REGULAR


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Rows, Rows]]:
    warehouse = new_warehouse(spark, tmp_path_factory.mktemp("warehouse"))
    prices(spark).createOrReplaceTempView("prices")
    shapes = {title: shape for title, shape in SHAPES.items() if title not in ALIKE}
    return results_of(shapes, warehouse, tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize("title", [title for title in SHAPES if title not in ALIKE])
def test_rows_and_columns_are_those_of_a_batch(title: str, results: dict[str, tuple[Rows, Rows]]) -> None:
    check(*results[title])


def test_distinct_gives_a_row_until_the_last_of_its_kind_goes(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = new_warehouse(spark, tmp_path / "warehouse")
    found: set[str | None] = set()

    def take(batch: DataFrame, batch_id: int) -> None:
        for note, kind in batch.collect():
            (found.add if RowKind(kind).sign > 0 else found.discard)(note)
        if batch_id == 0:
            change_everything(warehouse.tables)

    distinct = planner.optimize(warehouse.changes()["orders"].select("note").distinct())
    assert distinct.columns == ["note", "_row_kind"]
    writer = distinct.writeStream.outputMode("update").foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    assert found == {note for (note,) in warehouse.snapshots()["orders"].select("note").distinct().collect()}


@pytest.mark.long
def test_rows_of_the_other_shapes(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = new_warehouse(spark, tmp_path / "warehouse")
    prices(spark).createOrReplaceTempView("prices")
    shapes = {title: SHAPES[title] for title in ALIKE}
    for net, wanted in results_of(shapes, warehouse, tmp_path / "checkpoint").values():
        check(net, wanted)
