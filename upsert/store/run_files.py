"""A sorted run as files that follow each other by key, written while the rest of it is not known yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from upsert.store.data_file import write_data_file
from upsert.store.file_entry import FileEntry
from upsert.store.key_ranges import halves, weight
from upsert.store.layout import Layout
from upsert.store.merge import SortedRows
from upsert.store.paths import Partition
from upsert.store.table_options import TARGET_BYTES


def write_run(
    root: str | Path,
    layout: Layout,
    pieces: Iterable[SortedRows],
    *,
    partition: Partition,
    bucket: int,
    level: int,
    base: int,
    target_bytes: int = TARGET_BYTES,
) -> list[FileEntry]:
    """Write a sorted run, given in pieces that ascend by key, as files of half to all of ``target_bytes``.

    A piece is asked for when the ones before it are written, or held back for their common file. Of a run
    below the target there is one file; nothing is written for no rows. Otherwise as ``write_data_file``.
    """
    written: list[FileEntry] = []
    held: list[SortedRows] = []

    def write() -> None:
        rows, kinds = _joined(held)
        written.append(
            write_data_file(
                root, layout, rows, kinds, partition=partition, bucket=bucket, level=level, base=base
            )
        )
        held.clear()

    for piece in pieces:
        for part in halves(piece, target_bytes):
            if held and sum(map(weight, held)) + weight(part) > target_bytes:
                write()
            held.append(part)
    if held:
        write()
    return written


def _joined(parts: Sequence[SortedRows]) -> SortedRows:
    rows = pa.concat_tables([part.rows for part in parts])
    if all(part.kinds is None for part in parts):
        return SortedRows(rows, None)
    kinds = [np.zeros(p.rows.num_rows, np.int8) if p.kinds is None else p.kinds for p in parts]
    return SortedRows(rows, np.concatenate(kinds))
