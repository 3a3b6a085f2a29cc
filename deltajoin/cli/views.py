"""`view`: commands about materialized views, each by the statement of SQL that does it."""

from __future__ import annotations

from typing import Annotated

import typer

from deltajoin.cli.command import HERE, Json, Warehouse, errors_printed
from deltajoin.cli.output import Output
from deltajoin.cli.session import Session
from deltajoin.cli.sql import Conf, Master, Statement, Trace, run_and_follow
from deltajoin.cli.statements import Statements
from upsert.sql.parser import parse

app = typer.Typer(no_args_is_help=True, help="Materialized views: their state, and refreshing them.")

ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Name of a view.", show_default=False)]


@app.command("list")
def list_views(warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the views of a warehouse, whether each is up to date, and their queries."""
    _execute(["SHOW MATERIALIZED VIEWS"], warehouse, as_json=as_json)


@app.command()
def describe(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Show a view's columns and query, and the versions of its tables that its rows are of."""
    _execute([f"DESCRIBE EXTENDED {name}"], warehouse, as_json=as_json)


@app.command()
def explain(
    name: ViewName,
    warehouse: Warehouse = HERE,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Show what a refresh of a view reads and computes, and which hidden tables it keeps."""
    _execute([f"EXPLAIN MATERIALIZED VIEW {name}"], warehouse, conf, master, trace=trace, as_json=as_json)


@app.command()
def refresh(
    names: Annotated[list[str], typer.Argument(metavar="VIEW…", help="Names of views.", show_default=False)],
    warehouse: Warehouse = HERE,
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Go on with every commit of their tables, until interrupted.")
    ] = False,
    conf: Conf = None,
    master: Master = None,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Bring views to the newest rows of their tables, one after the other; --keep goes on with them."""
    statements = [f"REFRESH MATERIALIZED VIEW {name}" for name in names]
    mode = ["SET 'execution.runtime-mode' = 'streaming'"] if is_kept else []
    _execute([*mode, *statements], warehouse, conf, master, trace=trace, as_json=as_json)


@app.command()
def suspend(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Let no process refresh a view until `resume`."""
    _execute([f"ALTER MATERIALIZED VIEW {name} SUSPEND"], warehouse, as_json=as_json)


@app.command()
def resume(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Let a view be refreshed again."""
    _execute([f"ALTER MATERIALIZED VIEW {name} RESUME"], warehouse, as_json=as_json)


@app.command()
def drop(name: ViewName, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
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
) -> None:
    with errors_printed(as_json=as_json, trace=trace):
        for text in texts:
            parse(text)  # each is one statement, whatever a view is called
        session, output, thread = Session(warehouse, conf or (), master), Output(as_json=as_json), Statement()
        try:
            run_and_follow(";\n".join(texts), Statements(session, output), thread, output)
        finally:
            session.close()
            thread.close()
