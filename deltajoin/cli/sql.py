"""`sql`, `run` and `view`: statements from the command line, a file, a pipe or a prompt.

Ctrl-C cancels what runs, and the command or the prompt goes on. PySpark's own handler calls the JVM from
within the signal, which may hit a call that is under way: py4j then speaks of a "reentrant call", and the
session is no longer usable. So statements run in a thread of their own, and the main thread, which gets the
signals, has nothing to do but to wait and to cancel. A signal is noted, not raised: an exception out of
nowhere is lost within a finalizer, and would break off a cancellation that is under way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from deltajoin.cli.command import (
    EXECUTE,
    HERE,
    Json,
    Output,
    Warehouse,
    errors_printed,
    has_terminal,
    is_expected,
    print_error,
)
from deltajoin.cli.jobs import follow, kept, tell_restart
from deltajoin.cli.session import SHOWN_ROWS, Session
from upsert.errors import ConfigurationError
from upsert.sql.parser import parse
from upsert.sql.statements import DescribeTable, ExplainView, RefreshView

_AGAIN_S: Final = 0.2
"""Between two looks at work that runs, and between two attempts to cancel it: it may have jobs in turn."""

_APART_S: Final = 1.0
"""Between two signals of a user's; `timeout` and systemd send the same one to a process and to its group."""


def done_or_cancelled(
    thread: ThreadPoolExecutor, work: Callable[[], None], cancel: Callable[[], None], noted: Sequence[int]
) -> None:
    """Do some work in a thread; when `signals_noted` has noted one, ``cancel`` is called until it ends.

    Work that was cancelled raises KeyboardInterrupt; what succeeded all the same raises nothing.
    """
    future = thread.submit(work)
    while not future.done():
        if noted:
            cancel()
        wait([future], _AGAIN_S)  # a signal does not end it, least of all one that another thread receives
    if noted and future.exception() is not None:
        raise KeyboardInterrupt
    future.result()


@contextmanager
def signals_noted(*numbers: signal.Signals, is_last: bool = False) -> Iterator[list[int]]:
    """A list that signals are put into, instead of ending the process, or a call into the JVM, half-way.

    With ``is_last`` one that comes a second after the first ends the process at once.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals are the main thread's business
        return
    began = 0.0

    def note(number: int, _: object) -> None:
        nonlocal began
        if not received:
            began = time.monotonic()
        elif is_last and time.monotonic() - began >= _APART_S:
            _end_at_once(number)
        received.append(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _end_at_once(number: int) -> NoReturn:
    """End as a process that is killed does; the JVM ends with it, and the checkpoints know what is done."""
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the cursor, which a table that changes has hidden
    with suppress(OSError):
        os.write(2, b"ended at once, before its queries have stopped; the next run continues from there\n")
    os._exit(128 + number)


app = typer.Typer()
view_app = typer.Typer(no_args_is_help=True, help="Materialized views: their state, and refreshing them.")

Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting, key=value; may be repeated.")
]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", help="A value for :name in statements, name=value; may be repeated."),
]
Trace = Annotated[bool, typer.Option("--trace", help="Also print the stack traces of Python and Java.")]
Master = Annotated[str | None, typer.Option(help="Spark's master.", show_default="local[*]")]


@app.command(rich_help_panel=EXECUTE)
def sql(
    file: Annotated[Path | None, typer.Argument(help="A file of statements.", show_default=False)] = None,
    execute: Annotated[
        str | None,
        typer.Option("--execute", "-e", help="Statements, ended by semicolons.", show_default=False),
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--file", "-f", help="The same as FILE.", show_default=False)
    ] = None,
    warehouse: Warehouse = HERE,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows to show.")] = SHOWN_ROWS,
    params: Params = None,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Execute SQL statements; with neither a file nor -e they come from a prompt, or from a pipe.

    Streaming statements run until they end or are interrupted.
    """
    with errors_printed(as_json=as_json, trace=trace) as output:
        if sum(given is not None for given in (file, script, execute)) > 1:
            raise ConfigurationError("sql: one file or -e says what to do, got several of them; leave one")
        file = file or script
        session = Session(warehouse, output, conf or (), master, rows=rows, params=params or ())
        with ThreadPoolExecutor(1, "statement") as thread, closing(session):
            if file is None and execute is None and has_terminal():
                _converse(session, thread, trace=trace)
            else:
                _run_and_follow(execute if execute is not None else _read(file), session, thread, output)


