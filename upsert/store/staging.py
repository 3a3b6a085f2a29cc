"""What a writing task leaves behind for the committer: files that no snapshot names yet.

Tasks only write new files and hand back their names. Where a task has all changes of its buckets, it folds
them and writes finished data files. Where it has only some (any partitioning will do), it keeps the signed
rows as they are, bucket by bucket in one file, and the committer folds them across all tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow.compute as pc

from upsert.errors import ConfigurationError
from upsert.store import paths, raw_changes
from upsert.store.data_file import DataFile
from upsert.store.data_file_writing import write_data_file
from upsert.store.failpoints import reach
from upsert.store.file_entry import FileEntry
from upsert.store.fold import Order, fold, naming
from upsert.store.layout import COUNT_COLUMN, Layout
from upsert.store.merge import SortedRows
from upsert.store.parallel_writes import ParallelWrites
from upsert.store.paths import BucketId, Partition
from upsert.store.placement import split
from upsert.store.raw_changes import RawFile, Rows, pieces_of, places_of, write_raw
from upsert.store.rows import conform
from upsert.store.run_files import written_files
from upsert.store.storage import storage_of


@dataclass(frozen=True)
class StagedFiles:
    """What one task wrote: plain values that can be pickled and sent to the committer.

    ``retracting`` names the files of a table without primary key that lower a count, ``partitions`` those in
    which rows were written, also if nothing is left of them.
    """

    table: str
    files: tuple[FileEntry, ...] = ()
    raw: tuple[RawFile, ...] = ()
    retracting: frozenset[str] = frozenset()
    partitions: frozenset[Partition] = frozenset()

    @property
    def rows(self) -> int:
        """Number of rows written."""
        return sum(e.rows for e in self.files) + sum(p.rows for raw in self.raw for p in raw.parts)


def stage_folded(root: str, layout: Layout, uuid: str, base: int, rows: Rows, order: Order) -> StagedFiles:
    """Fold the rows of each bucket and write them as data files of level 0.

    What is too large to be folded in memory goes through a file of raw changes, gone afterwards. Where the
    commit must look at the table's rows (``MergeRules.needs_present_rows``), all does, and stays.

    Raises:
        SchemaError: the rows do not fit the table. Nothing was written.
        ChangelogError: they contradict each other. Files of other buckets may have been written; they
            belong to nothing, and cleaning removes them.
    """
    if layout.merge.needs_present_rows:
        return stage_raw(root, layout, uuid, base, rows, order)
    pieces = pieces_of(rows)
    first, second = next(pieces), next(pieces, None)
    if second is not None:
        staged = _staged_raw(
            uuid, write_raw(root, layout, base, chain([first, second], pieces), _owner(root))
        )
        try:
            return fold_raw(root, layout, uuid, base, staged.raw, order)
        finally:
            remove(root, staged)
    portions = list(split(layout, *conform(layout, first, _owner(root))))
    with naming(_owner(root)):
        folded = [(p, fold(layout, p.rows, p.weights, order)) for p in portions]
    return _write_all(root, layout, uuid, base, (((p.partition, p.bucket), [run]) for p, run in folded))


def stage_raw(
    root: str, layout: Layout, uuid: str, base: int, rows: Rows, order: Order = "none"
) -> StagedFiles:
    """Write the signed rows of each bucket as they are, in one file.

    Raises:
        SchemaError: the rows do not fit the table. Nothing was written.
    """
    staged = _staged_raw(uuid, write_raw(root, layout, base, pieces_of(rows), _owner(root), order))
    reach("stage.after-raw")
    return staged


def _staged_raw(uuid: str, raw: RawFile | None) -> StagedFiles:
    if raw is None:
        return StagedFiles(uuid)
    return StagedFiles(uuid, raw=(raw,), partitions=frozenset(part.partition for part in raw.parts))


def _owner(root: str) -> str:
    return f"table {paths.name_of(root)!r}"


def fold_raw(
    root: str, layout: Layout, uuid: str, base: int, raw: Iterable[RawFile], order: Order = "none"
) -> StagedFiles:
    """Fold the raw changes of all tasks, a range of a bucket's keys at a time.

    Raises:
        ChangelogError: rows without an order leave two different values for a key.
        CorruptTableError: a file of raw changes is missing or damaged.
    """
    runs = (
        (place, raw_changes.folded(root, layout, parts, order, _owner(root)))
        for place, parts in places_of(raw).items()
    )
    return _write_all(root, layout, uuid, base, runs)


def _write_all(
    root: str, layout: Layout, uuid: str, base: int, runs: Iterable[tuple[BucketId, Iterable[SortedRows]]]
) -> StagedFiles:
    partitions: set[Partition] = set()
    written: list[Future[FileEntry]] = []
    with ParallelWrites() as writes:
        for (partition, bucket), run in runs:
            partitions.add(partition)
            write_file = partial(
                write_data_file, root, layout, partition=partition, bucket=bucket, level=0, base=base
            )
            target = 2 * raw_changes.PIECE_BYTES
            written += written_files(partial(writes.write, write_file), layout.key, run, target)
    files = tuple(one.result() for one in written)
    retracting: set[str] = set()
    if layout.is_counted:
        retracting.update(entry.file for entry in files if _lowers_a_count(root, layout, entry))
    return StagedFiles(uuid, files, (), frozenset(retracting), frozenset(partitions))


def _lowers_a_count(root: str, layout: Layout, entry: FileEntry) -> bool:
    counts = DataFile.open(root, layout, entry).column(COUNT_COLUMN)
    return bool(pc.min(counts).as_py() < 0)


def join(uuid: str, staged: Iterable[StagedFiles]) -> StagedFiles:
    """What several tasks wrote, as one.

    Raises:
        ConfigurationError: a task wrote for another table, or two tasks wrote finished files for one bucket.
    """
    files: list[FileEntry] = []
    raw: list[RawFile] = []
    retracting: set[str] = set()
    partitions: set[Partition] = set()
    owner: dict[BucketId, int] = {}
    arrivals: dict[BucketId, int | None] = {}
    for number, one in enumerate(staged):
        if one.table != uuid:
            raise ConfigurationError(
                f"staged files must belong to the table they are committed to, {uuid!r}, got {one.table!r}; "
                "was the table dropped and created again?"
            )
        for entry in one.files:
            if owner.setdefault((entry.partition, entry.bucket), number) != number:
                raise _shared_bucket(entry.bucket)
        for place, parts in places_of(one.raw).items():
            in_order = number if parts[0].file.order == "rows" else None
            if arrivals.setdefault(place, in_order) != in_order:
                raise _shared_bucket(place[1])
        files += one.files
        raw += one.raw
        retracting |= one.retracting
        partitions |= one.partitions
    return StagedFiles(uuid, tuple(files), tuple(raw), frozenset(retracting), frozenset(partitions))


def _shared_bucket(bucket: int) -> ConfigurationError:
    return ConfigurationError(
        f"one task must stage all rows of a bucket, got two tasks for bucket {bucket}; use stage_raw where "
        "rows are partitioned otherwise"
    )


def remove(root: str, staged: StagedFiles) -> None:
    """Delete the files of ``staged``; whatever is gone already is no error."""
    for raw in staged.raw:
        storage_of(root).delete(paths.staging_path(root, raw.file))
    for entry in staged.files:
        remove_data_file(root, entry.file)


def remove_data_file(root: str, name: str) -> None:
    """Delete a data file and its sidecar.

    Raises:
        CorruptTableError: the name is no data file's. Nothing was deleted.
    """
    path = paths.data_path(root, name)
    for file in (path, paths.index_file(path)):
        storage_of(root).delete(file)
