"""What a query of a catalog gives, for tests that compare it."""

from typing import Any

from pyspark.sql import SparkSession

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame


def rows(catalog: Catalog, spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, in the order of their texts."""
    found = catalog.sql(query, spark)
    assert isinstance(found, Frame)
    return sorted((tuple(row.values()) for row in found.rows.to_pylist()), key=repr)
