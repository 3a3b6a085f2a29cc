"""`changes`: what has changed between two snapshots, or goes on changing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Annotated, Final

import pyarrow as pa
import typer

from deltajoin.cli.command import HERE, Json, Name, Warehouse, errors_printed, table_of
from deltajoin.cli.output import Output
from upsert import Table, Version
from upsert.errors import ConfigurationError

_ROWS_A_STEP: Final = 10_000

app = typer.Typer()


@app.command()
def changes(
    name: Name,
    warehouse: Warehouse = HERE,
    since: Annotated[
        int, typer.Option(min=0, help="Changes after this snapshot; 0: from the empty table.")
    ] = 0,
    until: Annotated[
        int | None, typer.Option(min=0, help="Up to this snapshot.", show_default="the latest")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with every commit, until interrupted.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many rows.")
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(min=0.01, help="How often --follow looks for a commit.")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Show the net changes of a table, one for each key: the row before (-U), then the row after (+U)."""
    with errors_printed(as_json=as_json):
        table = table_of(warehouse, name)
        if follow and until is not None:
            raise ConfigurationError("changes: --follow has no end, got --until; leave one of them out")
        steps = followed(table, since, poll_seconds) if follow else changed(table, since, until)
        output = Output(as_json=as_json)
        left = limit
        for rows in steps:
            shown = rows if left is None else rows.slice(0, left)
            output.table(shown)
            left = None if left is None else left - shown.num_rows
            if left == 0:
                break


def changed(table: Table, since: int, until: int | None) -> Iterator[pa.Table]:
    """All changes between two snapshots, as one table."""
    yield table.changes(since, until)


def followed(table: Table, since: int, poll_seconds: float) -> Iterator[pa.Table]:
    """The changes after a snapshot as they come, some thousand rows at a time; it never ends."""
    table.snapshot(since)  # an expired one is an error at once
    version = Version.complete(since)
    for _ in count():
        end = table.advance(version, max_rows=_ROWS_A_STEP)
        if end == version:
            time.sleep(poll_seconds)
            continue
        rows = table.changes_between(version, end)
        version = end
        if rows.num_rows:
            yield rows
