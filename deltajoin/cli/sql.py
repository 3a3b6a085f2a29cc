"""`sql` and `run`: statements from the command line, a file, a pipe or a prompt."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from deltajoin.cli.exits import TOLD, tell, told_errors
from deltajoin.cli.interrupts import Statement, done_or_stopped, signals_noted
from deltajoin.cli.jobs import follow
from deltajoin.cli.options import HERE, Json, Warehouse
from deltajoin.cli.output import Output
from deltajoin.cli.session import Session
from deltajoin.cli.statements import SHOWN_ROWS, Statements
from upsert.errors import ConfigurationError

app = typer.Typer()

Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting, key=value; may be repeated.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Also print what Python and Java say of an error.")]
Master = Annotated[str | None, typer.Option(help="Spark's master.", show_default="local[*]")]


@app.command()
def sql(
    file: Annotated[Path | None, typer.Argument(help="A file of statements.", show_default=False)] = None,
    execute: Annotated[
        str | None,
        typer.Option("--execute", "-e", help="Statements, ended by semicolons.", show_default=False),
    ] = None,
    warehouse: Warehouse = HERE,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a query that a table shows.")] = SHOWN_ROWS,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Carry out SQL statements; with neither a file nor -e they come from a prompt, or from a pipe.

    Streaming statements run until they end or are interrupted.
    """
    with told_errors(as_json=as_json, trace=trace):
        if file is not None and execute is not None:
            raise ConfigurationError("sql: either a file or -e says what to do, got both; leave one out")
        session = Session(warehouse, conf or (), master)
        statements = Statements(session, Output(as_json=as_json), rows=rows)
        thread = Statement()
        try:
            if file is None and execute is None and sys.stdin.isatty():
                converse(session, statements, thread, trace=trace)
            else:
                text = execute if execute is not None else _read(file)
                thread.run(lambda: statements.run_script(text), statements.cancel)
                if statements.started:
                    with signals_noted() as stopped:
                        follow(statements.started, Output(as_json=as_json), stopped)
        finally:
            session.close()
            thread.close()


@app.command()
def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.sql", help="A file of statements.", show_default=False)],
    warehouse: Warehouse = HERE,
    conf: Conf = None,
    master: Master = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When a query fails, leave the others running.")
    ] = False,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Run the streaming statements of a file until they are stopped, and tell their progress.

    All statements are checked before the first query starts. SIGINT and SIGTERM stop the queries in good
    order; run again, they go on from their checkpoints.
    """
    with told_errors(as_json=as_json, trace=trace), signals_noted() as stopped:
        session = Session(warehouse, conf or (), master)
        statements = Statements(session, Output(as_json=as_json))
        text = _read(job)
        try:
            done_or_stopped(lambda: _start(statements, text, job), statements.cancel, stopped)
            if statements.started:
                follow(statements.started, Output(as_json=as_json), stopped, keep_going=keep_going)
        finally:
            session.close()


def _start(statements: Statements, text: str, job: Path) -> None:
    """Start the queries of a job when all of its statements are known to be possible."""
    statements.run_planned(statements.plan_script(text))
    if not statements.started:
        raise ConfigurationError(
            f"job {str(job)!r} must start a streaming query, got none; SET 'execution.runtime-mode' "
            "= 'streaming' before its INSERT, or use `deltajoin sql`"
        )


def converse(session: Session, statements: Statements, thread: Statement, *, trace: bool = False) -> None:
    """Carry out what the user types; an error is told, Ctrl-C cancels, and the next may be better."""
    from deltajoin.cli import prompt

    for text in prompt.statements(session.catalog.tables):
        try:
            thread.run(partial(statements.run_script, text), statements.cancel)
        except KeyboardInterrupt:
            Output().say("cancelled")
        except BrokenPipeError:
            raise  # nobody reads any more: the command ends
        except TOLD as error:
            tell(error, trace=trace)
        except Exception as error:
            tell(error, trace=True)


def _read(file: Path | None) -> str:
    if file is None:
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigurationError(
            f"file {str(file)!r} must be a text to read, got {cause}; correct its name"
        ) from cause
