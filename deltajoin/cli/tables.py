"""Commands about tables: what they hold and held, how they changed, and their maintenance."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

import pyarrow as pa
import typer
from rich.console import Console

from deltajoin.cli.command import (
    HERE,
    LOOK,
    MAINTAIN,
    Exit,
    Json,
    Name,
    SnapshotId,
    Warehouse,
    errors_printed,
    table_of,
)
from deltajoin.cli.session import Session
from upsert import Catalog, Table, Version
from upsert.errors import ConfigurationError
from upsert.store.read.snapshot import Snapshot

_ROWS_A_STEP: Final = 10_000

app = typer.Typer()


@app.command(rich_help_panel=LOOK)
def tables(warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the tables of a warehouse."""
    with errors_printed(as_json=as_json) as output:
        names = Catalog(warehouse).tables()
        is_missing = "://" not in warehouse and not os.path.isdir(warehouse)
        empty = (
            f"no tables in {warehouse}{', which is no folder; -w names the warehouse' if is_missing else ''}"
        )
        output.rows([{"table": name} for name in names], empty=empty)


@app.command(rich_help_panel=LOOK)
def describe(
    name: Name,
    warehouse: Warehouse = HERE,
    extended: Annotated[
        bool, typer.Option("--extended", help="Also where and how the table is stored (FLIP-188).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a table's columns, keys and indexes."""
    with errors_printed(as_json=as_json) as output:
        statement = f"DESCRIBE {'EXTENDED ' if extended else ''}{name}"
        Session(warehouse, output).run(statement)


@app.command(rich_help_panel=LOOK)
def head(
    name: Name,
    warehouse: Warehouse = HERE,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="How many rows.")] = 10,
    snapshot: SnapshotId = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Redraw them after each commit, until interrupted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show some rows of a table as it is, or as it was at a snapshot."""
    with errors_printed(as_json=as_json) as output:
        if follow:
            if as_json or snapshot is not None:
                raise ConfigurationError(
                    "head: --follow redraws the newest rows in a terminal, got --json or --snapshot too; "
                    "leave it out, or follow the `changes`"
                )
            table_of(warehouse, name).watch(rows=rows)
            return
        found = table_of(warehouse, name).snapshot(snapshot)
        output.table(_first_rows(found, rows), title=f"{name}, snapshot {found.id}")


def _first_rows(snapshot: Snapshot, count: int) -> pa.Table:
    """So many rows; of a large table no more are read than a piece has in which they are."""
    found = snapshot.layout.schema.arrow.empty_table()
    for piece in snapshot.pieces():
        found = pa.concat_tables([found, piece.slice(0, count - found.num_rows)])
        if found.num_rows == count:
            break
    return found


@app.command(rich_help_panel=LOOK)
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
        bool, typer.Option("--follow", "-f", help="Continue with every commit, until interrupted.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many rows.")
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(min=0.01, help="How often --follow looks for a commit.")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Show what changed in a table, once for each key: the row before (-U), then the row after (+U)."""
    with errors_printed(as_json=as_json) as output:
        table = table_of(warehouse, name)
        if follow and until is not None:
            raise ConfigurationError("changes: --follow has no end, got --until; leave one of them out")
        steps = _followed(table, since, poll_seconds) if follow else [table.changes(since, until)]
        left = limit
        for rows in steps:
            shown = rows if left is None else rows.slice(0, left)
            output.table(shown)
            left = None if left is None else left - shown.num_rows
            if left == 0:
                break


def _followed(table: Table, since: int, poll_seconds: float) -> Iterator[pa.Table]:
    """The changes after a snapshot as they come, some thousand rows at a time; it never ends."""
    table.snapshot(since)  # an expired one is an error at once
    version = Version.complete(since)
    while True:
        end = table.advance(version, max_rows=_ROWS_A_STEP)
        if end == version:
            time.sleep(poll_seconds)
            continue
        rows = table.changes_between(version, end)
        version = end
        if rows.num_rows:
            yield rows


@app.command(rich_help_panel=LOOK)
def snapshots(name: Name, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the states of a table that can be read, oldest first; records include deletions."""
    with errors_printed(as_json=as_json) as output:
        found = [
            {
                "snapshot": info.id,
                "kind": info.kind,
                "committed": datetime.fromtimestamp(info.time_ms / 1000, UTC),
                "records": info.rows,
                "added": info.delta_rows,
                "files": info.files,
                "tracked": info.tracked,
            }
            for info in table_of(warehouse, name).history()
        ]
        output.rows(found, title=f"snapshots of {name}", empty="no commits yet")


@app.command(rich_help_panel=LOOK)
def files(
    name: Name, warehouse: Warehouse = HERE, snapshot: SnapshotId = None, as_json: Json = False
) -> None:
    """List the data files of a snapshot: newest first within a bucket."""
    with errors_printed(as_json=as_json) as output:
        entries = table_of(warehouse, name).snapshot(snapshot).files.entries
        found = [
            {
                "partition": "/".join(f"{column}={value}" for column, value in entry.partition) or None,
                "bucket": entry.bucket,
                "level": entry.level,
                "rows": entry.rows,
                "deletes": entry.deletes,
                "bytes": entry.bytes,
                "sequence": entry.sequence,
                "file": entry.file,
            }
            for entry in entries
        ]
        output.rows(found, title=f"files of {name}", empty="no files")


@app.command(rich_help_panel=MAINTAIN)
def compact(name: Name, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Merge each bucket into one sorted run; readers and writers continue meanwhile."""
    with errors_printed(as_json=as_json) as output:
        table = table_of(warehouse, name)
        before = table.snapshot().info
        with Console(stderr=True).status(f"merging the files of {name} …"):
            done = table.compact()
        after = before if done is None else done.info
        output.rows(
            [
                {"what": "files", "before": before.files, "after": after.files},
                {"what": "stored rows", "before": before.rows, "after": after.rows},
            ],
            title="nothing to merge" if done is None else f"snapshot {after.id}",
        )


@app.command(rich_help_panel=MAINTAIN)
def publish_log(
    name: Name,
    warehouse: Warehouse = HERE,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap", help="Continue after commits that expired unsent; readers of the log stop there."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Send the commits that a table's log in Kafka lacks, after one that could not be sent."""
    with errors_printed(as_json=as_json) as output:
        sent = table_of(warehouse, name).publish_log(accept_gap=accept_gap)
        output.rows([{"commits published": sent}])


@app.command(rich_help_panel=MAINTAIN)
def expire(
    name: Name,
    keep: Annotated[int, typer.Option(min=1, help="Newest states to keep.", show_default=False)],
    warehouse: Warehouse = HERE,
    as_json: Json = False,
) -> None:
    """Expire old states of a table, and delete the files that only they need."""
    with errors_printed(as_json=as_json) as output:
        gone = table_of(warehouse, name).expire(keep=keep)
        output.rows([{"snapshots that can no longer be read": gone}])


@app.command(rich_help_panel=MAINTAIN)
def clean(
    name: Name,
    older_than_hours: Annotated[
        float, typer.Option(min=0.0, help="Keep younger files; must be longer than the longest write.")
    ] = 24.0,
    warehouse: Warehouse = HERE,
    as_json: Json = False,
) -> None:
    """Delete files that no snapshot needs, left by processes that died."""
    with errors_printed(as_json=as_json) as output:
        gone = table_of(warehouse, name).clean(older_than_s=3600 * older_than_hours)
        output.rows([{"files deleted": gone}])


@app.command(rich_help_panel=MAINTAIN)
def check(
    name: Name,
    warehouse: Warehouse = HERE,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the data files too, not only the metadata.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every rule of a table on disk: it reports damage, with exit code 3, and repairs nothing."""
    with errors_printed(as_json=as_json) as output:
        found = table_of(warehouse, name).check(deep=deep)
        rows = [
            {"rule": one.rule, "subject": one.subject, "found": one.found, "harm": not one.is_information}
            for one in found
        ]
        output.rows(rows)
        if not all(one.is_information for one in found):
            raise typer.Exit(Exit.DAMAGED)
        output.say(f"{name}: every rule holds")