def _run_and_follow(text: str, session: Session, thread: ThreadPoolExecutor, output: Output) -> None:
    """Execute a text's statements, and tell the progress of the queries that they start until those end."""
    with signals_noted(signal.SIGINT) as noted:
        done_or_cancelled(thread, partial(session.run_script, text), session.cancel, noted)
    if session.started:
        with signals_noted(signal.SIGINT, signal.SIGTERM, is_last=True) as stopped:
            session.stopped = stopped
            follow(session.started, output, stopped)


@app.command(rich_help_panel=EXECUTE)
def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.sql", help="A file of statements.", show_default=False)],
    warehouse: Warehouse = HERE,
    params: Params = None,
    conf: Conf = None,
    master: Master = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When a query fails, leave the others running.")
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many times in a row to restart all queries when one fails.",
        ),
    ] = 0,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Run the streaming statements of a file until they are stopped, and show their progress.

    All statements are checked first. Ctrl-C and SIGTERM stop the queries; a later run continues from there. A
    second one ends the command at once.
    """
    with (
        errors_printed(as_json=as_json, trace=trace) as output,
        signals_noted(signal.SIGINT, signal.SIGTERM, is_last=True) as stopped,
        _ended_together(stopped),
        closing(Session(warehouse, output, conf or (), master, params=params or ())) as session,
    ):
        session.stopped = stopped
        if keep_going and restarts:
            raise ConfigurationError(
                "run: --restarts starts all queries again when one fails, got --keep-going too; leave one out"
            )
        _do(partial(_start, session, _read(job), job), session, stopped)
        is_first = True

        def attempt() -> None:
            nonlocal is_first
            if not is_first and not stopped:
                _do(session.restart, session, stopped)
            if session.started and (is_first or not stopped):
                is_first = False
                follow(session.started, output, stopped, keep_going=keep_going)

        kept(attempt, restarts, partial(tell_restart, output), sleep=partial(_pause, stopped))


def _do(work: Callable[[], None], session: Session, stopped: Sequence[int]) -> None:
    """Do some work unless the command is stopped, which cancels it."""
    with ThreadPoolExecutor(1, "statements") as thread, suppress(KeyboardInterrupt):
        done_or_cancelled(thread, work, session.cancel, stopped)


@contextmanager
def _ended_together(stopped: Sequence[int]) -> Iterator[None]:
    """A signal to all processes of a group ends the JVM too, as systemd and `timeout` send it: no failure."""
    try:
        yield
    except Exception:
        from upsert.spark.jvm import ends

        if not (stopped and ends()):
            raise


def _pause(stopped: list[int], seconds: float) -> None:
    """Wait, but no longer than until a signal comes."""
    end = time.monotonic() + seconds
    while not stopped and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _AGAIN_S))


def _start(session: Session, text: str, job: Path) -> None:
    """Start the queries of a job when all of its statements are known to be possible."""
    session.run_planned(session.plan_script(text))
    if not session.started:
        raise ConfigurationError(
            f"job {str(job)!r} must start a streaming query, got none; SET 'execution.runtime-mode' "
            "= 'streaming' before its INSERT, or use `deltajoin sql`"
        )


def _converse(session: Session, thread: ThreadPoolExecutor, *, trace: bool) -> None:
    """Execute what the user types; an error is printed, Ctrl-C cancels, and the prompt continues."""
    from deltajoin.cli import prompt

    with signals_noted(signal.SIGINT) as noted:
        for text in prompt.statements(session.catalog.tables):
            noted.clear()  # one more Ctrl-C than was needed has nothing to cancel
            try:
                done_or_cancelled(thread, partial(session.run_script, text), session.cancel, noted)
            except KeyboardInterrupt:
                Output().say("cancelled")
            except BrokenPipeError:
                raise  # no reader is left: the command ends
            except Exception as error:  # a bug is shown with its trace: the prompt continues
                print_error(error, trace=trace or not is_expected(error))


def _read(file: Path | None) -> str:
    if file is None and sys.stdin is None:
        raise ConfigurationError(
            "sql: statements must come from a file, from -e or through standard input, which is closed; "
            "give a file or -e"
        )
    try:
        # with the ends of lines that it has, which may be within quotes
        return sys.stdin.read() if file is None else file.read_bytes().decode()
    except OSError as cause:
        raise ConfigurationError(
            f"file {str(file)!r} must be a text to read, got {cause.strerror!r}; correct its name"
        ) from cause
    except UnicodeDecodeError as cause:
        what = "standard input" if file is None else f"file {str(file)!r}"
        raise ConfigurationError(
            f"{what} must be a text of UTF-8, got {cause.object[cause.start : cause.end]!r} at {cause.start} "
            f"({cause.reason}); save it as UTF-8"
        ) from cause


ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Name of a view.", show_default=False)]


@view_app.command("list")
def list_views(warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the views of a warehouse, whether each is up to date, and their queries."""
    _execute(["SHOW MATERIALIZED VIEWS"], warehouse, as_json=as_json)


