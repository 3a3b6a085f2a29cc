"""What a table was and is made of: `snapshots` and `files`."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from deltajoin.cli.command import HERE, Json, Name, SnapshotId, Warehouse, errors_printed, table_of
from deltajoin.cli.output import Output

app = typer.Typer()


@app.command()
def snapshots(name: Name, warehouse: Warehouse = HERE, as_json: Json = False) -> None:
    """List the states of a table that can be read, oldest first; records include deletions."""
    with errors_printed(as_json=as_json):
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
        Output(as_json=as_json).rows(found, title=f"snapshots of {name}", empty="no commits yet")


@app.command()
def files(
    name: Name, warehouse: Warehouse = HERE, snapshot: SnapshotId = None, as_json: Json = False
) -> None:
    """List the data files of a snapshot: newest first within a bucket."""
    with errors_printed(as_json=as_json):
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
        Output(as_json=as_json).rows(found, title=f"files of {name}", empty="no files")
