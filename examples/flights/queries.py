"""A streaming query as one writes it in Spark, and the one of the run over tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

from examples.flights import tables
from upsert import Catalog

Changes: TypeAlias = Callable[[Catalog, SparkSession], DataFrame]


class Query(NamedTuple):
    """A query by its name: the tables it follows, the one it writes, its changes, options of the planner."""

    name: str
    sources: tuple[str, ...]
    sink: str
    changes: Changes
    options: Mapping[str, Any]


def flights_with_all(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """Stream-stream joins, of which the planner makes one delta join."""
    flights, weather, planes, airports = (catalog.read_changes(spark, name) for name in tables.SOURCES)
    joined = (
        flights.join(weather, list(tables.JOIN_KEY))
        .join(airports.withColumnRenamed("name", "dest_name"), col("dest") == col("faa"))
        .join(planes, "tailnum", "left")
    )
    *columns, celsius = tables.JOINED_SCHEMA.names
    return joined.select(*columns, expr(tables.CELSIUS).alias(celsius))


JOIN: Final = Query("join", tables.SOURCES, tables.JOINED, flights_with_all, {"strategy": "force"})
