"""What a writing task leaves behind for the committer: files that no snapshot names yet.

Tasks only write new files and hand back their names. Where a task has all changes of its buckets, it folds
them and writes finished data files. Where it has only some (any partitioning will do), it keeps the signed
rows as they are, bucket by bucket in one file, and the committer folds them across all tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store import paths
from upsert.store.data_file import FileEntry, write_run
from upsert.store.failpoints import reach
from upsert.store.fold import Order, fold
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows
from upsert.store.paths import Partition
from upsert.store.placement import Portion, split
from upsert.store.rows import Signs, conform

_SIGN_COLUMN: Final = "_sign"

Place = tuple[Partition, int]


@dataclass(frozen=True)
class RawPart:
    """The rows of one bucket within a file of raw changes: which of its record batches."""

    partition: Partition
    bucket: int
    first: int
    batches: int
    rows: int


@dataclass(frozen=True)
class RawFile:
    """A file of raw changes: signed rows as they came, bucket by bucket."""

    file: str
    base: int
    parts: tuple[RawPart, ...]


@dataclass(frozen=True)
class StagedFiles:
    """What one task wrote: plain values that can be pickled and sent to the committer.

    ``retracting`` names the files of a table without primary key that lower a count.
    """

    table: str
    files: tuple[FileEntry, ...] = ()
    raw: tuple[RawFile, ...] = ()
    retracting: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        """Number of rows written."""
        return sum(e.rows for e in self.files) + sum(p.rows for raw in self.raw for p in raw.parts)


def stage_folded(
    root: str, layout: Layout, uuid: str, base: int, rows: pa.Table, order: Order
) -> StagedFiles:
    """Fold the rows of each bucket and write them as data files of level 0.

    Raises:
        SchemaError: the rows do not fit the table. Nothing was written.
        ChangelogError: they contradict each other. Files of other buckets may have been written; they
            belong to nothing, and cleaning removes them.
    """
    conforming, weights = conform(layout, rows, f"table {os.path.basename(root)!r}")
    folded = [(p, fold(layout, p.rows, p.weights, order)) for p in split(layout, conforming, weights)]
    return _write_all(root, layout, uuid, base, [((p.partition, p.bucket), run) for p, run in folded])


def stage_raw(root: str, layout: Layout, uuid: str, base: int, rows: pa.Table) -> StagedFiles:
    """Write the signed rows of each bucket as they are, in one file.

    Raises:
        SchemaError: the rows do not fit the table. Nothing was written.
    """
    conforming, weights = conform(layout, rows, f"table {os.path.basename(root)!r}")
    portions = list(split(layout, conforming, weights))
    if not portions:
        return StagedFiles(uuid)
    name = paths.staging_file(base, uuid4().hex)
    path = paths.resolve(root, name)
    paths.make_parent(path)
    parts = _write_raw(path, portions)
    reach("stage.after-raw")
    return StagedFiles(uuid, raw=(RawFile(name, base, tuple(parts)),))


def _write_raw(path: str, portions: Sequence[Portion]) -> list[RawPart]:
    """One or more record batches for each portion. Not synced: power failure ends the task too."""
    tables = [_with_signs(portion.rows, portion.weights) for portion in portions]
    parts: list[RawPart] = []
    written = 0
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, tables[0].schema) as writer:
        for portion, table in zip(portions, tables, strict=True):
            batches = table.to_batches()
            for batch in batches:
                writer.write_batch(batch)
            parts.append(RawPart(portion.partition, portion.bucket, written, len(batches), table.num_rows))
            written += len(batches)
    return parts


def _with_signs(rows: pa.Table, weights: Signs | None) -> pa.Table:
    signs = np.ones(rows.num_rows, np.int8) if weights is None else weights
    return rows.append_column(_SIGN_COLUMN, pa.array(signs, pa.int8()))


def fold_raw(root: str, layout: Layout, uuid: str, base: int, raw: Iterable[RawFile]) -> StagedFiles:
    """Fold the raw changes of all tasks, one bucket at a time, by the rules of rows without an order.

    Raises:
        ChangelogError: two different values are left for a key.
        CorruptTableError: a file of raw changes is missing or damaged.
    """
    places: dict[Place, list[tuple[str, RawPart]]] = {}
    for file in raw:
        for part in file.parts:
            places.setdefault((part.partition, part.bucket), []).append((file.file, part))
    staged = [
        _write_all(root, layout, uuid, base, [(place, _fold_parts(root, layout, parts))])
        for place, parts in places.items()
    ]
    return join(uuid, staged)


def _fold_parts(root: str, layout: Layout, parts: Sequence[tuple[str, RawPart]]) -> SortedRows:
    rows = pa.concat_tables([_read_part(root, file, part) for file, part in parts])
    weights = rows.column(_SIGN_COLUMN).to_numpy()
    return fold(layout, rows.drop_columns([_SIGN_COLUMN]), weights, "none")


def _read_part(root: str, file: str, part: RawPart) -> pa.Table:
    path = paths.resolve(root, file)
    try:
        reader = pa.ipc.open_file(pa.memory_map(path))
        batches = [reader.get_batch(part.first + number) for number in range(part.batches)]
    except (pa.ArrowException, OSError) as cause:
        raise CorruptTableError(
            f"file of raw changes {path!r} must be there until it is committed, got {cause}; write the rows "
            "again"
        ) from cause
    return pa.Table.from_batches(batches, reader.schema)


def _write_all(
    root: str, layout: Layout, uuid: str, base: int, runs: Iterable[tuple[Place, SortedRows]]
) -> StagedFiles:
    files: list[FileEntry] = []
    retracting: set[str] = set()
    for (partition, bucket), run in runs:
        written = write_run(
            root, layout, run.rows, run.kinds, partition=partition, bucket=bucket, level=0, base=base
        )
        files += written
        if layout.is_counted and run.rows.num_rows and pc.min(run.rows.column(COUNT_COLUMN)).as_py() < 0:
            retracting.update(entry.file for entry in written)
    return StagedFiles(uuid, tuple(files), (), frozenset(retracting))


def join(uuid: str, staged: Iterable[StagedFiles]) -> StagedFiles:
    """What several tasks wrote, as one.

    Raises:
        ConfigurationError: a task wrote for another table, or two tasks wrote finished files for one bucket.
    """
    files: list[FileEntry] = []
    raw: list[RawFile] = []
    retracting: set[str] = set()
    owner: dict[Place, int] = {}
    for number, one in enumerate(staged):
        if one.table != uuid:
            raise ConfigurationError(
                f"staged files must belong to the table they are committed to, {uuid!r}, got {one.table!r}; "
                "was the table dropped and created again?"
            )
        for entry in one.files:
            if owner.setdefault((entry.partition, entry.bucket), number) != number:
                raise ConfigurationError(
                    f"one task must stage all rows of a bucket, got two tasks for bucket {entry.bucket}; use "
                    "stage_raw where rows are partitioned otherwise"
                )
        files += one.files
        raw += one.raw
        retracting |= one.retracting
    return StagedFiles(uuid, tuple(files), tuple(raw), frozenset(retracting))


def remove(root: str, staged: StagedFiles) -> None:
    """Delete the files of ``staged``; whatever is gone already is no error."""
    for raw in staged.raw:
        Path(paths.resolve(root, raw.file)).unlink(missing_ok=True)
    for entry in staged.files:
        remove_data_file(root, entry.file)


def remove_data_file(root: str, name: str) -> None:
    """Delete a data file and its sidecar."""
    Path(paths.resolve(root, name)).unlink(missing_ok=True)
    Path(paths.resolve(root, paths.index_file(name))).unlink(missing_ok=True)