@view_app.command("describe")
def describe_view(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Show a view's query, how far it is behind each table, and how its rows were computed."""
    _execute([f"DESCRIBE EXTENDED {name}"], warehouse, as_json=as_json, must_be_view=True)


@view_app.command("explain")
def explain_view(
    name: ViewName,
    warehouse: Warehouse = HERE,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Show what a refresh of a view reads and computes, and which hidden tables it keeps."""
    _execute([f"EXPLAIN MATERIALIZED VIEW {name}"], warehouse, conf, master, trace=trace, as_json=as_json)


@view_app.command("refresh")
def refresh_views(
    names: Annotated[list[str], typer.Argument(metavar="VIEW…", help="Names of views.", show_default=False)],
    warehouse: Warehouse = HERE,
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Continue with every commit of their tables, until interrupted.")
    ] = False,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Bring views to the newest rows of their tables, one after the other; --keep keeps them up to date."""
    statements = [f"REFRESH MATERIALIZED VIEW {name}" for name in names]
    mode = ["SET 'execution.runtime-mode' = 'streaming'"] if is_kept else []
    _execute([*mode, *statements], warehouse, conf, master, trace=trace, as_json=as_json)


@view_app.command("suspend")
def suspend_view(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Let no process refresh a view until `resume`."""
    _execute([f"ALTER MATERIALIZED VIEW {name} SUSPEND"], warehouse, as_json=as_json)


@view_app.command("resume")
def resume_view(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Let a view be refreshed again."""
    _execute([f"ALTER MATERIALIZED VIEW {name} RESUME"], warehouse, as_json=as_json)


@view_app.command("drop")
def drop_view(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Delete a view and its rows; its tables stay."""
    _execute([f"DROP MATERIALIZED VIEW {name}"], warehouse, as_json=as_json)


def _execute(
    texts: list[str],
    warehouse: str,
    conf: list[str] | None = None,
    master: str | None = None,
    *,
    trace: bool = False,
    as_json: bool,
    must_be_view: bool = False,
) -> None:
    with errors_printed(as_json=as_json, trace=trace) as output:
        statements = [parse(text) for text in texts]  # each is one, whatever a view is called
        session = Session(warehouse, output, conf or (), master)
        with ThreadPoolExecutor(1, "statement") as thread, closing(session):
            for one in statements:
                match one:
                    case RefreshView(name=name) | ExplainView(view=str(name)):
                        session.catalog.view(name)  # these start Spark first, which takes some seconds
                    case DescribeTable(name=name) if must_be_view:
                        session.catalog.view(name)  # DESCRIBE says what any table is
            _run_and_follow(";\n".join(texts), session, thread, output)
