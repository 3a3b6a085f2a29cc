"""How many rows there are, exactly, without reading most of them.

After a compaction nearly all rows of a bucket are in one sorted run, and few keys in newer ones. So the rows
of each run are counted by its entries in the manifests, and only the keys of newer runs are looked up in it:
what they hide does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from upsert.store.files.data_file import DataFile
from upsert.store.metadata.file_entry import FileEntry, Run
from upsert.store.metadata.file_set import FileSet
from upsert.store.read.lookup import columns_to_compare, in_search_order, newest_by_key, prepare
from upsert.store.rows.layout import Layout

_MOST_KEYS: Final = 1_000_000
_LEAST_ROWS_OF_KEY: Final = 4
"""So many keys of a bucket, and one for so many rows, are looked up sooner than all keys are read."""

MOST_FETCHED: Final = 64 << 20
"""Of files in an object store, which are fetched whole; with more of them the tasks of Spark count."""

Open = Callable[[FileEntry], DataFile]


def searched(files: FileSet) -> list[FileEntry] | None:
    """The files that are opened to count rows; None where it takes as long to read the keys of all."""
    found = list[FileEntry]()
    for runs in files.groups.values():
        stored, keys = (sum(entry.rows for run in some for entry in run) for some in (runs, runs[:-1]))
        if keys > min(_MOST_KEYS, stored // _LEAST_ROWS_OF_KEY):
            return None
        if len(runs) > 1:
            found += (entry for run in runs for entry in run)
    return found


def counted(layout: Layout, files: FileSet, open_file: Open) -> int:
    """How many rows a table with a primary key has."""
    return sum(_of_bucket(layout, runs, open_file) for runs in files.groups.values())


def _of_bucket(layout: Layout, runs: Sequence[Run], open_file: Open) -> int:
    """Of a bucket's runs, newest first."""
    found = sum(entry.rows - entry.deletes for run in runs for entry in run)
    newer = layout.declared(layout.key).empty_table()
    for above, run in pairwise(runs):
        newer = pa.concat_tables([newer, *(_keys(layout, open_file(entry)) for entry in above)])
        found -= _hidden(layout, newer, [open_file(entry) for entry in run])
    return found


def _hidden(layout: Layout, newer: pa.Table, run: Sequence[DataFile]) -> int:
    """How many rows of a run have one of some keys."""
    index = layout.lookup_index("pk")
    asked = in_search_order(layout, index, prepare(layout, layout.key, newer).distinct(layout.key))
    needed = columns_to_compare(layout, index, 1, asked)
    kinds = ((one.probes, one.kinds) for one in newest_by_key(layout, [run], asked, needed))
    return sum(len(probes) if own is None else int(np.count_nonzero(own == 0)) for probes, own in kinds)


def _keys(layout: Layout, file: DataFile) -> pa.Table:
    return pa.Table.from_batches([file.select(layout.key)]).cast(layout.declared(layout.key))
