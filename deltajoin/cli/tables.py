"""Looking at tables: `tables`, `describe` and `head`."""

from __future__ import annotations

from typing import Annotated

import typer

from deltajoin.cli.command import HERE, Json, Name, SnapshotId, Warehouse, errors_printed, table_of
from deltajoin.cli.output import Output
from deltajoin.cli.session import Session
from deltajoin.cli.statements import Statements

app = typer.Typer()


@app.command()
def tables(warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the tables of a warehouse."""
    with errors_printed(as_json=as_json):
        names = Session(warehouse).catalog.tables()
        output = Output(as_json=as_json)
        output.rows([{"table": name} for name in names], empty=f"no tables in {warehouse}")


@app.command()
def describe(
    name: Name,
    warehouse: Warehouse = HERE,
    extended: Annotated[
        bool, typer.Option("--extended", help="Also where and how the table is stored (FLIP-188).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a table's columns, keys and indexes."""
    with errors_printed(as_json=as_json):
        statement = f"DESCRIBE {'EXTENDED ' if extended else ''}{name}"
        Statements(Session(warehouse), Output(as_json=as_json)).run(statement)


@app.command()
def head(
    name: Name,
    warehouse: Warehouse = HERE,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="How many rows.")] = 10,
    snapshot: SnapshotId = None,
    as_json: Json = False,
) -> None:
    """Show some rows of a table as it is, or as it was at a snapshot."""
    with errors_printed(as_json=as_json):
        found = table_of(warehouse, name).snapshot(snapshot)
        Output(as_json=as_json).table(found.scan().slice(0, rows), title=f"{name}, snapshot {found.id}")
