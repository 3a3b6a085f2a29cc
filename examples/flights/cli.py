"""The command line of the demo: its options, Ctrl-C, and how errors are shown."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn, TypeVar

import typer
from rich.console import Console

from examples.flights import source
from examples.flights.processes import remove
from examples.flights.stage import Settings
from examples.flights.supervisor import Run, Supervisor
from examples.flights.tables_run import TablesRun
from examples.flights.view import view_for
from upsert.errors import ConfigurationError, UpsertError

_INTERRUPTED: Final = 130
_LEAST_REPLAY_S: Final = 6.0
_FULL_REPLAY_S: Final = 50.0
_FULL_KAFKA_REPLAY_S: Final = 75.0

R = TypeVar("R")

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")  # joins the lines of a paragraph


@app.command()
def main(
    rows: Annotated[
        int, typer.Option(min=1, max=source.ALL_FLIGHTS, help="Take the first so many flights of 2013.")
    ] = source.ALL_FLIGHTS,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Replay them in so many seconds.",
            show_default="50 for all flights, 75 with --kafka",
        ),
    ] = None,
    warehouse: Annotated[
        Path | None, typer.Option(help="Keep the tables in this new folder.", show_default="a temporary one")
    ] = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Carry flights and weather through Kafka, exactly once.")
    ] = False,
) -> None:
    """Join the flights of 2013 with weather, airports and planes while they change, through a crash.

    One process replays the year as inserts, updates and deletes of four tables. A Spark driver keeps their
    join up to date in a fifth, without join state; half-way it is killed with SIGKILL and started again.
    At the end the joined table is compared, row by row, with a batch join that DuckDB makes of the files.

    With --kafka a broker starts, and the year comes as Debezium records in two topics. The driver filters the
    flights into an upsert topic, keeps them and the weather in tables, and joins these into a second upsert
    topic. At the end a consumer reads both upsert topics, and what it finds is compared with DuckDB's answer.
    """
    console, is_kept = Console(), warehouse is not None
    with ended_well(console), new_folder(warehouse) as folder:
        full = _FULL_KAFKA_REPLAY_S if kafka else _FULL_REPLAY_S
        settings = Settings(rows, replay_seconds(rows, seconds, full), folder)
        if kafka:
            from examples.flights.kafka.run import kafka_run  # needs the extra `kafka`

            with kafka_run(console, settings, is_kept=is_kept) as run:
                is_right = carry_through(console, run, is_kept=is_kept)
        else:
            is_right = carry_through(console, TablesRun(settings), is_kept=is_kept)
    raise typer.Exit(0 if is_right else 1)


def carry_through(console: Console, run: Run[R], *, is_kept: bool) -> bool:
    """Do the run and show its end; whether its result is right."""
    supervisor = Supervisor(run, view_for(console, run.draw, run.line))
    return run.show_end(console, supervisor.progress, supervisor.run(), is_kept=is_kept)


def replay_seconds(rows: int, seconds: float | None, full: float) -> float:
    """How long to replay so many flights: what the user said, or in proportion to `full` for all of them."""
    if seconds is not None:
        return seconds
    return _LEAST_REPLAY_S + (full - _LEAST_REPLAY_S) * rows / source.ALL_FLIGHTS


@contextmanager
def ended_well(console: Console) -> Iterator[None]:
    """Runs a demo: Ctrl-C, SIGTERM and our own errors end it with a sentence and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; all processes have ended[/yellow]")
        raise typer.Exit(_INTERRUPTED) from None
    except UpsertError as error:
        Console(stderr=True).print("[bold red]the demo failed[/bold red]: ", end="")
        Console(stderr=True).print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


@contextmanager
def new_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder of the tables, new and empty; a temporary one is removed at the end."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigurationError(
                f"demo: --warehouse must be a new or empty folder, got {str(wanted)!r}; choose another"
            )
        yield wanted.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="deltajoin-demo-"))
    try:
        yield folder
    finally:
        remove(folder)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
