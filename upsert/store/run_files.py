"""A sorted run as files that follow each other by key, written while the rest of it is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from upsert.arrays import Kinds
from upsert.store.data_file_writing import write_data_file
from upsert.store.file_entry import FileEntry
from upsert.store.key_ranges import halves, weight
from upsert.store.layout import Layout
from upsert.store.merge import SortedRows
from upsert.store.paths import Partition
from upsert.store.row_keys import key_of_row, lower_bound, upper_bound
from upsert.store.table_options import TARGET_BYTES

Written = TypeVar("Written")
KeyBounds = tuple[bytes, bytes]
"""Bounds of keys, from below and from above, see ``row_keys.lower_bound``."""
WriteFile = Callable[[pa.Table, Kinds | None, KeyBounds], Written]
"""``write_data_file`` of sorted rows, their kinds and the bounds of their keys, now or at another time."""


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
    within: KeyBounds | None = None,
) -> list[FileEntry]:
    """Write a sorted run, given in pieces that ascend by key, as files of half to all of ``target_bytes``.

    A piece is asked for when the ones before it are written, or held back for their common file. Of a run
    below the target there is one file; nothing is written for no rows. Otherwise as ``write_data_file``.
    Where the run takes the place of files, ``within`` are their bounds: where these end, others may begin.
    """
    write_file = partial(
        write_data_file, root, layout, partition=partition, bucket=bucket, level=level, base=base
    )
    return list(written_files(write_file, layout.key, pieces, target_bytes, within))


def written_files(
    write_file: WriteFile[Written],
    key: Sequence[str],
    pieces: Iterable[SortedRows],
    target_bytes: int,
    within: KeyBounds | None = None,
) -> Iterator[Written]:
    """What ``write_file`` gives for each file of a run of rows with a key, see ``write_run``."""
    held: list[SortedRows] = []
    lowest, highest = within or (b"", None)
    below: bytes | None = None

    def write(following: SortedRows | None) -> Written:
        """Write the rows that are held; bounds are cut, but not so that they would meet those beside them."""
        nonlocal below
        first, last = key_of_row(held[0].rows, key, 0), key_of_row(held[-1].rows, key, -1)
        low = max(lowest, lower_bound(first))
        if below is not None and upper_bound(below) >= low:
            low = first
        high = upper_bound(last) if highest is None else min(highest, upper_bound(last))
        if following is not None and high >= lower_bound(key_of_row(following.rows, key, 0)):
            high = last
        below = last
        rows, kinds = _joined(held)
        held.clear()
        return write_file(rows, kinds, (low, high))

    for piece in pieces:
        for part in halves(piece, target_bytes):
            if held and sum(map(weight, held)) + weight(part) > target_bytes:
                yield write(part)
            held.append(part)
    if held:
        yield write(None)


def _joined(parts: Sequence[SortedRows]) -> SortedRows:
    rows = pa.concat_tables([part.rows for part in parts])
    if all(part.kinds is None for part in parts):
        return SortedRows(rows, None)
    kinds = [np.zeros(p.rows.num_rows, np.int8) if p.kinds is None else p.kinds for p in parts]
    return SortedRows(rows, np.concatenate(kinds))
