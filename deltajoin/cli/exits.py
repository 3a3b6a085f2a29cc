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
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.markup import escape

from upsert.errors import (
    DatabaseNotFoundError,
    SnapshotExpiredError,
    TableNotFoundError,
    UpsertError,
    own_error,
)

TOLD = (UpsertError, PySparkException, OSError)
"""What is a message for the user: errors of ours, of Spark about a query, of a disk or a server."""


_NOISE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    WRONG_COMMAND = 2
    DAMAGED = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


@contextmanager
def told_errors(*, as_json: bool = False, trace: bool = False) -> Iterator[None]:
    """Run a command; an error of ours, of Spark about a query, of a disk or a server becomes one message.

    Args:
        as_json: print the message as a JSON object ``{"error": …, "message": …}``.
        trace: print the traces of Python and Java behind the message.

    Anything else is a defect and keeps its traceback.
    """
    try:
        yield
    except BrokenPipeError:
        # the reader of a pipe, like `head`, has gone: nobody is left to tell anything
        sys.stdout = None
        raise typer.Exit(Exit.DONE) from None
    except TOLD as error:
        tell(error, as_json=as_json, trace=trace)
        told = own_error(error) or error
        is_missing = isinstance(told, TableNotFoundError | DatabaseNotFoundError | SnapshotExpiredError)
        raise typer.Exit(Exit.NOT_FOUND if is_missing else Exit.FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def tell(error: BaseException, *, as_json: bool = False, trace: bool = False) -> None:
    """Print an error to the standard error stream: one line, and its traces if they are asked for."""
    text = reason_of(error)
    if as_json:
        told = {"error": type(own_error(error) or error).__name__, "message": text}
        if trace:
            told["trace"] = "".join(traceback.format_exception(error))
        print(json.dumps(told), file=sys.stderr)
        return
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False)
    if trace:
        traceback.print_exception(error)


def reason_of(error: BaseException) -> str:
    """What an error says: the sentence of this project's that it is about, or the first line of Spark's."""
    if (own := own_error(error)) is not None:
        return str(own).strip()
    if isinstance(error, PySparkException):
        told = (error.getMessage() or str(error)).strip()
        return _NOISE.sub("", told.partition("\n")[0])
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename!r}: {error.strerror}"
        return f"{what}; see that it can be reached, may be used and has room, and run this again"
    return str(error).strip()
