"""The command line of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.flights import source, tables
from examples.flights.command import ended_well, new_folder, replay_seconds
from examples.flights.stage import Settings
from examples.flights.summary import show_comparison, show_figures, show_next
from examples.flights.supervisor import Supervisor
from examples.flights.view import view_for
from upsert import Catalog

_FULL_REPLAY_S: Final = 50.0

app = typer.Typer(add_completion=False)


@app.command()
def main(
    rows: Annotated[
        int, typer.Option(min=1, max=source.ALL_FLIGHTS, help="Take the first so many flights of 2013.")
    ] = source.ALL_FLIGHTS,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Replay them in so many seconds.", show_default="50 for all flights"),
    ] = None,
    warehouse: Annotated[
        Path | None, typer.Option(help="Keep the tables in this new folder.", show_default="a temporary one")
    ] = None,
) -> None:
    """Join the flights of 2013 with weather, airports and planes while they change, through a crash.

    One process replays the year as inserts, updates and deletes of four tables. A Spark driver keeps their
    join up to date in a fifth, without join state; half-way it is killed with SIGKILL and started again.
    At the end the joined table is compared, row by row, with a batch join that DuckDB makes of the files.
    """
    console = Console()
    with ended_well(console), new_folder(warehouse) as folder:
        settings = Settings(rows, replay_seconds(rows, seconds, full=_FULL_REPLAY_S), folder)
        is_right = _run(console, settings, is_kept=warehouse is not None)
    raise typer.Exit(0 if is_right else 1)


def _run(console: Console, settings: Settings, is_kept: bool) -> bool:
    supervisor = Supervisor(settings, view_for(console))
    result = supervisor.run()
    show_figures(console, supervisor.progress)
    show_comparison(console, result)
    joined = Catalog(settings.warehouse).table(tables.JOINED).snapshot()
    show_next(console, settings.warehouse, is_kept, joined.scan())
    return result.differences == 0
