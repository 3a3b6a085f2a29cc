"""The writer process: replays 2013 into the tables, at a steady pace and without Spark.

The first step is written at once, so that the query has something to begin with; the others after a line on
stdin. It ends when stdin does, so that no orphan writes on.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc

from examples.flights import source, tables
from examples.flights.messages import Loaded, Sender, Wrote
from examples.flights.replay import Replay, registered, replay
from upsert import Catalog

CHANGES_A_STEP = 5_000
MIN_STEPS = 40


def main(reports: Path, warehouse: Path, rows: int, seconds: float) -> None:
    """Write all steps in about `seconds`, telling of each; a slower machine takes longer."""
    catalog, sender = Catalog(warehouse), Sender(reports)
    flights = source.read_flights(rows)
    year = replay(flights, source.read_weather(pc.max(flights["time_hour"])), steps_for(rows))
    sender.send(Loaded(len(year), year.changes))
    write_steps(catalog, sender, year, seconds)


def steps_for(rows: int) -> int:
    """Number of steps for so many flights, each of which changes about three times."""
    return max(MIN_STEPS, 3 * rows // CHANGES_A_STEP)


def write_steps(catalog: Catalog, sender: Sender, year: Replay, seconds: float) -> None:
    """Commit step after step; each is one transaction a table, so that none could ever be written twice.

    The airports come first, planes a few at a time.
    """
    catalog.table(tables.AIRPORTS).write(source.read_airports(), writer_id="replay", transaction=0)
    planes, register = catalog.table(tables.PLANES), source.read_planes()
    flights, weather = catalog.table(tables.FLIGHTS), catalog.table(tables.WEATHER)
    flights_written, weather_written = 0, 0
    for step, _ in zip(year, permissions(seconds, len(year)), strict=False):
        planes.write(
            registered(register, step.number, len(year)), writer_id="replay", transaction=step.number
        )
        flights_now = flights.write(step.flights, writer_id="replay", transaction=step.number)
        weather_now = weather.write(step.weather, writer_id="replay", transaction=step.number)
        flights_written += step.flights.num_rows
        weather_written += step.weather.num_rows
        sender.send(
            Wrote(
                step.number,
                step.until.isoformat(),
                flights_written,
                weather_written,
                flights_now.id,
                weather_now.id,
            )
        )


def permissions(seconds: float, steps: int) -> Iterator[None]:
    """Yields once a step when it is due: the first at once, the others after a line on stdin, evenly spread.

    Ends early if stdin does.
    """
    yield
    if not sys.stdin.readline():
        return
    begin = time.monotonic()
    for number in range(1, steps):
        due = begin + seconds * number / steps
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
