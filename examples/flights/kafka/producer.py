"""The process that stands in for Debezium: 2013 as records in two topics, at a steady pace, without Spark.

The first step is produced at once, so that the queries have something to begin with; the others after a line
on stdin. It ends when stdin does, so that no orphan writes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.compute as pc

from examples.flights import source
from examples.flights.kafka.debezium import records
from examples.flights.kafka.tables import FLIGHTS_LOG, WEATHER_LOG, Topics
from examples.flights.messages import Loaded, Produced, Sender
from examples.flights.replay import Replay, replay
from examples.flights.replayer import permissions, steps_for
from examples.flights.tables import FLIGHT_KEY, FLIGHTS, JOIN_KEY, WEATHER
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce


def main(reports: Path, topics: Topics, rows: int, seconds: float) -> None:
    """Produce all steps in about `seconds`, telling of each; a slower machine takes longer."""
    sender = Sender(reports)
    flights = source.read_flights(rows)
    year = replay(flights, source.read_weather(pc.max(flights["time_hour"])), steps_for(rows))
    sender.send(Loaded(len(year), year.changes))
    produce_steps(topics, sender, year, seconds)


def produce_steps(topics: Topics, sender: Sender, year: Replay, seconds: float) -> None:
    """Produce step after step, flights before the weather of the same hours."""
    connection = Connection({"bootstrap.servers": topics.bootstrap_servers})
    flights, weather, produced = 0, 0, 0
    for step, _ in enumerate(permissions(seconds, len(year))):
        flights_now, weather_now = year.recorded(step)
        of_flights = records(flights_now, FLIGHTS, FLIGHT_KEY)
        of_weather = records(weather_now, WEATHER, JOIN_KEY)
        produced += produce(connection, topics.name(FLIGHTS_LOG), [of_flights])
        produced += produce(connection, topics.name(WEATHER_LOG), [of_weather])
        flights += len(flights_now.kinds)
        weather += len(weather_now.kinds)
        sender.send(Produced(step, year.until(step).isoformat(), flights, weather, produced))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Topics(sys.argv[3], sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
