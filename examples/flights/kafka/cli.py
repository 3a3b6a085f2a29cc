"""The command line of the Kafka demo."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.flights import source
from examples.flights.command import ended_well, new_folder, replay_seconds
from examples.flights.kafka.summary import show_figures, show_outcome, show_places
from examples.flights.kafka.supervisor import Supervisor
from examples.flights.kafka.tables import Topics
from examples.flights.kafka.view import view_for
from examples.flights.stage import Settings
from upsert.kafka.client.admin import delete_topic, topics
from upsert.kafka.client.connection import Connection
from upsert.testing import LocalKafka

_FULL_REPLAY_S: Final = 75.0

app = typer.Typer(add_completion=False)


@app.command()
def main(
    rows: Annotated[
        int, typer.Option(min=1, max=source.ALL_FLIGHTS, help="Take the first so many flights of 2013.")
    ] = source.ALL_FLIGHTS,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Produce them in so many seconds.", show_default="75 for all flights"),
    ] = None,
    warehouse: Annotated[
        Path | None, typer.Option(help="Keep the tables in this new folder.", show_default="a temporary one")
    ] = None,
) -> None:
    """Carry the flights and the weather of 2013 through Kafka, exactly once, through a crash.

    A broker starts. One process writes Debezium records of the year into two topics. A Spark driver filters
    the flights into an upsert topic, keeps them and the weather in tables, and joins these into a second
    upsert topic; half-way it is killed with SIGKILL and started again. At the end a consumer reads both
    upsert topics, and what it finds is compared, row by row, with what DuckDB makes of the source files.
    """
    console = Console()
    console.print("starting a Kafka broker; the first time its jars are fetched (43 MB)")
    with ended_well(console), new_folder(warehouse) as folder, LocalKafka() as kafka:
        settings = Settings(rows, replay_seconds(rows, seconds, full=_FULL_REPLAY_S), folder)
        names = Topics(kafka.bootstrap_servers, f"demo-{uuid.uuid4().hex[:6]}")
        is_right = _run(console, settings, names, is_kept=warehouse is not None)
    raise typer.Exit(0 if is_right else 1)


def _run(console: Console, settings: Settings, names: Topics, is_kept: bool) -> bool:
    supervisor = Supervisor(settings, names, view_for(console))
    try:
        outcome = supervisor.run()
        show_figures(console, supervisor.progress, settings.warehouse, supervisor.watch.checkpoints)
        show_outcome(console, outcome)
        show_places(console, settings.warehouse, names, is_kept)
        return outcome.is_right
    finally:
        if not is_kept:
            _remove(names)


def _remove(names: Topics) -> None:
    """Leave none of our topics in a Kafka that goes on running."""
    connection = Connection({"bootstrap.servers": names.bootstrap_servers})
    for name in topics(connection, pattern=rf"{names.run}\..*"):
        delete_topic(connection, name)
