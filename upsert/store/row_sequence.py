"""Rows with the commit that last wrote each of them, as far as the files tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from upsert.errors import SchemaError
from upsert.store.file_entry import FileEntry
from upsert.store.filters import Filter
from upsert.store.merge import SortedRows, merge_runs, present
from upsert.store.paths import BucketId
from upsert.store.row_metadata import SEQUENCE_NUMBER
from upsert.store.snapshot import Snapshot

SEQUENCE_COLUMN: Final = " sequence"
"""Holds the id of the commit. A space comes first in no name that SQL can give without effort."""


def rows_with_sequence(
    snapshot: Snapshot, place: BucketId, where: Filter, columns: tuple[str, ...]
) -> pa.Table:
    """Rows of one bucket of which a filter is true, and in ``SEQUENCE_COLUMN`` who last wrote each.

    A file that a commit has added holds rows of this commit alone. One that a compaction has written holds
    those of several, and nothing says which is whose.

    Raises:
        SchemaError: a file has been compacted.
    """
    files = snapshot.files.groups[place]
    needed = list(dict.fromkeys([*columns, *snapshot.layout.key, *where.columns]))
    runs = [_with_commit(snapshot, entry, needed) for run in reversed(files) for entry in run]
    rows = where.apply(present(snapshot.layout, merge_runs(snapshot.layout, runs)))
    return rows.select([*columns, SEQUENCE_COLUMN])


def check_not_compacted(snapshot: Snapshot, places: Iterable[BucketId]) -> None:
    """Refuse buckets in which a file holds rows of several commits.

    Raises:
        SchemaError: a file has been compacted.
    """
    for entry in (entry for place in places for run in snapshot.files.groups[place] for entry in run):
        if entry.level:
            raise SchemaError(
                f"metadata {SEQUENCE_NUMBER!r}: the commit that last wrote a row is known until its file is "
                f"compacted, which {entry.file!r} was; leave the column out, read the table's changes, or "
                "create it with 'write-only' = 'true'"
            )


def _with_commit(snapshot: Snapshot, entry: FileEntry, columns: list[str]) -> SortedRows:
    file = snapshot.open(entry)
    rows = pa.Table.from_batches([file.select(columns)])
    commit = pa.repeat(pa.scalar(entry.sequence, pa.int64()), rows.num_rows)
    return SortedRows(rows.append_column(SEQUENCE_COLUMN, commit), file.kinds)
