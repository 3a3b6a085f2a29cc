"""What the command lines of the demos share: the folder of the tables, Ctrl-C, and how errors are shown."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import typer
from rich.console import Console

from examples.flights import source
from examples.flights.processes import remove
from upsert.errors import ConfigurationError, UpsertError

_INTERRUPTED: Final = 130
_LEAST_REPLAY_S: Final = 6.0


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
