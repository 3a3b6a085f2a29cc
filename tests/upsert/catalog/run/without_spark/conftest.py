"""A catalog with a table of all types, filled at random, for what is found without Spark beside Spark."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.without_spark.beside_spark import KINDS, PLAIN, UTC_SESSION, kinds, view_of
from upsert.catalog.catalog import Catalog


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where a test has a DataFrame, it wants Spark's rows."""
    if Path(__file__).parent in item.path.parents:
        item.add_marker("by_spark")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A catalog with a table of all types."""
    catalog = Catalog(tmp_path_factory.mktemp("filled"))
    catalog.context.settings = UTC_SESSION
    catalog.sql(KINDS)
    table = catalog.table("kinds")
    random = Random(5)
    for count in (30, 20):
        columns = kinds(random, count)
        schema = pa.schema([(name, table.schema.type_of(name)) for name in table.schema.names])
        table.write(
            pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names})
        )
    return catalog


@pytest.fixture(scope="module")
def plain(spark: SparkSession, filled: Catalog) -> Iterator[None]:
    """A view of Spark's with the rows of that table, for ``plain_rows``."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    view_of(filled, "kinds", spark, PLAIN)
    yield
    spark.catalog.dropTempView(PLAIN)
    spark.conf.unset("spark.sql.timeType.enabled")
