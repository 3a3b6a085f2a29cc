"""The six tables of the demo, four of them topics: columns, keys, CREATE TABLE statements (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from examples.flights import source
from examples.flights.tables import CELSIUS, FLIGHT_KEY, FLIGHTS, JOIN_KEY, WEATHER
from upsert import types
from upsert.schema import TableSchema

FLIGHTS_LOG: Final = "flights_log"
"""What Debezium writes about flights."""
WEATHER_LOG: Final = "weather_log"
"""What Debezium writes about the weather."""
BOARD: Final = "board"
"""The upsert topic of flights that have not left yet, or that left late."""
BOARD_WITH_WEATHER: Final = "board_with_weather"
"""The upsert topic of the join."""

FLIGHTS_LOG_SCHEMA: Final = pa.schema(
    [pa.field("day", pa.int32()) if field.name == "day" else field for field in source.FLIGHTS]
)
"""Debezium writes a DATE as the number of days since 1970."""

_SHOWN: Final = "carrier flight origin dest time_hour tailnum dep_time dep_delay arr_time arr_delay air_time"
_MEASURED: Final = "temp wind_dir wind_speed wind_gust precip visib"

DAY: Final = "date_add(DATE '1970-01-01', day) AS day"
LATE_MINUTES: Final = 15
ON_THE_BOARD: Final = f"dep_delay IS NULL OR dep_delay >= {LATE_MINUTES}"
"""Not a row's fate for ever: one that is shown when it is announced is taken back when it leaves on time."""
BOARD_COLUMNS: Final = (DAY, *_SHOWN.split())
JOINED_COLUMNS: Final = ("day", *_SHOWN.split(), *_MEASURED.split(), f"{CELSIUS} AS celsius")
"""What the queries select, as SQL."""

BOARD_SCHEMA: Final = pa.schema([source.FLIGHTS.field(name) for name in ("day", *_SHOWN.split())])
JOINED_SCHEMA: Final = pa.schema(
    [*BOARD_SCHEMA, *map(source.WEATHER.field, _MEASURED.split()), pa.field("celsius", pa.float64())]
)

ONE_ROW: Final = {"sink.materialize": "none"}
"""Of the sinks of Debezium's topics, which declare no key: their captured tables have one row a key."""


@dataclass(frozen=True)
class Topics:
    """The topics of one run, whose names are its own.

    Attributes:
        bootstrap_servers: the broker.
        run: what all names begin with.
    """

    bootstrap_servers: str
    run: str

    def name(self, table: str) -> str:
        """The topic of a table.

        >>> Topics("localhost:9092", "demo-1f").name(FLIGHTS_LOG)
        'demo-1f.flights_log'
        """
        return f"{self.run}.{table}"

    def statements(self) -> list[str]:
        """The CREATE TABLE statements of all tables."""
        flight_key = f"PRIMARY KEY ({', '.join(FLIGHT_KEY)}) NOT ENFORCED"
        join_key = ", ".join(JOIN_KEY)
        debezium = {"format": "debezium-json", "debezium-json.timestamp-format.standard": "ISO-8601"}
        return [
            _create(FLIGHTS_LOG, FLIGHTS_LOG_SCHEMA, "", self._options("kafka", FLIGHTS_LOG, debezium)),
            _create(WEATHER_LOG, source.WEATHER, "", self._options("kafka", WEATHER_LOG, debezium)),
            _create(BOARD, BOARD_SCHEMA, flight_key, self._upserts(BOARD) | ONE_ROW),
            _create(FLIGHTS, BOARD_SCHEMA, f"{flight_key}, INDEX ({join_key})", {"bucket": "2"}),
            _create(WEATHER, source.WEATHER, f"PRIMARY KEY ({join_key}) NOT ENFORCED", ONE_ROW),
            _create(BOARD_WITH_WEATHER, JOINED_SCHEMA, flight_key, self._upserts(BOARD_WITH_WEATHER)),
        ]

    def _upserts(self, table: str) -> dict[str, str]:
        options = {
            "key.format": "json",
            "value.format": "json",
            "sink.delivery-guarantee": "exactly-once",
            "sink.transactional-id-prefix": self.name(table),
            "sink.parallelism": "2",
            "topic.partitions": "2",
        }
        return self._options("upsert-kafka", table, options)

    def _options(self, connector: str, table: str, more: Mapping[str, str]) -> dict[str, str]:
        place = {"topic": self.name(table), "properties.bootstrap.servers": self.bootstrap_servers}
        # smaller steps than the default of a million: what follows has something to do sooner
        return {"connector": connector} | place | {"max-rows-per-trigger": "100000"} | dict(more)


def _create(name: str, schema: pa.Schema, keys: str, options: Mapping[str, str]) -> str:
    columns = [f"{c.name} {types.sql_name(c.type)}" for c in TableSchema.of(schema).columns]
    inside = ",\n  ".join([*columns, keys] if keys else columns)
    settings = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} (\n  {inside}\n)" + (f" WITH ({settings})" if options else "")
