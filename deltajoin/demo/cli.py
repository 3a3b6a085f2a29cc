"""The command line of the demo."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from deltajoin.demo import source, tables
from deltajoin.demo.processes import remove
from deltajoin.demo.summary import show_comparison, show_figures, show_next
from deltajoin.demo.supervisor import Settings, Supervisor
from deltajoin.demo.view import view_for
from upsert import Catalog
from upsert.errors import ConfigurationError, UpsertError

_INTERRUPTED = 130
_FULL_REPLAY_S = 50.0
_LEAST_REPLAY_S = 6.0

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
    """Join the flights of 2013 with the weather while both change, through a crash.

    One process replays the year as inserts, updates and deletes of two tables. A Spark driver keeps their
    join up to date in a third one, without join state; half-way it is killed with SIGKILL and started again.
    At the end the joined table is compared, row by row, with a batch join that DuckDB makes of the files.
    """
    console = Console()
    if seconds is None:
        seconds = _LEAST_REPLAY_S + (_FULL_REPLAY_S - _LEAST_REPLAY_S) * rows / source.ALL_FLIGHTS
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _folder(warehouse) as folder:
            is_right = _run(console, Settings(rows, seconds, folder), is_kept=warehouse is not None)
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; all processes have ended[/yellow]")
        raise typer.Exit(_INTERRUPTED) from None
    except UpsertError as error:
        Console(stderr=True).print("[bold red]the demo failed[/bold red]: ", end="")
        Console(stderr=True).print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    raise typer.Exit(0 if is_right else 1)


def _run(console: Console, settings: Settings, is_kept: bool) -> bool:
    supervisor = Supervisor(settings, view_for(console))
    result = supervisor.run()
    show_figures(console, supervisor.progress)
    show_comparison(console, result)
    joined = Catalog(settings.warehouse).table(tables.JOINED).snapshot()
    show_next(console, settings.warehouse, is_kept, joined.scan())
    return result.differences == 0


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
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
