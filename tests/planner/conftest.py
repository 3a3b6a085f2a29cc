"""A warehouse of small tables that the Spark tests of the planner share, unchanged."""

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.planner.shapes import SCHEMAS, VIEWS
from upsert.managed import frames
from upsert.store import Table


@pytest.fixture(scope="session")
def empty_tables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Table]:
    folder = tmp_path_factory.mktemp("empty-tables")
    return {name: Table.create(folder / name, schema) for name, schema in SCHEMAS.items()}


@pytest.fixture(scope="module")
def changes(spark: SparkSession, empty_tables: Mapping[str, Table]) -> Mapping[str, DataFrame]:
    """Changes of each table; they are temp views of the tables' names, too."""
    found = {name: frames.read_changes(spark, table.path) for name, table in empty_tables.items()}
    for name, df in found.items():
        df.createOrReplaceTempView(name)
    spark.sql(VIEWS)
    return found
