"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from upsert import Catalog, Table

Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse",
        "-w",
        envvar="DELTAJOIN_WAREHOUSE",
        help="Folder of the catalog's tables, s3://bucket/folder or hdfs://host/folder.",
        show_default=True,
    ),
]
"""``-w``; ``$DELTAJOIN_WAREHOUSE`` where it is not given."""
HERE = "warehouse"

Name = Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table.", show_default=False)]

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")]

SnapshotId = Annotated[
    int | None, typer.Option("--snapshot", min=0, help="A snapshot's id.", show_default="the latest")
]


def table_of(warehouse: str, name: str) -> Table:
    """The managed table, or the mirror, of a name in a warehouse.

    Raises:
        TableNotFoundError: there is none.
        ConfigurationError: the name is none, or the table lies elsewhere and has no mirror.
    """
    return Catalog(warehouse).table(name)
