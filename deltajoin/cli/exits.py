"""How a command ends: what it prints of an error, and the exit code that says which kind it was.

====  ================================================================
code  meaning
====  ================================================================
0     done
1     it failed; the message says why and what to do next
2     the command line is wrong
3     `check` has found damage
4     there is no such table or database, or the snapshot has expired
130   interrupted by the user
====  ================================================================
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.markup import escape

from upsert.errors import DatabaseNotFoundError, SnapshotExpiredError, TableNotFoundError, UpsertError

TOLD = (UpsertError, PySparkException, OSError)
"""What is a message for the user: errors of ours, of Spark about a query, of a disk or a server."""


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    WRONG_COMMAND = 2
    DAMAGED = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


@contextmanager
def told_errors(*, as_json: bool = False) -> Iterator[None]:
    """Run a command; an error of ours, of Spark about a query, of a disk or a server becomes one message.

    Args:
        as_json: print the message as a JSON object ``{"error": …, "message": …}``.

    Anything else is a defect and keeps its traceback.
    """
    try:
        yield
    except BrokenPipeError:
        # the reader of a pipe, like `head`, has gone: nobody is left to tell anything
        sys.stdout = None
        raise typer.Exit(Exit.DONE) from None
    except TOLD as error:
        tell(error, as_json=as_json)
        is_missing = isinstance(error, TableNotFoundError | DatabaseNotFoundError | SnapshotExpiredError)
        raise typer.Exit(Exit.NOT_FOUND if is_missing else Exit.FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def tell(error: BaseException, *, as_json: bool = False) -> None:
    """Print an error to the standard error stream."""
    text = _text(error).strip()
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": text}), file=sys.stderr)
    else:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False)


def _text(error: BaseException) -> str:
    if isinstance(error, PySparkException):
        return error.getMessage() or str(error)
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename!r}: {error.strerror}"
        return f"{what}; see that it can be reached, may be used and has room, and run this again"
    return str(error)
