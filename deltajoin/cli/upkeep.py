"""Looking after a table: `compact`, `publish-log`, `expire`, `clean` and `check`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from deltajoin.cli.command import HERE, Exit, Json, Name, Warehouse, errors_printed, table_of
from deltajoin.cli.output import Output

app = typer.Typer()


@app.command()
def compact(name: Name, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """Merge each bucket to one sorted run; readers and writers go on meanwhile."""
    with errors_printed(as_json=as_json):
        table = table_of(warehouse, name)
        output = Output(as_json=as_json)
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


@app.command()
def publish_log(
    name: Name,
    warehouse: Warehouse = HERE,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap", help="Go on behind commits that expired unsent; readers of the log stop there."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Send the commits that a table's log in Kafka lacks, after one that could not be sent."""
    with errors_printed(as_json=as_json):
        sent = table_of(warehouse, name).publish_log(accept_gap=accept_gap)
        Output(as_json=as_json).rows([{"commits published": sent}])


@app.command()
def expire(
    name: Name,
    keep: Annotated[int, typer.Option(min=1, help="Newest states to keep.", show_default=False)],
    warehouse: Warehouse = HERE,
    as_json: Json = False,
) -> None:
    """Give up old states of a table, and delete the files that only they need."""
    with errors_printed(as_json=as_json):
        gone = table_of(warehouse, name).expire(keep=keep)
        Output(as_json=as_json).rows([{"snapshots that can no longer be read": gone}])


@app.command()
def clean(
    name: Name,
    older_than_hours: Annotated[
        float, typer.Option(min=0.0, help="Spare younger files: longer than the longest write takes.")
    ] = 24.0,
    warehouse: Warehouse = HERE,
    as_json: Json = False,
) -> None:
    """Delete files that no snapshot needs, left by processes that died."""
    with errors_printed(as_json=as_json):
        gone = table_of(warehouse, name).clean(older_than_s=3600 * older_than_hours)
        Output(as_json=as_json).rows([{"files deleted": gone}])


@app.command()
def check(
    name: Name,
    warehouse: Warehouse = HERE,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the data files too, not only what is said of them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every rule of a table on disk: it reports damage, with exit code 3, and repairs nothing."""
    with errors_printed(as_json=as_json):
        found = table_of(warehouse, name).check(deep=deep)
        output = Output(as_json=as_json)
        output.rows(
            [
                {
                    "rule": one.rule,
                    "subject": one.subject,
                    "found": one.found,
                    "harm": not one.is_information,
                }
                for one in found
            ]
        )
        if not all(one.is_information for one in found):
            raise typer.Exit(Exit.DAMAGED)
        output.say(f"{name}: every rule holds")
