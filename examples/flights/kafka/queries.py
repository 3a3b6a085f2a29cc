"""The four streaming queries of the run through Kafka, as one writes them in Spark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from examples.flights.kafka import tables
from examples.flights.queries import Query
from examples.flights.tables import FLIGHT_KEY, FLIGHTS, JOIN_KEY, WEATHER
from upsert import Catalog


def board(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """Kafka to Kafka: of the flights in Debezium's topic those that are on the board, in fewer columns."""
    log = catalog.read_changes(spark, tables.FLIGHTS_LOG)
    return log.where(tables.ON_THE_BOARD).selectExpr(*tables.BOARD_COLUMNS)


def flights(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """An upsert topic to a managed table."""
    return catalog.read_changes(spark, tables.BOARD)


def weather(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """Debezium's topic to a managed table."""
    return catalog.read_changes(spark, tables.WEATHER_LOG)


def join(catalog: Catalog, spark: SparkSession) -> DataFrame:
    """Two managed tables, joined, to an upsert topic."""
    on_the_board = catalog.read_changes(spark, FLIGHTS)
    joined = on_the_board.join(catalog.read_changes(spark, WEATHER), list(JOIN_KEY))
    return joined.selectExpr(*tables.JOINED_COLUMNS)


QUERIES: Final = (
    Query("board", (tables.FLIGHTS_LOG,), tables.BOARD, board, {"sink_key": FLIGHT_KEY}),
    Query("flights", (tables.BOARD,), FLIGHTS, flights, {"sink_key": FLIGHT_KEY}),
    Query("weather", (tables.WEATHER_LOG,), WEATHER, weather, {"sink_key": JOIN_KEY}),
    Query("join", (FLIGHTS, WEATHER), tables.BOARD_WITH_WEATHER, join, {"sink_key": FLIGHT_KEY}),
)
"""In the order in which changes pass through them."""
