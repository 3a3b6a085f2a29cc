"""The tables of the demo: names, keys, columns, and their CREATE TABLE statements (pure)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from examples.flights import source
from upsert import types
from upsert.schema import TableSchema

FLIGHTS: Final = "flights"
WEATHER: Final = "weather"
PLANES: Final = "planes"
AIRPORTS: Final = "airports"
SOURCES: Final = (FLIGHTS, WEATHER, PLANES, AIRPORTS)
"""The tables that are joined."""
JOINED: Final = "flights_with_weather"

JOIN_KEY: Final = ("origin", "time_hour")
FLIGHT_KEY: Final = ("day", "carrier", "flight", "origin")
CELSIUS: Final = "(temp - 32) * 5 / 9"
"""A column that the query computes; the text means the same to Spark and to DuckDB."""

JOINED_SCHEMA: Final = pa.schema(
    [
        *source.FLIGHTS,
        *(field for field in source.WEATHER if field.name not in JOIN_KEY),
        *(field for field in source.PLANES if field.name != "tailnum"),
        pa.field("dest_name", pa.string()),
        pa.field("celsius", pa.float64()),
    ]
)

_FLIGHTS_OPTIONS: Final = (
    "PRIMARY KEY (day, carrier, flight, origin) NOT ENFORCED, INDEX (origin, time_hour), INDEX (tailnum), "
    "INDEX (dest)"
)
_JOINED_OPTIONS: Final = "PRIMARY KEY (day, carrier, flight, origin) NOT ENFORCED"
_WEATHER_OPTIONS: Final = "PRIMARY KEY (origin, time_hour) NOT ENFORCED"


def statements() -> list[str]:
    """The CREATE TABLE statements of the tables."""
    return [
        _create(FLIGHTS, source.FLIGHTS, _FLIGHTS_OPTIONS, buckets=2),
        _create(WEATHER, source.WEATHER, _WEATHER_OPTIONS, buckets=1),
        _create(PLANES, source.PLANES, "PRIMARY KEY (tailnum) NOT ENFORCED", buckets=1),
        _create(AIRPORTS, source.AIRPORTS, "PRIMARY KEY (faa) NOT ENFORCED", buckets=1),
        _create(JOINED, JOINED_SCHEMA, _JOINED_OPTIONS, buckets=2),
    ]


def _create(name: str, schema: pa.Schema, keys: str, buckets: int) -> str:
    columns = ",\n  ".join(f"{c.name} {types.sql_name(c.type)}" for c in TableSchema.of(schema).columns)
    return f"CREATE TABLE {name} (\n  {columns},\n  {keys}\n) WITH ('bucket' = '{buckets}')"
