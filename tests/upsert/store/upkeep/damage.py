"""Damage to a table's files, as a disk, a person or a wrong program would do it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from upsert.store import Table, paths
from upsert.store.checksums import checksum_of, content_of, subject_of
from upsert.store.files.lookup_index import build_sidecar
from upsert.store.metadata.file_entry import FileEntry

Row = dict[str, Any]


def rewrite_json(table: Table, name: str, edit: Callable[[Row], Row]) -> None:
    """Other values in a JSON file of the table, with a checksum that fits them."""
    path = Path(table.path, name)
    value = json.loads(path.read_bytes())
    value.pop("checksum", None)
    path.write_bytes(content_of(edit(value), name if name == "table.json" else subject_of(table.uuid, name)))


def rewrite_snapshot(table: Table, at: int, **fields: Any) -> None:
    """Other values for some fields of a snapshot's file."""
    rewrite_json(table, paths.snapshot_file(at), lambda value: {**value, **fields})


def rewrite_last_delta(table: Table, edit: Callable[[list[Row]], list[Row]]) -> None:
    """Other entries for what the last commit did, and a snapshot whose totals agree with them."""
    info = table.snapshot().info
    assert info.delta is not None
    path = Path(table.path, info.delta.name)
    found = pa.ipc.open_file(path.read_bytes()).read_all()
    before = found.to_pylist()
    after = edit([dict(row) for row in before])
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, found.schema) as writer:
        writer.write_table(pa.Table.from_pylist(after, schema=found.schema))
    content = json.loads(Path(table.path, paths.snapshot_file(info.id)).read_bytes())
    for ref in (*content["manifests"], content["delta"]):
        if ref["name"] == info.delta.name:
            ref["entries"] = len(after)
            ref["checksum"] = checksum_of(path.read_bytes())
    rewrite_snapshot(
        table,
        info.id,
        manifests=content["manifests"],
        delta=content["delta"],
        files=info.files + sum(map(_sign, after)) - sum(map(_sign, before)),
        rows=info.rows + sum(map(_rows, after)) - sum(map(_rows, before)),
    )


def _sign(row: Row) -> int:
    return 1 if row["action"] == "add" else -1


def _rows(row: Row) -> int:
    return _sign(row) * int(row["rows"])


def newest_file(table: Table) -> FileEntry:
    """The file that the last commit added."""
    (*_, entry) = table.published.delta(table.snapshot().info).added
    return entry


def rewrite_data(table: Table, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Other rows in the newest data file, as many bytes as before, with lookup indexes that fit them."""
    entry = newest_file(table)
    checksums: dict[str, int] = {}
    path = os.path.join(table.path, entry.file)
    rows = pa.ipc.open_file(Path(path).read_bytes()).read_all()
    batch = pa.RecordBatch.from_arrays([each.combine_chunks() for each in edit(rows)], schema=rows.schema)
    for name, content in ((path, batch), (paths.index_file(path), build_sidecar(table.layout, batch))):
        with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
            writer.write_batch(content)
        checksums[name] = checksum_of(Path(name).read_bytes())
    assert os.stat(path).st_size == entry.bytes

    def with_checksums(rows: list[Row]) -> list[Row]:
        found = {"checksum": checksums[path], "index_checksum": checksums[paths.index_file(path)]}
        return [{**row, **found} if row["file"] == entry.file else row for row in rows]

    rewrite_last_delta(table, with_checksums)


def with_values(column: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    """An edit that gives a column other values."""

    def edit(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index(column)
        return rows.set_column(at, rows.field(at), pa.array(values, rows.field(at).type))

    return edit
